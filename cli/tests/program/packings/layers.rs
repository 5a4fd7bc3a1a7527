//! Layers of random codes, as each format keeps them, and the weights that the codes mean.

use half::{bf16, f16};

/// Splitmix64.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    /// From -1 to 1, of few bits: exact in every float.
    pub(super) fn unit(&mut self) -> f32 {
        self.below(255) as f32 / 127.0 - 1.0
    }
}

#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

impl Tensor {
    pub(super) fn of<const N: usize>(
        dtype: &'static str,
        shape: &[usize],
        bytes: impl Iterator<Item = [u8; N]>,
    ) -> Self {
        Self { dtype, shape: shape.to_vec(), bytes: bytes.flatten().collect() }
    }

    pub(super) fn f32(shape: &[usize], values: &[f32]) -> Self {
        Self::of("F32", shape, values.iter().map(|x| x.to_le_bytes()))
    }

    pub(super) fn bf16(shape: &[usize], values: &[f32]) -> Self {
        Self::of("BF16", shape, values.iter().map(|x| bf16::from_f32(*x).to_le_bytes()))
    }

    fn f16(shape: &[usize], values: &[f32]) -> Self {
        Self::of("F16", shape, values.iter().map(|x| f16::from_f32(*x).to_le_bytes()))
    }

    pub(super) fn words(shape: &[usize], words: &[u32]) -> Self {
        Self::of("I32", shape, words.iter().map(|x| x.to_le_bytes()))
    }
}

/// Codes `[out, in]` with what stands for each block, as rows of the blocks.
struct Layer {
    shape: [usize; 2],
    block: [usize; 2],
    codes: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<u8>,
}

impl Layer {
    fn new(rng: &mut Rng, shape: [usize; 2], block: [usize; 2], codes: usize) -> Self {
        let [rows, columns] = [0, 1].map(|axis| shape[axis].div_ceil(block[axis]));
        // Powers of two times few bits: exact in f16 and bf16.
        let scale =
            |rng: &mut Rng| (8 + rng.below(8)) as f32 * 2f32.powi(-(10 + rng.below(3) as i32));
        Self {
            shape,
            block,
            codes: (0..shape[0] * shape[1]).map(|_| rng.below(codes) as u8).collect(),
            scales: (0..rows * columns).map(|_| scale(rng)).collect(),
            zeros: (0..rows * columns).map(|_| 1 + rng.below(14) as u8).collect(),
        }
    }

    fn blocks(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.shape[axis].div_ceil(self.block[axis]))
    }

    /// The weights, by what a code and the zero of its block mean.
    fn weights(&self, value: impl Fn(u8, u8) -> f32) -> Vec<f32> {
        let [_, across] = self.blocks();
        let at = |i: usize| {
            let (row, column) = (i / self.shape[1], i % self.shape[1]);
            row / self.block[0] * across + column / self.block[1]
        };
        let each = self.codes.iter().enumerate();
        each.map(|(i, &code)| value(code, self.zeros[at(i)]) * self.scales[at(i)]).collect()
    }
}

fn transposed<T: Copy>([rows, columns]: [usize; 2], of: &[T]) -> Vec<T> {
    (0..columns).flat_map(|j| (0..rows).map(move |i| of[i * columns + j])).collect()
}

/// Rows of integers in words of eight: bits `4 * i` hold the one that stands at `i` of `order`.
fn packed([_, columns]: [usize; 2], of: &[u8], order: [usize; 8]) -> Vec<u32> {
    let rows = of.chunks_exact(columns);
    rows.flat_map(|row| {
        row.chunks(8).map(|eight| {
            let each = order.iter().enumerate();
            each.map(|(i, &at)| u32::from(eight.get(at).copied().unwrap_or(0)) << (4 * i)).sum()
        })
    })
    .collect()
}

const PLAIN: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// What the bits of an e4m3 code mean: OCP's table, by exponent and mantissa.
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match exponent {
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code < 0x80 { size } else { -size }
}

