//! What every backend must hold, written over the `Device` trait and instantiated for each target.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a case says what it compared")]

mod absorbing_op;
mod alternatives;
mod any_graph;
mod asked_together;
mod background;
mod bad_logits;
#[allow(dead_code, reason = "the program's tests use more of it")]
#[path = "../support/bounded.rs"]
mod bounded;
mod capture_allocation;
mod compare;
mod compile;
mod cuda_faults;
mod cuda_mix;
mod damaged_entries;
mod drafts;
mod driver_calls;
mod encoder_mixes;
mod encoder_reference;
mod encoder_shapes;
mod equal_modes;
mod exhaustion;
mod followed_sizes;
mod frozen_list;
mod host_kernel;
mod late_sizes;
mod launch_check;
mod like_first;
mod missing_waits;
mod mixing_model;
mod modes;
mod moved_memory;
mod new_compositions;
mod padding_ways;
mod page_tails;
mod planted_pages;
mod probes;
mod programmatic;
mod random_graphs;
mod random_steps;
mod recovery;
mod refusals;
mod row_treatments;
mod sampling_controls;
mod sequences;
mod several_rows;
#[path = "../support/skip.rs"]
mod skip;
mod slot_model;
mod slot_states;
mod small_decoder;
mod suspend;
mod target;
mod traces;
mod tuned;
mod user_op;
mod warm_start;
mod warnings;
mod wide_heads;

/// Cases that run where the target `T` of their module is there.
macro_rules! cases {
    ($($name:ident $body:block)*) => {
        $(
            #[test]
            fn $name() {
                if T::is_there() $body
            }
        )*
    };
}

