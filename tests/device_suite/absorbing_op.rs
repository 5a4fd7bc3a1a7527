//! A user's op whose kernel has its operand element by element or row by row, and its result element by
//! element, so that regions beside it become a part of its launch: inside a piece and between pieces.

use crate::alternatives::One;
use crate::any_graph::{MODES, RandomWeights, elements, options, step};
use crate::like_first::rows_of_first;
use crate::target::{Cuda, SimulatedCuda, Target};
use crate::user_op::Place;
use piecewise_backend::artifact::{Alternative, Launch, PieceSize};
use piecewise_backend::compiler::{Compiler, PieceAt, Store};
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::{Attrs, CustomOpDef, OpDefs};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::F32;
use piecewise_ir::entity::Entity;
use piecewise_ir::eval::{Array, Evaluator};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, UniquePiece};
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::cuda::{
    CudaImplementation, CudaOp, CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param, Scalar,
};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_passes::plan::{PlanOptions, plan_arena};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::{CompileLevel, GraphMode, ModelError, SymbolTable};
use piecewise_testing::lifetimes::assign_node_granular_slots;
use piecewise_testing::{Rng, norm_error, random_arrays};
use std::sync::Arc;

const WIDTH: u64 = 48;
const WEIGHTS: u64 = 5;
const ROWS: [u64; 5] = [3, 8, 1, 16, 7];
const SOURCE: &str = include_str!("turned_kernel.cu");
const ROWS_SOURCE: &str = include_str!("turned_rows_kernel.cu");

/// Each element of a row with its neighbour.
#[derive(Clone, Copy, Debug)]
struct Turned {
    name: &'static str,
    splits: bool,
    absorbs: bool,
    /// In rows: before the op is a norm then, elsewhere a map.
    loads: Loads,
    source: &'static str,
}

/// How the kernel has the operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loads {
    Elements,
    Rows,
}

const TURNED: Turned = Turned {
    name: "test.turned",
    splits: false,
    absorbs: true,
    loads: Loads::Elements,
    source: SOURCE,
};

/// What takes nothing in, and stays in a piece.
const BESIDE: Turned = Turned { name: "test.beside", absorbs: false, ..TURNED };

impl CustomOpDef for Turned {
    fn name(&self) -> &str {
        self.name
    }
    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Ok(vec![operands[0].clone()])
    }
    fn rows(&self) -> RowTreatment {
        RowTreatment::Independent
    }
    fn splits(&self) -> bool {
        self.splits
    }
    fn absorbs(&self) -> Vec<usize> {
        if self.absorbs { vec![0, 2] } else { Vec::new() }
    }
    fn evaluate(
        &self,
        operands: &[Array],
        _: &Attrs,
        counts: &[u64],
    ) -> Result<Vec<Array>, String> {
        let [x, w] = operands else { return Err("it takes x and w".to_owned()) };
        let width = WIDTH as usize;
        let turned = |i: usize| {
            let (row, c) = (i / width * width, i % width);
            x.data[i] + w.data[c] * x.data[row + (c + 1) % width]
        };
        Ok(vec![Array::from_fn(F32, vec![counts[0] as usize, width], turned)])
    }
}

impl CpuOp for Turned {
    fn name(&self) -> &str {
        CustomOpDef::name(self)
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, w, y) = (args.read::<f32>(0)?, args.read::<f32>(1)?, args.write::<f32>(2)?);
        let (rows, width) = (args.true_dim(0, 0), args.dim(0, 1));
        for (x, y) in x.chunks(width).zip(y.chunks_mut(width)).take(rows) {
            for c in 0..width {
                y[c] = x[c] + w[c] * x[(c + 1) % width];
            }
        }
        Ok(())
    }
}

impl CudaOp for Turned {
    fn name(&self) -> &str {
        CustomOpDef::name(self)
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let rows = rows_of_first(call, CustomOpDef::name(self))?;
        let number = |n| Param::Scalar(Scalar::U32(Dim::constant(n)));
        let (operand, threads) = match self.loads {
            Loads::Elements => (Param::Elements(0), 32),
            // As many as a norm's own kernel has for a row, so that its sums have the same order.
            Loads::Rows => (Param::Rows(0), 64),
        };
        let mut params = vec![operand, Param::Arg(1), Param::Elements(2), Param::Counts];
        params.extend([number(rows.index() as u64), number(WIDTH)]);
        let grid = GridAxis::of(Dim::from(rows), 1);
        let launch = LaunchRecipe::new(self.source, "turned", grid, threads, params);
        Ok(CudaImplementation::Source(OpKernels::new([launch])))
    }
}

