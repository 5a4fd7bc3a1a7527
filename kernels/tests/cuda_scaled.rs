//! Products with scales on CUDA: what the kernels compute, on the host, and that NVRTC takes them.

use crate::cuda_tiles::{After, region};
use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use crate::nvrtc::Nvrtc;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, E4M3, F16, F32, I4};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::literal::Scalar;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::{
    AfterProduct, LaunchRecipe, MatMulSpec, OpKernels, OperandRole, PRELUDE, Param, RingForm,
};

/// The dtypes of rows, codes, scales and result; the block; whether there are zeros.
#[derive(Clone, Copy, Debug)]
struct Form([DType; 4], [u64; 2], bool);

/// Sizes of a product: rows that are real, of so many, columns and depth.
#[derive(Clone, Copy, Debug)]
struct Shape {
    real: usize,
    size: usize,
    columns: usize,
    depth: usize,
}

/// Columns and depth that no tile divides.
const ODD: Shape = Shape { real: 5, size: 6, columns: 70, depth: 75 };

const FORMS: [Form; 5] = [
    Form([F32, E4M3, F32, F32], [64, 32], false),
    Form([BF16, E4M3, BF16, BF16], [1, 75], false),
    Form([F32, I4, F32, F32], [1, 32], false),
    Form([F32, I4, F32, F32], [1, 32], true),
    Form([F16, I4, F16, F32], [70, 25], true),
];

/// Beyond any row.
const ALL: u64 = 1 << 40;
/// What goes through a ring, over 16-bit rows: all kinds of scales.
const RINGS: [Form; 8] = [
    Form([BF16, E4M3, F32, BF16], [1, ALL], false),
    Form([F16, E4M3, F32, F32], [ALL, ALL], false),
    Form([BF16, E4M3, F32, BF16], [128, 128], false),
    Form([F16, E4M3, BF16, F16], [1, 16], false),
    Form([BF16, I4, F32, BF16], [1, 128], false),
    Form([BF16, I4, F32, F32], [1, 64], true),
    Form([F16, I4, F32, F16], [1, 32], true),
    Form([BF16, I4, F16, BF16], [1, ALL], true),
];

fn spec(
    Form([x, codes, scales, out], block, zeros): Form,
    shape: Shape,
) -> (MatMulSpec, Vec<TensorType>) {
    let rows = Dim::from(Symbol::new(0));
    let Shape { columns, depth, .. } = shape;
    let block = [block[0].min(columns as u64), block[1].min(depth as u64)];
    let of_blocks = [columns, depth].into_iter().zip(block);
    let of_blocks = of_blocks.map(|(n, b)| (n as u64).div_ceil(b));
    let blocks: Vec<u64> = of_blocks.collect();
    let mut operands = vec![
        TensorType::new(x, [rows.clone(), depth.into()]),
        TensorType::new(codes, [columns, depth]),
        TensorType::new(scales, blocks.clone()),
    ];
    operands.extend(zeros.then(|| TensorType::new(codes, blocks)));
    let out = TensorType::new(out, [rows, columns.into()]);
    (MatMulSpec::scaled(block, &operands, &out).unwrap().of_weight(), operands)
}

