//! A graph whose only custom op is a user's: it mixes rows and mutates a state.

use crate::target::Target;
use piecewise_backend::compiler::NoStore;
use piecewise_backend::weights::{TensorSource, WeightError, WeightSource};
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::Attr;
use piecewise_ir::dtype::DType::{self, F32, I32};
use piecewise_ir::eval::{Array, Evaluator};
use piecewise_ir::graph::Graph;
use piecewise_ir::literal::Scalar;
use piecewise_ir::testing::{MixOp, Rng, mix_ops, norm_error, random_arrays, random_weight};
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::mode::{GraphMode, Level, StepMode};
use piecewise_runtime::model::{
    BuildOptions, CaptureWhen, Checks, CompiledModel, OnCaptureFailure, StepInputs,
};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::sizes::SizeList;
use std::borrow::Cow;
use std::sync::Arc;

const WIDTH: u64 = 16;
const STATE_ROWS: u64 = 24;
const SCALE: f64 = 0.5;
const WEIGHTS: u64 = 21;

/// [`MixOp`] on the CPU.
#[derive(Debug)]
struct CpuMix;

impl CpuOp for CpuMix {
    fn name(&self) -> &str {
        MixOp::NAME
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, slots) = (args.read::<f32>(0)?, args.read::<i32>(2)?);
        let (state, y) = (args.write::<f32>(1)?, args.write::<f32>(3)?);
        let (width, rows) = (args.dim(0, 1), args.true_dim(0, 0));
        for column in 0..width {
            let mut sum = 0.0;
            for (i, &slot) in slots[..rows].iter().enumerate() {
                let value = x[i * width + column];
                sum += value;
                let kept = usize::try_from(slot).ok().map(|slot| slot * width + column);
                let kept_value = kept.and_then(|at| state.get(at)).copied().unwrap_or(0.0);
                let mixed = SCALE as f32 * (value + sum / (i + 1) as f32 + kept_value);
                y[i * width + column] = mixed;
                if let Some(kept) = kept.and_then(|at| state.get_mut(at)) {
                    *kept = mixed;
                }
            }
        }
        Ok(())
    }
}

/// The weights that the evaluator gets as well.
struct Named;

impl WeightSource for Named {
    fn tensor(
        &self,
        name: &str,
        dtype: DType,
        shape: &[u64],
    ) -> Result<TensorSource<'_>, WeightError> {
        let ty = TensorType::new(dtype, shape.iter().copied());
        Ok(TensorSource::Bytes(Cow::Owned(bytes_of(&random_weight(name, &ty, WEIGHTS)))))
    }
}

fn bytes_of(array: &Array) -> Vec<u8> {
    array.data.iter().flat_map(|&x| Scalar::new(array.dtype, x).to_bytes()).collect()
}

fn graph() -> Graph {
    let b = Builder::new("users").weight_dtype(F32);
    let t = b.symbol("T", 1, 16, None);
    let mut x = b.input("x", F32, [t.into(), WIDTH.into()], None, None);
    let slots = b.input("slots", I32, [t.into()], Some(Scalar::new(I32, -1.0)), None);
    for layer in 0..3 {
        let _scope = b.scope(format!("layers.{layer}"));
        let state = b.state("memory", F32, [STATE_ROWS.into(), WIDTH.into()], None);
        let h = x.rms_norm(b.weight("norm", [WIDTH]), 1e-5);
        let h = h.linear(b.weight("in", [WIDTH, WIDTH]));
        let attrs = [("scale".to_owned(), Attr::Float(SCALE))].into();
        let mixed = b.custom_one(&MixOp, &[h, state, slots], attrs);
        x = x + mixed.silu().linear(b.weight("out", [WIDTH, WIDTH]));
    }
    b.finish([x]).unwrap()
}

