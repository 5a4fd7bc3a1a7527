//! Steps: submit and read.

use super::compiled::CompiledModel;
use super::staging::{BLOCKS, Filling, ReadOutput};
use crate::memory::RowsError;
use crate::words::{
    CaptureWhen, Checks, Dispatch, FallbackReason, ModelError, POISON, SpanKind, StepData,
    StepMode, StepShape, StepTimes, SymbolClass,
};
use piecewise_backend::device::Address;
use piecewise_ir::dtype::DType;
use piecewise_ir::types::TensorType;
use smallvec::SmallVec;
use std::time::Instant;

/// A step that was submitted: what its outputs are read by.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    step: u64,
    counts: SmallVec<[u64; 8]>,
}

/// The outputs of a step: views of the real rows.
#[derive(Clone, Copy, Debug)]
pub struct StepOutputs<'a> {
    block: &'a [u8],
    outputs: &'a [ReadOutput],
    counts: &'a [u64],
}

impl<'a> StepOutputs<'a> {
    /// The bytes of output `i` at the step's true counts.
    ///
    /// # Errors
    /// When the model was not built to read it back.
    pub fn bytes(&self, i: usize) -> Result<&'a [u8], ModelError> {
        let output = self.outputs.get(i);
        let (Some(output), Some(offset)) = (output, output.and_then(|o| o.offset)) else {
            return Err(ModelError::NotRead { output: i });
        };
        let bytes = output.ty.bytes(self.counts) as usize;
        Ok(&self.block[offset as usize..offset as usize + bytes])
    }

    /// The type of output `i`.
    pub fn ty(&self, i: usize) -> Option<&'a TensorType> {
        self.outputs.get(i).map(|output| &output.ty)
    }
}

impl CompiledModel {
    /// Stages and enqueues a step. At most two steps may be submitted and not yet read.
    ///
    /// # Errors
    /// When counts or inputs do not fit, a launch fails, or (strict) the step would not replay.
    /// Nothing was enqueued where the step does not fit.
    pub fn submit(&mut self, step: &StepData<'_>) -> Result<Ticket, ModelError> {
        self.check_awake()?;
        if self.is_lost {
            return Err(ModelError::Lost);
        }
        let started = Instant::now();
        if self.bound_to != self.memory.bases() {
            self.follow_addresses()?;
        }
        let counts = self.true_counts(step.counts)?;
        // A graph that it captures on the way may be the first that reads inputs on the host.
        let mut dispatch = self.dispatch_step(&counts, step.query_length)?;
        if self.launches_only {
            dispatch.mode = StepMode::None;
        }
        let is_direct = self.is_direct(&counts);
        let Some(source) = step.source.filter(|_| !is_direct) else {
            return self.submit_given(step, counts, dispatch, is_direct, started);
        };
        let mut given = std::mem::take(&mut self.given);
        let filled = given.fill(source, &self.staging.inputs, &counts);
        let ticket = filled.and_then(|()| {
            given.with(step, |step| self.submit_given(step, counts, dispatch, false, started))
        });
        self.given = given;
        ticket
    }

    /// Whether a step is filled straight into its host block: a mirror of what is staged is for the host to
    /// read, or to go to the device as a whole.
    fn is_direct(&self, counts: &[u64]) -> bool {
        let Checks { poison, addresses, .. } = self.checks;
        self.head_calls(counts) == 1 && !poison && !addresses && !self.device.reads_inputs()
    }

    /// How often the head runs.
    fn head_calls(&self, counts: &[u64]) -> u64 {
        let rows = self.symbols.count(SymbolClass::Rows, counts);
        rows.div_ceil(self.dispatcher.max_rows).max(1)
    }