fn ring(form: Form, shape: Shape, after: After, of: RingForm) -> LaunchRecipe {
    let (spec, _) = spec(form, shape);
    if after == After::Nothing {
        return spec.ring_kernel(shape.size as u64, None, None, of).unwrap();
    }
    let region = region(after, form.0[3], shape.columns as u64);
    let roles = vec![OperandRole::default(); region.params.len()];
    let after = AfterProduct { region: &region, roles: &roles, product: 0 };
    spec.ring_kernel(shape.size as u64, None, Some(after), of).unwrap()
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

/// Holds what a kernel makes against sums in f64, within so much of the sum of all terms' sizes; rows of
/// padding are NaN, and stay as they were.
fn hold(
    name: &str,
    kernels: OpKernels,
    (form, after): (Form, After),
    shape: Shape,
    tolerance: f64,
) {
    let Form([x, codes_ty, scales, y], _, _) = form;
    let Shape { real, size, columns, depth } = shape;
    let (_, operands) = spec(form, shape);
    let block = [columns, depth].into_iter().zip(form.1).map(|(n, b)| b.min(n as u64) as usize);
    let block: Vec<usize> = block.collect();
    let mut r = Rng(name.len() as u64 + 5);
    let mut args = vec![fill(x, size * depth, &mut r), codes(&operands[1], &mut r)];
    args[0][real * depth * x.size()..].fill(0xff);
    args.push(fill(scales, operands[2].static_elements().unwrap() as usize, &mut r));
    args.extend(operands.get(3).map(|ty| codes(ty, &mut r)));
    let made = if after == After::Gate { columns / 2 } else { columns };
    let beside = (after == After::Sum).then(|| fill(y, size * made, &mut r));
    args.extend(beside.clone());
    args.push(vec![0xab; size * made * y.size()]);
    let last = args.len() - 1;
    // Scratch is the argument after all.
    let scratch = kernels.scratch.eval(&[]) as usize;
    let mut launches = kernels.launches;
    if scratch > 0 {
        args.push(vec![0xcd; scratch]);
        let of_scratch = Param::Arg(last as u32 + 1);
        let params = launches.iter_mut().flat_map(|launch| &mut launch.params);
        params.filter(|p| **p == Param::Scratch(0)).for_each(|p| *p = of_scratch.clone());
    }
    let case = Case {
        launches,
        args: args.clone(),
        sizes: vec![size as u64],
        counts: vec![real as i32],
        scratch: 256,
    };
    let got = emulate(name, &case).remove(last);
    let (xs, ss) = (floats(x, &args[0]), floats(scales, &args[2]));
    let across = operands[2].static_shape().unwrap()[1] as usize;
    let ws: Vec<f64> = (0..columns * depth)
        .map(|at| {
            let (column, k) = (at / depth, at % depth);
            let (down, group) = (column / block[0], k / block[1]);
            let zero = operands.get(3).map_or(0.0, |ty| code(ty, &args[3], down, group));
            assert_eq!(operands[1].dtype, codes_ty);
            (code(&operands[1], &args[1], column, k) - zero) * ss[down * across + group]
        })
        .collect();
    let product = |row: usize, column: usize| {
        let terms = (0..depth).map(|k| xs[row * depth + k] * ws[column * depth + k]);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
        (y.round(sum), size)
    };
    let beside = beside.map(|other| floats(y, &other));
    for (at, found) in floats(y, &got[..real * made * y.size()]).into_iter().enumerate() {
        let (row, column) = (at / made, at % made);
        let (a, size) = product(row, column);
        let (want, size) = match after {
            After::Gate => {
                let (b, other) = product(row, column + made);
                let gate = a / (1.0 + (-a).exp());
                (gate * b, size * (b.abs() + 1.0) + other * (gate.abs() + 1.0))
            }
            _ => (a + beside.as_ref().map_or(0.0, |other| other[at]), size),
        };
        let rounding = if y == F32 { 0.0 } else { want.abs() * 2f64.powi(-6) };
        let error = (found - want).abs();
        assert!(
            error <= size * tolerance + rounding,
            "{name} {form:?} {row} {column}: {found} of {want}"
        );
    }
    assert!(got[real * made * y.size()..].iter().all(|byte| *byte == 0xab), "{name} wrote padding");
}

#[test]
fn products_with_scales_are_sums_in_f64() {
    if !available() {
        return;
    }
    for (at, form) in FORMS.into_iter().enumerate() {
        let recipe = spec(form, ODD).0.general_kernel().unwrap();
        hold(&format!("scaled_{at}"), OpKernels::new([recipe]), (form, After::Nothing), ODD, 1e-6);
    }
}

#[test]
fn codes_through_a_ring_are_sums_in_f64() {
    if !available() {
        return;
    }
    // On three multiprocessors: shares of one pass and of several, even and odd ones, slots that come
    // around, depths that end within a slice and within a group; scales that leave the ring too little.
    let half = RingForm::Half { longer: false };
    let cases = [
        (0, After::Nothing, half, [1, 1, 72, 512]),
        (0, After::Gate, RingForm::Whole, [1, 1, 720, 640]),
        (1, After::Sum, half, [7, 8, 392, 384]),
        (0, After::Sum, RingForm::Whole, [25, 32, 1560, 384]),
        (2, After::Gate, half, [3, 8, 544, 640]),
        (2, After::Nothing, RingForm::Whole, [31, 32, 712, 1152]),
        (3, After::Sum, RingForm::Whole, [60, 64, 136, 384]),
        (4, After::Nothing, half, [1, 1, 392, 4352]),
        (4, After::Gate, half, [5, 8, 1424, 1280]),
        (4, After::Sum, RingForm::Whole, [17, 24, 520, 768]),
        (5, After::Nothing, RingForm::Whole, [40, 48, 264, 1024]),
        (7, After::Gate, RingForm::Whole, [63, 64, 272, 768]),
        (5, After::Sum, half, [12, 16, 272, 2304]),
        (6, After::Gate, half, [1, 1, 272, 512]),
        (6, After::Nothing, RingForm::Whole, [30, 32, 2056, 768]),
        (7, After::Sum, half, [8, 8, 40, 1280]),
    ];
    for (at, (form, after, of, [real, size, columns, depth])) in cases.into_iter().enumerate() {
        let (form, shape) = (RINGS[form], Shape { real, size, columns, depth });
        let recipe = ring(form, shape, after, of);
        hold(&format!("codes_{at}"), OpKernels::new([recipe]), (form, after), shape, 1e-5);
    }
}

#[test]
fn codes_are_widened_for_tiles() {
    if !available() {
        return;
    }
    for (at, after) in [(2, After::Gate), (5, After::Nothing), (6, After::Sum), (1, After::Nothing)]
    {
        let mut form = RINGS[at];
        form.0[3] = form.0[0];
        let shape = Shape { real: 70, size: 80, columns: 144, depth: 136 };
        let (spec, operands) = spec(form, shape);
        assert!(spec.widens_into_tiles() && !spec.multiplies_in_a_ring(80));
        let region = region(after, form.0[3], 144);
        let roles = vec![OperandRole::default(); region.params.len()];
        let group = AfterProduct { region: &region, roles: &roles, product: 0 };
        let group = (after != After::Nothing).then_some(group);
        let arguments = operands.len() + 1 + usize::from(after == After::Sum);
        let kernels = spec.widened_kernels(group, arguments as u32).unwrap();
        hold(&format!("widened_{at}"), kernels, (form, after), shape, 5e-3);
    }
}

#[test]
fn codes_through_a_ring_are_one_kernel_for_all_shapes_or_refused() {
    let shape = |size, columns, depth| Shape { real: size, size, columns, depth };
    let kernel = |form, shape| ring(form, shape, After::Nothing, RingForm::Half { longer: true });
    for form in RINGS {
        let [one, other] = [shape(8, 4096, 1024), shape(8, 24_576, 12_288)];
        assert_eq!(kernel(form, one).source, kernel(form, other).source);
    }
    // Every form that is offered has room for its ring.
    for (form, size, columns) in RINGS.into_iter().flat_map(|form| {
        [1, 8, 16, 24, 32, 40, 64]
            .into_iter()
            .flat_map(move |size| [8, 4096, 24_576, 151_936].map(|columns| (form, size, columns)))
    }) {
        let (spec, _) = spec(form, shape(size, columns, 1024));
        for of in spec.ring_forms(size as u64, true) {
            spec.ring_kernel(size as u64, None, None, of).unwrap();
        }
    }
    let takes = |form, shape: Shape| spec(form, shape).0.multiplies_in_a_ring(shape.size as u64);
    assert!(takes(RINGS[0], shape(64, 8, 128)) && !takes(RINGS[0], shape(65, 8, 128)));
    assert!(!takes(RINGS[0], shape(8, 8, 192)) && !takes(RINGS[4], shape(8, 8, 384)));
    assert!(!takes(RINGS[0], shape(8, 12, 256)));
    let of_eight = Form([BF16, E4M3, F32, BF16], [1, 8], false);
    assert!(!takes(of_eight, shape(8, 8, 128)) && !takes(FORMS[0], shape(8, 8, 128)));
}

#[test]
fn nvrtc_takes_products_with_scales() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    let take = |recipe: &LaunchRecipe, arch: &str| {
        recipe.check(6, 0).unwrap();
        if let Err(log) = nvrtc.compile(&recipe.source, PRELUDE, arch, &recipe.options) {
            panic!("{arch}:\n{log}");
        }
    };
    for form in FORMS {
        let recipe = spec(form, ODD).0.general_kernel().unwrap();
        take(&recipe, "sm_80");
        take(&recipe, "sm_90a");
    }
    for (at, form) in RINGS.into_iter().enumerate() {
        for size in [1, 8, 32, 64] {
            let shape = Shape { real: size, size, columns: 4096, depth: 4096 };
            let after = if at % 2 == 0 { After::Gate } else { After::Nothing };
            take(&ring(form, shape, after, RingForm::Whole), "sm_90a");
        }
    }
}
