//! The checks of an op on one device.

use super::case::{Evaluated, OpCase, Operand, SEQUENCES, TOKENS};
use super::report::{OpCheckError, OpReport, Steps};
use crate::assembly::Assembly;
use crate::device::{DeviceSpec, OpenDevice};
use crate::trial::{Feed, Trial, TrialError, batches_of, difference, run_on_device, tolerance_of};
use piecewise_ir::eval::Array;
use piecewise_ir::graph::Graph;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::random::Rng;
use piecewise_kernels::op::OpRegistry;
use piecewise_passes::manager::panic_text;
use piecewise_runtime::words::{CompileLevel, GraphMode};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Random batches, each of a few steps.
const BATCHES: u64 = 3;
/// Steps of a batch.
const STEPS: u64 = 3;

/// An op in its graph on a device.
pub(super) struct Checks<'a> {
    case: &'a OpCase<'a>,
    graph: Graph,
    registry: OpRegistry,
    trial: Trial,
    feeds: Vec<Feed>,
    device: String,
}

/// A way to put the graph together.
type Way<'a> = &'a dyn Fn(Assembly) -> Assembly;

impl<'a> Checks<'a> {
    pub(super) fn new(
        registry: &OpRegistry,
        case: &'a OpCase<'a>,
        device: &OpenDevice,
    ) -> Result<Self, OpCheckError> {
        let graph = case.graph()?;
        let name = case.name();
        let spec = device.spec();
        let is_cpu = spec == DeviceSpec::Cpu;
        let mut registry = registry.clone();
        if let Some(evaluate) = &case.reference
            && let Some(def) = registry.defs().get(name).cloned()
        {
            registry.define(Arc::new(Evaluated { def, evaluate: Arc::clone(evaluate) }));
        }
        let assembly = Assembly::graph(graph.clone()).ops(registry.clone()).weights(case.weights());
        // Made-up batches are no batches: the checks themselves show whether it can be captured.
        let assembly = assembly.level(CompileLevel::Piecewise).probe_capture(false).on(device);
        let trial = Trial::new(assembly)?;
        let feeds = (0..BATCHES).map(|seed| feed(case, &graph, &registry, seed));
        let feeds = feeds.collect::<Result<_, _>>()?;
        let device = if is_cpu { "cpu" } else { "cuda" }.to_owned();
        Ok(Self { case, graph, registry, trial, feeds, device })
    }

