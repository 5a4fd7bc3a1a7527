//! Products of few rows through a ring: that they compile, and what they compute on the host.

use crate::cuda_tiles::{After, Shape, hold_product, linear, region};
use crate::emulate::{Rng, available};
use crate::nvrtc::Nvrtc;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32};
use piecewise_kernels::cuda::{
    AfterProduct, LaunchRecipe, MatMulSpec, OperandRole, PRELUDE, RING_ROWS, RingForm,
};

fn kernel(
    rows: usize,
    after: After,
    [dtype, to]: [DType; 2],
    [depth, columns]: [u64; 2],
    form: RingForm,
) -> LaunchRecipe {
    let spec = linear([dtype, dtype, to], depth, columns);
    if after == After::Nothing {
        return spec.ring_kernel(rows as u64, None, None, form).unwrap();
    }
    let region = region(after, dtype, columns);
    let roles = vec![OperandRole::default(); region.params.len()];
    let after = AfterProduct { region: &region, roles: &roles, product: 0 };
    spec.ring_kernel(rows as u64, None, Some(after), form).unwrap()
}

#[test]
fn products_through_a_ring_compile_for_hopper_and_are_one_kernel_for_all_shapes() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    for rows in [8, 16, 24, 32, 48, 64, 96, 128] {
        for (after, types) in [
            (After::Nothing, [F16; 2]),
            (After::Nothing, [BF16, F32]),
            (After::Sum, [BF16; 2]),
            (After::Gate, [BF16; 2]),
        ] {
            let form =
                if rows % 16 == 0 { RingForm::Whole } else { RingForm::Half { longer: false } };
            let recipe = kernel(rows, after, types, [1024, 4096], form);
            recipe.check(4, 0).unwrap();
            let made = nvrtc.compile(&recipe.source, PRELUDE, "sm_90a", &recipe.options);
            assert_eq!(made.err(), None, "{}", recipe.source);
            let other = kernel(rows - 7, after, types, [3072, 24_576], form);
            if rows <= 32 {
                assert_eq!(recipe.grid_at(&[rows as u64], 132), Ok([132, 1, 1]));
                assert_eq!(other.source, recipe.source);
            }
        }
    }
    let bf16 = linear([BF16; 3], 1024, 4096);
    let refuses = |spec: MatMulSpec, rows| {
        spec.ring_kernel(rows, None, None, RingForm::Half { longer: false }).is_err()
    };
    assert!(refuses(bf16.clone(), 0) && refuses(bf16, RING_ROWS + 1));
    assert!(refuses(linear([BF16, BF16, F16], 1024, 4096), 8));
    assert!(refuses(linear([BF16; 3], 1032, 4096), 8));
}

#[test]
fn rings_of_every_shape_hold_what_the_product_is() {
    if !available() {
        return;
    }
    let mut r = Rng(7);
    // On three multiprocessors: shares of one pass and of several, even and odd ones, blocks
    // without a share, slots that come around, depths that end within a slice.
    let cases = [
        (After::Nothing, BF16, 8, 3, 8, 64),
        (After::Nothing, F16, 520, 5, 8, 1088),
        (After::Sum, BF16, 392, 8, 8, 320),
        (After::Gate, BF16, 272, 2, 8, 576),
        (After::Gate, F16, 720, 13, 16, 640),
        (After::Nothing, BF16, 712, 16, 16, 192),
        (After::Sum, F16, 1064, 9, 24, 128),
        (After::Nothing, BF16, 1416, 31, 32, 320),
        (After::Gate, BF16, 1424, 32, 32, 64),
        (After::Sum, BF16, 40, 7, 8, 4160),
        (After::Nothing, BF16, 520, 33, 40, 576),
        (After::Bias, F16, 200, 50, 64, 320),
        (After::Bias, F16, 200, 13, 16, 320),
        (After::Biases, BF16, 256, 30, 32, 192),
        (After::Gate, BF16, 272, 61, 64, 832),
        (After::Biases, BF16, 2304, 47, 48, 64),
        // Few columns of few rows.
        (After::Gate, F16, 208, 13, 16, 1152),
        (After::Sum, BF16, 400, 31, 32, 832),
        // Blocks of a cluster, as many as divide the rows of x evenly and not.
        (After::Nothing, BF16, 72, 41, 48, 1024),
        (After::Sum, F16, 136, 77, 80, 1216),
        (After::Gate, BF16, 144, 128, 128, 2048),
    ];
    for (at, (after, dtype, columns, real, size, depth)) in cases.into_iter().enumerate() {
        let [k, n] = [depth, columns].map(|n| n as u64);
        let to = if after == After::Nothing && at % 2 == 0 { F32 } else { dtype };
        let mut forms = linear([dtype, dtype, to], k, n).ring_forms(size as u64, at % 2 == 1);
        // The first of every case, and each of the others in some.
        let other = at % forms.len();
        forms = if other > 0 { vec![forms[0], forms[other]] } else { vec![forms[0]] };
        for form in forms {
            let recipe = kernel(size, after, [dtype, to], [k, n], form);
            let shape = Shape { columns, real, size, depth };
            hold_product(
                &format!("ring_{at}_{form:?}"),
                recipe,
                (after, [dtype, to]),
                shape,
                3e-2,
                &mut r,
            );
        }
    }
}