fn registry(op: Turned) -> Arc<OpRegistry> {
    let mut registry = OpRegistry::new();
    for op in [op, BESIDE] {
        registry.define(Arc::new(op)).implement_cpu(Arc::new(op)).implement_cuda(Arc::new(op));
    }
    Arc::new(registry)
}

/// The op three times, with regions before, between and after: what is between the last two, more than
/// the op reads, and what is after the last, of what another op makes no sooner.
fn graph(op: Turned) -> Graph {
    let b = Builder::new("absorbing").weight_dtype(F32);
    let t = b.symbol("T", 1, 16);
    let mut x = b.input("x", F32, (t, WIDTH));
    let (gate, mut kept) = (b.input("gate", F32, (t, WIDTH)), x);
    for layer in 0..3 {
        let _scope = b.scope(format!("layers.{layer}"));
        let before = match op.loads {
            Loads::Elements => (x * gate).tanh(),
            Loads::Rows => (x * gate).rms_norm(b.weight("norm", [WIDTH]), 1e-5),
        };
        let turned = b.custom_one(&op, &[before, b.weight("w", [WIDTH])], Attrs::new());
        let beside = match layer {
            2 => b.custom_one(&BESIDE, &[gate, b.weight("beside", [WIDTH])], Attrs::new()),
            _ => gate,
        };
        x = turned.silu() + beside;
        kept = if layer == 1 { x } else { kept };
    }
    b.finish([x + kept]).unwrap()
}

fn module(op: Turned) -> Module {
    plan(graph(op), CompileLevel::Piecewise, None, Vec::new()).unwrap().0
}

fn op_at(place: Place, loads: Loads) -> Turned {
    let source = if loads == Loads::Rows { ROWS_SOURCE } else { SOURCE };
    Turned { splits: place == Place::BetweenPieces, loads, source, ..TURNED }
}

fn build<T: Target>(
    module: &Arc<Module>,
    op: Turned,
    mode: GraphMode,
    alternative: usize,
) -> Result<CompiledModel, ModelError> {
    let (device, all) = T::make(&registry(op), 2);
    let one = One { all, alternative, way: 0 };
    let (options, store) = (options(module, mode, &[1, 4, 8, 16], 16), T::store());
    let compiled = compile_module(module, &options.dispatcher, &one, store, &mut |_| {})?;
    let weights = Arc::new(RandomWeights(WEIGHTS));
    CompiledModel::build(Arc::clone(module), options, compiled, store, device, weights, &mut |_| {})
}

/// Each alternative in every mode leaves the same bits, close to the evaluator's numbers.
pub(crate) fn every_alternative_leaves_the_same<T: Target>(place: Place, loads: Loads) {
    let op = op_at(place, loads);
    let module = Arc::new(module(op));
    let (_, compiler) = T::make(&registry(op), 2);
    let pieces = module.stitch().unwrap().unique.values();
    let alternatives = pieces.map(|piece| alternatives(&*compiler, piece, T::store()).len());
    let alternatives = alternatives.max().unwrap_or_default();
    // On the CPU a custom op is always a launch of its own.
    let least = if T::NAME == Cuda::NAME { 2 } else { 1 };
    assert!(alternatives >= least, "{alternatives} on {}", T::NAME);
    let graph = graph(op);
    let weights = random_arrays(&graph, &[1], WEIGHTS).unwrap().weights;
    let mut ops = OpDefs::new();
    for op in [op, BESIDE] {
        ops.register(Arc::new(op));
    }
    let mut expected: Option<Vec<Vec<Vec<u8>>>> = None;
    for alternative in 0..alternatives {
        for (mode, step_mode) in MODES {
            let mut model = build::<T>(&module, op, mode, alternative).unwrap();
            let mut rng = Rng::new(4);
            let mut found = Vec::new();
            for rows in ROWS {
                let shape = || vec![rows as usize, WIDTH as usize];
                let mut random = || Array::from_fn(F32, shape(), |_| rng.symmetric(2.0)).rounded();
                let inputs = [random(), random()];
                let left = step(&mut model, rows, &inputs, step_mode);
                let evaluator = Evaluator::new(&graph, &ops);
                let numbers = evaluator.run(&[rows], &inputs, &weights, &mut []).unwrap();
                let error = norm_error(&elements(F32, &left[0]), &numbers[0].data);
                assert!(error < 1e-5, "{rows} rows in {mode:?}, {alternative}: {error}");
                found.push(left);
            }
            let expected = expected.get_or_insert_with(|| found.clone());
            assert_eq!(found, *expected, "alternative {alternative} in {mode:?}");
        }
    }
}

