//! A graph whose only custom op is a user's: it mixes rows and mutates a state. It runs between
//! pieces and inside one, and on CUDA as source with a launch recipe and as a host function.

use crate::alternatives::One;
use crate::any_graph::{
    MODES, RandomWeights, build, build_by, build_of, elements, options, set_states, step,
};
use crate::cuda_mix::{HostMix, SECOND_ROWS, SourceMix};
use crate::target::{Cpu, SimulatedCuda, Target};
use piecewise_backend::artifact::Part;
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::{Attr, Attrs, CustomOpDef, OpDefs};
use piecewise_ir::dtype::DType::{F32, I32};
use piecewise_ir::eval::{Array, Evaluator};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOp, CudaOpCall};
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::{Checks, CompileLevel, GraphMode, ModelError, StepMode};
use piecewise_testing::{MixOp, Rng, norm_error, random_arrays};
use std::collections::BTreeSet;
use std::sync::Arc;

const WIDTH: u64 = 16;
const STATE_ROWS: u64 = 24;
const SCALE: f64 = 0.5;
const WEIGHTS: u64 = 21;
const SIZES: [u64; 3] = [4, 8, 16];

/// [`MixOp`] that promises to leave padding rows alone, so that it may be inside a piece.
#[derive(Clone, Copy, Debug)]
struct MaskedMix;

impl MaskedMix {
    const NAME: &'static str = "test.masked_mix";
}

impl CustomOpDef for MaskedMix {
    fn name(&self) -> &str {
        Self::NAME
    }
    fn infer(&self, operands: &[TensorType], attrs: &Attrs) -> Result<Vec<TensorType>, String> {
        MixOp.infer(operands, attrs)
    }
    fn mutates(&self) -> Vec<usize> {
        MixOp.mutates()
    }
    fn scatters(&self) -> Vec<(usize, usize)> {
        MixOp.scatters()
    }
    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }
    fn evaluate(
        &self,
        operands: &[Array],
        attrs: &Attrs,
        counts: &[u64],
    ) -> Result<Vec<Array>, String> {
        MixOp.evaluate(operands, attrs, counts)
    }
}

/// [`MixOp`] on the CPU.
#[derive(Debug)]
pub(crate) struct CpuMix {
    pub name: &'static str,
    /// A fault to plant: sums begin with the last padding row.
    pub reads_padding: bool,
}

impl CpuOp for CpuMix {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, slots) = (args.read::<f32>(0)?, args.read::<i32>(2)?);
        let (state, y) = (args.write::<f32>(1)?, args.write::<f32>(3)?);
        let (width, rows) = (args.dim(0, 1), args.true_dim(0, 0));
        let Some(Attr::Float(scale)) = args.attrs().get("scale") else {
            return Err(args.error("attribute `scale` must be a float"));
        };
        for column in 0..width {
            let last = (args.dim(0, 0) - 1) * width + column;
            let mut sum = if self.reads_padding { x[last] } else { 0.0 };
            for (i, &slot) in slots[..rows].iter().enumerate() {
                let value = x[i * width + column];
                sum += value;
                let kept = usize::try_from(slot).ok().map(|slot| slot * width + column);
                let kept_value = kept.and_then(|at| state.get(at)).copied().unwrap_or(0.0);
                let mixed = *scale as f32 * (value + sum / (i + 1) as f32 + kept_value);
                y[i * width + column] = mixed;
                if let Some(kept) = kept.and_then(|at| state.get_mut(at)) {
                    *kept = mixed;
                }
            }
        }
        Ok(())
    }
}

/// The op as a source that says that it reads an argument before it waits.
#[derive(Debug)]
struct EarlyMix {
    mix: SourceMix,
    ahead: u32,
}

impl CudaOp for EarlyMix {
    fn name(&self) -> &str {
        self.mix.name
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let mut made = self.mix.implementation(call)?;
        if let CudaImplementation::Source(kernels) = &mut made {
            for launch in &mut kernels.launches {
                (launch.programmatic, launch.ahead) = (true, vec![self.ahead]);
            }
        }
        Ok(made)
    }
}

/// Where the op runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    BetweenPieces,
    InsideAPiece,
}

/// How the op is written for CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Source,
    /// The other implementation of its source.
    SecondSource,
    HostFunction,
}

