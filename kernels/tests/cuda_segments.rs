//! Attention and means within segments: kernels on the host against the f64 reference, with NaN in
//! every row that no segment has, and their sources through NVRTC.

use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use crate::nvrtc::Nvrtc;
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32, I32};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::eval::Array;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::{OpKernels, PRELUDE};
use piecewise_kernels::lower::LowerError;
use piecewise_kernels::op::cuda::{CudaOpCall, CudaTarget};
use piecewise_kernels::segments::{
    SegmentAttention, SegmentMean, segment_attention_kernels, segment_mean_kernels,
};

/// Rows of q and of k and v past those of the segments, and segments past the count.
const PADDING: usize = 3;
const QUERIES: [i32; 6] = [1, 17, 0, 40, 5, 70];
const KEYS: [i32; 6] = [1, 17, 4, 65, 0, 70];
/// Segments of more keys than a block of any kernel has, and of fewer keys than queries.
const LONG_QUERIES: [i32; 6] = [70, 0, 9, 300, 1, 33];
const LONG_KEYS: [i32; 6] = [400, 4, 2, 300, 129, 0];

#[derive(Clone, Copy)]
struct Shape {
    dtypes: [DType; 2],
    heads: [usize; 2],
    dims: [usize; 2],
    causal: bool,
    window: Option<u32>,
    capability: (u32, u32),
    /// How many queries and keys each segment has.
    lengths: [&'static [i32]; 2],
}

impl Shape {
    fn operands(&self) -> Vec<TensorType> {
        let [t, k, s] = [0, 1, 2].map(|i| Dim::from(Symbol::new(i)));
        let n = |x: usize| Dim::constant(x as u64);
        let [q, kv] = self.dtypes;
        let [heads, kv_heads] = self.heads.map(n);
        let [dim, value_dim] = self.dims.map(n);
        let mut operands = vec![
            TensorType::new(q, [t, heads, dim.clone()]),
            TensorType::new(kv, [k.clone(), kv_heads.clone(), dim]),
            TensorType::new(kv, [k, kv_heads, value_dim]),
        ];
        operands.extend([(); 4].map(|()| TensorType::new(I32, [s.clone()])));
        operands
    }

    fn attrs(&self) -> Attrs {
        SegmentAttention::attrs(0.2, self.causal, self.window)
    }

    fn kernels(&self, sizes: &[u64]) -> OpKernels {
        self.lowered(sizes).unwrap()
    }

    fn lowered(&self, sizes: &[u64]) -> Result<OpKernels, LowerError> {
        segment_attention_kernels(&CudaOpCall {
            operands: &self.operands(),
            roles: &[],
            results: &[],
            attrs: &self.attrs(),
            target: CudaTarget { capability: self.capability },
            sizes,
            query_length: None,
        })
    }

    fn check(&self, name: &str) {
        if available() {
            self.computed_by(name, |sizes| self.kernels(sizes));
        }
    }

    /// The result of these kernels, once it is close to the reference.
    fn computed_by(&self, name: &str, kernels: impl Fn(&[u64]) -> OpKernels) -> Vec<u8> {
        self.computed(name, [0, 0], kernels)
    }