/// A layer's tensors and its weights.
pub(super) type Made = (Vec<(&'static str, Tensor)>, Vec<f32>);

fn float8(rng: &mut Rng, shape: [usize; 2], block: [usize; 2]) -> (Layer, Tensor, Vec<f32>) {
    let mut layer = Layer::new(rng, shape, block, 0x7f);
    layer.codes.iter_mut().for_each(|code| *code |= 0x80 * rng.below(2) as u8);
    layer.scales.iter_mut().for_each(|scale| *scale /= 64.0);
    let codes = layer.codes.iter().map(|code| [*code]);
    let weight = Tensor::of("F8_E4M3", &shape, codes);
    let weights = layer.weights(|code, _| e4m3(code));
    (layer, weight, weights)
}

pub(super) fn fp8_block(rng: &mut Rng, shape: [usize; 2]) -> Made {
    let (layer, weight, weights) = float8(rng, shape, [32, 48]);
    let scales = Tensor::bf16(&layer.blocks(), &layer.scales);
    (vec![("weight", weight), ("weight_scale_inv", scales)], weights)
}

pub(super) fn fp8_block_ct(rng: &mut Rng, shape: [usize; 2]) -> Made {
    let (mut tensors, weights) = fp8_block(rng, shape);
    tensors[1].0 = "weight_scale";
    (tensors, weights)
}

pub(super) fn fp8_tensor(rng: &mut Rng, shape: [usize; 2]) -> Made {
    let (layer, weight, weights) = float8(rng, shape, shape);
    // Files keep one scale with and without an axis.
    let of_scale: &[usize] = if rng.below(2) == 0 { &[] } else { &[1] };
    let scale = Tensor::f32(of_scale, &layer.scales);
    let input = Tensor::f32(&[], &[0.25]);
    (vec![("weight", weight), ("weight_scale", scale), ("input_scale", input)], weights)
}

pub(super) fn fp8_rows(rng: &mut Rng, shape: [usize; 2]) -> Made {
    let (layer, weight, weights) = float8(rng, shape, [1, shape[1]]);
    let scales = Tensor::bf16(&[shape[0], 1], &layer.scales);
    (vec![("weight", weight), ("weight_scale", scales)], weights)
}

pub(super) fn ct_packed(rng: &mut Rng, shape: [usize; 2], group: usize, symmetric: bool) -> Made {
    let layer = Layer::new(rng, shape, [1, group], 16);
    let groups = layer.blocks();
    let weights =
        layer.weights(|code, zero| f32::from(code) - if symmetric { 8.0 } else { f32::from(zero) });
    let words = packed(shape, &layer.codes, PLAIN);
    let mut tensors = vec![
        ("weight_packed", Tensor::words(&[shape[0], shape[1].div_ceil(8)], &words)),
        ("weight_scale", Tensor::bf16(&groups, &layer.scales)),
        ("weight_shape", Tensor::of("I64", &[2], shape.iter().map(|n| (*n as i64).to_le_bytes()))),
    ];
    if !symmetric {
        // Along the output: whole words of a column of groups, then turned.
        let columns = transposed(groups, &layer.zeros);
        let words = packed([groups[1], groups[0]], &columns, PLAIN);
        let turned = transposed([groups[1], groups[0].div_ceil(8)], &words);
        tensors.push((
            "weight_zero_point",
            Tensor::words(&[groups[0].div_ceil(8), groups[1]], &turned),
        ));
    }
    (tensors, weights)
}

/// Zero points and scales of AWQ and GPTQ, transposed.
fn turned(layer: &Layer, zeros: &[u8], order: [usize; 8]) -> [(&'static str, Tensor); 2] {
    let [out, groups] = layer.blocks();
    let words = packed([groups, out], &transposed([out, groups], zeros), order);
    let scales = transposed([out, groups], &layer.scales);
    [
        ("qzeros", Tensor::words(&[groups, out / 8], &words)),
        ("scales", Tensor::f16(&[groups, out], &scales)),
    ]
}

pub(super) fn awq(rng: &mut Rng, shape: [usize; 2], group: usize) -> Made {
    let layer = Layer::new(rng, shape, [1, group], 16);
    let [out, inner] = shape;
    let words = packed([inner, out], &transposed(shape, &layer.codes), AWQ);
    let mut tensors = vec![("qweight", Tensor::words(&[inner, out / 8], &words))];
    tensors.extend(turned(&layer, &layer.zeros, AWQ));
    (tensors, layer.weights(|code, zero| f32::from(code) - f32::from(zero)))
}

/// `less` is what the stored zero points are less than the true ones; `None` where they are not read.
pub(super) fn gptq(rng: &mut Rng, shape: [usize; 2], group: usize, less: Option<u8>) -> Made {
    let layer = Layer::new(rng, shape, [1, group], 16);
    let [out, inner] = shape;
    let words = transposed([out, inner / 8], &packed(shape, &layer.codes, PLAIN));
    let stored: Vec<u8> = layer.zeros.iter().map(|zero| zero - less.unwrap_or(0)).collect();
    let order: Vec<u32> = (0..inner).map(|column| (column / group) as u32).collect();
    let mut tensors = vec![
        ("qweight", Tensor::words(&[inner / 8, out], &words)),
        ("g_idx", Tensor::words(&[inner], &order)),
    ];
    tensors.extend(turned(&layer, &stored, PLAIN));
    let zero = |zero: u8| if less.is_some() { f32::from(zero) } else { 8.0 };
    (tensors, layer.weights(|code, of| f32::from(code) - zero(of)))
}
