//! The graphs of an engine's model, and its memory lent for a while.

use super::batching::Engine;
use super::error::EngineError;
use super::request::RequestEvent;
use crate::batch::full_steps;
use crate::words::{GraphMode, SuspendedWeights};
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::WeightSource;

impl Engine {
    /// Runs the steps to come in another graph mode; no request notices but by the time it takes. Where
    /// ways are measured and there is no request, it is measured which of the sizes that are captured by
    /// then are faster launched than in pieces, for two seconds at most, and what was cached of prompts
    /// is forgotten; the mode that there is already will do.
    ///
    /// # Errors
    /// When the ops can't be captured for the mode, and nothing has changed; or when a capture fails
    /// and that is an error, and steps whose graph is missing are launched from then on.
    pub fn set_graph_mode(&mut self, mode: GraphMode) -> Result<(), EngineError> {
        self.model.set_graph_mode(mode, &mut |_| {})?;
        self.measure_launches_if_idle()
    }

    /// Lets graphs be captured again that failures have disabled, and captures what is missing unless
    /// that is done lazily. Returns how many graphs there are then.
    ///
    /// # Errors
    /// When a capture fails, and that is an error.
    pub fn enable_graphs(&mut self) -> Result<usize, EngineError> {
        Ok(self.model.enable_graphs()?)
    }

    /// Drops every graph, for whoever changed what they hold. Each is captured again by the next step
    /// that wants it, or between steps; all of them at once by [`Self::enable_graphs`].
    pub fn invalidate_graphs(&mut self) {
        self.model.invalidate_graphs();
    }

    /// Captures the graph that most steps have wanted, for a moment in which nothing else is to be
    /// done; whether there was one to capture.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn capture_next(&mut self) -> Result<bool, EngineError> {
        Ok(self.model.capture_next()?)
    }

    /// Gives the memory of arena and states back, and that of the weights where `weights` says so,
    /// until [`Self::resume`]. Reads what is on its way first and appends what happened to `events`.
    /// No request is lost: their tokens are computed again later. Graphs stay.
    ///
    /// # Errors
    /// When work before failed, or the device does not give memory back.
    pub fn suspend(
        &mut self,
        weights: SuspendedWeights,
        events: &mut Vec<RequestEvent>,
    ) -> Result<(), EngineError> {
        self.retire_all(events)?;
        self.tell_kv_observer();
        if self.model.suspended().is_none() {
            self.embeddings.save(self.model.device_mut())?;
        }
        Ok(self.model.suspend(weights)?)
    }

    /// Takes the memory back at the same addresses and goes on; weights that were dropped are made
    /// from `weights`, or else from what the model was built from. Does nothing where the engine is
    /// not suspended.
    ///
    /// # Errors
    /// When memory is short, or dropped weights can't be made; the engine stays suspended.
    pub fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), EngineError> {
        let Some(before) = self.model.suspended() else { return Ok(()) };
        self.model.resume(weights)?;
        if let Err(error) = self.embeddings.restore(self.model.device_mut()) {
            // No step may read rows that are not there yet.
            self.model.suspend(before)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Measures which sizes are faster launched, where ways are measured and nobody has a state that the
    /// made-up sequences would overwrite.
    fn measure_launches_if_idle(&mut self) -> Result<(), EngineError> {
        let is_measured = self.model.tune() == TuneMode::Measure;
        if !is_measured || !self.sequences.is_empty() || self.model.suspended().is_some() {
            return Ok(());
        }
        self.retire_all(&mut Vec::new())?;
        self.tell_kv_observer();
        self.embeddings.save(self.model.device_mut())?;
        let steps = full_steps(&self.roles, self.model.dispatcher());
        let measured = self.model.measure_launches(&steps, self.model.launches_budget());
        // States are zeros for those who come, however far it got.
        self.model.suspend(SuspendedWeights::Keep)?;
        self.resume(None)?;
        Ok(measured?)
    }
}
