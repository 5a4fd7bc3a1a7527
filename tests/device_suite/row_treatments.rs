//! What an op says of its rows against what a device does: one row of a step perturbed, and the rows that
//! change looked at. An op that says that padding reaches no row may be inside of a piece, beside padding:
//! that is all that is relied on, and poison sees where it is not so.

use crate::any_graph::{MODES, RandomWeights, build, elements, set_states, step};
use crate::cuda_mix::SourceMix;
use crate::target::Target;
use crate::user_op::CpuMix;
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::{Attr, Attrs, CustomOpDef};
use piecewise_ir::dtype::DType::{F32, I32};
use piecewise_ir::eval::Array;
use piecewise_ir::graph::Graph;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{CompileLevel, StepMode};
use piecewise_testing::MixOp;
use std::sync::Arc;

const WIDTH: u64 = 16;
const STATE_ROWS: u64 = 8;
const ROWS: usize = 5;
const NAME: &str = "test.mislabelled";

/// [`MixOp`], in which each row reaches those after it, with another label.
#[derive(Clone, Copy, Debug)]
struct Labelled(RowTreatment);

impl CustomOpDef for Labelled {
    fn name(&self) -> &str {
        NAME
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
        self.0
    }
}

fn registry(label: RowTreatment, reads_padding: bool) -> Arc<OpRegistry> {
    let mut registry = OpRegistry::new();
    registry.define(Arc::new(Labelled(label)));
    registry.implement_cpu(Arc::new(CpuMix { name: NAME, reads_padding }));
    registry.implement_cuda(Arc::new(SourceMix { name: NAME, reads_padding }));
    Arc::new(registry)
}

/// Norm, products and a gate, and the op between them where there is one.
fn graph(op: Option<Labelled>) -> Graph {
    let b = Builder::new("rows").weight_dtype(F32);
    let t = b.symbol("T", 1, 16);
    let x = b.input("x", F32, (t, WIDTH));
    let slots = b.input("slots", I32, [t]).padding(-1.0);
    let state = b.state("memory", F32, (STATE_ROWS, WIDTH));
    let h = x.rms_norm(b.weight("norm", [WIDTH]), 1e-5);
    let h = h.linear(b.weight("in", [WIDTH, WIDTH])).silu();
    let attrs = [("scale".to_owned(), Attr::Float(0.5))].into();
    let h = op.map_or(h, |op| b.custom_one(&op, &[h, state, slots], attrs));
    b.finish([x + h.linear(b.weight("out", [WIDTH, WIDTH]))]).unwrap()
}

/// Whether a row of a step changes another one.
fn rows_mix(model: &mut CompiledModel, mode: StepMode) -> bool {
    let mut run = |perturbed: Option<usize>| {
        let value = |i: usize| {
            let is_perturbed = Some(i / WIDTH as usize) == perturbed;
            (i as f64 / 50.0).sin() + if is_perturbed { 3.0 } else { 0.0 }
        };
        let x = Array::from_fn(F32, vec![ROWS, WIDTH as usize], value).rounded();
        let slots = Array::from_fn(I32, vec![ROWS], |i| i as f64);
        set_states(model, &[Array::zeros(F32, vec![STATE_ROWS as usize, WIDTH as usize])]);
        step(model, ROWS as u64, &[x, slots], mode).remove(0)
    };
    let before = run(None);
    let rows = |bytes: &[u8]| bytes.chunks(4 * WIDTH as usize).map(<[u8]>::to_vec).collect();
    let before: Vec<Vec<u8>> = rows(&before);
    (0..ROWS).any(|perturbed| {
        let after: Vec<Vec<u8>> = rows(&run(Some(perturbed)));
        assert_ne!(before[perturbed], after[perturbed], "the row itself changes");
        (0..ROWS).any(|row| row != perturbed && before[row] != after[row])
    })
}

/// Ops of the table keep rows apart on every device, and one that mixes them is seen: so is the one whose
/// label says that it keeps them apart, too, and which is inside of a piece for that.
pub(crate) fn a_mislabelled_op_is_seen<T: Target>() {
    let labels = [RowTreatment::Mixed, RowTreatment::Masked, RowTreatment::SlotMapped];
    for label in labels.map(Some).into_iter().chain([None]) {
        let op = label.map(Labelled);
        let module =
            Arc::new(plan(graph(op), CompileLevel::Piecewise, None, Vec::new()).unwrap().0);
        let is_split = module.stitch().unwrap().split_op_count() > 0;
        assert_eq!(is_split, label == Some(RowTreatment::Mixed), "{label:?}");
        let registry = registry(label.unwrap_or(RowTreatment::Mixed), false);
        for (mode, step_mode) in MODES {
            let weights = RandomWeights(5);
            let mut model = build::<T>(&module, &registry, mode, &[8], 16, weights);
            let mixes = rows_mix(&mut model, step_mode);
            assert_eq!(mixes, label.is_some(), "{} {label:?} {mode:?}", T::NAME);
        }
    }
}

/// An op whose label says that padding reaches no row, and to whose rows it does: the outputs of steps under
/// the check of poison say so, and those of the same op without the fault don't.
pub(crate) fn poison_shows_a_mislabelled_op<T: Target>() {
    for label in [RowTreatment::Masked, RowTreatment::SlotMapped] {
        let graph = graph(Some(Labelled(label)));
        let module = Arc::new(plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0);
        assert_eq!(module.stitch().unwrap().split_op_count(), 0, "{label:?}");
        for reads_padding in [false, true] {
            let registry = registry(label, reads_padding);
            for (mode, step_mode) in MODES {
                let weights = RandomWeights(5);
                let mut model = build::<T>(&module, &registry, mode, &[8], 16, weights);
                let value = |i: usize| (i as f64 / 50.0).sin();
                let x = Array::from_fn(F32, vec![ROWS, WIDTH as usize], value).rounded();
                let slots = Array::from_fn(I32, vec![ROWS], |i| i as f64);
                let zeros = Array::zeros(F32, vec![STATE_ROWS as usize, WIDTH as usize]);
                set_states(&mut model, &[zeros]);
                let outputs = step(&mut model, ROWS as u64, &[x, slots], step_mode);
                let shows = elements(F32, &outputs[0]).iter().any(|x| x.is_nan());
                assert_eq!(shows, reads_padding, "{} {label:?} {mode:?}", T::NAME);
            }
        }
    }
}
