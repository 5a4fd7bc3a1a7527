//! Ops that say more of their captures than they hold: a probe of each query length, and one of a mixed
//! step, shows for which batches they are right, and no graph is replayed for others.

use crate::any_graph::{RandomWeights, build_of};
use crate::host_kernel::HostKernel;
use crate::like_first::LikeFirst;
use crate::mixing_model::{MOST, WIDTH, mixing_model, mixing_options};
use crate::sequences::{Sequences, Turn, step};
use crate::target::{Cpu, Target};
use piecewise_ir::custom::Attrs;
use piecewise_ir::entity::Entity;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOp, CudaOpArgs, CudaOpCall};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_kernels::step::{CaptureSupport, LaunchContext};
use piecewise_runtime::batch::{ChunkRows, RoleMap, probes};
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::words::{GraphMode, ModelError, SymbolTable};
use piecewise_testing::Rng;
use std::sync::{Arc, OnceLock};

const SEQUENCES: u64 = 3;

/// How the op finds the sequence of a row in a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// From where the sequences start: right in every batch.
    Starts,
    /// Each row is one: right in decodes of one token.
    Rows,
    /// One or two rows are one: right in uniform batches of at most two tokens.
    Pairs,
    /// All rows are one: right in steps of one sequence alone.
    One,
    /// Right as the first, and values that no embedding has are refused: those of a probe. A GPU can't.
    Wary,
}

/// `x`, or `-x` in every other sequence. Launched it is right, and in a graph as its rule has it.
#[derive(Clone, Copy, Debug)]
struct Signs {
    rule: Rule,
    /// What it says of batches in which a graph of it is right.
    declared: CaptureSupport,
    /// Whether it is between pieces or in one.
    splits: bool,
}

impl Signs {
    const NAME: &'static str = "test.signs";

    fn rule(self, context: LaunchContext<'_>) -> Rule {
        match context {
            _ if self.rule == Rule::Wary => Rule::Wary,
            LaunchContext::Step(_) => Rule::Starts,
            LaunchContext::Capture(_) => self.rule,
        }
    }
}

impl CpuOp for Signs {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn capture_support(&self) -> CaptureSupport {
        self.declared
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, starts) = (args.read::<f32>(0)?, args.read::<i32>(1)?);
        let y = args.write::<f32>(2)?;
        let (rows, sequences) = (args.true_dim(0, 0), args.true_dim(1, 0));
        let rule = self.rule(args.context());
        let width = WIDTH as usize;
        if rule == Rule::Wary && x[..rows * width].iter().any(|x| *x < -3.0) {
            return Err(args.error("a value is too far below"));
        }
        let all = y.chunks_exact_mut(width).zip(x.chunks_exact(width)).take(rows);
        for (row, (y, x)) in all.enumerate() {
            let sequence = match rule {
                Rule::Starts | Rule::Wary => {
                    starts[..sequences].partition_point(|&start| start <= row as i32)
                }
                Rule::Rows => row + 1,
                Rule::Pairs => row / (rows / sequences).clamp(1, 2) + 1,
                Rule::One => 1,
            };
            let sign = if sequence % 2 == 0 { -1.0 } else { 1.0 };
            y.iter_mut().zip(x).for_each(|(y, x)| *y = sign * x);
        }
        Ok(())
    }
}

fn kernel() -> &'static HostKernel {
    static KERNEL: OnceLock<HostKernel> = OnceLock::new();
    KERNEL.get_or_init(|| HostKernel::load(include_str!("signs_kernel.cu"), "signs").unwrap())
}

impl CudaOp for Signs {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn capture_support(&self) -> CaptureSupport {
        self.declared
    }

    /// The kernel is loaded here: while a capture runs, nothing may be.
    fn implementation(&self, _: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        kernel();
        Ok(CudaImplementation::Host)
    }

    fn enqueue(&self, args: &CudaOpArgs<'_>) -> Result<(), OpError> {
        let symbol = |i: usize| args.types[i].outer_symbol().map(|symbol| symbol.index() as u64);
        let (Some(tokens), Some(sequences)) = (symbol(0), symbol(1)) else {
            return Err(args.error("it takes rows of tokens and of sequences"));
        };
        let rule = self.rule(args.context) as u64;
        let mut parameters = args.addresses.to_vec();
        parameters.extend([args.counts, tokens, sequences, rule]);
        kernel().launch(args.stream, 1, WIDTH as u32, &mut parameters).map_err(|e| args.error(e))
    }
}

/// A model in a mode; probed, or believed.
fn build<T: Target>(
    op: Signs,
    mode: GraphMode,
    query_lengths: &[u64],
    is_probed: bool,
    strict: bool,
) -> Result<CompiledModel, ModelError> {
    let definition = LikeFirst { name: Signs::NAME, splits: op.splits };
    let module = mixing_model("signs", SEQUENCES, |b, x, inputs| {
        let x = b.custom_one(&definition, &[x, inputs.attention.query_starts], Attrs::new());
        x.linear(b.weight("out", [WIDTH, WIDTH]))
    });
    let mut ops = OpRegistry::builtin();
    ops.define(Arc::new(definition)).implement_cpu(Arc::new(op)).implement_cuda(Arc::new(op));
    let batches = [1, 2, SEQUENCES];
    let mut options =
        BuildOptions { strict, ..mixing_options(&module, mode, &[1, 2, 4, 8, MOST], &batches) };
    options.dispatcher.query_lengths = query_lengths.to_vec();
    if is_probed {
        let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
        let roles = RoleMap::resolve(module.graph(), &symbols, &ops).unwrap();
        options.probes = probes(&roles, &options.dispatcher);
    }
    build_of::<T>(&module, &Arc::new(ops), options, RandomWeights(3))
}

