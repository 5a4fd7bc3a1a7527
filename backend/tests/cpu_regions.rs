//! Random regions: fused, op by op and evaluated.

use crate::harness::regions;
use crate::harness::target::Cpu;

#[test]
fn regions_of_exact_ops_equal_the_evaluator() {
    regions::exact_ones_equal_the_evaluator::<Cpu>();
}

#[test]
fn fused_and_unfused_have_the_same_bits_at_every_size_and_thread_count() {
    regions::fused_and_unfused_agree::<Cpu>();
}

#[test]
fn smooth_regions_are_rounded_where_their_types_say_so() {
    regions::smooth_ones_are_rounded_where_their_types_say_so::<Cpu>(6);
}

#[test]
fn smooth_regions_of_f32_are_near_the_exact_value() {
    regions::smooth_ones_of_f32_are_near_the_exact_value::<Cpu>();
}