/// The cases of the suite for one target.
macro_rules! suite {
    ($name:ident, $target:ty) => {
        mod $name {
            use crate::target::Target;
            use crate::absorbing_op::Loads;
            use crate::user_op::{Form, Place};
            use crate::{
                absorbing_op, alternatives, background, bad_logits, compare, drafts, equal_modes, late_sizes, frozen_list, modes,
                moved_memory, new_compositions, padding_ways, page_tails, planted_pages, probes, random_graphs, random_steps, row_treatments, sampling_controls, several_rows, slot_states, suspend, user_op, warm_start, wide_heads,
            };
            use piecewise_ir::dtype::DType::{BF16, F32};
            use piecewise_runtime::words::GraphMode;

            type T = $target;

            cases! {
                random_steps_piecewise_f32 {
                    random_steps::equal_launched_steps::<T>(GraphMode::Piecewise, F32, 4, 1);
                }
                random_steps_full_f32 {
                    random_steps::equal_launched_steps::<T>(GraphMode::Full, F32, 1, 4);
                }
                random_steps_full_and_piecewise_f32 {
                    random_steps::equal_launched_steps::<T>(GraphMode::FullAndPiecewise, F32, 1, 1);
                }
                random_steps_piecewise_bf16 {
                    random_steps::equal_launched_steps::<T>(GraphMode::Piecewise, BF16, 1, 4);
                }
                random_steps_full_bf16 {
                    random_steps::equal_launched_steps::<T>(GraphMode::Full, BF16, 4, 1);
                }
                random_steps_full_and_piecewise_bf16 {
                    random_steps::equal_launched_steps::<T>(GraphMode::FullAndPiecewise, BF16, 4, 4);
                }
                random_steps_full_decode_only_f32 {
                    random_steps::equal_launched_steps::<T>(GraphMode::FullDecodeOnly, F32, 4, 1);
                }
                random_steps_full_decode_only_bf16 {
                    random_steps::equal_launched_steps::<T>(GraphMode::FullDecodeOnly, BF16, 1, 4);
                }
                random_uniform_steps_full_f32 {
                    random_steps::equal_launched_uniform_steps::<T>(GraphMode::Full, F32);
                }
                random_uniform_steps_full_bf16 {
                    random_steps::equal_launched_uniform_steps::<T>(GraphMode::Full, BF16);
                }
                random_uniform_steps_full_and_piecewise_f32 {
                    random_steps::equal_launched_uniform_steps::<T>(GraphMode::FullAndPiecewise, F32);
                }
                random_uniform_steps_full_and_piecewise_bf16 {
                    random_steps::equal_launched_uniform_steps::<T>(GraphMode::FullAndPiecewise, BF16);
                }
                random_uniform_steps_full_decode_only_f32 {
                    random_steps::equal_launched_uniform_steps::<T>(GraphMode::FullDecodeOnly, F32);
                }
                random_uniform_steps_full_decode_only_bf16 {
                    random_steps::equal_launched_uniform_steps::<T>(GraphMode::FullDecodeOnly, BF16);
                }
                launched_piecewise_and_full_give_the_same_bits_f32 {
                    equal_modes::same_bits_in_every_mode::<T>(F32);
                }
                launched_piecewise_and_full_give_the_same_bits_bf16 {
                    equal_modes::same_bits_in_every_mode::<T>(BF16);
                }
                a_request_of_nan_ends_and_no_other_notices {
                    bad_logits::a_request_of_nan_ends_and_no_other_notices::<T>();
                }
                an_op_in_a_graph_has_the_sizes_of_its_step {
                    crate::followed_sizes::an_op_in_a_graph_has_the_sizes_of_its_step::<T>();
                }
                a_mode_is_known_by_its_launches {
                    modes::a_mode_is_known_by_its_launches::<T>();
                }
                excluded_layers_are_launched {
                    modes::excluded_layers_are_launched::<T>();
                }
                the_mode_of_a_live_model_changes {
                    modes::the_mode_of_a_live_model_changes::<T>();
                }
                compare_finds_nothing_in_random_steps {
                    compare::finds_nothing_in_random_steps::<T>();
                }
                compare_finds_an_op_that_counts_its_runs {
                    compare::finds_an_op_that_counts_its_runs::<T>();
                }
                late_sizes_serve_steps_of_their_tokens {
                    late_sizes::serve_steps_of_their_tokens::<T>();
                }
                memory_that_moved_is_followed {
                    moved_memory::is_followed::<T>();
                }
                steps_that_padding_loses_go_another_way {
                    padding_ways::are_taken_and_counted::<T>();
                }
                steps_of_dear_padding_are_launched {
                    padding_ways::dear_padding_is_launched::<T>();
                }
                a_target_checks_what_a_draft_proposes {
                    drafts::a_target_checks_what_a_draft_proposes::<T>();
                }
                captures_between_steps_change_no_bit {
                    background::captures_change_no_bit::<T>();
                }
                a_suspended_model_goes_on_without_a_capture {
                    suspend::a_suspended_model_goes_on_without_a_capture::<T>();
                }
                a_suspended_model_gives_its_memory_back {
                    suspend::a_suspended_model_gives_its_memory_back::<T>();
                }
                every_alternative_computes_the_same {
                    alternatives::agree::<T>(F32, 1e-5);
                    alternatives::agree::<T>(BF16, 2e-2);
                }
                padding_changes_no_real_row {
                    random_steps::equal_padded_steps::<T>(F32, 1e-5);
                    random_steps::equal_padded_steps::<T>(BF16, 2e-2);
                }
                a_wide_block_table_is_a_narrow_one {
                    equal_modes::a_wide_block_table_is_a_narrow_one::<T>();
                }
                a_graph_that_is_never_split_gives_the_same_bits {
                    equal_modes::never_split_equals_split::<T>(F32);
                    equal_modes::never_split_equals_split::<T>(BF16);
                }
                replay_needs_nothing_but_the_frozen_list {
                    frozen_list::everything_else_is_dropped_first::<T>();
                }
                a_buffer_swapped_after_the_capture_is_read_at_its_old_place {
                    let case = frozen_list::a_swapped_buffer_is_read_at_its_old_place::<T>;
                    case(GraphMode::Piecewise);
                    case(GraphMode::Full);
                }
                two_slots_that_change_places_are_named {
                    frozen_list::swapped_slots_are_named::<T>(GraphMode::Piecewise);
                    frozen_list::swapped_slots_are_named::<T>(GraphMode::Full);
                }
                inputs_of_another_step_are_named_after_churn {
                    planted_pages::stale_inputs_are_named::<T>();
                }
                poison_shows_an_op_that_reads_the_tails_of_pages {
                    page_tails::a_reader_is_shown::<T>();
                }
                what_an_op_declares_is_probed_at_every_query_length {
                    probes::declarations_are_held_against_replays::<T>();
                }
                five_tokens_replay_eight_rows_and_touch_no_other {
                    frozen_list::no_row_past_the_size_is_touched::<T>(GraphMode::Piecewise);
                    frozen_list::no_row_past_the_size_is_touched::<T>(GraphMode::Full);
                }
                slots_tables_and_lengths_that_change_between_replays_are_honoured {
                    frozen_list::one_graph_serves_other_metadata::<T>();
                }
                controlled_tokens_are_those_of_the_definition {
                    sampling_controls::tokens_are_those_of_the_definition::<T>();
                }
                prompts_are_told_of {
                    sampling_controls::prompts_are_told_of::<T>();
                }
                others_run_ahead_of_a_constrained_one {
                    sampling_controls::others_run_ahead_of_a_constrained_one::<T>();
                }
                a_later_turn_counts_its_own_ids {
                    sampling_controls::a_later_turn_counts_its_own_ids::<T>();
                }
                a_constraint_that_fails_ends_its_request_alone {
                    sampling_controls::a_constraint_that_fails_ends_its_request_alone::<T>();
                }
                sampling_parameters_that_change_between_replays_are_honoured {
                    frozen_list::one_graph_samples_as_each_step_says::<T>();
                }
                a_norm_and_a_gate_of_no_family_are_one_region_and_one_launch_each {
                    new_compositions::norm_and_gate::<T>(F32, 1e-5);
                    new_compositions::norm_and_gate::<T>(BF16, 2e-2);
                }
                random_graphs_equal_the_evaluator_in_every_mode {
                    random_graphs::equal_the_evaluator::<T>();
                }
                wide_heads_equal_the_cpu {
                    wide_heads::equal_the_cpu::<T>(64, 2e-2);
                    wide_heads::equal_the_cpu::<T>(80, 2e-2);
                    wide_heads::equal_the_cpu::<T>(128, 2e-2);
                }
                rows_of_several_kinds_each_have_their_size {
                    several_rows::equal_the_evaluator::<T>();
                }
                a_slot_serves_one_sequence_after_the_other_from_zeros {
                    slot_states::a_slot_serves_one_sequence_after_the_other_from_zeros::<T>();
                }
                a_preempted_sequence_begins_again_from_zeros {
                    slot_states::a_preempted_sequence_begins_again_from_zeros::<T>();
                }
                a_suspended_sequence_goes_on {
                    slot_states::a_suspended_sequence_goes_on::<T>();
                }
                a_removed_requests_slot_is_free_within_the_step {
                    slot_states::a_removed_requests_slot_is_free_within_the_step::<T>();
                }
                a_request_used_after_its_removal_is_named_and_the_others_go_on {
                    slot_states::a_request_used_after_its_removal_is_named_and_the_others_go_on::<T>();
                }
                a_kept_conversation_goes_on_from_its_slot_or_is_computed_again {
                    slot_states::a_kept_conversation_goes_on_from_its_slot_or_is_computed_again::<T>();
                }
                there_is_no_prefix_cache_and_that_is_said_at_start {
                    slot_states::there_is_no_prefix_cache_and_that_is_said_at_start::<T>();
                }
                a_model_from_a_filled_store_gives_the_same_bits {
                    warm_start::equals_cold::<T>();
                }
                poison_shows_a_mislabelled_row_treatment {
                    row_treatments::poison_shows_a_mislabelled_op::<T>();
                }
                a_mislabelled_row_treatment_is_seen {
                    row_treatments::a_mislabelled_op_is_seen::<T>();
                }
                a_users_op_between_pieces {
                    user_op::equals_the_evaluator::<T>(Place::BetweenPieces, Form::Source);
                }
                a_users_op_inside_a_piece {
                    user_op::equals_the_evaluator::<T>(Place::InsideAPiece, Form::Source);
                }
                a_users_second_implementation_between_pieces {
                    user_op::equals_the_evaluator::<T>(Place::BetweenPieces, Form::SecondSource);
                }
                a_users_second_implementation_inside_a_piece {
                    user_op::equals_the_evaluator::<T>(Place::InsideAPiece, Form::SecondSource);
                }
                an_op_that_takes_regions_in_inside_a_piece {
                    absorbing_op::every_alternative_leaves_the_same::<T>(Place::InsideAPiece, Loads::Elements);
                }
                an_op_that_takes_a_region_in_between_pieces {
                    absorbing_op::every_alternative_leaves_the_same::<T>(Place::BetweenPieces, Loads::Elements);
                }
                an_op_that_takes_a_norm_in_inside_a_piece {
                    absorbing_op::every_alternative_leaves_the_same::<T>(Place::InsideAPiece, Loads::Rows);
                }
                an_op_that_takes_a_norm_in_between_pieces {
                    absorbing_op::every_alternative_leaves_the_same::<T>(Place::BetweenPieces, Loads::Rows);
                }
                a_users_host_function_between_pieces {
                    user_op::equals_the_evaluator::<T>(Place::BetweenPieces, Form::HostFunction);
                }
                a_users_host_function_inside_a_piece {
                    user_op::equals_the_evaluator::<T>(Place::InsideAPiece, Form::HostFunction);
                }
            }
        }
    };
}

