//! Capturing: largest first, from the programs that launches use.

use super::CompiledModel;
use super::build::CaptureWhen;
use super::error::ModelError;
use super::graphs::{GraphSlot, OnCaptureFailure};
use super::progress::Progress;
use crate::dispatch::Dispatch;
use crate::mode::{GraphMode, StepMode};
use crate::symbols::SymbolClass;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_ir::module::Step;
use piecewise_kernels::step::{LaunchContext, StepContext};
use std::time::{Duration, Instant};

/// What a graph holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GraphKind {
    /// A whole step.
    Full,
    /// A piece that iterates over tokens.
    Tokens,
    /// A piece that iterates over rows that want logits.
    Rows,
    /// A piece that iterates over rows of the graph's own kind.
    Own,
}

/// What the capture of a graph took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedGraph {
    /// What it holds.
    pub kind: GraphKind,
    /// Its size: the tokens of a whole step, else the rows of the piece.
    pub size: u64,
    /// To capture, inspect, instantiate and upload it.
    pub time: Duration,
    /// By how much the device's free memory fell.
    pub bytes: u64,
}

impl<D: Device> CompiledModel<D> {
    /// The highest mode not above `wanted` that the split ops can be captured for, and why it is
    /// lower, if it is.
    pub(super) fn supported_mode(&self, wanted: GraphMode) -> (GraphMode, Option<String>) {
        let weakest = self
            .members
            .list
            .iter()
            .filter(|member| !matches!(member.step, Step::Piece(_)))
            .map(|member| (self.device.capture_support(&member.general), member.label.as_str()))
            .min_by_key(|(support, _)| *support);
        let Some((support, label)) = weakest else { return (wanted, None) };
        let mode = self.dispatcher.supported_mode(wanted, support);
        let reason =
            (mode != wanted).then(|| format!("`{label}` supports capture only for {support:?}"));
        (mode, reason)
    }

    /// Lists every graph that the mode calls for, none captured yet.
    pub(super) fn list_graphs(&mut self) {
        self.graphs.pieces = self
            .members
            .list
            .iter()
            .map(|member| match (member.step, member.over) {
                (Step::Piece(_), Some(over)) => {
                    let sizes = self.dispatcher.piece_graph_sizes(&self.symbols, over);
                    sizes.into_iter().map(|size| (size, GraphSlot::empty())).collect()
                }
                _ => Vec::new(),
            })
            .collect();
        let full = self.dispatcher.full_graph_sizes();
        self.graphs.full = full.into_iter().map(|sizes| (sizes, GraphSlot::empty())).collect();
        let listed = self.graphs.pieces.iter().flatten().map(|(size, _)| *size);
        let lists = [self.dispatcher.token_sizes(), self.dispatcher.row_sizes()];
        let piece_sizes: Vec<_> = lists.into_iter().flatten().chain(listed).collect();
        let full_sizes: Vec<_> =
            self.graphs.full.iter().map(|(sizes, _)| sizes.tokens.rows()).collect();
        self.stats.prepare(&piece_sizes, &full_sizes);
    }

    /// Warms up and captures every listed graph that is neither ready nor disabled, largest
    /// first.
    ///
    /// # Errors
    /// The first failure, if `on_failure` says so; the graphs captured before it stay.
    pub fn capture_all(
        &mut self,
        on_failure: OnCaptureFailure,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), ModelError> {
        self.capture_listed(on_failure, progress, None)
    }