    /// The same of the rows of queries and of keys after so many of those that there are.
    fn computed(
        &self,
        name: &str,
        [skipped_queries, skipped_keys]: [usize; 2],
        kernels: impl Fn(&[u64]) -> OpKernels,
    ) -> Vec<u8> {
        let [qt, kt] = self.dtypes;
        let ([h, kh], [d0, d1]) = (self.heads, self.dims);
        let [queries, keys] = self.lengths;
        let starts = |lengths: &[i32]| -> Vec<i32> {
            (0..lengths.len()).map(|i| lengths[..i].iter().sum()).collect()
        };
        let [t, kn] = [queries, keys].map(|x| x.iter().sum::<i32>() as usize);
        let (rows, key_rows) = (t + PADDING, kn + PADDING);
        let padded = |dtype: DType, seed: u64, skipped: usize, rows: usize, width: usize| {
            let mut bytes = fill(dtype, (skipped + rows + PADDING) * width, &mut Rng(seed));
            bytes.drain(..skipped * width * dtype.size());
            bytes[rows * width * dtype.size()..].fill(0xff);
            bytes
        };
        let q = padded(qt, 5, skipped_queries, t, h * d0);
        let [k, v] = [(6, d0), (7, d1)].map(|(seed, d)| padded(kt, seed, skipped_keys, kn, kh * d));
        let array = |dtype, shape: Vec<usize>, data: Vec<f64>| Array { dtype, shape, data };
        let ints = |x: &[i32]| array(I32, vec![x.len()], x.iter().map(|&v| v.into()).collect());
        let of = |dtype, bytes: &[u8], rows: usize, heads: usize, dim: usize| {
            array(
                dtype,
                vec![rows, heads, dim],
                floats(dtype, bytes)[..rows * heads * dim].to_vec(),
            )
        };
        let metadata = [starts(queries), queries.to_vec(), starts(keys), keys.to_vec()];
        let mut given = vec![of(qt, &q, t, h, d0), of(kt, &k, kn, kh, d0), of(kt, &v, kn, kh, d1)];
        given.extend(metadata.iter().map(|x| ints(x)));
        let expected = SegmentAttention.evaluate(&given, &self.attrs(), &[]).unwrap();
        let sizes = vec![rows as u64, key_rows as u64, (queries.len() + PADDING) as u64];
        let bytes = |x: &Vec<i32>| {
            let past: Vec<i32> = x.iter().copied().chain([7; PADDING]).collect();
            bytemuck::cast_slice::<i32, u8>(&past).to_vec()
        };
        let mut args = vec![q, k, v];
        args.extend(metadata.iter().map(bytes));
        args.push(vec![0x5a; rows * h * d1 * qt.size()]);
        let counts = vec![t as i32, kn as i32, queries.len() as i32];
        let launches = kernels(&sizes).launches;
        launches.iter().for_each(|launch| launch.check(8, 0).unwrap());
        let mut got =
            emulate(name, &Case { launches, args, sizes, counts, scratch: 256 }).remove(7);
        let padding = got.split_off(t * h * d1 * qt.size());
        assert!(padding.iter().all(|x| *x == 0x5a), "{name}: padding rows are written");
        for (i, (a, b)) in floats(qt, &got).iter().zip(&expected[0].data).enumerate() {
            let at = (i / (h * d1), i / d1 % h, i % d1);
            assert!((a - b).abs() < 1e-2, "{name} at {at:?}: {a}, not {b}");
        }
        got
    }
}

fn shape(dtype: DType, heads: [usize; 2], dim: usize, window: Option<u32>) -> Shape {
    let lengths = [&QUERIES[..], &KEYS[..]];
    let dtypes = [dtype; 2];
    Shape { dtypes, heads, dims: [dim; 2], causal: false, window, capability: (8, 0), lengths }
}

fn long(shape: Shape) -> Shape {
    Shape { lengths: [&LONG_QUERIES, &LONG_KEYS], ..shape }
}

#[test]
fn segments_on_tensor_cores_see_their_own_keys_alone() {
    shape(BF16, [2, 2], 64, None).check("segments_64");
    shape(F16, [2, 2], 72, Some(9)).check("segments_72_window");
    Shape { causal: true, ..shape(BF16, [4, 2], 80, None) }.check("segments_80_causal");
    Shape { causal: true, ..shape(F16, [3, 1], 32, Some(0)) }.check("segments_32_own");
}

/// Many rows are lowered to blocks of eight warps, few to blocks of four.
#[test]
fn blocks_of_eight_warps_and_of_four_give_the_same_bits() {
    if !available() {
        return;
    }
    let shapes = [
        ("72", shape(BF16, [2, 2], 72, None)),
        ("128_grouped", Shape { causal: true, ..shape(F16, [4, 2], 128, Some(20)) }),
    ];
    for (name, shape) in shapes {
        let many = |_: &[u64]| shape.kernels(&[33_792, 33_792, 9]);
        assert_eq!(many(&[]).launches[0].block, [256, 1, 1]);
        assert_eq!(shape.kernels(&[136, 136, 9]).launches[0].block, [128, 1, 1]);
        let eight = shape.computed_by(&format!("segments_{name}_eight"), many);
        let four = shape.computed_by(&format!("segments_{name}_four"), |s| shape.kernels(s));
        assert_eq!(eight, four, "{name}");
    }
}

/// The launch in blocks of so many warpgroups that multiply, by a size that has enough of those.
fn by_warpgroups(shape: Shape, computing: u32) -> impl Fn(&[u64]) -> OpKernels {
    move |_| {
        let rows = [64, 40_000, 120_000][computing as usize - 1] / shape.heads[0] as u64;
        let kernels = Shape { capability: (9, 0), ..shape }.kernels(&[rows, rows, 9]);
        assert!(kernels.launches[0].source.contains("wgmma"));
        assert_eq!(kernels.launches[0].block, [128 + 128 * computing, 1, 1]);
        kernels
    }
}

/// Blocks of any height: the bits of a row are the same.
fn every_height(name: &str, shape: Shape) {
    if !available() {
        return;
    }
    let most = if shape.dims[1] <= 72 { 3 } else { 2 };
    let of = |n| shape.computed_by(&format!("warpgroups_{name}_{n}"), by_warpgroups(shape, n));
    let one = of(1);
    assert!((2..=most).all(|n| of(n) == one), "{name}");
}

#[test]
fn segments_by_warpgroups_see_their_own_keys_alone() {
    every_height("64", shape(BF16, [2, 2], 64, None));
    every_height("128_grouped", Shape { causal: true, ..shape(F16, [4, 2], 128, None) });
    every_height("72", shape(BF16, [2, 2], 72, None));
    every_height("80_grouped", Shape { causal: true, ..shape(F16, [4, 2], 80, None) });
}

#[test]
fn long_segments_by_warpgroups() {
    every_height("64_causal", long(Shape { causal: true, ..shape(BF16, [3, 1], 64, None) }));
    every_height("128_window", long(shape(F16, [2, 2], 128, Some(20))));
    every_height("72_window", long(shape(F16, [2, 1], 72, Some(20))));
    every_height("104_causal", long(Shape { causal: true, ..shape(BF16, [2, 1], 104, None) }));
    let dims = [120, 96];
    every_height("120_96", long(Shape { dims, ..shape(F16, [2, 2], 120, None) }));
}

#[test]
fn windows_by_warpgroups_begin_at_any_block_of_keys() {
    let own = Shape { causal: true, ..shape(F16, [2, 1], 64, Some(0)) };
    every_height("64_own", long(own));
    let dims = [128, 64];
    every_height("128_64_window", long(Shape { dims, ..shape(BF16, [2, 2], 64, Some(70)) }));
    let dims = [64, 72];
    every_height("64_72_window", long(Shape { dims, ..shape(BF16, [1, 1], 64, Some(70)) }));
}

/// Alone in a step, or with others before and after it: the same bits, whatever its place.
#[test]
fn a_segment_has_the_same_bits_alone_and_in_company() {
    if !available() {
        return;
    }
    const ALONE: [&[i32]; 2] = [&[70], &[150]];
    const TOGETHER: [&[i32]; 2] = [&[3, 70, 40], &[29, 150, 40]];
    for (name, shape) in [
        ("64", shape(BF16, [2, 2], 64, Some(60))),
        ("72", shape(BF16, [2, 2], 72, Some(60))),
        ("128", Shape { causal: true, ..shape(F16, [2, 1], 128, None) }),
    ] {
        for capability in [(8, 0), (9, 0)] {
            let of = |lengths: [&'static [i32]; 2], skipped| {
                let shape = Shape { capability, lengths, ..shape };
                let name = format!("segments_{name}_{}_{}", capability.0, lengths[0].len());
                shape.computed(&name, skipped, |sizes| shape.kernels(sizes))
            };
            let row = shape.heads[0] * shape.dims[1] * 2;
            let together = of(TOGETHER, [0, 0]);
            assert!(of(ALONE, [3, 29]) == together[3 * row..73 * row], "{name}, {capability:?}");
        }
    }
}

#[test]
fn warpgroups_take_segments_where_a_device_and_widths_allow() {
    let takes = |capability, dims| {
        let shape = Shape { capability, dims, ..shape(BF16, [4, 2], 64, None) };
        shape.kernels(&[4096, 4096, 8]).launches[0].source.contains("wgmma")
    };
    let taken = [[64, 64], [128, 128], [64, 128], [72, 72], [80, 80], [120, 88]];
    assert!(taken.iter().all(|&dims| takes((9, 0), dims)));
    for (capability, dims) in
        [((9, 0), [56, 56]), ((9, 0), [128, 136]), ((10, 0), [64, 64]), ((10, 0), [72, 72])]
    {
        assert!(!takes(capability, dims), "{capability:?} {dims:?}");
    }
    // Two blocks of one warpgroup share a multiprocessor where its memory holds them.
    for (dim, rows, grid) in [(64, 64, 264), (128, 64, 132), (64, 60_000, 132), (80, 60_000, 132)] {
        let shape = Shape { capability: (9, 0), ..shape(BF16, [2, 2], dim, None) };
        let launch = &shape.kernels(&[rows, rows, 8]).launches[0];
        assert_eq!(launch.grid_at(&[rows, rows, 8], 132), Ok([grid, 1, 1]));
        assert!(launch.dynamic_shared + launch.static_shared <= 227 << 10);
    }
    // As many warpgroups as a block has: an image of SigLIP and 16 of them, texts of BERT, and as many
    // rows as two rounds of blocks of one warpgroup begin at.
    for (dim, heads, rows, computing) in [
        (72, 16, 729, 2),
        (72, 16, 16 * 729, 3),
        (72, 2, 66 * 64, 1),
        (80, 16, 4096, 2),
        (64, 12, 16 * 70, 1),
        (64, 12, 8192, 3),
        (128, 2, 66 * 64 + 1, 2),
    ] {
        let shape = Shape { capability: (9, 0), ..shape(BF16, [heads, heads], dim, None) };
        let launch = &shape.kernels(&[rows, rows, 8]).launches[0];
        assert_eq!(launch.block, [128 + 128 * computing, 1, 1], "{heads} heads of {dim}, {rows}");
    }
}

#[test]
fn wide_heads_of_segments_lie_in_shared_memory() {
    let wide = Shape { dims: [256, 136], ..shape(BF16, [2, 1], 256, Some(40)) };
    wide.check("segments_256");
}

#[test]
fn segments_of_other_types_and_widths_do_without_tensor_cores() {
    shape(F32, [4, 1], 20, Some(3)).check("segments_f32");
    Shape { dtypes: [F32, BF16], causal: true, ..shape(F32, [2, 2], 33, None) }
        .check("segments_mixed");
}

#[test]
fn means_of_segments_equal_the_reference() {
    if !available() {
        return;
    }
    let (t, width) = (QUERIES.iter().sum::<i32>() as usize, 150);
    for dtype in [F32, BF16] {
        let types = [
            TensorType::new(dtype, [Dim::from(Symbol::new(0)), Dim::constant(width as u64)]),
            TensorType::new(I32, [Dim::from(Symbol::new(1))]),
            TensorType::new(I32, [Dim::from(Symbol::new(1))]),
        ];
        let mut x = fill(dtype, (t + PADDING) * width, &mut Rng(3));
        x[t * width * dtype.size()..].fill(0xff);
        let starts: Vec<i32> = (0..QUERIES.len()).map(|i| QUERIES[..i].iter().sum()).collect();
        let ints = |x: &[i32]| Array {
            dtype: I32,
            shape: vec![x.len()],
            data: x.iter().map(|&v| v.into()).collect(),
        };
        let data = floats(dtype, &x)[..t * width].to_vec();
        let given = [Array { dtype, shape: vec![t, width], data }, ints(&starts), ints(&QUERIES)];
        let expected = SegmentMean.evaluate(&given, &Attrs::new(), &[]).unwrap();
        let bytes = |x: &[i32]| {
            let past: Vec<i32> = x.iter().copied().chain([7; PADDING]).collect();
            bytemuck::cast_slice::<i32, u8>(&past).to_vec()
        };
        let segments = QUERIES.len() + PADDING;
        let out = vec![0x5a; segments * width * dtype.size()];
        let case = Case {
            launches: segment_mean_kernels(&types).unwrap().launches,
            args: vec![x, bytes(&starts), bytes(&QUERIES), out],
            sizes: vec![(t + PADDING) as u64, segments as u64],
            counts: vec![t as i32, QUERIES.len() as i32],
            scratch: 256,
        };
        let mut got = emulate(&format!("segment_mean_{dtype}"), &case).remove(3);
        let padding = got.split_off(QUERIES.len() * width * dtype.size());
        assert!(padding.iter().all(|x| *x == 0x5a), "segments past the count are written");
        for (a, b) in floats(dtype, &got).iter().zip(&expected[0].data) {
            assert!((a - b).abs() < 5e-3, "{a}, not {b}");
        }
    }
}

#[test]
fn what_has_no_kernel_is_named() {
    let wide = shape(BF16, [2, 2], 264, None);
    let error = wide.lowered(&[64, 64, 4]).unwrap_err().to_string();
    assert!(error.contains("264") && error.contains("256"), "{error}");
}

#[test]
fn nvrtc_takes_the_kernels_of_segments() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    let shapes = [
        shape(BF16, [16, 16], 72, None),
        shape(F16, [16, 16], 80, Some(300)),
        Shape { dims: [120, 104], ..shape(BF16, [2, 2], 64, None) },
        shape(F16, [8, 2], 64, Some(64)),
        Shape { causal: true, ..shape(BF16, [4, 2], 128, None) },
        Shape { dims: [64, 128], ..shape(F16, [6, 2], 64, Some(300)) },
        Shape { dims: [128, 64], ..shape(BF16, [2, 2], 64, None) },
        shape(BF16, [4, 4], 256, None),
        shape(F32, [4, 4], 33, Some(2)),
    ];
    for arch in ["sm_80", "sm_90a"] {
        let capability = if arch == "sm_90a" { (9, 0) } else { (8, 0) };
        let sizes = [64, 4096, 65_536].map(|rows| [rows, rows, 8]);
        let attention = shapes.iter().flat_map(|&shape| {
            let shape = Shape { capability, ..shape };
            sizes.iter().flat_map(move |sizes| shape.kernels(sizes).launches)
        });
        let types = [
            TensorType::new(BF16, [Dim::from(Symbol::new(0)), Dim::constant(384)]),
            TensorType::new(I32, [Dim::from(Symbol::new(1))]),
            TensorType::new(I32, [Dim::from(Symbol::new(1))]),
        ];
        for launch in attention.chain(segment_mean_kernels(&types).unwrap().launches) {
            if let Err(log) = nvrtc.compile(&launch.source, PRELUDE, arch, &launch.options) {
                panic!("{arch}:\n{log}\n{}", launch.source);
            }
        }
    }
}