/// What a kernel takes in is the compiler's own affair where it absorbs.
macro_rules! levels {
    ($name:ident, $target:ty) => {
        mod $name {
            use crate::target::Target;

            type T = $target;

            cases! {
                a_level_is_known_by_its_launches {
                    crate::modes::a_level_is_known_by_its_launches::<T>();
                }
            }
        }
    };
}

levels!(levels_cpu, crate::target::Cpu);
levels!(levels_simulated, crate::target::SimulatedCuda);
levels!(levels_cuda, crate::target::Cuda);

suite!(cpu, crate::target::Cpu);
suite!(absorbing_cpu, crate::target::AbsorbingCpu);
suite!(cuda, crate::target::Cuda);

/// What breaks and goes on, for one target.
macro_rules! recovery {
    ($name:ident, $target:ty) => {
        mod $name {
            use crate::recovery;
            use crate::target::Target;

            type T = $target;

            cases! {
                no_failure_loses_a_request {
                    let test = concat!(stringify!($name), "::no_failure_loses_a_request");
                    recovery::no_failure_loses_a_request::<T>(test);
                }
                three_refusals_disable_a_graph {
                    let test = concat!(stringify!($name), "::three_refusals_disable_a_graph");
                    recovery::three_refusals_disable_a_graph::<T>(test);
                }
                two_models_outlive_their_device {
                    let test = concat!(stringify!($name), "::two_models_outlive_their_device");
                    recovery::two_models_outlive_their_device::<T>(test);
                }
            }
        }
    };
}

/// What is measured of a device that is slow as it is told, for one target.
macro_rules! slowed {
    ($name:ident, $target:ty) => {
        mod $name {
            use crate::target::Target;

            type T = $target;

            cases! {
                sizes_that_are_faster_launched_are_launched {
                    crate::padding_ways::sizes_that_are_faster_launched_are_launched::<T>();
                }
                padding_is_measured_of_what_was_captured_late {
                    crate::padding_ways::padding_is_measured_of_what_was_captured_late::<T>();
                }
            }
        }
    };
}

slowed!(slowed_cpu, crate::target::Cpu);
slowed!(slowed_simulated, crate::target::SimulatedCuda);
slowed!(slowed_cuda, crate::target::Cuda);

recovery!(recovery_cpu, crate::target::Cpu);
recovery!(recovery_simulated, crate::target::SimulatedCuda);
recovery!(recovery_cuda, crate::target::Cuda);
