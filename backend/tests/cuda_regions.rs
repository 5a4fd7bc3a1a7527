//! Random regions, single primitives and a layer on a real GPU, against the evaluator. Skipped
//! without one, unless PIECEWISE_REQUIRE_GPU=1.

use crate::harness::target::{Cuda, Target};
use crate::harness::{layer, nodes, products, regions};

#[test]
fn regions_of_exact_ops_equal_the_evaluator() {
    if Cuda::is_there() {
        regions::exact_ones_equal_the_evaluator::<Cuda>();
    }
}

#[test]
fn fused_and_unfused_agree_and_sizes_change_no_bit() {
    if Cuda::is_there() {
        regions::fused_and_unfused_agree::<Cuda>();
    }
}

/// The device's functions err by a unit or two more than the CPU's, so that more values flip.
#[test]
fn smooth_regions_are_rounded_where_their_types_say_so() {
    if Cuda::is_there() {
        regions::smooth_ones_are_rounded_where_their_types_say_so::<Cuda>(30);
    }
}

#[test]
fn smooth_regions_of_f32_are_near_the_exact_value() {
    if Cuda::is_there() {
        regions::smooth_ones_of_f32_are_near_the_exact_value::<Cuda>();
    }
}

#[test]
fn row_numbers_broadcasts_and_static_values() {
    if Cuda::is_there() {
        nodes::row_numbers_broadcasts_and_static_values::<Cuda>();
    }
}

#[test]
fn rows_gathered_from_a_table_of_another_symbol_are_clamped_to_its_true_rows() {
    if Cuda::is_there() {
        nodes::rows_of_a_table_of_another_symbol_are_clamped_to_its_true_rows::<Cuda>();
    }
}

#[test]
fn elementwise_ops_of_the_table() {
    if Cuda::is_there() {
        nodes::elementwise_ops_of_the_table::<Cuda>();
    }
}

#[test]
fn a_layer_with_a_norm_and_a_gate_equals_the_cpu_launched_and_replayed() {
    if Cuda::is_there() {
        layer::equals_the_cpu::<Cuda>();
    }
}

#[test]
fn products_in_tiles_with_what_follows_agree_with_the_general_kernel() {
    if Cuda::is_there() {
        products::agree_with_the_general_kernel::<Cuda>();
    }
}

#[test]
fn products_through_a_ring_with_what_follows_agree_with_the_general_kernel() {
    if Cuda::is_there() {
        products::rings_agree_with_the_general_kernel::<Cuda>();
    }
}

#[test]
fn gates_after_products_in_tiles_are_those_of_the_general_kernel_for_every_value() {
    if Cuda::is_there() {
        products::gates_of_every_value_agree::<Cuda>();
    }
}
