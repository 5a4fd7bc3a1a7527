//! Products with scales on CUDA: what the kernel computes, on the host, and that NVRTC takes it.

use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use crate::nvrtc::Nvrtc;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, E4M3, F16, F32, I4};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::literal::Scalar;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::{LaunchRecipe, PRELUDE, scaled_matmul_kernel};

/// Rows, of which the last is padding; columns and depth that no tile divides.
const ROWS: usize = 6;
const COLUMNS: usize = 70;
const DEPTH: usize = 75;

/// The dtypes of rows, codes, scales and result; the block; whether there are zeros.
type Form = ([DType; 4], [u64; 2], bool);

const FORMS: [Form; 5] = [
    ([F32, E4M3, F32, F32], [64, 32], false),
    ([BF16, E4M3, BF16, BF16], [1, 75], false),
    ([F32, I4, F32, F32], [1, 32], false),
    ([F32, I4, F32, F32], [1, 32], true),
    ([F16, I4, F16, F32], [70, 25], true),
];

fn types(([x, codes, scales, out], block, zeros): Form) -> (Vec<TensorType>, TensorType) {
    let rows = Dim::from(Symbol::new(0));
    let of_blocks = [COLUMNS, DEPTH].iter().zip(block).map(|(n, b)| (*n as u64).div_ceil(b));
    let blocks: Vec<u64> = of_blocks.collect();
    let mut operands = vec![
        TensorType::new(x, [rows.clone(), DEPTH.into()]),
        TensorType::new(codes, [COLUMNS, DEPTH]),
        TensorType::new(scales, blocks.clone()),
    ];
    operands.extend(zeros.then(|| TensorType::new(codes, blocks)));
    (operands, TensorType::new(out, [rows, COLUMNS.into()]))
}

fn kernel(form: Form) -> LaunchRecipe {
    let (operands, out) = types(form);
    scaled_matmul_kernel(form.1, &operands, &out).unwrap()
}

/// Bytes of any bits but NaN's.
fn codes(ty: &TensorType, r: &mut Rng) -> Vec<u8> {
    let any = (0..ty.bytes(&[])).map(|_| (r.next() >> 7) as u8);
    any.map(|code| if code & 0x7f == 0x7f { 0x70 } else { code }).collect()
}

fn code(ty: &TensorType, bytes: &[u8], i: usize, j: usize) -> f64 {
    let width = ty.static_shape().unwrap()[1];
    let line = &bytes[i * ty.dtype.line_bytes(width) as usize..];
    let bits = if ty.dtype == I4 { line[j / 2] >> (j % 2 * 4) } else { line[j] };
    Scalar::from_bits(ty.dtype, u64::from(bits)).to_f64()
}

#[test]
fn products_with_scales_are_sums_in_f64() {
    if !available() {
        return;
    }
    for (at, form) in FORMS.into_iter().enumerate() {
        let (operands, out) = types(form);
        let ([x, _, scales, y], block, _) = form;
        let mut r = Rng(at as u64 + 5);
        let mut args = vec![fill(x, ROWS * DEPTH, &mut r), codes(&operands[1], &mut r)];
        args.push(fill(scales, operands[2].static_elements().unwrap() as usize, &mut r));
        args.extend(operands.get(3).map(|ty| codes(ty, &mut r)));
        args.push(vec![0xab; out.bytes(&[ROWS as u64]) as usize]);
        let last = args.len() - 1;
        let case = Case {
            launches: vec![kernel(form)],
            args: args.clone(),
            sizes: vec![ROWS as u64],
            counts: vec![ROWS as i32 - 1],
            scratch: 256,
        };
        let got = emulate(&format!("scaled_{at}"), &case).remove(last);
        let (xs, ss) = (floats(x, &args[0]), floats(scales, &args[2]));
        let across = operands[2].static_shape().unwrap()[1] as usize;
        let found = floats(y, &got);
        for (row, column) in (0..ROWS - 1).flat_map(|i| (0..COLUMNS).map(move |j| (i, j))) {
            let terms = (0..DEPTH).map(|k| {
                let (down, group) = (column / block[0] as usize, k / block[1] as usize);
                let zero = operands.get(3).map_or(0.0, |ty| code(ty, &args[3], down, group));
                let code = code(&operands[1], &args[1], column, k) - zero;
                xs[row * DEPTH + k] * code * ss[down * across + group]
            });
            let (want, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
            let rounding = if y == F32 { 0.0 } else { want.abs() * 2f64.powi(-8) };
            let error = (found[row * COLUMNS + column] - want).abs();
            assert!(error <= size * 1e-6 + rounding, "{form:?}: {error} of {want}");
        }
        assert!(got[(ROWS - 1) * COLUMNS * y.size()..].iter().all(|byte| *byte == 0xab));
    }
}

#[test]
fn nvrtc_takes_products_with_scales() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    for form in FORMS {
        let recipe = kernel(form);
        for arch in ["sm_80", "sm_90a"] {
            if let Err(log) = nvrtc.compile(&recipe.source, PRELUDE, arch, &recipe.options) {
                panic!("{arch}:\n{log}");
            }
        }
    }
}