/// The launches of each alternative of a piece at three rows.
fn alternatives(
    compiler: &dyn Compiler,
    piece: &UniquePiece,
    store: &dyn Store,
) -> Vec<Vec<String>> {
    let symbols = SymbolTable::new(piece.graph.symbols()).unwrap();
    let made = compiler
        .compile(PieceAt { piece, size: PieceSize::Exact(3), bounds: symbols.bounds() }, &[], store)
        .unwrap();
    let launches = |one: &Alternative| {
        let show = |launch: &Launch| {
            format!("{} {:?}, {} arguments", launch.name, launch.nodes, launch.args.len())
        };
        one.first_launches().map(show).collect()
    };
    made.alternatives.iter().map(launches).collect()
}

fn listed(op: Turned) -> String {
    let (_, compiler) = SimulatedCuda::make(&registry(op), 1);
    let module = module(op);
    let stitch = module.stitch().unwrap();
    let mut listed = String::new();
    for step in &stitch.steps {
        let piece = &stitch.unique[stitch.uses[step.id()].unique];
        listed.push_str(&format!("{step:?}\n"));
        let alternatives = alternatives(&*compiler, piece, SimulatedCuda::store());
        for (i, launches) in alternatives.iter().enumerate() {
            listed.push_str(&format!("  alternative {i}\n"));
            for launch in launches {
                listed.push_str(&format!("    {launch}\n"));
            }
        }
    }
    listed
}

#[test]
fn what_an_op_absorbs_has_no_launch() {
    if !SimulatedCuda::is_there() {
        return;
    }
    for (name, place) in [("inside", Place::InsideAPiece), ("between", Place::BetweenPieces)] {
        for (loads, end) in [(Loads::Elements, ""), (Loads::Rows, "_rows")] {
            let listed = listed(op_at(place, loads));
            assert!(listed.contains("alternative 1"), "absorbed or not: {listed}");
            insta::assert_snapshot!(format!("{name}{end}"), listed);
        }
    }
    let apart = listed(Turned { absorbs: false, ..TURNED });
    assert!(!apart.contains("alternative 1") && !apart.contains(" + "), "{apart}");
}

/// Its launches are held to the plan, and no piece computes what it takes in.
#[test]
fn plans_and_pieces_hold_what_an_op_absorbs() {
    if !SimulatedCuda::is_there() {
        return;
    }
    for place in [Place::InsideAPiece, Place::BetweenPieces] {
        let op = op_at(place, Loads::Elements);
        let mut granular = module(op);
        build::<SimulatedCuda>(&Arc::new(granular.clone()), op, GraphMode::Full, 0).unwrap();
        assign_node_granular_slots(&mut granular).unwrap();
        plan_arena(&mut granular, &PlanOptions::default()).unwrap();
        let granular = Arc::new(granular);
        let refused = build::<SimulatedCuda>(&granular, op, GraphMode::Full, 0).map(|_| ());
        let Err(ModelError::Launches(found)) = &refused else { panic!("{place:?}: {refused:?}") };
        assert!(found.items.iter().all(|item| item.code == "B0502" || item.code == "B0503"));
        build::<SimulatedCuda>(&granular, op, GraphMode::Full, 1).unwrap();
    }
    let pieces = |absorbs| {
        let module = module(Turned { absorbs, ..op_at(Place::BetweenPieces, Loads::Elements) });
        let stitch = module.stitch().unwrap();
        let hash = |id| stitch.unique[id].hash;
        stitch.unique_pieces().into_iter().map(hash).collect::<Vec<_>>()
    };
    let (taken, apart) = (pieces(true), pieces(false));
    assert_eq!((taken.len(), apart.len()), (1, 4), "beside; before, twice between, after");
    assert!(!apart.contains(&taken[0]));
}

#[test]
fn a_source_that_does_not_load_what_it_is_said_to_is_named() {
    if !SimulatedCuda::is_there() {
        return;
    }
    let source = SOURCE.replace("PW_ELEMENTS_0", "elements_0::Elements{x}");
    let source: &'static str = source.leak();
    let op = Turned { source, ..TURNED };
    let (_, compiler) = SimulatedCuda::make(&registry(op), 1);
    let module = module(op);
    let piece = module.stitch().unwrap().unique.values().next().unwrap();
    let symbols = SymbolTable::new(piece.graph.symbols()).unwrap();
    let size = PieceSize::Exact(3);
    let made = compiler.compile(
        PieceAt { piece, size, bounds: symbols.bounds() },
        &[],
        SimulatedCuda::store(),
    );
    insta::assert_snapshot!(made.map(|_| ()).unwrap_err());
}
