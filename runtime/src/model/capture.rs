//! Capturing: largest first, from the programs that launches use.

use super::CompiledModel;
use super::build::{CaptureWhen, Progress};
use super::error::ModelError;
use super::graphs::{GraphKey, GraphSet, GraphSlot, OnCaptureFailure};
use crate::dispatch::{Dispatch, StepSizes};
use crate::mode::{GraphMode, StepMode};
use crate::symbols::SymbolClass;
use piecewise_backend::artifact::PieceSize;
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
    /// Its size: of a whole step, or else in rows of the piece.
    pub size: PieceSize,
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
        let Self { dispatcher, symbols, members, .. } = self;
        let pieces = members.list.iter().map(|member| match (member.step, member.over) {
            (Step::Piece(_), Some(over)) => {
                dispatcher.piece_graph_sizes(symbols, over, member.has_uniform())
            }
            _ => Vec::new(),
        });
        let pieces: Vec<Vec<PieceSize>> = pieces.collect();
        let full = dispatcher.full_graph_sizes();
        self.stats.prepare(pieces.iter().flatten().copied(), full.iter().map(StepSizes::whole));
        self.graphs = GraphSet::listed(pieces, full);
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
        let keys = self.graphs.keys();
        let total = keys.len();
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
        Ok(())
    }

    fn kind(&self, key: GraphKey) -> GraphKind {
        let GraphKey::Piece { member, .. } = key else { return GraphKind::Full };
        match self.members.list[member].class() {
            Some(SymbolClass::Rows) => GraphKind::Rows,
            Some(SymbolClass::Own(_)) => GraphKind::Own,
            _ => GraphKind::Tokens,
        }
    }

    /// Captures the graphs that a step would replay, as far as they are neither ready nor
    /// disabled.
    pub(super) fn capture_for(&mut self, dispatch: &Dispatch) -> Result<(), ModelError> {
        let on_failure = self.on_capture_failure;
        if dispatch.mode == StepMode::Full {
            return self.capture(GraphKey::Full(dispatch.sizes), on_failure);
        }
        for member in 0..self.members.list.len() {
            if let Some(size) = self.members.list[member].size(&dispatch.sizes) {
                self.capture(GraphKey::Piece { member, size }, on_failure)?;
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

    /// Captures a graph, if it is listed and neither ready nor disabled.
    fn capture(&mut self, key: GraphKey, on_failure: OnCaptureFailure) -> Result<(), ModelError> {
        let Self { graphs, members, device, symbols, dispatcher, .. } = self;
        let Some(slot) = graphs.slot_mut(key).filter(|slot| slot.wants_capture()) else {
            return Ok(());
        };
        let (label, programs, by_symbol) = match key {
            GraphKey::Full(sizes) => {
                let mut by_symbol = vec![0; symbols.len()];
                symbols.fill(&mut by_symbol, |class| sizes.rows_of(class));
                let label = match sizes.uniform() {
                    Some(size) => format!("full step of {size} tokens"),
                    None => format!("full step at {} tokens", sizes.tokens),
                };
                let programs = members.list.iter().map(|member| member.program(&sizes)).collect();
                (label, programs, by_symbol)
            }
            GraphKey::Piece { member, size } => {
                let member = &members.list[member];
                let by_symbol = dispatcher.limits(symbols, member.over, size);
                let label = format!("{} at {size} rows", member.label);
                (label, vec![member.at(size)], by_symbol)
            }
        };
        let result = slot.capture(|| device.capture(&label, &programs, &by_symbol));
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
                    OnCaptureFailure::Eager => {
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
            for (size, program) in &member.sized {
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