/// It is split, planned, captured and run in every mode, with the same bits and close to the
/// evaluator's numbers, over several steps that carry states on.
pub(crate) fn equals_the_evaluator<T: Target>() {
    let mut registry = OpRegistry::new();
    registry.define(Arc::new(MixOp)).implement_cpu(Arc::new(CpuMix));
    let registry = Arc::new(registry);
    let (module, _) = plan(graph(), Level::Piecewise, None, Vec::new()).unwrap();
    let stitch = module.stitch().unwrap();
    assert_eq!((stitch.split_op_count(), stitch.piece_count()), (3, 4));
    assert_eq!(stitch.unique_pieces().len(), 3, "first, between two ops, last");
    let module = Arc::new(module);
    let modes = [
        (GraphMode::None, StepMode::None),
        (GraphMode::Piecewise, StepMode::Piecewise),
        (GraphMode::Full, StepMode::Full),
    ];
    let mut of_modes: Vec<Vec<Vec<u8>>> = Vec::new();
    for (mode, step_mode) in modes {
        let (device, compiler) = T::make(&registry, 2);
        let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", 16).unwrap();
        let options = BuildOptions {
            dispatcher: Dispatcher {
                mode,
                tokens: list(&[4, 8, 16]),
                batches: list(&[1]),
                query_lengths: vec![1],
                max_tokens: 16,
                max_rows: 1,
                max_sequences: 1,
                padding: true,
            },
            max_logit_rows: 1,
            read_outputs: vec![0],
            capture: CaptureWhen::Startup,
            on_capture_failure: OnCaptureFailure::Error,
            strict: true,
            checks: Checks { poison: true, addresses: true, compare: false },
        };
        let mut model = CompiledModel::build(
            Arc::clone(&module),
            options,
            compiler.as_ref(),
            &NoStore,
            device,
            &Named,
            &mut |_| {},
        )
        .unwrap();
        of_modes.push(run(&mut model, step_mode));
    }
    assert_eq!(of_modes[0], of_modes[1]);
    assert_eq!(of_modes[0], of_modes[2]);
}

fn run<D: piecewise_backend::device::Device>(
    model: &mut CompiledModel<D>,
    mode: StepMode,
) -> Vec<Vec<u8>> {
    let graph = graph();
    let ops = mix_ops();
    let weights = random_arrays(&graph, &[1], WEIGHTS).unwrap().weights;
    let zeros = || Array::zeros(F32, vec![STATE_ROWS as usize, WIDTH as usize]);
    let mut states = vec![zeros(), zeros(), zeros()];
    let region = model.memory().states;
    model.device_mut().fill(region.base, region.bytes, &[0]).unwrap();
    let mut rng = Rng::new(4);
    let mut all = Vec::new();
    for rows in [3, 8, 5, 1, 16, 7] {
        let x = Array::from_fn(F32, vec![rows, WIDTH as usize], |_| rng.symmetric(1.0)).rounded();
        let order = rng.permutation(STATE_ROWS as usize);
        let slots = Array::from_fn(I32, vec![rows], |i| match rng.one_in(6) {
            true => -1.0,
            false => order[i] as f64,
        });
        let (x_bytes, slot_bytes) = (bytes_of(&x), bytes_of(&slots));
        let inputs: [&[u8]; 2] = [&x_bytes, &slot_bytes];
        let step = StepInputs { counts: &[rows as u64], inputs: &inputs, query_length: None };
        let ticket = model.submit(&step).unwrap();
        let bytes = model.read(&ticket).unwrap().bytes(0).unwrap().to_vec();
        assert_eq!(model.last_step().unwrap().mode, mode);
        let expected = Evaluator::new(&graph, &ops)
            .run(&[rows as u64], &[x, slots], &weights, &mut states)
            .unwrap();
        let found: Vec<f64> = bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
            .collect();
        let error = norm_error(&found, &expected[0].data);
        assert!(error < 1e-5, "{rows} rows in {mode:?}: {error}");
        all.push(bytes);
    }
    all
}
