//! Capturing: largest first, from the programs that launches use.

use super::CompiledModel;
use super::build::Progress;
use super::error::ModelError;
use super::graphs::{GraphSlot, OnCaptureFailure};
use crate::dispatch::{Dispatch, StepSizes};
use crate::mode::{GraphMode, StepMode};
use crate::symbols::SymbolClass;
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_ir::module::Step;
use piecewise_kernels::step::{LaunchContext, StepContext};

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
            .map(|member| match (member.step, member.class) {
                (Step::Piece(_), Some(class)) => {
                    let sizes = self.dispatcher.piece_graph_sizes(class);
                    sizes.into_iter().map(|size| (size, GraphSlot::empty())).collect()
                }
                _ => Vec::new(),
            })
            .collect();
        let full = self.dispatcher.full_graph_sizes();
        self.graphs.full = full.into_iter().map(|sizes| (sizes, GraphSlot::empty())).collect();
        let piece_sizes: Vec<_> =
            self.dispatcher.token_sizes().into_iter().chain(self.dispatcher.row_sizes()).collect();
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
        self.warm_up()?;
        let total = self.graphs.pieces.iter().map(Vec::len).sum::<usize>() + self.graphs.full.len();
        let mut done = 0;
        for i in (0..self.graphs.full.len()).rev() {
            self.capture_full(i, on_failure)?;
            done += 1;
            progress(Progress::Capturing { done, total });
        }
        let most = self.graphs.pieces.iter().map(Vec::len).max().unwrap_or(0);
        for back in 1..=most {
            for member in 0..self.graphs.pieces.len() {
                let Some(i) = self.graphs.pieces[member].len().checked_sub(back) else { continue };
                self.capture_piece(member, i, on_failure)?;
                done += 1;
                progress(Progress::Capturing { done, total });
            }
        }
        Ok(())
    }

    /// Captures the graphs that a step would replay, as far as they are neither ready nor
    /// disabled.
    pub(super) fn capture_for(&mut self, dispatch: &Dispatch) -> Result<(), ModelError> {
        let on_failure = self.on_capture_failure;
        let StepSizes { tokens, rows, .. } = dispatch.sizes;
        if dispatch.mode == StepMode::Full {
            let at = self.graphs.full.binary_search_by_key(&dispatch.sizes, |(sizes, _)| *sizes);
            return at.map_or(Ok(()), |i| self.capture_full(i, on_failure));
        }
        for member in 0..self.members.list.len() {
            let size = match self.members.list[member].class {
                Some(SymbolClass::Tokens) => tokens.rows(),
                Some(SymbolClass::Rows) => rows.rows(),
                _ => continue,
            };
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
        symbols.fill(&mut by_symbol, sizes.tokens, sizes.rows, sizes.sequences);
        let programs: Vec<_> =
            members.list.iter().map(|m| m.program(sizes.tokens, sizes.rows)).collect();
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
        let by_symbol = self.sizes_of(self.members.list[member].class, size);
        let Self { graphs, members, device, .. } = self;
        let slot = &mut graphs.pieces[member][i].1;
        if !slot.wants_capture() {
            return Ok(());
        }
        let member = &members.list[member];
        let exact = PieceSize::Exact(size);
        let label = format!("{} at {size} rows", member.label);
        let program = member.program(exact, exact);
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
        let counts: Vec<u64> = (0..self.symbols.len())
            .map(|i| match self.symbols.class_at(i) {
                SymbolClass::Fixed => self.symbols.bounds()[i],
                _ => 0,
            })
            .collect();
        let bounds = self.symbols.bounds().to_vec();
        let empty: Vec<Vec<u8>> = self
            .staging
            .inputs
            .iter()
            .map(|input| vec![0; input.ty.bytes(&counts) as usize])
            .collect();
        let inputs: Vec<&[u8]> = empty.iter().map(Vec::as_slice).collect();
        self.staging.fill(&inputs, &counts, &bounds, false)?;
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
                let sizes = self.sizes_of(member.class, *size);
                let context = StepContext { counts: &counts, sizes: &sizes, inputs: &staged };
                self.device.launch(program, LaunchContext::Step(&context))?;
            }
            let context = StepContext { counts: &counts, sizes: &bounds, inputs: &staged };
            self.device.launch(&member.general, LaunchContext::Step(&context))?;
        }
        Ok(())
    }

    /// The largest size of each symbol, by symbol index, but `size` where the class is `class`.
    fn sizes_of(&self, class: Option<SymbolClass>, size: u64) -> Vec<u64> {
        let of = |(i, &bound)| if Some(self.symbols.class_at(i)) == class { size } else { bound };
        self.symbols.bounds().iter().enumerate().map(of).collect()
    }

    /// The number of graphs that are ready to replay.
    pub fn captured_graphs(&self) -> usize {
        self.graphs.ready_count()
    }
}
