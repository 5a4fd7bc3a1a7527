//! Steps that go another way than a replay of their padded size, as it was measured: each is
//! counted with its reason, and computes the same.

use crate::any_graph::{RandomWeights, build_of, elements, options};
use crate::like_first::LikeFirst;
use crate::sequences::{Sequences, Turn, roles_of, set_states, states, step};
use crate::small_decoder::Setup;
use crate::target::{Breakable, Breaks, Target};
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::Attrs;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOp, CudaOpCall, Param, Scalar};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_runtime::batch::{ChunkRows, full_steps};
use piecewise_runtime::dispatch::OtherWay;
use piecewise_runtime::engine::{Engine, EngineOptions, Request, RequestEvent};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::BuildOptions;
use piecewise_runtime::words::{
    CaptureWhen, CompileLevel, FallbackReason, GraphMode, StepData, StepMode, SuspendedWeights,
};
use piecewise_testing::FaultPoint;
use piecewise_testing::host_time;
use piecewise_testing::{Rng, norm_error};
use std::sync::Arc;
use std::time::Duration;

/// What is measured differs from device to device, and so do the ways; what they lead to does not.
pub(crate) fn are_taken_and_counted<T: Target>() {
    for mode in [GraphMode::Piecewise, GraphMode::Full, GraphMode::FullAndPiecewise] {
        let most = T::MOST_TOKENS;
        let setup = Setup {
            mode,
            layers: 1,
            sizes: vec![1, most],
            max_tokens: most,
            max_length: most,
            batches: vec![4],
            ..Setup::default()
        };
        let mut padded = setup.build::<T>();
        let mut model = Setup { measure_padding: true, ..setup.clone() }.build::<T>();
        assert_eq!(model.statistics().steps, 0, "what is measured counts as no step");
        let mut sequences = Sequences::of(&model);
        let mut rng = Rng::new(41);
        let mut counted = [0, 0];
        for tokens in [1, 2, 3, 9, 33, most / 2, most - 1, most] {
            sequences.restart(0);
            let turn = Turn { sequence: 0, tokens, rows: ChunkRows::Last, feedback: false };
            let view = sequences.fill(&[turn], &mut rng);
            let before = states(&mut padded);
            set_states(&mut model, &before);
            let (found, expected) = (step(&mut model, &view), step(&mut padded, &view));
            let (report, replayed) = (found.report, expected.report);
            let way = model.measured_ways().better(replayed.mode, &replayed.sizes, tokens);
            let as_found = match way {
                None => (replayed.mode, None),
                Some(OtherWay::Pieces) => (StepMode::Piecewise, None),
                Some(OtherWay::Launches) => (StepMode::None, Some(FallbackReason::PaddingLoses)),
            };
            assert_eq!((report.mode, report.fallback), as_found, "{mode:?}, {tokens} tokens");
            counted[0] += u64::from(way == Some(OtherWay::Launches));
            counted[1] += u64::from(way == Some(OtherWay::Pieces));
            let [found, expected] =
                [&found, &expected].map(|left| elements(DType::F32, &left.outputs[0]));
            let error = norm_error(&found, &expected);
            assert!(error <= 1e-4, "{mode:?}, {tokens} tokens: {error}");
        }
        let stats = model.statistics();
        assert_eq!([stats.misses["padding_loses"], stats.pieces_for_padding], counted);
        assert_eq!(stats.hits() + stats.misses(), stats.steps);
        println!(
            "{} {mode:?}: {} of 8 steps launched and {} in pieces since padding loses",
            T::NAME,
            counted[0],
            counted[1]
        );
    }
}