    /// Drops every graph and captures those of another mode, from the programs that there are:
    /// a model that was built for mode `full` has the programs of every mode. From then on
    /// nothing is captured lazily. Returns what each graph took.
    ///
    /// # Errors
    /// When the mode can't be, or a capture fails; the graphs captured before it stay.
    pub fn recapture(
        &mut self,
        mode: GraphMode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<CapturedGraph>, ModelError> {
        if let (_, Some(reason)) = self.supported_mode(mode) {
            return Err(ModelError::Mode { mode: mode.name(), reason });
        }
        self.invalidate_graphs();
        self.dispatcher.mode = mode;
        self.capture_when = CaptureWhen::Startup;
        self.lowered = None;
        self.list_graphs();
        let mut captured = Vec::new();
        self.capture_listed(OnCaptureFailure::Error, progress, Some(&mut captured))?;
        Ok(captured)
    }

    fn capture_listed(
        &mut self,
        on_failure: OnCaptureFailure,
        progress: &mut dyn FnMut(Progress),
        mut took: Option<&mut Vec<CapturedGraph>>,
    ) -> Result<(), ModelError> {
        self.warm_up()?;
        let total = self.graphs.pieces.iter().map(Vec::len).sum::<usize>() + self.graphs.full.len();
        let mut done = 0;
        for i in (0..self.graphs.full.len()).rev() {
            let size = self.graphs.full[i].0.tokens.rows();
            let took = took.as_deref_mut();
            self.measured(took, GraphKind::Full, size, |model| model.capture_full(i, on_failure))?;
            done += 1;
            progress(Progress::Capturing { done, total });
        }
        let most = self.graphs.pieces.iter().map(Vec::len).max().unwrap_or(0);
        for back in 1..=most {
            for member in 0..self.graphs.pieces.len() {
                let Some(i) = self.graphs.pieces[member].len().checked_sub(back) else { continue };
                let kind = match self.members.list[member].class() {
                    Some(SymbolClass::Rows) => GraphKind::Rows,
                    Some(SymbolClass::Own(_)) => GraphKind::Own,
                    _ => GraphKind::Tokens,
                };
                let size = self.graphs.pieces[member][i].0;
                let took = took.as_deref_mut();
                self.measured(took, kind, size, |m| m.capture_piece(member, i, on_failure))?;
                done += 1;
                progress(Progress::Capturing { done, total });
            }
        }
        Ok(())
    }

    /// Captures a graph and notes what that took, where anybody wants to know.
    fn measured(
        &mut self,
        took: Option<&mut Vec<CapturedGraph>>,
        kind: GraphKind,
        size: u64,
        capture: impl FnOnce(&mut Self) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let Some(took) = took else { return capture(self) };
        let free = self.device.free_bytes();
        let started = Instant::now();
        capture(self)?;
        let time = started.elapsed();
        let bytes = free.saturating_sub(self.device.free_bytes());
        took.push(CapturedGraph { kind, size, time, bytes });
        Ok(())
    }

    /// Captures the graphs that a step would replay, as far as they are neither ready nor
    /// disabled.
    pub(super) fn capture_for(&mut self, dispatch: &Dispatch) -> Result<(), ModelError> {
        let on_failure = self.on_capture_failure;
        if dispatch.mode == StepMode::Full {
            let at = self.graphs.full.binary_search_by_key(&dispatch.sizes, |(sizes, _)| *sizes);
            return at.map_or(Ok(()), |i| self.capture_full(i, on_failure));
        }
        for member in 0..self.members.list.len() {
            let Some(size) = self.members.list[member].size(&dispatch.sizes) else { continue };
            let size = size.rows();
            let at = self.graphs.pieces[member].binary_search_by_key(&size, |(size, _)| *size);
            if let Ok(i) = at {
                self.capture_piece(member, i, on_failure)?;
            }
        }
        Ok(())
    }

    /// Drops every captured graph: steps are launched until [`Self::capture_all`] captures anew.
    pub fn invalidate_graphs(&mut self) {
        self.graphs.slots_mut().for_each(GraphSlot::invalidate);
    }

    /// Lets graphs that were disabled by failures be captured again.
    pub fn enable_graphs(&mut self) {
        self.graphs.slots_mut().for_each(GraphSlot::enable);
    }

    fn capture_full(&mut self, i: usize, on_failure: OnCaptureFailure) -> Result<(), ModelError> {
        let Self { graphs, members, device, symbols, .. } = self;
        let (sizes, slot) = &mut graphs.full[i];
        if !slot.wants_capture() {
            return Ok(());
        }
        let mut by_symbol = vec![0; symbols.len()];
        symbols.fill(&mut by_symbol, |class| sizes.rows_of(class));
        let programs: Vec<_> = members.list.iter().map(|m| m.program(sizes)).collect();
        let label = format!("full step at {} tokens", sizes.tokens.rows());
        let result = slot.capture(|| device.capture(&label, &programs, &by_symbol));
        self.settle(result, on_failure)
    }

    fn capture_piece(
        &mut self,
        member: usize,
        i: usize,
        on_failure: OnCaptureFailure,
    ) -> Result<(), ModelError> {
        let size = self.graphs.pieces[member][i].0;
        let over = self.members.list[member].over;
        let by_symbol = self.dispatcher.limits(&self.symbols, over, size);
        let Self { graphs, members, device, .. } = self;
        let slot = &mut graphs.pieces[member][i].1;
        if !slot.wants_capture() {
            return Ok(());
        }
        let member = &members.list[member];
        let label = format!("{} at {size} rows", member.label);
        let program = member.at(size);
        let result = slot.capture(|| device.capture(&label, &[program], &by_symbol));
        self.settle(result, on_failure)
    }

    fn settle(
        &mut self,
        result: Result<(), DeviceError>,
        on_failure: OnCaptureFailure,
    ) -> Result<(), ModelError> {
        match result {
            Ok(()) => {
                self.stats.captures += 1;
                Ok(())
            }
            Err(error) => {
                self.stats.capture_failures += 1;
                match on_failure {
                    OnCaptureFailure::Error => Err(error.into()),
                    OnCaptureFailure::Launch => {
                        tracing::warn!("{error}; steps of this size are launched");
                        Ok(())
                    }
                }
            }
        }
    }

    /// Launches every program once on a dummy step: counts 0, slots -1, lengths 0.
    pub(super) fn warm_up(&mut self) -> Result<(), ModelError> {
        let bounds = self.symbols.bounds().to_vec();
        let counts = self.staging.fill_empty(&self.symbols)?;
        self.device.write(self.memory.arena.base, &self.staging.mirror)?;
        let staged: Vec<&[u8]> = self
            .staging
            .inputs
            .iter()
            .map(|input| {
                let bytes = input.ty.bytes(&bounds) as usize;
                &self.staging.mirror[input.offset..input.offset + bytes]
            })
            .collect();
        for member in &self.members.list {
            for (size, program) in &member.exact {
                let sizes = self.dispatcher.limits(&self.symbols, member.over, *size);
                let context = StepContext { counts: &counts, sizes: &sizes, inputs: &staged };
                self.device.launch(program, LaunchContext::Step(&context))?;
            }
            let context = StepContext { counts: &counts, sizes: &bounds, inputs: &staged };
            self.device.launch(&member.general, LaunchContext::Step(&context))?;
        }
        Ok(())
    }

    /// Every graph that is ready to replay.
    pub fn ready_graphs(&self) -> impl Iterator<Item = &D::Captured> {
        self.graphs.ready()
    }

    /// The number of graphs that are ready to replay.
    pub fn captured_graphs(&self) -> usize {
        self.graphs.ready_count()
    }
}
