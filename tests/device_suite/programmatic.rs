//! Kernels that start before the kernel ahead of them ends compute what they compute after it.

use crate::equal_modes::two_steps;
use crate::sequences::Left;
use crate::small_decoder::Setup;
use crate::target::{Cuda, Target};
use piecewise_backend::cuda::{CudaDevice, CudaOptions};
use piecewise_backend::measure::MeasuredDevice;
use piecewise_backend::weights::NormalWeights;
use piecewise_ir::dtype::DType;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::artifact_store::compile_module;
use piecewise_runtime::mode::GraphMode;
use piecewise_runtime::model::CompiledModel;
use std::sync::Arc;

/// How often a step is replayed.
const REPLAYS: usize = 1000;

fn build(serial: bool) -> CompiledModel<CudaDevice> {
    let (mode, dtype) = (GraphMode::Full, DType::BF16);
    let setup = Setup { mode, dtype, sizes: vec![1, 4], batches: vec![1, 4], ..Setup::default() };
    let registry = Arc::new(OpRegistry::builtin());
    let options = CudaOptions { serial, ..CudaOptions::default() };
    let device = CudaDevice::open(options, OpRegistry::clone(&registry)).unwrap();
    let compiler = device.compiler(registry);
    let (module, options, store) = (setup.module(), setup.options(), Cuda::store());
    let sizes = &options.dispatcher;
    let compiled = compile_module(&module, sizes, &compiler, store, &mut |_| {}).unwrap();
    CompiledModel::build(
        Arc::new(module),
        options,
        compiled,
        store,
        device,
        Arc::new(NormalWeights { std: 0.4, seed: 7 }),
        &mut |_| {},
    )
    .unwrap()
}

#[test]
fn a_thousand_replays_leave_the_same_with_programmatic_launch_and_without() {
    if !Cuda::is_there() {
        return;
    }
    for tokens in [1, 4] {
        let mut first: Option<Vec<Left>> = None;
        for serial in [true, false] {
            let mut model = build(serial);
            // Two steps at a time, so that what one leaves running meets the next.
            for round in 0..REPLAYS / 2 {
                let found = two_steps(&mut model, tokens);
                let expected = first.get_or_insert_with(|| two_steps(&mut model, tokens));
                for (found, expected) in found.iter().zip(expected.iter()) {
                    let difference = found.difference(expected);
                    assert_eq!(difference, None, "{tokens} tokens, serial {serial}, {round}");
                }
            }
            let counts = model.device().launch_counts();
            let overlapping = counts.programmatic_edges > 0;
            let can_overlap = model.device().arch().has_programmatic_launch();
            assert_eq!(overlapping, can_overlap && !serial, "{counts:?}");
            assert!(counts.graph_launches as usize >= REPLAYS, "{counts:?}");
        }
    }
}
