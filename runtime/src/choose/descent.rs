//! The descent in a captured step: each other way of each part is tried in all its uses, and the step
//! captured and replayed beside the best so far.

mod finish;
mod single_ways;

use super::rounds::{SCREENING, compare, deciding, noise};
use crate::device::{BindSite, Place, Record, TrialRecord};
use crate::steps::{CompiledModel, MeasuredStep};
use crate::words::ModelError;
use piecewise_backend::artifact::{Alternative, ArgRef, Artifact, Choice, Part};
use piecewise_backend::device::{Captured, DeviceError, Program};
use piecewise_backend::tuning::LibraryAlgorithm;
use piecewise_ir::entity::Entity;
use piecewise_ir::graph::ValueDef;
use piecewise_ir::module::Stitch;
use piecewise_kernels::step::{LaunchContext, StepContext};
use std::collections::{BTreeMap, BTreeSet};

/// An alternative whose first ways make the whole step slower by more than this share is left at that.
const HOPELESS: f64 = 0.1;
/// A way of which one use alone takes so many times as long as what is bound is tried no further.
const HOPELESS_ALONE: f64 = 2.5;
/// A way that in some first rounds makes it slower by more than this share gets no more rounds.
const SLOWER: f64 = 0.01;
/// A way of a library is tried with its other algorithms where the whole step is slower with it by no
/// more than this share.
const NEAR: f64 = 0.03;
/// The most algorithms of a product that are tried.
const ALGORITHMS: usize = 6;

/// The measuring of a step.
pub(super) struct Descent<'m> {
    model: &'m mut CompiledModel,
    stitch: &'m Stitch,
    step: MeasuredStep,
    /// The artifacts of the step, each with the members that use it.
    places: BTreeMap<Place, Vec<usize>>,
    /// The step as it was found.
    unmeasured: Captured,
    best: Option<Captured>,
    /// The share of a step below which a difference means nothing.
    noise: f64,
    /// What was bound before: member, place among its programs, program.
    replaced: Vec<(usize, usize, Program)>,
    /// What the library took before for the products that have another algorithm now.
    preferred: Vec<(String, LibraryAlgorithm)>,
    /// Products whose algorithms were tried.
    asked: BTreeSet<String>,
    measured: Vec<(Place, Record)>,
    /// How each artifact of the step was bound when it was found.
    found: BTreeMap<Place, Choice>,
    has_time: &'m mut dyn FnMut() -> bool,
    /// Whether something was left out because there was no more time.
    is_cut: bool,
}

/// Programs of members, by their places.
type Bound = Vec<(usize, Program)>;

/// A choice that could be captured, and its time as a multiple of the best's.
struct Trial {
    ratio: f64,
    programs: Bound,
    graph: Captured,
    /// The products for which the library takes another algorithm since, and the one before.
    algorithms: Vec<(String, LibraryAlgorithm)>,
}

/// What was made, or nothing where it can't be: only a lost device ends a descent.
fn passed_over<T>(result: Result<T, DeviceError>, what: &str) -> Result<Option<T>, ModelError> {
    match result {
        Ok(made) => Ok(Some(made)),
        Err(error) if error.is_lost() => Err(error.into()),
        Err(error) => {
            tracing::debug!(%error, "{what} is passed over");
            Ok(None)
        }
    }
}

impl<'m> Descent<'m> {
    /// Captures the step as it is, and learns the noise; nothing where it can't be captured.
    pub(super) fn begin(
        model: &'m mut CompiledModel,
        stitch: &'m Stitch,
        step: MeasuredStep,
        has_time: &'m mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, ModelError> {
        let places = step.places(model, stitch);
        let choice = |&(unique, i): &Place| model.origin.choices.of(unique, i).clone();
        let found = places.keys().map(|place| (*place, choice(place))).collect();
        let Some(unmeasured) = capture(model, &step, &[])? else { return Ok(None) };
        let device = &mut model.device;
        let warm = device.replay_time(&unmeasured).and_then(|_| noise(&mut **device, &unmeasured));
        let Some(noise) = passed_over(warm, &step.label)? else { return Ok(None) };
        Ok(Some(Self {
            model,
            stitch,
            step,
            places,
            unmeasured,
            best: None,
            noise,
            replaced: Vec::new(),
            preferred: Vec::new(),
            asked: BTreeSet::new(),
            measured: Vec::new(),
            found,
            has_time,
            is_cut: false,
        }))
    }