    /// Submits a step whose inputs are given, or filled where they are to lie.
    fn submit_given(
        &mut self,
        step: &StepData<'_>,
        counts: SmallVec<[u64; 8]>,
        mut dispatch: Dispatch,
        is_direct: bool,
        started: Instant,
    ) -> Result<Ticket, ModelError> {
        let mut sizes: SmallVec<[u64; 8]> = SmallVec::from_elem(0, counts.len());
        self.symbols.fill(&mut sizes, |class| dispatch.sizes.rows_of(class));
        let calls = self.head_calls(&counts);
        let turn = (self.next_step as usize) % BLOCKS;
        if is_direct {
            self.staging.fill_direct(&mut *self.device, turn, step, (&counts, &sizes))?;
        } else if calls == 1 {
            let poison = self.checks.poison;
            let filling = if poison { Filling::Poisoned } else { Filling::Read };
            self.staging.fill(step, &counts, &sizes, filling)?;
        } else {
            // Each call is filled, and so checked, by itself.
            self.staging.check_slots(step)?;
            self.fill_head_call(step, &counts, &sizes, 0)?;
        }
        if self.checks.addresses {
            self.check_pages(step)?;
        }
        if self.checks.poison {
            self.poison_dead_bytes()?;
        }
        if !is_direct {
            self.staging.fill_block(&mut *self.device, turn, step)?;
        }
        if self.checks.poison {
            self.staging.forget_out(&mut *self.device, turn, &counts)?;
        }
        self.clock.start(&mut *self.device, turn)?;
        if let Some(tracer) = &mut self.tracer {
            tracer.begin(&mut *self.device, turn)?;
        }
        self.staging.copy_in(&mut *self.device, turn, step)?;
        self.mark_span(turn, SpanKind::Stage)?;
        let first = self.call_counts(&counts, 0);
        let mut was_refused = self.run(&dispatch, &first, &sizes, false)?;
        self.staging.copy_out(&mut *self.device, turn, &first, 0, None)?;
        for call in 1..calls {
            let call_counts = self.call_counts(&counts, call);
            self.fill_head_call(step, &counts, &sizes, call)?;
            self.device.write(self.memory.arena.base, &self.staging.mirror)?;
            self.mark_span(turn, SpanKind::Stage)?;
            was_refused |= self.run(&dispatch, &call_counts, &sizes, true)?;
            let first_row = call * self.dispatcher.max_rows;
            let symbols = Some(&self.symbols);
            self.staging.copy_out(&mut *self.device, turn, &call_counts, first_row, symbols)?;
        }
        self.mark_span(turn, SpanKind::ReadBack)?;
        self.clock.end(&mut *self.device, turn)?;
        self.staging.ends[turn].record(&mut *self.device)?;
        let number = self.next_step;
        self.next_step += 1;
        if was_refused {
            self.background.wake();
            dispatch.mode = StepMode::None;
            dispatch.fallback = Some(FallbackReason::ReplayRefused);
            self.stats.refused_replays += 1;
        }
        let real = self.symbols.count(SymbolClass::Tokens, &counts);
        self.clock.submitted(turn, started, dispatch.mode);
        if let Some(tracer) = &mut self.tracer {
            tracer.submitted(turn, started, dispatch);
        }
        self.stats.count_step(&dispatch, real, started.elapsed());
        self.last = Some(dispatch);
        let is_mixed = dispatch.sizes.query_length.is_none();
        if self.late.is_some() {
            self.specialize_between_steps(is_mixed.then_some(real))?;
        }
        if self.capture_when == CaptureWhen::Background && !self.background.is_done {
            self.capture_between_steps()?;
        }
        Ok(Ticket { step: number, counts })
    }

    /// Whether the steps to come bring back output `i`, where the model was built to read it; they do
    /// unless somebody says otherwise. What [`StepOutputs`] has of one that was not brought back means
    /// nothing.
    pub fn read_back(&mut self, i: usize, is_wanted: bool) {
        if let Some(output) = self.staging.outputs.get_mut(i) {
            output.is_wanted = is_wanted;
        }
    }

    /// How long a step took that was read; `None` where it was not, or its place is another's now.
    pub fn step_times(&self, ticket: &Ticket) -> Option<StepTimes> {
        self.clock.times(self.turn_of(ticket)?)
    }

