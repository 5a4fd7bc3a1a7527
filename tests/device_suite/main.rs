//! What every backend must hold, written over the `Device` trait and instantiated for each target.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod equal_modes;
mod frozen_list;
mod launch_check;
mod random_steps;
mod sequences;
mod small_decoder;
mod target;
mod user_op;

/// The cases of the suite for one target.
macro_rules! suite {
    ($name:ident, $target:ty) => {
        mod $name {
            use crate::{equal_modes, frozen_list, random_steps, user_op};
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

            #[test]
            fn replay_needs_nothing_but_the_frozen_list() {
                frozen_list::everything_else_is_dropped_first::<T>();
            }

            #[test]
            fn a_buffer_swapped_after_the_capture_is_read_at_its_old_place() {
                frozen_list::a_swapped_buffer_is_read_at_its_old_place::<T>(GraphMode::Piecewise);
                frozen_list::a_swapped_buffer_is_read_at_its_old_place::<T>(GraphMode::Full);
            }

            #[test]
            fn five_tokens_replay_eight_rows_and_touch_no_other() {
                frozen_list::no_row_past_the_size_is_touched::<T>(GraphMode::Piecewise);
                frozen_list::no_row_past_the_size_is_touched::<T>(GraphMode::Full);
            }

            #[test]
            fn metadata_that_changes_between_replays_is_honoured() {
                frozen_list::one_graph_serves_other_metadata::<T>();
            }

            #[test]
            fn a_users_op_that_mixes_rows_and_mutates_a_state() {
                user_op::equals_the_evaluator::<T>();
            }
        }
    };
}

suite!(cpu, crate::target::Cpu);
suite!(absorbing_cpu, crate::target::AbsorbingCpu);