/// The logits of uniform batches of one, two and four tokens, and of a mixed step.
fn logits(model: &mut CompiledModel) -> Vec<Vec<u8>> {
    let mut sequences = Sequences::of(model);
    let mut rng = Rng::new(6);
    let steps = [[1, 1, 1], [2, 2, 2], [4, 4, 4], [5, 1, 3]].map(|lengths: [u64; 3]| {
        let turns = lengths.iter().enumerate().map(|(sequence, &tokens)| Turn {
            sequence,
            tokens,
            rows: ChunkRows::All,
            feedback: false,
        });
        let turns: Vec<_> = turns.collect();
        step(model, &sequences.fill(&turns, &mut rng)).outputs[0].clone()
    });
    steps.into()
}

/// An op between pieces and one in a piece, with the query lengths that have sizes of their own and the
/// modes that each is captured for.
type Case = (Rule, CaptureSupport, &'static [u64], [GraphMode; 2]);

const CASES: [Case; 11] = {
    use CaptureSupport::{Always, SingleTokenDecode, UniformBatch};
    use GraphMode::{Full, FullAndPiecewise, FullDecodeOnly, None, Piecewise};
    [
        (Rule::Starts, Always, &[1, 2, 4], [Full, Full]),
        (Rule::Rows, Always, &[1], [FullAndPiecewise, FullDecodeOnly]),
        (Rule::Rows, Always, &[1, 2], [Piecewise, None]),
        (Rule::Pairs, Always, &[1, 2], [FullAndPiecewise, FullDecodeOnly]),
        // What is right for two tokens is wrong for four.
        (Rule::Pairs, Always, &[1, 2, 4], [Piecewise, None]),
        (Rule::One, Always, &[1], [Piecewise, None]),
        // Those that declare no more than what is right, and those that say less than every batch and
        // are right in fewer still.
        (Rule::Pairs, UniformBatch, &[1, 2], [FullAndPiecewise, FullDecodeOnly]),
        (Rule::Rows, UniformBatch, &[1, 2], [Piecewise, None]),
        (Rule::Rows, SingleTokenDecode, &[1], [FullAndPiecewise, FullDecodeOnly]),
        (Rule::Rows, SingleTokenDecode, &[1, 2], [Piecewise, None]),
        (Rule::One, SingleTokenDecode, &[1], [Piecewise, None]),
    ]
};

pub(crate) fn declarations_are_held_against_replays<T: Target>() {
    for (rule, declared, query_lengths, modes) in CASES {
        for (splits, had) in [true, false].into_iter().zip(modes) {
            let op = Signs { rule, declared, splits };
            held::<T>(op, query_lengths, had);
        }
    }
}

/// The mode that an op is captured for where full is asked for, and what its steps give there.
fn held<T: Target>(op: Signs, query_lengths: &[u64], had: GraphMode) {
    use GraphMode::Full;
    let case = format!("{} {op:?} {query_lengths:?}", T::NAME);
    let [mut model, mut launched] =
        [(); 2].map(|()| build::<T>(op, Full, query_lengths, true, false).unwrap());
    assert_eq!(model.dispatcher().mode, had, "{case}: {:?}", model.reduced_mode());
    launched.set_launches_only(true);
    assert_eq!(logits(&mut model), logits(&mut launched), "{case}");
    assert_eq!(model.statistics().hits() > 0, had != GraphMode::None, "{case}");
    let Some(reason) = model.reduced_mode() else {
        assert_eq!(had, Full, "{case}");
        return;
    };
    assert!(had != Full && reason.contains("`test.signs`"), "{case}: {reason}");
    let error = build::<T>(op, Full, query_lengths, true, true).unwrap_err().to_string();
    assert!(error.contains("`test.signs`"), "{case}: {error}");
    let [mut believed, mut launched] =
        [(); 2].map(|()| build::<T>(op, Full, query_lengths, false, false).unwrap());
    launched.set_launches_only(true);
    let is_right = logits(&mut believed) == logits(&mut launched);
    let is_shown = reason.contains("another batch");
    assert_eq!(is_right, !is_shown, "{case}: believed, in {:?}", believed.dispatcher().mode);
    // What is declared lowers it as far as what is shown, or what is shown lowers it further.
    assert_eq!(believed.dispatcher().mode == had, is_right, "{case}");
}

/// What can't be tried on made-up values is not believed.
#[test]
fn cpu_an_op_that_refuses_a_probe_is_not_captured_with_whole_steps() {
    let wary = Signs { rule: Rule::Wary, declared: CaptureSupport::Always, splits: true };
    let mut model = build::<Cpu>(wary, GraphMode::Full, &[1, 2], true, false).unwrap();
    assert_eq!(model.dispatcher().mode, GraphMode::Piecewise);
    let reason = model.reduced_mode().unwrap();
    assert!(reason.contains("`test.signs`") && reason.contains("too far below"), "{reason}");
    let mut believed = build::<Cpu>(wary, GraphMode::Full, &[1, 2], false, false).unwrap();
    assert_eq!(logits(&mut model), logits(&mut believed));
    assert!(model.statistics().hits() > 0);
}
