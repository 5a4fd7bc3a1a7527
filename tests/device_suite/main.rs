//! What every backend must hold, written over the `Device` trait and instantiated for each target.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod equal_modes;
mod random_steps;
mod sequences;
mod small_decoder;
mod target;

/// The cases of the suite for one target.
macro_rules! suite {
    ($name:ident, $target:ty) => {
        mod $name {
            use crate::{equal_modes, random_steps};
            use piecewise_ir::dtype::DType::{BF16, F32};
            use piecewise_runtime::mode::GraphMode;

            type T = $target;

            #[test]
            fn random_steps_piecewise_f32() {
                random_steps::equal_launched_steps::<T>(GraphMode::Piecewise, F32, 4, 1);
            }

            #[test]
            fn random_steps_full_f32() {
                random_steps::equal_launched_steps::<T>(GraphMode::Full, F32, 1, 4);
            }

            #[test]
            fn random_steps_full_and_piecewise_f32() {
                random_steps::equal_launched_steps::<T>(GraphMode::FullAndPiecewise, F32, 1, 1);
            }

            #[test]
            fn random_steps_piecewise_bf16() {
                random_steps::equal_launched_steps::<T>(GraphMode::Piecewise, BF16, 1, 4);
            }

            #[test]
            fn random_steps_full_bf16() {
                random_steps::equal_launched_steps::<T>(GraphMode::Full, BF16, 4, 1);
            }

            #[test]
            fn random_steps_full_and_piecewise_bf16() {
                random_steps::equal_launched_steps::<T>(GraphMode::FullAndPiecewise, BF16, 4, 4);
            }

            #[test]
            fn launched_piecewise_and_full_give_the_same_bits() {
                equal_modes::same_bits_in_every_mode::<T>(F32);
                equal_modes::same_bits_in_every_mode::<T>(BF16);
            }

            #[test]
            fn padding_changes_no_real_row() {
                equal_modes::padded_equals_unpadded::<T>(F32, 1e-5);
                equal_modes::padded_equals_unpadded::<T>(BF16, 2e-2);
            }

            #[test]
            fn a_graph_that_is_never_split_gives_the_same_bits() {
                equal_modes::never_split_equals_split::<T>(F32);
                equal_modes::never_split_equals_split::<T>(BF16);
            }
        }
    };
}

suite!(cpu, crate::target::Cpu);
suite!(absorbing_cpu, crate::target::AbsorbingCpu);
