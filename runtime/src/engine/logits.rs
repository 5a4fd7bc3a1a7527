//! Logits of every position of a prompt.

use super::batching::Engine;
use super::error::EngineError;
use super::request::{Request, check_ids};
use super::schedule::largest;
use crate::batch::{Chunk, ChunkRows, ChunkTokens, SampleControls, Sampling, TokenValues};
use crate::memory::{PageTable, StateSlot};

impl Engine {
    /// Computes the logits of every position of the prompt of `request` and hands them out chunk by chunk: the
    /// position of the first row, and the rows `f32 [rows, vocab]` as little-endian bytes. The
    /// model must have been built to read its logits back.
    ///
    /// # Errors
    /// When the prompt is empty, too long or out of range, what it brings does not fit, requests
    /// run, the pool is too small, the graph returns no logits, or the model fails; a device that
    /// was lost is opened anew then.
    pub fn logits(
        &mut self,
        request: &Request,
        rows: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), EngineError> {
        let result = self.logits_of(request, rows);
        if result.as_ref().is_err_and(EngineError::is_lost) {
            self.recover(&mut Vec::new())?;
        }
        self.tell_kv_observer();
        result
    }

    /// As [`Engine::logits`].
    pub(super) fn logits_of(
        &mut self,
        request: &Request,
        rows: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), EngineError> {
        let ids = &request.prompt;
        if self.has_work() {
            return Err(EngineError::Busy);
        }
        if ids.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        check_ids(ids, self.options.vocab)?;
        let bound = self.options.max_seq_len;
        if ids.len() as u64 > bound {
            return Err(EngineError::TooLong { length: ids.len(), bound });
        }
        let values = self.values_of(request)?;
        let mut table = PageTable::default();
        if self.roles.table_pages.is_some() {
            while table.missing(ids.len() as u64) > self.pool.free_pages() && self.reclaim(None) {}
            table.grow(&mut self.pool, ids.len() as u64)?;
        }
        let slot = self.slot_for_anyone();
        let result = slot.and_then(|slot| {
            let result = self.logits_with((ids, &values), &table, slot.as_ref(), rows);
            slot.into_iter().for_each(|slot| self.slots.give_back(slot));
            result
        });
        table.release(&mut self.pool);
        result
    }

    /// A slot, where the graph has states that need one.
    fn slot_for_anyone(&mut self) -> Result<Option<StateSlot>, EngineError> {
        if !self.slots.is_needed() {
            return Ok(None);
        }
        while self.slots.free_slots() == 0 && self.reclaim(None) {}
        let slot = self.slots.take(self.model.device_mut())?;
        slot.ok_or(EngineError::NoSlot { slots: self.slots.slots() }).map(Some)
    }

    fn logits_with(
        &mut self,
        (ids, values): (&[u32], &[TokenValues]),
        table: &PageTable,
        slot: Option<&StateSlot>,
        rows: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), EngineError> {
        let output = self.roles.logits_output()?;
        let most = self.options.max_num_tokens.min(self.model.max_logit_rows());
        let mut start = 0;
        let mut left = ids;
        while !left.is_empty() {
            let chunk = |count: u64| Chunk {
                tokens: ChunkTokens::Ids(&left[..count as usize]),
                start,
                table,
                slot,
                rows: ChunkRows::All,
                entry: None,
                values,
                sampling: Sampling::default(),
                controls: SampleControls::default(),
            };
            let mut fits = |count| {
                self.batch.clear();
                self.batch.push(&chunk(count));
                self.batch.has_room()
            };
            let most = most.clamp(1, left.len() as u64);
            let count = if fits(most) { most } else { largest(most - 1, fits).max(1) };
            if let Some(poison) = &self.poison {
                let kept = self.sequences.values().map(|s| (&s.table, s.computed));
                let live = kept.chain([(table, start)]);
                poison.fill(self.model.device_mut(), &self.pool, live)?;
            }
            self.batch.clear();
            self.batch.push(&chunk(count));
            let ticket = self.model.submit(&self.batch.step()?.data())?;
            rows(start, self.model.read(&ticket)?.bytes(output)?);
            left = &left[count as usize..];
            start += count;
        }
        Ok(())
    }
}