    /// Tries the ways of every artifact of the step that nobody has measured, as long as there is time:
    /// first those that move the most bytes. One that was not tried to its end keeps what is faster by
    /// then, and is none that was measured.
    pub(super) fn descend(&mut self) -> Result<(), ModelError> {
        let choices = &self.model.origin.choices;
        let open = self.places.iter().filter(|(place, _)| choices.wants_measuring(**place));
        let mut open: Vec<_> =
            open.map(|(p, uses)| (self.bytes(*p) * uses.len() as u64, *p)).collect();
        open.sort_unstable_by_key(|(bytes, place)| (std::cmp::Reverse(*bytes), *place));
        for (_, place) in open {
            if !self.measured.is_empty() && !self.has_time() {
                break;
            }
            self.descend_in(place)?;
            if self.is_cut {
                self.measured.pop();
                break;
            }
        }
        self.try_single_ways()
    }

    fn has_time(&mut self) -> bool {
        self.is_cut = self.is_cut || !(self.has_time)();
        !self.is_cut
    }

    fn artifact(&self, (unique, i): Place) -> &Artifact {
        &self.model.origin.compiled.artifacts[unique.index()][i]
    }

    /// Bytes of what the first ways of an artifact are bound to.
    fn bytes(&self, place: Place) -> u64 {
        let parts = self.artifact(place).alternatives.first().map_or(&[][..], |one| &one.parts);
        (0..parts.len()).map(|part| self.part_bytes(place, 0, part)).sum()
    }

    /// Bytes of what the launches of a part are bound to.
    fn part_bytes(&self, place: Place, alternative: usize, part: usize) -> u64 {
        let graph = &self.stitch.unique[place.0].graph;
        let operands = self.stitch.unique[place.0].operands();
        let bounds = &self.model.origin.compiled.sizes[place.0.index()][place.1].bounds;
        let part = &self.artifact(place).alternatives[alternative].parts[part];
        let launches = part.ways.first().map_or(&[][..], |way| &way.launches);
        let bytes = |at| match at {
            ArgRef::Operand(position) => {
                let value = operands.get(position as usize);
                let is_state = |v| matches!(graph.def(v), ValueDef::State(_));
                value.filter(|v| !is_state(**v)).map_or(0, |v| graph.ty(*v).bytes(bounds))
            }
            ArgRef::Scratch { .. } => 0,
        };
        launches.iter().flat_map(|launch| &launch.args).map(|arg| bytes(arg.at)).sum()
    }

    /// Tries the alternatives of an artifact in order, each from what was found so far, and in each the
    /// ways of its parts.
    fn descend_in(&mut self, place: Place) -> Result<(), ModelError> {
        let record = Record::new(self.artifact(place), &self.step.label);
        self.measured.push((place, record));
        let count = self.artifact(place).alternatives.len();
        let mut known = Vec::new();
        for alternative in 0..count {
            if alternative > 0 && !self.has_time() {
                return Ok(());
            }
            let best = self.chosen(place);
            let mut local = best.clone();
            let mut ratio = 1.0;
            if alternative != best.alternative {
                local = carried(self.artifact(place), &best, alternative);
                match self.attempt(place, &local, 1.0)? {
                    Some(found) if found <= 1.0 + HOPELESS => ratio = found.max(1.0),
                    _ => continue,
                }
            } else {
                self.attempt_algorithms(place, &local)?;
            }
            let parts = &self.artifact(place).alternatives[alternative].parts;
            let ways: Vec<usize> = parts.iter().map(|part| part.ways.len()).collect();
            let parts: Vec<_> = parts.iter().map(identity).collect();
            let mut order: Vec<usize> = (0..ways.len()).collect();
            let bytes = |part| self.part_bytes(place, alternative, part);
            order.sort_by_key(|&part| std::cmp::Reverse(bytes(part)));
            for part in order.into_iter().filter(|&part| !known.contains(&parts[part])) {
                for way in (0..ways[part]).filter(|&way| way != local.way(part)).collect::<Vec<_>>()
                {
                    if !self.has_time() {
                        return Ok(());
                    }
                    let candidate = local.with(part, way);
                    if let Some(found) = self.attempt(place, &candidate, ratio)?
                        && found < ratio * (1.0 - self.noise)
                    {
                        // What wins against the best is the best from now on.
                        ratio = found.max(1.0);
                        local = candidate;
                    }
                }
            }
            known.extend(parts);
        }
        Ok(())
    }

