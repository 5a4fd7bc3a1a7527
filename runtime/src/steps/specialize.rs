//! Sizes of single numbers of tokens, lowered for them alone once a step brings so many: beside the
//! steps, which go on at the size above until then.

use super::compiled::CompiledModel;
use super::late_sizes::LateSizes;
use crate::device::{BindSite, check_artifacts};
use crate::store::{CompiledPieces, LateCompiler};
use crate::words::ModelError;
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::entity::Entity;
use std::collections::BTreeSet;
use std::sync::Arc;

impl CompiledModel {
    /// Specializes `sizes`, each from some time after the first step of exactly so many tokens: it is
    /// lowered on a thread of its own, and bound between two steps, by what the store remembers unless
    /// `tune` is off. No step waits for a measurement.
    pub fn specialize_late(
        &mut self,
        sizes: impl IntoIterator<Item = u64>,
        compiler: LateCompiler,
        tune: TuneMode,
    ) {
        let (wanted, compiler) = (BTreeSet::from_iter(sizes), Arc::new(compiler));
        let late = LateSizes { compiler, tune, wanted, failed: BTreeSet::new(), running: None };
        self.late = Some(late).filter(|late| !late.wanted.is_empty());
    }

    /// After a step was submitted, a mixed one of so many tokens: begins to lower for it, or takes what
    /// is lowered.
    pub(super) fn specialize_between_steps(
        &mut self,
        mixed_tokens: Option<u64>,
    ) -> Result<(), ModelError> {
        let Some(late) = &mut self.late else { return Ok(()) };
        if late.running.as_ref().is_some_and(|(_, thread)| thread.is_finished())
            && let Some((size, thread)) = late.running.take()
        {
            // The thread that panicked has said so.
            let lowered = thread.join().map_err(|_| "its thread panicked".to_owned());
            let lowered = lowered.and_then(|lowered| lowered.map_err(|error| error.to_string()));
            let specialized = match lowered {
                Ok(lowered) => match self.specialize(size, lowered) {
                    Err(error) if error.is_lost() => return Err(error),
                    specialized => specialized.map_err(|error| error.to_string()),
                },
                Err(error) => Err(error),
            };
            if let Err(error) = specialized {
                tracing::warn!("steps of {size} tokens get no size of their own: {error}");
                self.late.iter_mut().for_each(|late| _ = late.failed.insert(size));
            }
            return Ok(());
        }
        if late.running.is_none()
            && let Some(tokens) = mixed_tokens
            && late.wanted.remove(&tokens)
        {
            let (compiler, known) = (Arc::clone(&late.compiler), &self.origin.compiled);
            let (sizes, layouts) = (known.sizes.clone(), known.layouts.clone());
            let mut dispatcher = self.dispatcher.clone();
            dispatcher.rules.specialize(tokens);
            let lower = move || compiler.lower(&dispatcher, &sizes, &layouts);
            late.running = Some((tokens, std::thread::spawn(lower)));
        }
        Ok(())
    }

    /// Binds what was lowered for a size; from now on steps of so many tokens run at it.
    fn specialize(&mut self, size: u64, lowered: CompiledPieces) -> Result<(), ModelError> {
        let scratch = lowered.artifacts.iter().flatten().map(Artifact::scratch).max().unwrap_or(0);
        let room = self.memory.ledger.scratch;
        if scratch > room {
            return Err(ModelError::LateScratch { size, scratch, room });
        }
        let known: Vec<usize> = self.origin.compiled.artifacts.iter().map(Vec::len).collect();
        let counts = lowered.counts.clone();
        self.origin.compiled.append(lowered);
        let mut dispatcher = self.dispatcher.clone();
        dispatcher.rules.specialize(size);
        let ledger = self.ledger_of(&dispatcher);
        let within = self.check_limit(&ledger, || format!("a size of its own for {size} tokens"));
        let bound = within.and_then(|()| self.bind_after(&known));
        if bound.is_err() {
            self.origin.compiled.truncate(&known);
            self.origin.choices.truncate(&known);
            return bound;
        }
        self.stats.compile.add(&counts);
        self.dispatcher = dispatcher;
        self.set_ledger(ledger);
        self.list_graphs();
        self.count_unmeasured();
        Ok(())
    }

    /// Sizes that got none of their own may be tried again.
    pub(super) fn retry_late(&mut self) {
        if let Some(late) = &mut self.late {
            late.wanted.append(&mut late.failed);
        }
    }

    /// Binds every member at those of its sizes that come after the known ones.
    fn bind_after(&mut self, known: &[usize]) -> Result<(), ModelError> {
        check_artifacts(&self.module, &self.origin.compiled.artifacts)?;
        let Self { device, module, symbols, memory, origin, members, late, .. } = self;
        let (Some(stitch), Some(late)) = (module.stitch(), late) else { return Ok(()) };
        let compiled = &origin.compiled;
        let site = BindSite { module, stitch, symbols, memory, compiled };
        origin.choices.extend(&mut **device, &site, late.tune, &*late.compiler.store);
        let mut programs = Vec::new();
        for (member, place) in members.list.iter().zip(0..) {
            let usage = &stitch.uses[member.step.id()];
            let unique = usage.unique.index();
            for i in known[unique]..compiled.sizes[unique].len() {
                let chosen = origin.choices.of(usage.unique, i);
                let program = site.bind(&mut **device, usage, &member.label, i, chosen)?;
                programs.push((place, compiled.sizes[unique][i].size, program));
            }
        }
        for (place, size, program) in programs {
            let sized: &mut Vec<(PieceSize, _)> = &mut members.list[place].sized;
            let at = sized.partition_point(|(known, _)| *known < size);
            sized.insert(at, (size, program));
        }
        self.stats.tuning = origin.choices.report;
        Ok(())
    }
}