    /// Makes all checks; what the op gives as a split op, where it gives anything.
    pub(super) fn run(&self, report: &mut OpReport) -> Option<Steps> {
        let name = self.case.name();
        let split = |assembly: Assembly| assembly.split_at([name]).capture_sizes([TOKENS]);
        let pieces = |assembly: Assembly| split(assembly).graph_mode(GraphMode::Piecewise);
        let base = self.tried(report, "runs", &pieces, &self.feeds)?;
        let results = |steps: &Steps| self.results(steps);
        let base_results = results(&base);
        let same = |report: &mut OpReport, check: &str, why: &str, way: Way<'_>| {
            if let Some(found) = self.tried(report, check, way, &self.feeds) {
                report.compare(&self.named(check), why, &base_results, &results(&found));
            }
        };
        let why = "computes otherwise when it is run again: it keeps what no state holds";
        same(report, "again", why, &pieces);
        let poisoned = |assembly: Assembly| pieces(assembly).set("checks.poison", true);
        let why = "reads rows past the true counts, which hold NaN here";
        same(report, "padding", why, &poisoned);
        let sizes = |assembly: Assembly| pieces(assembly).capture_sizes([TOKENS / 2, TOKENS]);
        same(report, "sizes", "depends on the size that a step is padded to", &sizes);
        let launched = |assembly: Assembly| split(assembly).graph_mode(GraphMode::None);
        same(report, "launched", "computes otherwise launched than in a captured graph", &launched);
        let whole = |assembly: Assembly| split(assembly).graph_mode(GraphMode::Full);
        same(report, "replay", "computes otherwise in a captured graph", &whole);
        if self.case.def.rows().is_padding_safe() {
            let inside =
                |assembly: Assembly| pieces(assembly).never_split().capture_sizes([TOKENS]);
            let why = "computes otherwise inside of a piece";
            same(report, "split and inside", why, &inside);
            let poisoned = |assembly: Assembly| inside(assembly).set("checks.poison", true);
            let why = "reads rows past the true counts inside of a piece, which hold NaN here";
            same(report, "padding inside", why, &poisoned);
        } else {
            report.skip(
                &self.named("split and inside"),
                "an op that mixes rows with padding is split at",
            );
        }
        self.empty(report, &pieces, &base_results);
        self.rows(report, &pieces);
        self.writes(report, &base);
        self.reference(report, &base_results);
        Some(base_results)
    }

    pub(super) fn tolerance(&self) -> f64 {
        tolerance_of(&self.graph)
    }

    fn named(&self, check: &str) -> String {
        format!("{}: {check}", self.device)
    }

    /// Of all outputs those of the op.
    fn results(&self, steps: &Steps) -> Steps {
        let results = self.case.results(&self.graph);
        steps.iter().map(|step| step[..results].to_vec()).collect()
    }

    /// Runs all batches, each over states of zeros; what fails or panics is a fault.
    fn tried(
        &self,
        report: &mut OpReport,
        check: &str,
        way: Way<'_>,
        feeds: &[Feed],
    ) -> Option<Steps> {
        let run = || -> Result<Steps, TrialError> {
            let mut all = Vec::new();
            for feed in feeds {
                let assembly = way(self.trial.subject.assembly(self.graph.clone())?);
                all.extend(run_on_device(assembly, &self.graph, feed)?);
            }
            Ok(all)
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(steps)) => Some(steps),
            Ok(Err(error)) => {
                report.fault(&self.named(check), format!("it fails: {error}"));
                None
            }
            Err(panic) => {
                let said = panic_text(&*panic);
                report.fault(&self.named(check), format!("it panics: {said}"));
                None
            }
        }
    }

    /// A step without a sequence between others changes nothing.
    fn empty(&self, report: &mut OpReport, way: Way<'_>, base: &Steps) {
        let with = self.feeds.iter().map(|feed| {
            let mut feed = feed.clone();
            let empty = batches_of(&self.graph, &self.registry, &[vec![]], 0)?.steps;
            feed.steps.splice(1..1, empty);
            Ok::<_, TrialError>(feed)
        });
        let with = match with.collect::<Result<Vec<_>, _>>() {
            Ok(feeds) => feeds,
            Err(error) => return report.skip(&self.named("empty step"), &error.to_string()),
        };
        let Some(found) = self.tried(report, "empty step", way, &with) else { return };
        let is_empty = |i: &usize| *i % (STEPS as usize + 1) == 1;
        let found =
            found.into_iter().enumerate().filter(|(i, _)| !is_empty(i)).map(|(_, step)| step);
        let found = self.results(&found.collect());
        let why = "does something in a step whose true counts are 0";
        report.compare(&self.named("empty step"), why, base, &found);
    }

    /// One row that changes changes no other.
    fn rows(&self, report: &mut OpReport, way: Way<'_>) {
        let check = self.named("rows");
        let rows = self.case.def.rows();
        if !matches!(rows, RowTreatment::Independent | RowTreatment::SlotMapped) {
            return report.skip(&check, "the op says that it mixes rows");
        }
        let first = |feed: &Feed| Feed { steps: feed.steps[..1].to_vec() };
        let plain = Vec::from_iter(self.feeds.iter().map(first));
        let turned = plain.iter().map(|feed| {
            let mut feed = feed.clone();
            for (decl, array) in self.graph.inputs().iter().zip(&mut feed.steps[0].inputs) {
                if decl.role.is_none() && array.dtype.is_float() {
                    let width = array.row_len();
                    array.data.iter_mut().take(width).for_each(|x| *x = 1.5 - *x);
                }
            }
            feed
        });
        let turned = Vec::from_iter(turned);
        let before = self.tried(report, "rows", way, &plain);
        let after = self.tried(report, "rows", way, &turned);
        let (Some(before), Some(after)) = (before, after) else { return };
        // Row 0 may be another; results that have no rows of tokens may, too.
        let others = |steps: &Steps| -> Steps {
            let tokens = |array: &&Array, step: usize| {
                array.shape.first() == self.feeds[step].steps[0].inputs[0].shape.first()
            };
            let of_step = |(i, step): (usize, &Vec<Array>)| {
                let arrays = step.iter().filter(|array| tokens(array, i)).map(|array| {
                    let width = array.row_len();
                    let mut shape = array.shape.clone();
                    shape[0] -= 1;
                    Array { shape, data: array.data[width..].to_vec(), ..array.clone() }
                });
                arrays.collect()
            };
            self.results(steps).iter().enumerate().map(of_step).collect()
        };
        let why = "says that rows are apart, and one row changes others (without the first here)";
        report.compare(&check, why, &others(&before), &others(&after));
    }

    /// Operands that it does not mutate are as they were.
    fn writes(&self, report: &mut OpReport, base: &Steps) {
        let check = self.named("writes");
        report.done.push(check.clone());
        let results = self.case.results(&self.graph);
        let given = self.feeds.iter().flat_map(|feed| &feed.steps);
        for (step, (given, found)) in given.zip(base).enumerate() {
            for ((operand, kind), found) in self.case.shown().zip(&found[results..]) {
                let expected = match kind {
                    Operand::Rows(..) | Operand::Indices(_) => {
                        let name = format!("x{operand}");
                        let at = self.graph.inputs().iter().position(|input| input.name == name);
                        let Some(x) = at.map(|at| &given.inputs[at]) else { continue };
                        let by = if x.dtype.is_float() { 0.5 } else { 1.0 };
                        let data = x.data.iter().map(|x| x * by).collect();
                        Array { data, ..x.clone() }.rounded()
                    }
                    _ => Array::zeros(found.dtype, found.shape.clone()),
                };
                let what = format!("operand {operand} in step {step}");
                if let Some(wrong) = difference(&what, &expected, found, 0.0) {
                    return report
                        .fault(&check, format!("it writes what it does not mutate: {wrong}"));
                }
            }
        }
    }

    fn reference(&self, report: &mut OpReport, base: &Steps) {
        let check = self.named("reference");
        let steps = self.feeds.iter().map(|feed| self.trial.reference(&self.graph, feed));
        match steps.collect::<Result<Vec<_>, _>>() {
            Ok(steps) => {
                let expected = self.results(&steps.into_iter().flatten().collect());
                let tolerance = self.tolerance();
                let why = "is not what its definition evaluates to";
                report.compare_within(&check, why, (&expected, base), tolerance);
            }
            Err(error) => report.skip(&check, &error.to_string()),
        }
    }
}

