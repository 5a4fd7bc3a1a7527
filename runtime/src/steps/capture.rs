//! Capturing: largest first, from the programs that launches use.

use super::compiled::CompiledModel;
use super::graphs::GraphSet;
use crate::device::Member;
use crate::dispatch::{Dispatcher, OpSupport, Stretch};
use crate::words::{
    CaptureWhen, CapturedGraph, Dispatch, FallbackReason, GraphKey, GraphKind, GraphMode,
    GraphState, ModelError, OnCaptureFailure, Over, Progress, StepMode, StepSizes, SymbolClass,
};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::{Captured, Program};
use piecewise_ir::op::Op;
use piecewise_kernels::step::{CaptureSupport, LaunchContext, StepContext};
use rustc_hash::FxHashSet;
use std::time::Instant;

impl CompiledModel {
    /// The highest mode not above `wanted` that the ops can be captured for, and why it is lower, if
    /// it is.
    pub(crate) fn supported_mode(&self, wanted: GraphMode) -> (GraphMode, Option<String>) {
        let least = |is_piece: bool| {
            let members = self.members.list.iter();
            let members = members.filter(|member| member.is_captured_piece() == is_piece);
            members.map(|member| self.support(member)).min().unwrap_or(CaptureSupport::Always)
        };
        let support = OpSupport { between: least(false), inside: least(true) };
        let mode = self.dispatcher.supported_mode(wanted, support);
        if mode == wanted {
            return (mode, None);
        }
        let needed = self.dispatcher.needed_support(wanted);
        let hinders = |member: &&Member| {
            let is_piece = member.is_captured_piece();
            let needed = if is_piece { needed.inside } else { needed.between };
            self.support(member) < needed
        };
        let hindering = self.members.list.iter().filter(hinders).min_by_key(|m| self.support(m));
        (mode, hindering.map(|member| self.hindrance(member)))
    }

    /// In which batches a member can be captured. One of an excluded layer runs between graphs.
    pub(super) fn support(&self, member: &Member) -> CaptureSupport {
        if member.excluded_by.is_some() {
            return CaptureSupport::Never;
        }
        let declared = member.general.capture_support();
        member.probed.as_ref().map_or(declared, |probed| probed.support.min(declared))
    }

    pub(super) fn hindrance(&self, member: &Member) -> String {
        if let Some(layer) = &member.excluded_by {
            return format!("layer `{layer}` is excluded from capture");
        }
        let ops = self.ops_of(member);
        let is_piece = member.is_captured_piece();
        let place = if is_piece { format!(" in {}", member.label) } else { String::new() };
        let support = self.support(member);
        let why =
            member.probed.as_ref().map_or(String::new(), |found| format!(": {}", found.reason));
        format!("{ops}{place} supports capture only for {support:?}{why}")
    }

    /// The custom ops of a member.
    pub(super) fn ops_of(&self, member: &Member) -> String {
        let usage = self.module.stitch().map(|stitch| &stitch.uses[member.step.id()]);
        let nodes = usage.map_or(&[][..], |usage| &usage.nodes).iter();
        let ops = nodes.filter_map(|&node| match &self.module.graph().node(node).op {
            Op::Custom(call) => Some(format!("`{}`", call.name)),
            _ => None,
        });
        let mut ops: Vec<_> = ops.collect();
        ops.dedup();
        ops.join(" or ")
    }

    /// The stretches of the step, each with the sizes that the mode captures it at.
    fn stretches(&self) -> Vec<(Stretch, Vec<PieceSize>)> {
        let members = self.members.list.iter();
        let parts = members.map(|member| member.stretch_part(self.support(member)));
        let with_sizes = |stretch: Stretch| {
            let sizes = self.dispatcher.stretch_sizes(&self.symbols, &stretch);
            (stretch, sizes)
        };
        Stretch::of_step(parts).into_iter().map(with_sizes).collect()
    }

    /// Lists every graph that the mode calls for; those that there are stay.
    pub(crate) fn list_graphs(&mut self) {
        let stretches = self.stretches();
        let Self { dispatcher, members, .. } = self;
        let pieces = stretches.iter().flat_map(|(stretch, sizes)| {
            let pieces = members.list[stretch.members.clone()].iter();
            let pieces = pieces.filter(|member| member.is_captured_piece());
            pieces.flat_map(|piece| sizes.iter().filter_map(|size| piece.size_in(*size)))
        });
        let full = dispatcher.full_graph_sizes();
        let tokens = dispatcher.tokens.sizes().iter().map(|&size| PieceSize::Exact(size));
        let whole = || full.iter().map(StepSizes::whole);
        let uniform = dispatcher
            .decode_batches()
            .map(|(sequences, query_length)| PieceSize::Uniform { sequences, query_length });
        self.stats.prepare(
            FallbackReason::ALL.iter().map(|reason| reason.name()),
            pieces,
            whole(),
            tokens.chain(whole()).chain(uniform),
        );
        self.graphs.list(stretches, full);
        self.background.list(self.graphs.keys());
    }