    fn chosen(&self, (unique, i): Place) -> Choice {
        self.model.origin.choices.of(unique, i).clone()
    }

    /// Times the step with a choice, and keeps it as the best where that is clearly faster. Its time as a
    /// multiple of the best's before; nothing where it can't be run. `least` is the multiple that is
    /// known to be possible.
    fn attempt(
        &mut self,
        place: Place,
        choice: &Choice,
        least: f64,
    ) -> Result<Option<f64>, ModelError> {
        let candidate = [(place, choice.clone())];
        let Some(mut trial) = self.trial(&candidate, false, least)? else { return Ok(None) };
        if trial.ratio <= least * (1.0 + NEAR) {
            self.try_algorithms(place, choice, &mut trial)?;
        }
        let ratio = trial.ratio;
        self.settle(&candidate, trial)?;
        Ok(Some(ratio))
    }

    /// Tries the library's algorithms for what is chosen already.
    fn attempt_algorithms(&mut self, place: Place, choice: &Choice) -> Result<(), ModelError> {
        let ways = self.artifact(place).chosen(choice).unwrap_or_default();
        if !ways.iter().any(|way| way.uses_library) {
            return Ok(());
        }
        let candidate = [(place, choice.clone())];
        let Some(mut trial) = self.trial(&candidate, false, 1.0)? else { return Ok(()) };
        trial.ratio = 1.0;
        self.try_algorithms(place, choice, &mut trial)?;
        self.settle(&candidate, trial)
    }

    /// Keeps a trial that is clearly faster than the best, and leaves the library as it was before any
    /// other.
    fn settle(&mut self, candidate: &[(Place, Choice)], trial: Trial) -> Result<(), ModelError> {
        if trial.ratio < 1.0 - self.noise {
            return self.commit(candidate, trial);
        }
        for (product, before) in trial.algorithms {
            self.prefer(&product, before)?;
        }
        Ok(())
    }

    /// Leaves a trial with the library's algorithms that are the fastest for it.
    fn try_algorithms(
        &mut self,
        place: Place,
        choice: &Choice,
        trial: &mut Trial,
    ) -> Result<(), ModelError> {
        let ways = self.artifact(place).chosen(choice).unwrap_or_default();
        let Some((_, program)) = trial.programs.first() else { return Ok(()) };
        if !ways.iter().any(|way| way.uses_library) {
            return Ok(());
        }
        let products = self.model.device.library_products(program, &self.step.by_symbol);
        let products = passed_over(products, "a library")?.unwrap_or_default();
        for product in products {
            if !self.asked.insert(product.product.clone()) {
                continue;
            }
            let Some((&before, others)) = product.algorithms.split_first() else { continue };
            let mut taken = before;
            for &algorithm in others.iter().take(ALGORITHMS - 1) {
                if !self.has_time() {
                    break;
                }
                if !self.prefer(&product.product, algorithm)? {
                    continue;
                }
                let next = self.trial(&[(place, choice.clone())], true, trial.ratio)?;
                match next.filter(|next| next.ratio < trial.ratio * (1.0 - self.noise)) {
                    Some(next) => {
                        let algorithms = std::mem::take(&mut trial.algorithms);
                        *trial = Trial { algorithms, ..next };
                        taken = algorithm;
                    }
                    None => {
                        self.prefer(&product.product, taken)?;
                    }
                }
            }
            if taken != before {
                trial.algorithms.push((product.product, before));
            }
        }
        Ok(())
    }