/// A batch of a few sequences that goes on for a few steps.
fn feed(
    case: &OpCase<'_>,
    graph: &Graph,
    registry: &OpRegistry,
    seed: u64,
) -> Result<Feed, TrialError> {
    let mut rng = Rng::named(seed, "batch");
    let sequences = 1 + rng.below(SEQUENCES as usize);
    let mut lengths = vec![0u64; sequences];
    let steps = (0..STEPS).map(|_| {
        let chunks = lengths.iter_mut().map(|length| {
            let start = *length;
            let most = (TOKENS / SEQUENCES) as usize;
            *length += 1 + rng.below(most) as u64;
            (start, Vec::from_iter((start..*length).map(|position| position as u32)))
        });
        chunks.collect()
    });
    let mut feed = batches_of(graph, registry, &Vec::from_iter(steps), seed)?;
    for (number, step) in feed.steps.iter_mut().enumerate() {
        for (i, operand) in case.operands.iter().enumerate() {
            let Operand::Indices(bound) = operand else { continue };
            let name = format!("x{i}");
            let mut rng = Rng::named(seed, &format!("{name} of {number}"));
            let at = graph.inputs().iter().position(|input| input.name == name);
            if let Some(array) = at.map(|at| &mut step.inputs[at]) {
                array.data.iter_mut().for_each(|x| *x = rng.below(*bound as usize) as f64);
            }
        }
    }
    Ok(feed)
}