fn graph(place: Place) -> Graph {
    let b = Builder::new("users").weight_dtype(F32);
    let t = b.symbol("T", 1, 16);
    let mut x = b.input("x", F32, (t, WIDTH));
    let slots = b.input("slots", I32, [t]).padding(-1.0);
    for layer in 0..3 {
        let _scope = b.scope(format!("layers.{layer}"));
        let state = b.state("memory", F32, (STATE_ROWS, WIDTH));
        let h = x.rms_norm(b.weight("norm", [WIDTH]), 1e-5);
        let h = h.linear(b.weight("in", [WIDTH, WIDTH]));
        let attrs = [("scale".to_owned(), Attr::Float(SCALE))].into();
        let mixed = match place {
            Place::BetweenPieces => b.custom_one(&MixOp, &[h, state, slots], attrs),
            Place::InsideAPiece => b.custom_one(&MaskedMix, &[h, state, slots], attrs),
        };
        x = x + mixed.silu().linear(b.weight("out", [WIDTH, WIDTH]));
    }
    b.finish([x]).unwrap()
}

/// The op and its implementations.
pub(crate) fn registry() -> Arc<OpRegistry> {
    registry_of(Form::Source, false)
}

fn registry_of(form: Form, reads_padding: bool) -> Arc<OpRegistry> {
    let mut registry = OpRegistry::new();
    registry.define(Arc::new(MixOp)).define(Arc::new(MaskedMix));
    for name in [MixOp::NAME, MaskedMix::NAME] {
        let cuda: Arc<dyn CudaOp> = match form {
            Form::Source | Form::SecondSource => Arc::new(SourceMix { name, reads_padding }),
            Form::HostFunction => Arc::new(HostMix { name }),
        };
        registry.implement_cpu(Arc::new(CpuMix { name, reads_padding })).implement_cuda(cuda);
    }
    Arc::new(registry)
}

/// The graph with the op in one place, planned.
pub(crate) fn user_module(place: Place) -> Module {
    plan(graph(place), CompileLevel::Piecewise, None, Vec::new()).unwrap().0
}

/// It is planned, captured and run in every mode, with the same bits and close to the evaluator's
/// numbers, over several steps that carry states on.
pub(crate) fn equals_the_evaluator<T: Target>(place: Place, form: Form) {
    let module = user_module(place);
    let stitch = module.stitch().unwrap();
    let counts = (stitch.split_op_count(), stitch.piece_count(), stitch.unique_pieces().len());
    match place {
        Place::BetweenPieces => assert_eq!(counts, (3, 4, 3), "first, between two ops, last"),
        Place::InsideAPiece => assert_eq!(counts, (0, 1, 1)),
    }
    let module = Arc::new(module);
    let of_modes = MODES.map(|(mode, step_mode)| {
        let weights = RandomWeights(WEIGHTS);
        let (device, own) = T::make(&registry_of(form, false), 2);
        let compiler = match form {
            Form::SecondSource => Box::new(One { all: own, alternative: 0, way: 1 }),
            Form::Source | Form::HostFunction => own,
        };
        let checks = Checks { poison: true, addresses: true, compare: false };
        let options = BuildOptions { checks, ..options(&module, mode, &SIZES, 16) };
        let mut model = build_by::<T>(&module, (device, compiler), options, weights).unwrap();
        run(&mut model, step_mode, place)
    });
    assert_eq!(of_modes[0], of_modes[1]);
    assert_eq!(of_modes[0], of_modes[2]);
}

fn run(model: &mut CompiledModel, mode: StepMode, place: Place) -> Vec<Vec<u8>> {
    let graph = graph(place);
    let mut ops = OpDefs::new();
    ops.register(Arc::new(MixOp));
    ops.register(Arc::new(MaskedMix));
    let weights = random_arrays(&graph, &[1], WEIGHTS).unwrap().weights;
    let zeros = || Array::zeros(F32, vec![STATE_ROWS as usize, WIDTH as usize]);
    let mut states = vec![zeros(), zeros(), zeros()];
    set_states(model, &states);
    let mut rng = Rng::new(4);
    let mut all = Vec::new();
    for rows in [3, 8, 5, 1, 16, 7] {
        let x = Array::from_fn(F32, vec![rows, WIDTH as usize], |_| rng.symmetric(1.0)).rounded();
        let order = rng.permutation(STATE_ROWS as usize);
        let slots = Array::from_fn(I32, vec![rows], |i| match rng.one_in(6) {
            true => -1.0,
            false => order[i] as f64,
        });
        let inputs = [x, slots];
        let outputs = step(model, rows as u64, &inputs, mode);
        let evaluator = Evaluator::new(&graph, &ops);
        let expected = evaluator.run(&[rows as u64], &inputs, &weights, &mut states).unwrap();
        let error = norm_error(&elements(F32, &outputs[0]), &expected[0].data);
        assert!(error < 1e-5, "{rows} rows in {mode:?}: {error}");
        all.extend(outputs);
    }
    all
}