/// Sizes whose pieces take longer to replay than to launch are launched, to the same bits, as long as that
/// is so where it is measured.
pub(crate) fn sizes_that_are_faster_launched_are_launched<T: Breakable>() {
    host_time::hold();
    for mode in [GraphMode::Piecewise, GraphMode::FullAndPiecewise] {
        let setup = Setup { mode, sizes: vec![8], batches: vec![4], ..Setup::default() };
        let (device, compiler, breaks) = T::breakable(&Arc::new(OpRegistry::builtin()));
        let mut model = setup.build_on::<T>(device, &*compiler);
        let mut replayed = setup.build::<T>();
        let steps = full_steps(&roles_of(&model), model.dispatcher());
        let mut sequences = Sequences::of(&model);
        let mut rng = Rng::new(43);
        let mut launched = 0;
        for slow in [FaultPoint::Replay, FaultPoint::Launch, FaultPoint::Replay] {
            breaks.slow(slow, longer_at(slow));
            model.measure_launches(&steps, Duration::MAX).unwrap();
            let way = match slow {
                FaultPoint::Replay => (StepMode::None, Some(FallbackReason::LaunchesFaster)),
                _ => (StepMode::Piecewise, None),
            };
            for tokens in [8, 5, 2] {
                sequences.restart(0);
                let turn = Turn { sequence: 0, tokens, rows: ChunkRows::Last, feedback: false };
                let view = sequences.fill(&[turn], &mut rng);
                let before = states(&mut replayed);
                set_states(&mut model, &before);
                let (found, expected) = (step(&mut model, &view), step(&mut replayed, &view));
                let replay = (expected.report.mode, expected.report.fallback);
                assert_eq!(replay, (StepMode::Piecewise, None));
                let what = format!("{} {mode:?}, {tokens} tokens, slow {slow:?}", T::NAME);
                assert_eq!((found.report.mode, found.report.fallback), way, "{what}");
                assert_eq!(found.difference(&expected), None, "{what}");
                launched += u64::from(way.1.is_some());
            }
        }
        let stats = model.statistics();
        assert_eq!((stats.misses["launches_faster"], stats.misses()), (launched, launched));
        assert_eq!(stats.hits() + stats.misses(), stats.steps);
    }
}

/// What padding costs is measured of graphs that steps have captured, or that were captured between them,
/// whenever somebody sets the mode; until then there is nothing to measure.
pub(crate) fn padding_is_measured_of_what_was_captured_late<T: Breakable>() {
    host_time::hold();
    for capture in [CaptureWhen::Lazy, CaptureWhen::Background] {
        let mode = GraphMode::Piecewise;
        let setup =
            Setup { mode, capture, sizes: vec![1, 8], batches: vec![1], ..Setup::default() };
        let setup = Setup { measure_padding: true, ..setup };
        let (device, compiler, breaks) = T::breakable(&Arc::new(OpRegistry::builtin()));
        let model = setup.build_on::<T>(device, &*compiler);
        let roles = roles_of(&model);
        let options = EngineOptions::of(&model, &roles);
        let mut engine = Engine::new(model, roles, options).unwrap();
        let lost = |engine: &mut Engine| {
            let count = |engine: &Engine| {
                let misses = &engine.model().statistics().misses;
                misses.get("padding_loses").copied().unwrap_or(0)
            };
            let (before, mut events) = (count(engine), Vec::new());
            engine
                .add(Request { ignore_eos: true, ..Request::new(vec![4, 5, 6, 7, 8], 4) })
                .unwrap();
            engine.run(&mut events).unwrap();
            let tokens = events.iter().filter(|event| matches!(event, RequestEvent::Token { .. }));
            assert_eq!(tokens.count(), 4);
            count(engine) - before
        };
        breaks.slow(FaultPoint::Replay, longer_at(FaultPoint::Replay));
        engine.set_graph_mode(mode).unwrap();
        let what = format!("{} {capture:?}", T::NAME);
        assert_eq!([lost(&mut engine), lost(&mut engine)], [0; 2], "{what}: there was no graph");
        while engine.capture_next().unwrap() {}
        for slow in [FaultPoint::Replay, FaultPoint::Launch, FaultPoint::Replay] {
            breaks.slow(slow, longer_at(slow));
            engine.set_graph_mode(mode).unwrap();
            // Five tokens are padded to eight, and one to none.
            let expected = u64::from(slow == FaultPoint::Replay);
            assert_eq!(lost(&mut engine), expected, "{what}, slow {slow:?}");
        }
        engine.suspend(SuspendedWeights::Keep, &mut Vec::new()).unwrap();
        engine.set_graph_mode(mode).unwrap();
        engine.resume(None).unwrap();
        assert_eq!(lost(&mut engine), 1, "{what}: what was measured stays");
    }
}

/// How much longer than others a call takes: a step several times as long as all of it takes otherwise, the
/// median of which a busy host does not change.
fn longer_at(point: FaultPoint) -> Duration {
    Duration::from_micros(if point == FaultPoint::Launch { 1_000 } else { 6_000 })
}

const WIDTH: u64 = 16;
const MOST: u64 = 16;