    fn prefer(&mut self, product: &str, algorithm: LibraryAlgorithm) -> Result<bool, ModelError> {
        let preferred = self.model.device.prefer(product, algorithm);
        Ok(passed_over(preferred, "an algorithm")?.unwrap_or(false))
    }

    /// Binds a choice of each of some artifacts in all uses, captures the step and times it beside the
    /// best.
    fn trial(
        &mut self,
        candidate: &[(Place, Choice)],
        algorithm: bool,
        least: f64,
    ) -> Result<Option<Trial>, ModelError> {
        let mut programs = Vec::new();
        for (place, choice) in candidate {
            let Some(bound) = self.bind(*place, choice)? else { return Ok(None) };
            if !algorithm && self.is_hopeless(&bound)? {
                return Ok(None);
            }
            programs.extend(bound);
        }
        let Some(graph) = capture(self.model, &self.step, &programs)? else { return Ok(None) };
        let best = self.best.as_ref().unwrap_or(&self.unmeasured);
        let (device, noise) = (&mut self.model.device, self.noise);
        let mut time = || {
            device.replay_time(&graph)?;
            let times = compare(&mut **device, [best, &graph], SCREENING)?;
            if times[1] > times[0] * least * (1.0 + SLOWER.max(noise)) {
                return Ok(times);
            }
            let rounds = deciding(times[0]);
            let times = compare(&mut **device, [best, &graph], rounds)?;
            if times[1] >= times[0] * (1.0 - noise) {
                return Ok(times);
            }
            // A win is one if it is seen again.
            let again = compare(&mut **device, [best, &graph], rounds)?;
            Ok(if again[1] * times[0] > times[1] * again[0] { again } else { times })
        };
        let Some([best_us, step_us]) = passed_over(time(), "a way")? else { return Ok(None) };
        for (place, choice) in candidate {
            if let Some(record) = self.record(*place) {
                let choice = choice.clone();
                record.trials.push(TrialRecord { choice, algorithm, step_us, best_us });
            }
        }
        let ratio = step_us / best_us.max(f64::MIN_POSITIVE);
        Ok(Some(Trial { ratio, programs, graph, algorithms: Vec::new() }))
    }

    /// Whether a use alone takes so many times as long as the one that is bound that the step need not
    /// be tried.
    fn is_hopeless(&mut self, programs: &[(usize, Program)]) -> Result<bool, ModelError> {
        let Some((i, program)) = programs.first() else { return Ok(true) };
        let CompiledModel { members, device, .. } = &mut *self.model;
        let bound = members.list[*i].program(&self.step.sizes);
        let mut time = |program| {
            let alone = device.capture("a use alone", &[program], &self.step.by_symbol)?;
            device.replay_time(&alone)?;
            device.replay_time(&alone)
        };
        let times = time(bound).and_then(|bound| Ok((bound, time(program)?)));
        let times = passed_over(times, "a way")?;
        Ok(times.is_none_or(|(bound, other)| other > bound.mul_f64(HOPELESS_ALONE)))
    }