    /// Drops every graph and captures those of a mode. From then on nothing is captured lazily.
    ///
    /// # Errors
    /// As for [`Self::set_graph_mode`], and whenever a capture fails.
    pub fn recapture(
        &mut self,
        mode: GraphMode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<CapturedGraph>, ModelError> {
        self.check_awake()?;
        self.wait_idle()?;
        self.graphs = GraphSet::default();
        self.capture_when = CaptureWhen::Startup;
        self.warm_up()?;
        let error = OnCaptureFailure::Error;
        let on_failure = std::mem::replace(&mut self.on_capture_failure, error);
        let captured = self.set_graph_mode(mode, progress);
        self.on_capture_failure = on_failure;
        captured
    }

    /// Waits for everything that was submitted: a graph is not dropped while it runs.
    pub(super) fn wait_idle(&mut self) -> Result<(), ModelError> {
        let end = self.device.record(None)?;
        Ok(self.device.wait(&end)?)
    }

    pub(crate) fn capture_listed(
        &mut self,
        on_failure: OnCaptureFailure,
        progress: &mut dyn FnMut(Progress),
        mut took: Option<&mut Vec<CapturedGraph>>,
    ) -> Result<(), ModelError> {
        self.check_awake()?;
        let mut keys = self.graphs.keys();
        let Self { graphs, capture_attempts, .. } = self;
        let lacks = |key: &GraphKey| {
            graphs.slot_mut(*key).is_some_and(|slot| slot.wants_capture(*capture_attempts))
        };
        keys.retain(lacks);
        keys.retain(|&key| !self.waits_for_a_step(key));
        let (total, failures) = (keys.len(), self.stats.capture_failures);
        for (i, key) in keys.into_iter().enumerate() {
            let free = self.device.free_bytes();
            let started = Instant::now();
            self.capture(key, on_failure)?;
            if let Some(took) = &mut took {
                let time = started.elapsed();
                let bytes = free.saturating_sub(self.device.free_bytes());
                took.push(CapturedGraph { kind: self.kind(key), size: key.size(), time, bytes });
            }
            progress(Progress::Capturing { done: i + 1, total });
        }
        let failed = self.stats.capture_failures - failures;
        if failed > 0 {
            tracing::warn!(
                "{failed} of {total} graphs could not be captured, and steps of their sizes are launched: \
                 on_capture_failure = \"error\" makes that an error"
            );
        }
        Ok(())
    }

    /// Whether the first step that wants a graph captures it, whenever the others are: one of steps of
    /// exactly its size, or of a size that is told to wait.
    fn waits_for_a_step(&self, key: GraphKey) -> bool {
        let Dispatcher { rules, tokens, .. } = &self.dispatcher;
        let rows = key.size().rows();
        let is_own = || rules.is_specialized(rows) && !tokens.sizes().contains(&rows);
        let of_tokens = match key {
            GraphKey::Full(_) => true,
            GraphKey::Stretch { first, .. } => {
                self.members.list[first].class() == Some(SymbolClass::Tokens)
            }
        };
        let is_exact = matches!(key.size(), PieceSize::Exact(_));
        of_tokens && (rules.is_lazy(rows) || is_exact && is_own())
    }

    fn kind(&self, key: GraphKey) -> GraphKind {
        let GraphKey::Stretch { first, .. } = key else { return GraphKind::Full };
        match self.members.list[first].class() {
            Some(SymbolClass::Rows) => GraphKind::Rows,
            Some(SymbolClass::Own(_)) => GraphKind::Own,
            _ => GraphKind::Tokens,
        }
    }

    /// Captures the graphs that a step would replay and that are not there: those that are captured
    /// lazily, and those that were there before, which is no error where it fails. Where graphs are
    /// captured between steps, it is noted that this step wanted them.
    pub(super) fn capture_for(&mut self, dispatch: &Dispatch) -> Result<(), ModelError> {
        if dispatch.mode == StepMode::Full {
            return self.capture_wanted(GraphKey::Full(dispatch.sizes));
        }
        for member in 0..self.members.list.len() {
            if let Some(key) = self.graphs.key_at(member, &dispatch.sizes) {
                self.capture_wanted(key)?;
            }
        }
        Ok(())
    }

    fn capture_wanted(&mut self, key: GraphKey) -> Result<(), ModelError> {
        let Self { graphs, capture_attempts, .. } = self;
        let Some(slot) = graphs.slot_mut(key) else { return Ok(()) };
        let state = slot.state(*capture_attempts);
        if state != GraphState::Ready {
            slot.miss();
        }
        match (self.capture_when, state) {
            (CaptureWhen::Lazy, GraphState::Empty) => self.capture(key, self.on_capture_failure),
            (CaptureWhen::Startup, GraphState::Empty) if self.waits_for_a_step(key) => {
                self.capture(key, OnCaptureFailure::Launch)
            }
            (CaptureWhen::Lazy | CaptureWhen::Startup, GraphState::Stale) => {
                self.capture(key, OnCaptureFailure::Launch)
            }
            _ => Ok(()),
        }
    }

    /// Captures a graph, if it is listed and neither ready nor disabled.
    pub(super) fn capture(
        &mut self,
        key: GraphKey,
        on_failure: OnCaptureFailure,
    ) -> Result<(), ModelError> {
        let Self { graphs, members, device, symbols, dispatcher, capture_attempts, .. } = self;
        let Some(slot) = graphs.slot_mut(key) else {
            return Ok(());
        };
        if !slot.wants_capture(*capture_attempts) {
            return Ok(());
        };
        let mut following = Vec::new();
        let (label, programs, by_symbol): (String, Vec<&Program>, Vec<u64>) = match key {
            GraphKey::Full(sizes) => {
                let mut by_symbol = vec![0; symbols.bounds().len()];
                symbols.fill(&mut by_symbol, |class| sizes.rows_of(class));
                let label = match sizes.uniform() {
                    Some(size) => format!("full step of {size} tokens"),
                    None => format!("full step at {} tokens", sizes.tokens),
                };
                let programs = members.list.iter().map(|member| member.program(&sizes)).collect();
                (label, programs, by_symbol)
            }
            GraphKey::Stretch { first, last, size } => {
                let members = &members.list[first..=last];
                let over = members[0].over.map(|over| Over { times: 1, ..over });
                let by_symbol = dispatcher.bounds(symbols, over, size);
                let places = (0..).zip(members).filter(|(_, member)| !member.is_captured_piece());
                following.extend(places.map(|(place, _)| place));
                let programs = members.iter().map(|member| member.program_in(size)).collect();
                (format!("{} at {size} rows", label_of(members)), programs, by_symbol)
            }
        };
        let again = slot.state(*capture_attempts) == GraphState::Stale;
        let started = Instant::now();
        let result =
            slot.capture(|| device.capture_following(&label, &programs, &following, &by_symbol));
        self.stats.capture_time += started.elapsed();
        self.stats.recaptures += u64::from(again && result.is_ok());
        match result {
            Ok(()) => self.stats.captures += 1,
            Err(error) if error.is_lost() => return Err(error.into()),
            Err(error) => {
                self.stats.capture_failures += 1;
                match on_failure {
                    OnCaptureFailure::Error => return Err(error.into()),
                    OnCaptureFailure::Launch => {
                        tracing::warn!("{error}; steps of this size are launched");
                    }
                }
            }
        }
        Ok(())
    }

    /// Launches every program of each unique piece once on a dummy step: counts 0, slots -1, lengths
    /// 0. Its other uses run the same kernels and products.
    pub(crate) fn warm_up(&mut self) -> Result<(), ModelError> {
        let bounds = self.symbols.bounds().to_vec();
        let counts = self.staging.fill_empty(&self.symbols)?;
        self.device.write(self.memory.arena.base, &self.staging.mirror)?;
        let staged = self.staging.staged(&bounds);
        let Some(stitch) = self.module.stitch() else { return Ok(()) };
        let mut warm = FxHashSet::default();
        for member in &self.members.list {
            if !warm.insert(stitch.uses[member.step.id()].unique) {
                continue;
            }
            for (size, program) in &member.sized {
                let sizes = self.dispatcher.bounds(&self.symbols, member.over, *size);
                let context = StepContext { counts: &counts, sizes: &sizes, inputs: &staged };
                self.device.launch(program, LaunchContext::Step(&context))?;
            }
            let context = StepContext { counts: &counts, sizes: &bounds, inputs: &staged };
            self.device.launch(&member.general, LaunchContext::Step(&context))?;
        }
        Ok(())
    }

    /// Every graph that is ready to replay.
    pub fn ready_graphs(&self) -> impl Iterator<Item = &Captured> {
        self.graphs.ready()
    }
}

/// What members in a row are called together.
fn label_of(members: &[Member]) -> String {
    match members {
        [] => String::new(),
        [only] => only.label.clone(),
        [first, .., last] => format!("{} to {}", first.label, last.label),
    }
}
