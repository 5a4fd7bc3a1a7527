//! Measuring, once the graphs are captured, which steps another way serves better than a replay of
//! the size that they are padded to.

use super::compiled::CompiledModel;
use super::run::Run;
use crate::dispatch::{MeasuredWays, OtherWay};
use crate::words::{Dispatch, MAX_OWN, ModelError, StepMode, StepShape, SymbolClass};
use std::time::Duration;

/// Runs that are timed; the fastest counts.
const ROUNDS: usize = 3;

impl CompiledModel {
    /// Measures which steps padding loses, if that is asked for, to the sizes that are captured by now; not
    /// where ops keep states of their own, which a made-up step must not touch.
    pub(crate) fn measure_padding(&mut self) -> Result<(), ModelError> {
        let is_possible = !self.origin.backed_early && self.suspended.is_none();
        if self.measures_padding && is_possible { self.measure_ways() } else { Ok(()) }
    }

    /// Times steps that bring nothing but their numbers of tokens, sequences and rows, where their graphs
    /// are ready.
    pub(super) fn measure_ways(&mut self) -> Result<(), ModelError> {
        let stats = self.stats.clone();
        let mut ways = MeasuredWays::default();
        for shapes in self.padded_shapes() {
            let Some(last) = shapes.last() else { continue };
            let padded = self.dispatcher.dispatch(*last);
            if padded.mode == StepMode::None || self.is_missing(&padded) {
                continue;
            }
            let tokens: Vec<u64> = shapes.iter().map(|shape| shape.tokens).collect();
            let others = match padded.mode {
                StepMode::Full => &[OtherWay::Pieces, OtherWay::Launches][..],
                StepMode::Piecewise | StepMode::None => &[OtherWay::Launches],
            };
            let found = MeasuredWays::find(&tokens, others, |tokens, way| {
                let shape = shapes.iter().find(|shape| shape.tokens == tokens);
                let Some(&shape) = shape else { return Ok(None) };
                let replay = self.dispatcher.dispatch(shape);
                if (replay.mode, replay.sizes.whole()) != (padded.mode, padded.sizes.whole()) {
                    return Ok(None);
                }
                let timed = match way {
                    None => Some(replay),
                    Some(way) => self.dispatcher.other_way(shape, way),
                };
                match timed.filter(|timed| !self.is_missing(timed)) {
                    Some(timed) => self.time(shape, timed).map(Some),
                    None => Ok(None),
                }
            })?;
            if let Some((most, way)) = found {
                ways.set(padded.mode, padded.sizes.whole(), most, way);
            }
        }
        self.ways.replace_padding(ways);
        self.stats = stats;
        Ok(())
    }

    /// For each size the shapes that are padded to it, ascending to the size itself: mixed steps of
    /// one sequence, and uniform batches.
    fn padded_shapes(&self) -> Vec<Vec<StepShape>> {
        let shape = |tokens, sequences, query_length| StepShape {
            tokens,
            rows: sequences,
            sequences,
            own: [0; MAX_OWN],
            query_length,
        };
        let mut all = Vec::new();
        let mut last = 0;
        for &size in self.dispatcher.tokens.sizes() {
            // Of one token it is a decode.
            let tokens = (last + 1).max(2)..=size;
            all.push(tokens.map(|tokens| shape(tokens, 1, None)).collect());
            last = size;
        }
        for &length in &self.dispatcher.query_lengths {
            let batches = self.dispatcher.decode_batches().filter(|(_, q)| *q == length);
            let mut last = 0;
            for (batch, _) in batches {
                let sequences = last + 1..=batch;
                all.push(sequences.map(|n| shape(n * length, n, Some(length))).collect());
                last = batch;
            }
        }
        all
    }

    /// The time of a step from its submit to its end, the least of some.
    fn time(&mut self, shape: StepShape, dispatch: Dispatch) -> Result<Duration, ModelError> {
        let empty = self.stage_empty(shape, dispatch)?;
        let mut best = Duration::MAX;
        for _ in 0..=ROUNDS {
            best = best.min(self.time_of(&empty, 1)?);
        }
        Ok(best)
    }

    /// Stages a step that is nobody's: no row of a state is written.
    fn stage_empty(&mut self, shape: StepShape, dispatch: Dispatch) -> Result<Staged, ModelError> {
        let mut counts = vec![0; self.symbols.bounds().len()];
        let mut sizes = counts.clone();
        self.symbols.fill(&mut counts, |class| match class {
            SymbolClass::Tokens => shape.tokens,
            SymbolClass::Rows => shape.rows.min(self.dispatcher.max_rows),
            SymbolClass::Sequences => shape.sequences,
            SymbolClass::Own(_) | SymbolClass::Fixed => 0,
        });
        self.symbols.fill(&mut sizes, |class| dispatch.sizes.rows_of(class));
        self.staging.fill_empty(&self.symbols)?;
        self.device.write(self.memory.arena.base, &self.staging.mirror)?;
        let words = counts.iter().map(|&n| i32::try_from(n).unwrap_or(i32::MAX));
        let bytes: Vec<u8> = words.flat_map(i32::to_le_bytes).collect();
        self.device.write(self.memory.counts(), &bytes)?;
        let run = Run { mode: dispatch.mode, sizes: dispatch.sizes, head_again: false };
        Ok(Staged { run, counts, sizes })
    }

    /// The time of so many runs of a step, one submitted after the other, to the end of the last.
    pub(crate) fn time_of(&mut self, step: &Staged, times: usize) -> Result<Duration, ModelError> {
        let clock = self.device.clock();
        let started = clock();
        for _ in 0..times {
            self.run_as(step.run, &step.counts, &step.sizes, None)?;
        }
        self.wait_idle()?;
        Ok(clock().saturating_duration_since(started))
    }
}

/// A step whose inputs are staged.
pub(crate) struct Staged {
    pub(crate) run: Run,
    pub(crate) counts: Vec<u64>,
    pub(crate) sizes: Vec<u64>,
}