#[test]
fn an_op_has_another_way_where_it_has_another_implementation() {
    if !SimulatedCuda::is_there() {
        return;
    }
    for (place, uses) in [(Place::BetweenPieces, "op"), (Place::InsideAPiece, "piece")] {
        let module = user_module(place);
        let (_, compiler) = SimulatedCuda::make(&registry(), 1);
        let sizes = options(&module, GraphMode::Piecewise, &SIZES, 16).dispatcher;
        let store = SimulatedCuda::store();
        let compiled = compile_module(&module, &sizes, &*compiler, store, &mut |_| {}).unwrap();
        let mut found = Vec::new();
        for artifact in compiled.artifacts.iter().flatten() {
            let parts = artifact.alternatives.iter().flat_map(|one| &one.parts);
            let is_mix =
                |part: &&Part| part.ways[0].launches.iter().any(|l| l.name.contains("mix"));
            for part in parts.filter(is_mix) {
                let images: BTreeSet<_> =
                    part.ways.iter().map(|way| way.launches[0].image).collect();
                assert_eq!(images.len(), part.ways.len(), "each its own, in a {uses}");
                found.push((artifact.size.rows(), part.ways.len()));
            }
        }
        let expected = |rows| if rows >= SECOND_ROWS { 2 } else { 1 };
        assert!(!found.is_empty() && found.iter().all(|&(rows, ways)| ways == expected(rows)));
        assert!(SIZES.iter().all(|size| found.iter().any(|(rows, _)| rows == size)), "{found:?}");
    }
}

#[test]
fn an_op_that_reads_ahead_what_the_step_writes_is_refused_b0509() {
    if !SimulatedCuda::is_there() {
        return;
    }
    for place in [Place::BetweenPieces, Place::InsideAPiece] {
        let module = Arc::new(user_module(place));
        let built = |ahead| {
            let mut registry = OpRegistry::new();
            registry.define(Arc::new(MixOp)).define(Arc::new(MaskedMix));
            for name in [MixOp::NAME, MaskedMix::NAME] {
                let mix = SourceMix { name, reads_padding: false };
                registry.implement_cuda(Arc::new(EarlyMix { mix, ahead }));
            }
            let options = options(&module, GraphMode::Piecewise, &SIZES, 16);
            let weights = RandomWeights(WEIGHTS);
            build_of::<SimulatedCuda>(&module, &Arc::new(registry), options, weights).map(|_| ())
        };
        let error = built(0).unwrap_err();
        let ModelError::Launches(found) = &error else { panic!("{error}") };
        assert!(found.items.iter().all(|item| item.code == "B0509"), "{error}");
        // The slots are an input, which the host stages.
        built(2).unwrap();
        let state = built(1).unwrap_err().to_string();
        assert!(state.contains("argument 1, which it also writes"), "{state}");
        let nothing = built(4).unwrap_err().to_string();
        assert!(nothing.contains("argument 4 of 4"), "{nothing}");
    }
}

#[test]
fn poison_shows_an_op_that_reads_padding() {
    let (module, _) =
        plan(graph(Place::BetweenPieces), CompileLevel::Piecewise, None, Vec::new()).unwrap();
    let module = Arc::new(module);
    for reads_padding in [false, true] {
        let registry = registry_of(Form::Source, reads_padding);
        for (mode, step_mode) in MODES {
            let weights = RandomWeights(WEIGHTS);
            let mut model = build::<Cpu>(&module, &registry, mode, &[4], 16, weights);
            let x = Array::from_fn(F32, vec![3, WIDTH as usize], |i| i as f64 / 50.0).rounded();
            let slots = Array::from_fn(I32, vec![3], |i| i as f64);
            let outputs = step(&mut model, 3, &[x, slots], step_mode);
            let shows = elements(F32, &outputs[0]).iter().any(|x| x.is_nan());
            assert_eq!(shows, reads_padding, "{mode:?}");
        }
    }
}
