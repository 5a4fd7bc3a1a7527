//! That every way in which the shipped models may be launched on CUDA keeps to the plan, without a GPU.

use crate::cuda_compile::{KERNELS, MODELS, PACKED, module};
use crate::support::nvrtc::nvrtc;
use piecewise_backend::artifact::{Access, ArgRef, Artifact, Launch, PieceSize};
use piecewise_backend::compiler::{Compiler, PieceAt};
use piecewise_backend::cuda::{Arch, CudaCompiler};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Value};
use piecewise_kernels::op::OpRegistry;
use piecewise_passes::check::{LaunchAccess, MemberLaunches, check_launches};
use piecewise_runtime::words::{CompileLevel, SymbolTable};
use piecewise_testing::artifacts::last_ways;
use std::sync::Arc;

/// What a launch reads and writes of the plan.
fn access(launch: &Launch, operands: &[Value]) -> LaunchAccess {
    let mut found = LaunchAccess { name: launch.name.clone(), ..LaunchAccess::default() };
    for arg in &launch.args {
        let ArgRef::Operand(position) = arg.at else { continue };
        match arg.access {
            Access::Read => found.reads.push(operands[position as usize]),
            Access::ReadAhead => {
                found.reads.push(operands[position as usize]);
                found.ahead.push(operands[position as usize]);
            }
            _ => found.writes.push(operands[position as usize]),
        }
    }
    found
}

#[test]
fn every_way_of_few_rows_keeps_to_the_plan() {
    let Some(nvrtc) = nvrtc() else { return };
    let compiler = CudaCompiler::new(Arc::new(OpRegistry::builtin()), Arch { number: 90 }, nvrtc);
    let mut absorbed = 0;
    let models = MODELS.into_iter().zip([DType::BF16, DType::F32].into_iter().cycle());
    for (model, dtype) in models.chain(PACKED.map(|model| (model, DType::BF16))) {
        let module = module(model, dtype, CompileLevel::Piecewise);
        let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
        let stitch = module.stitch().unwrap();
        let compile = |piece| {
            compiler
                .compile(
                    PieceAt { piece, size: PieceSize::Exact(1), bounds: symbols.bounds() },
                    &[],
                    &KERNELS,
                )
                .unwrap()
        };
        let made: Vec<Artifact> = stitch.unique.iter().map(|(_, piece)| compile(piece)).collect();
        let most = made.iter().map(|artifact| artifact.alternatives.len()).max().unwrap();
        let parts = made.iter().flat_map(|a| &a.alternatives).flat_map(|one| &one.parts);
        let most_ways = parts.map(|part| part.ways.len()).max().unwrap();
        for index in 0..most * most_ways {
            let members: Vec<MemberLaunches> = stitch
                .steps
                .iter()
                .map(|step| {
                    let usage = &stitch.uses[step.id()];
                    let artifact = &made[usage.unique.index()];
                    let mut choice = last_ways(artifact, index / most_ways);
                    choice.ways.iter_mut().for_each(|way| *way = (index % most_ways).min(*way));
                    let ways = artifact.chosen(&choice).unwrap();
                    let launches = ways.iter().flat_map(|way| &way.launches);
                    absorbed += launches.clone().filter(|l| l.nodes.len() > 1).count();
                    let launches = launches.map(|l| access(l, &usage.operands)).collect();
                    let scratch = ways.iter().map(|way| way.scratch).max().unwrap_or(0);
                    MemberLaunches { member: step.id(), scratch, launches }
                })
                .collect();
            if let Err(found) = check_launches(&module, &members) {
                panic!("{model}, ways {index}: {found}");
            }
        }
    }
    assert!(absorbed > 6 * MODELS.len(), "{absorbed} launches of several nodes");
}
