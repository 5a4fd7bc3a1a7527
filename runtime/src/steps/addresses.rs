//! Programs and graphs over addresses that changed: bound and captured again by themselves.

use super::compiled::CompiledModel;
use super::graphs::GraphSlot;
use crate::device::BindSite;
use crate::words::ModelError;

impl CompiledModel {
    /// Once a part of the memory lies elsewhere than what the programs were bound to: binds them
    /// anew, and the graphs are stale: each is captured again by the next step that wants it, or
    /// between steps. Once that has happened more often than the limit, they are captured no more. What
    /// is on its way ends first.
    pub(super) fn follow_addresses(&mut self) -> Result<(), ModelError> {
        self.wait_idle()?;
        self.staging.follow(self.module.graph(), &self.memory);
        self.bind_again()?;
        self.stats.address_changes += 1;
        self.moves += 1;
        let (moves, limit) = (self.moves, self.recapture_limit);
        if limit == 0 || moves <= limit {
            tracing::warn!("memory of the model has moved; its graphs are captured again");
            return Ok(());
        }
        self.graphs.slots_mut().for_each(GraphSlot::give_up);
        self.stats.recapture_limit_hits += 1;
        if moves == limit.saturating_add(1) {
            tracing::warn!(
                "memory of the model has moved {moves} times, more often than recapture_limit = {limit}: \
                 its graphs are captured no more and steps are launched; leave the memory where it is, \
                 raise recapture_limit, or enable the graphs again"
            );
        }
        Ok(())
    }

    /// Binds every program to where the memory lies now, and drops every graph.
    pub(super) fn bind_again(&mut self) -> Result<(), ModelError> {
        let stitch = self.module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
        let site = BindSite {
            module: &self.module,
            stitch,
            symbols: &self.symbols,
            memory: &self.memory,
            compiled: &self.origin.compiled,
        };
        let mut members =
            site.bind_all(&mut *self.device, &|unique, i| self.origin.choices.of(unique, i))?;
        members.exclude(&self.origin.capture_exclude, &self.module)?;
        for (member, before) in members.list.iter_mut().zip(&mut self.members.list) {
            member.probed = before.probed.take();
        }
        self.graphs.slots_mut().for_each(GraphSlot::invalidate);
        self.background.wake();
        self.members = members;
        self.bound_to = self.memory.bases();
        Ok(())
    }
}
