//! A trace of some steps, in memory: what an operator asks for while the engine runs.

use super::batching::{Engine, TraceObserver};
use super::error::EngineError;
use crate::observe::{KeptTrace, StepTraceWriter};
use std::ops::ControlFlow;

/// The most steps of a profile, each of which takes some kilobytes of memory.
pub const MOST_PROFILED_STEPS: u64 = 10_000;

/// Why steps are not profiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Steps are traced already: by another profile, or into a file.
    #[error(
        "steps are traced already; take what there is by `POST /stop_profile`, or start without --trace"
    )]
    Busy,
    /// There is no profile to take.
    #[error("no profile was started; `POST /start_profile` starts one")]
    None,
    /// The engine could not begin or end to trace.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Engine {
    /// Traces the next `steps` steps into memory, at most [`MOST_PROFILED_STEPS`], until
    /// [`Self::take_profile`] takes them.
    ///
    /// # Errors
    /// When steps are traced already, a profile was not taken yet, or work before failed.
    pub fn start_profile(&mut self, steps: u64) -> Result<(), ProfileError> {
        if self.watchers.traces.is_some() || self.watchers.profile.is_some() {
            return Err(ProfileError::Busy);
        }
        let profile = KeptTrace::default();
        let device = self.model.describe_device();
        let mut writer = StepTraceWriter::new(self.model.module(), &device, profile.clone());
        let mut left = steps.min(MOST_PROFILED_STEPS);
        let observer: TraceObserver = Box::new(move |step| {
            left = left.saturating_sub(1);
            // Memory takes all of it.
            let is_written = writer.as_mut().is_ok_and(|writer| writer.write(&step).is_ok());
            if left == 0 || !is_written {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        self.observe_traces(Some(observer))?;
        self.watchers.profile = Some(profile);
        Ok(())
    }

    /// Ends a profile, and gives what was traced until now, for <https://ui.perfetto.dev>.
    ///
    /// # Errors
    /// When there is none, or work before failed.
    pub fn take_profile(&mut self) -> Result<Vec<u8>, ProfileError> {
        let Some(profile) = self.watchers.profile.take() else { return Err(ProfileError::None) };
        self.observe_traces(None)?;
        Ok(profile.take())
    }
}