/// `y = x`, and as long for each row of padding as a small step takes altogether.
#[derive(Clone, Debug)]
struct Dear {
    /// Where an op takes what passes of the host's time.
    clock: Option<host_time::Clock>,
}

impl Dear {
    const OP: LikeFirst = LikeFirst { name: "test.dear", splits: false };
    const EACH: Duration = Duration::from_millis(1);
    /// More cycles than a millisecond has.
    const SOURCE: &'static str = r#"
        extern "C" __global__ void dear(const float *x, float *y, const int *counts,
                                        unsigned symbol, unsigned padded) {
          const unsigned rows = counts[symbol];
          for (unsigned row = 0; row < padded; ++row) {
            const unsigned at = row * blockDim.x + threadIdx.x;
            if (row < rows) {
              y[at] = x[at];
              continue;
            }
            const long long start = clock64();
            while (clock64() - start < 2000000) {}
          }
        }
    "#;
}

impl CpuOp for Dear {
    fn name(&self) -> &str {
        Self::OP.name
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, y) = (args.read::<f32>(0)?, args.write::<f32>(1)?);
        let (rows, padded) = (args.true_dim(0, 0), args.dim(0, 0));
        let real = rows * WIDTH as usize;
        y[..real].copy_from_slice(&x[..real]);
        if let Some(clock) = &self.clock {
            clock.pass(Self::EACH * (padded - rows) as u32);
        }
        Ok(())
    }
}

impl CudaOp for Dear {
    fn name(&self) -> &str {
        Self::OP.name
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let padded = |rows| Param::Scalar(Scalar::U32(Dim::from(rows)));
        let kernel = (Self::SOURCE, "dear");
        Self::OP.one_block(call, kernel, [2, WIDTH as u32], |rows| vec![padded(rows)])
    }
}

/// Where padding is dear, a step of few rows is launched and counted, and one that is not padded replays.
pub(crate) fn dear_padding_is_launched<T: Target>() {
    let op = Dear { clock: T::TAKES_HOST_TIME.then(host_time::hold) };
    let b = Builder::new("dear").weight_dtype(DType::F32);
    let t = b.symbol("T", 1, MOST);
    let x = b.input("x", DType::F32, (t, WIDTH));
    let dear = b.custom_one(&Dear::OP, &[x.silu()], Attrs::new());
    let graph = b.finish([dear.linear(b.weight("w", [WIDTH, WIDTH]))]).unwrap();
    let mut ops = OpRegistry::new();
    let [cpu, cuda] = [op.clone(), op].map(Arc::new);
    ops.define(Arc::new(Dear::OP)).implement_cpu(cpu).implement_cuda(cuda);
    let ops = Arc::new(ops);
    let module = Arc::new(plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0);
    for (mode, step_mode) in
        [(GraphMode::Piecewise, StepMode::Piecewise), (GraphMode::Full, StepMode::Full)]
    {
        let build = |measure_padding| {
            let options = options(&module, mode, &[1, MOST], MOST);
            let options = BuildOptions { measure_padding, strict: false, ..options };
            build_of::<T>(&module, &ops, options, RandomWeights(3)).unwrap()
        };
        let (mut measured, mut padded) = (build(true), build(false));
        let mut launched = 0;
        for rows in [2, MOST, 1, 3] {
            let ones: Vec<u8> = (0..rows * WIDTH).flat_map(|_| 1f32.to_le_bytes()).collect();
            let (counts, inputs) = ([rows], [&ones[..]]);
            let step = StepData { counts: &counts, inputs: &inputs, ..StepData::default() };
            let run = |model: &mut piecewise_runtime::steps::CompiledModel| {
                let ticket = model.submit(&step).unwrap();
                let left = elements(DType::F32, model.read(&ticket).unwrap().bytes(0).unwrap());
                (left, model.last_step().unwrap())
            };
            let ((found, report), (expected, replayed)) = (run(&mut measured), run(&mut padded));
            assert_eq!((replayed.mode, replayed.fallback), (step_mode, None), "{rows} rows");
            assert!(norm_error(&found, &expected) <= 1e-4, "{rows} rows");
            let way = match rows {
                1 | MOST => (step_mode, None),
                _ => (StepMode::None, Some(FallbackReason::PaddingLoses)),
            };
            assert_eq!((report.mode, report.fallback), way, "{} {mode:?}, {rows} rows", T::NAME);
            launched += u64::from(way.1.is_some());
        }
        assert_eq!(measured.statistics().misses["padding_loses"], launched);
    }
}
