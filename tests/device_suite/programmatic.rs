//! Kernels that start before the kernel ahead of them ends compute what they compute after it.

use crate::equal_modes::two_steps;
use crate::sequences::Left;
use crate::small_decoder::Setup;
use crate::target::{Cuda, Target};
use piecewise_backend::compiler::CompilerOptions;
use piecewise_backend::cuda::{CudaDevice, CudaOptions};
use piecewise_backend::device::Device;
use piecewise_backend::weights::NormalWeights;
use piecewise_ir::dtype::DType;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::GraphMode;
use std::sync::Arc;

/// How often a step is replayed.
const REPLAYS: usize = 1000;

/// A step's tokens, and whether its products are computed in tiles, as those of long prompts are.
#[derive(Clone, Copy, Debug)]
struct Case {
    tokens: u64,
    in_tiles: bool,
}

fn build(case: Case, serial: bool) -> CompiledModel {
    let (mode, dtype) = (GraphMode::Full, DType::BF16);
    // Of 64 dimensions, so that warpgroups attend to prompts.
    let (head_dim, max_tokens) = (64, case.tokens.max(4));
    let (mut sizes, batches) = (vec![1, 4, max_tokens], vec![1, 4]);
    sizes.dedup();
    let setup = Setup { mode, dtype, head_dim, max_tokens, sizes, batches, ..Setup::default() };
    let registry = Arc::new(OpRegistry::builtin());
    let options = CudaOptions { serial, ..CudaOptions::default() };
    let device = CudaDevice::open(options, OpRegistry::clone(&registry)).unwrap();
    let invariant =
        CompilerOptions { batch_invariant: case.in_tiles, ..CompilerOptions::default() };
    let compiler = device.compiler(registry, invariant);
    let (module, options, store) = (setup.module(), setup.options(), Cuda::store());
    let sizes = &options.dispatcher;
    let compiled = compile_module(&module, sizes, &*compiler, store, &mut |_| {}).unwrap();
    CompiledModel::build(
        Arc::new(module),
        options,
        compiled,
        store,
        Box::new(device),
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
    // One row, a ring, a panel, tiles beside attention by warpgroups.
    let cases = [(1, false), (4, false), (64, false), (300, false), (64, true), (300, true)];
    for (tokens, in_tiles) in cases {
        let case = Case { tokens, in_tiles };
        let mut first: Option<Vec<Left>> = None;
        for serial in [true, false] {
            let mut model = build(case, serial);
            // Two steps at a time, so that what one leaves running meets the next.
            for round in 0..REPLAYS / 2 {
                let found = two_steps(&mut model, tokens);
                let expected = first.get_or_insert_with(|| two_steps(&mut model, tokens));
                for (found, expected) in found.iter().zip(expected.iter()) {
                    let difference = found.difference(expected);
                    assert_eq!(difference, None, "{case:?}, serial {serial}, {round}");
                }
            }
            let counts = model.device().launch_counts();
            let overlapping = counts.programmatic_edges > 0;
            let can_overlap = model
                .device()
                .downcast_ref::<CudaDevice>()
                .unwrap()
                .arch()
                .has_programmatic_launch();
            assert_eq!(overlapping, can_overlap && !serial, "{counts:?}");
            assert!(counts.graph_launches as usize >= REPLAYS, "{counts:?}");
        }
    }
}