    /// The programs of an artifact's uses by a choice; the first of them has run once.
    fn bind(&mut self, place: Place, choice: &Choice) -> Result<Option<Bound>, ModelError> {
        let CompiledModel { module, symbols, memory, origin, device, members, staging, .. } =
            &mut *self.model;
        let site =
            BindSite { module, stitch: self.stitch, symbols, memory, compiled: &origin.compiled };
        let mut programs = Vec::with_capacity(self.places[&place].len());
        for &i in &self.places[&place] {
            let member = &members.list[i];
            let usage = &self.stitch.uses[member.step.id()];
            let bound = site.bind(&mut **device, usage, &member.label, place.1, choice);
            let Some(bound) = passed_over(bound, "a way")? else { return Ok(None) };
            programs.push((i, bound));
        }
        // Code is loaded by the first launch, which a capture would not allow.
        if let Some((_, first)) = programs.first() {
            let sizes = &self.step.by_symbol;
            let staged = staging.staged(sizes);
            let context = StepContext { counts: sizes, sizes, inputs: &staged };
            let launched = device.launch(first, LaunchContext::Step(&context));
            if passed_over(launched, "a way")?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(programs))
    }

    fn record(&mut self, place: Place) -> Option<&mut Record> {
        self.measured.iter_mut().find(|(of, _)| *of == place).map(|(_, record)| record)
    }

    /// Takes a trial for the best.
    fn commit(&mut self, candidate: &[(Place, Choice)], trial: Trial) -> Result<(), ModelError> {
        for (place, choice) in candidate {
            let first = trial.programs.iter().find(|(i, _)| self.places[place].contains(i));
            let products = match first {
                Some((_, first)) => self.model.device.library_products(first, &self.step.by_symbol),
                None => Ok(Vec::new()),
            };
            let products = passed_over(products, "a library")?.unwrap_or_default();
            let taken =
                products.into_iter().filter_map(|p| Some((p.product, *p.algorithms.first()?)));
            if let Some(record) = self.record(*place) {
                record.choice = choice.clone();
                record.gained = 1.0 - (1.0 - record.gained) * trial.ratio;
                record.algorithms = taken.collect();
            }
            self.model.origin.choices.get_mut(*place).choice = choice.clone();
        }
        for (i, program) in trial.programs {
            let member = &mut self.model.members.list[i];
            let Some(at) = member.sized_at(&self.step.sizes) else { continue };
            let before = std::mem::replace(&mut member.sized[at].1, program);
            if !self.replaced.iter().any(|(m, a, _)| (*m, *a) == (i, at)) {
                self.replaced.push((i, at, before));
            }
        }
        for (product, before) in trial.algorithms {
            if !self.preferred.iter().any(|(known, _)| *known == product) {
                self.preferred.push((product, before));
            }
        }
        self.best = Some(trial.graph);
        Ok(())
    }
}

/// The step with some programs of its members replaced, captured; nothing where it can't be.
fn capture(
    model: &mut CompiledModel,
    step: &MeasuredStep,
    replaced: &[(usize, Program)],
) -> Result<Option<Captured>, ModelError> {
    let CompiledModel { members, device, .. } = model;
    let program = |&i: &usize| {
        let other = replaced.iter().find(|(member, _)| *member == i);
        other.map_or_else(|| members.list[i].program(&step.sizes), |(_, program)| program)
    };
    let programs: Vec<_> = step.members.iter().map(program).collect();
    passed_over(device.capture(&step.label, &programs, &step.by_symbol), &step.label)
}

/// What a part computes, the same in every alternative that has it.
fn identity(part: &Part) -> Vec<(String, Vec<u32>)> {
    let launches = part.ways.first().map_or(&[][..], |way| &way.launches);
    launches.iter().map(|launch| (launch.name.clone(), launch.nodes.clone())).collect()
}

/// Another alternative, in which what computes the same nodes goes the same way.
fn carried(artifact: &Artifact, best: &Choice, alternative: usize) -> Choice {
    let Alternative { parts } = &artifact.alternatives[alternative];
    let from = &artifact.alternatives[best.alternative].parts;
    let mut choice = Choice::of(alternative);
    for (i, part) in parts.iter().enumerate() {
        let same = from.iter().position(|other| identity(other) == identity(part));
        let way = same.map_or(0, |same| best.way(same));
        if way < part.ways.len() {
            choice = choice.with(i, way);
        }
    }
    choice
}
