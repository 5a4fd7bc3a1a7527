//! Ops between pieces that are captured with them and still have the sizes of each step, as launches have.

use crate::any_graph::{RandomWeights, build_of};
use crate::like_first::{LikeFirst, rows_of_first};
use crate::mixing_model::{MOST, WIDTH, mixing_model, mixing_options};
use crate::sequences::{Sequences, Turn, step};
use crate::target::Target;
use piecewise_ir::custom::Attrs;
use piecewise_ir::entity::Entity;
use piecewise_kernels::op::cuda::{
    CudaImplementation, CudaOp, CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param, Scalar,
};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_kernels::step::CaptureSupport;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{GraphMode, StepMode};
use piecewise_testing::Rng;
use std::collections::BTreeSet;
use std::sync::Arc;

const SEQUENCES: u64 = 4;
const SIZES: LikeFirst = LikeFirst { name: "test.sizes", splits: true };

/// `x`, and the padded number of sequences that the launch was told, in two ways.
#[derive(Debug)]
struct Sizes;

impl CpuOp for Sizes {
    fn name(&self) -> &str {
        SIZES.name
    }
    fn capture_support(&self) -> CaptureSupport {
        CaptureSupport::Always
    }
    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, y) = (args.read::<f32>(0)?, args.write::<f32>(2)?);
        let told = 65.0 * args.dim(1, 0) as f32;
        let elements = args.true_dim(0, 0) * args.dim(0, 1);
        y.iter_mut().zip(x).take(elements).for_each(|(y, x)| *y = x + told);
        Ok(())
    }
}

impl CudaOp for Sizes {
    fn name(&self) -> &str {
        SIZES.name
    }
    fn capture_support(&self) -> CaptureSupport {
        CaptureSupport::Always
    }
    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let tokens = rows_of_first(call, SIZES.name)?.index() as u64;
        let sequences = &call.operands[1].shape[0];
        let mut params: Vec<Param> = (0..3).map(Param::Arg).collect();
        params.push(Param::Counts);
        let numbers = [tokens.into(), sequences.clone()];
        params.extend(numbers.map(|number| Param::Scalar(Scalar::U32(number))));
        let grid = GridAxis::of(sequences.clone(), 1);
        let source = include_str!("sizes_kernel.cu");
        let launch = LaunchRecipe::new(source, "sizes", grid, WIDTH as u32, params);
        Ok(CudaImplementation::Source(OpKernels::new([launch])))
    }
}

fn build<T: Target>(mode: GraphMode) -> CompiledModel {
    let module = mixing_model("sizes", SEQUENCES, |b, mut x, inputs| {
        for layer in ["first", "second"] {
            x = b.custom_one(&SIZES, &[x, inputs.attention.query_starts], Attrs::new());
            x = x.linear(b.weight(layer, [WIDTH, WIDTH])).silu();
        }
        x
    });
    let mut ops = OpRegistry::builtin();
    ops.define(Arc::new(SIZES)).implement_cpu(Arc::new(Sizes)).implement_cuda(Arc::new(Sizes));
    let options = mixing_options(&module, mode, &[4, 8, MOST], &[1, 2, SEQUENCES]);
    build_of::<T>(&module, &Arc::new(ops), options, RandomWeights(3)).unwrap()
}

/// Steps of seven tokens or eight in one to four sequences, in an order in which sizes change and come back.
pub(crate) fn an_op_in_a_graph_has_the_sizes_of_its_step<T: Target>() {
    let divisions: [&[u64]; 7] = [&[7], &[5, 3], &[4, 3], &[2, 3, 2], &[8], &[1, 1, 1, 5], &[6, 2]];
    let run = |mode: GraphMode| {
        let mut model = build::<T>(mode);
        let mut sequences = Sequences::of(&model);
        let mut rng = Rng::new(6);
        let mut told = BTreeSet::new();
        let left = divisions.map(|lengths| {
            (0..lengths.len()).for_each(|sequence| sequences.restart(sequence));
            let rows = ChunkRows::Last;
            let turn = |(sequence, &tokens)| Turn { sequence, tokens, rows, feedback: false };
            let turns: Vec<_> = lengths.iter().enumerate().map(turn).collect();
            let before = model.device().launch_counts();
            let left = step(&mut model, &sequences.fill(&turns, &mut rng));
            let counts = model.device().launch_counts().since(before);
            if mode == GraphMode::Piecewise {
                assert_eq!(left.report.mode, StepMode::Piecewise);
                assert_eq!((counts.graph_launches, counts.plain_launches), (2, 0), "{}", T::NAME);
            }
            assert_eq!(left.report.sizes.tokens.rows(), 8);
            told.insert(left.report.sizes.sequences);
            left
        });
        assert_eq!(Vec::from_iter(told), [1, 2, 4], "one graph for all of them");
        left
    };
    let (launched, replayed) = (run(GraphMode::None), run(GraphMode::Piecewise));
    for (launched, replayed) in launched.iter().zip(&replayed) {
        assert_eq!(replayed.difference(launched), None, "{}", T::NAME);
    }
}