    /// Waits for a step and returns its outputs; readable until the second submit after it.
    ///
    /// # Errors
    /// When the outputs were overwritten, or work of the step failed.
    pub fn read(&mut self, ticket: &Ticket) -> Result<StepOutputs<'_>, ModelError> {
        let turn = self.turn_of(ticket).ok_or(ModelError::Expired { step: ticket.step })?;
        let waiting = self.tracer.as_ref().map(|_| Instant::now());
        self.staging.ends[turn].wait(&mut *self.device)?;
        if let (Some(tracer), Some(waiting)) = (&mut self.tracer, waiting) {
            tracer.read(&mut *self.device, turn, waiting)?;
        }
        self.clock.read(&mut *self.device, turn, &mut self.stats)?;
        if self.checks.poison
            && let Some(output) = self.staging.missing(&*self.device, turn, &ticket.counts)?
        {
            return Err(ModelError::ReadEarly { step: ticket.step, output });
        }
        let block = self.staging.out_blocks[turn];
        let block = self.device.host_bytes(block, block.all())?;
        // The ticket's counts are copied so that the outputs borrow from the model alone.
        self.read_counts.clear();
        self.read_counts.extend_from_slice(&ticket.counts);
        Ok(StepOutputs { block, outputs: &self.staging.outputs, counts: &self.read_counts })
    }

    /// Marks the end of a part of the step that is being submitted, if steps are traced.
    fn mark_span(&mut self, turn: usize, kind: SpanKind) -> Result<(), ModelError> {
        if let Some(tracer) = &mut self.tracer {
            tracer.mark(&mut *self.device, turn, kind)?;
        }
        Ok(())
    }

    /// Where output `output` of the step that was read last is, f32 `[rows, width]`, and its rows.
    pub(crate) fn last_rows(&self, output: usize, width: u64) -> Result<(Address, u64), RowsError> {
        let shape = |found: String| RowsError::Shape { found, width };
        let Some(ReadOutput { ty, from, .. }) = self.staging.outputs.get(output) else {
            return Err(shape(format!("there is no output {output}")));
        };
        if self.read_counts.is_empty() {
            return Err(shape("no step ran yet".to_owned()));
        }
        match *ty.dims(&self.read_counts) {
            [rows, found] if found == width && ty.dtype == DType::F32 => Ok((*from, rows)),
            _ => Err(shape(format!(
                "output {output} is {}",
                ty.display(self.module.graph().symbols())
            ))),
        }
    }

    /// The host blocks of a step; `None` where another has them.
    pub(super) fn turn_of(&self, ticket: &Ticket) -> Option<usize> {
        let age = self.next_step.saturating_sub(ticket.step);
        let is_there = (1..=BLOCKS as u64).contains(&age) && ticket.step >= self.first_step;
        is_there.then_some((ticket.step as usize) % BLOCKS)
    }

    fn true_counts(&self, given: &[u64]) -> Result<SmallVec<[u64; 8]>, ModelError> {
        let bounds = self.symbols.bounds();
        let mut counts: SmallVec<[u64; 8]> = SmallVec::from_slice(bounds);
        for (i, count) in counts.iter_mut().enumerate() {
            let class = self.symbols.at(i).class;
            if class == SymbolClass::Fixed {
                continue;
            }
            *count = given.get(i).copied().unwrap_or(0);
            let (what, option, bound) = match class {
                SymbolClass::Tokens => ("tokens", "max_num_tokens", bounds[i]),
                SymbolClass::Sequences => ("sequences", "max_num_seqs", bounds[i]),
                SymbolClass::Own(_) if *count > bounds[i] => {
                    let (symbol, count, bound) = (self.symbol_at(i), *count, bounds[i]);
                    return Err(ModelError::TooManyOwn { symbol, count, bound });
                }
                SymbolClass::Own(_) => continue,
                SymbolClass::Rows | SymbolClass::Fixed => (
                    "rows",
                    "max_logit_rows",
                    self.origin.max_logit_rows * self.symbols.at(i).times,
                ),
            };
            if *count > bound {
                return Err(ModelError::TooMany { what, count: *count, bound, option });
            }
        }
        self.check_tied(&counts)?;
        Ok(counts)
    }

    /// What the graph calls the symbol at an index.
    fn symbol_at(&self, index: usize) -> String {
        let decl = self.module.graph().symbols().values().nth(index);
        decl.map_or_else(String::new, |decl| decl.name.clone())
    }

    /// Holds the counts of symbols that are tied to each other against each other.
    fn check_tied(&self, counts: &[u64]) -> Result<(), ModelError> {
        for (i, &count) in counts.iter().enumerate() {
            let class = self.symbols.at(i).class;
            let expected = self.symbols.count(class, counts) * self.symbols.at(i).times;
            if class != SymbolClass::Fixed && count != expected {
                let symbol = self.symbol_at(i);
                return Err(ModelError::Tied { symbol, count, expected });
            }
        }
        Ok(())
    }

    fn dispatch_step(
        &mut self,
        counts: &[u64],
        query_length: Option<u64>,
    ) -> Result<Dispatch, ModelError> {
        let shape = StepShape {
            tokens: self.symbols.count(SymbolClass::Tokens, counts),
            rows: self.symbols.count(SymbolClass::Rows, counts),
            sequences: self.symbols.count(SymbolClass::Sequences, counts),
            own: std::array::from_fn(|kind| self.symbols.count(SymbolClass::Own(kind), counts)),
            query_length,
        };
        let mut dispatch = self.dispatcher.dispatch(shape);
        let better = self.ways.better(dispatch.mode, &dispatch.sizes, shape.tokens);
        if let Some(other) = better.and_then(|way| self.dispatcher.other_way(shape, way)) {
            self.stats.pieces_for_padding += u64::from(other.mode == StepMode::Piecewise);
            dispatch = other;
        }
        if self.ways.is_launched(dispatch.mode, &dispatch.sizes) {
            dispatch.mode = StepMode::None;
            dispatch.fallback = Some(FallbackReason::LaunchesFaster);
        }
        if !self.launches_only && self.is_missing(&dispatch) {
            self.capture_for(&dispatch)?;
        }
        if self.is_missing(&dispatch) {
            dispatch.mode = StepMode::None;
            dispatch.fallback = Some(FallbackReason::NotCaptured);
        }
        Ok(dispatch)
    }

    /// Whether a graph that the step would replay is not ready.
    pub(super) fn is_missing(&self, dispatch: &Dispatch) -> bool {
        match dispatch.mode {
            StepMode::Full => self.graphs.full(dispatch.sizes).is_none(),
            StepMode::Piecewise => !self.graphs.has_pieces(dispatch.sizes),
            StepMode::None => false,
        }
    }

    /// The counts of one call of the head: rows are those of the call.
    fn call_counts(&self, counts: &[u64], call: u64) -> SmallVec<[u64; 8]> {
        let max = self.dispatcher.max_rows;
        let mut of_call: SmallVec<[u64; 8]> = SmallVec::from_slice(counts);
        for (i, count) in of_call.iter_mut().enumerate() {
            if self.symbols.at(i).class == SymbolClass::Rows {
                let max = max * self.symbols.at(i).times;
                *count = count.saturating_sub(call * max).min(max);
            }
        }
        of_call
    }

    /// Stages the step for one call of the head: of inputs shaped by rows, those of the call.
    fn fill_head_call(
        &mut self,
        step: &StepData<'_>,
        counts: &[u64],
        sizes: &[u64],
        call: u64,
    ) -> Result<(), ModelError> {
        let of_call = self.call_counts(counts, call);
        let first = call * self.dispatcher.max_rows;
        let mut inputs: SmallVec<[&[u8]; 32]> = SmallVec::new();
        for (i, (input, bytes)) in self.staging.inputs.iter().zip(step.inputs).enumerate() {
            let over = input.ty.outer_symbol().map(|s| self.symbols.over(s));
            let Some(over) = over.filter(|over| over.class == SymbolClass::Rows) else {
                inputs.push(bytes);
                continue;
            };
            let columns = step.columns(i);
            if bytes.len() as u64 != input.rows(columns, counts)?.bytes() {
                return Err(ModelError::Input {
                    input: input.name.clone(),
                    reason: format!(
                        "holds {} bytes in one part, which the counts don't make",
                        bytes.len()
                    ),
                });
            }
            let of_call = input.rows(columns, &of_call)?;
            let row = columns.map_or(input.ty.row().bytes(counts), |_| of_call.width);
            let start = (first * over.times * row) as usize;
            inputs.push(&bytes[start..start + of_call.bytes() as usize]);
        }
        let step = StepData { inputs: &inputs, ..*step };
        let filling = if self.checks.poison { Filling::Poisoned } else { Filling::Whole };
        self.staging.fill(&step, &of_call, sizes, filling)
    }

    /// Fills every byte of the arena that staging does not write.
    fn poison_dead_bytes(&mut self) -> Result<(), ModelError> {
        let staged = self.memory.layout().staged;
        let rest = self.memory.ledger.slots + self.memory.ledger.scratch - staged;
        Ok(self.device.fill(self.memory.arena.base.offset(staged), rest, &[POISON])?)
    }
}
