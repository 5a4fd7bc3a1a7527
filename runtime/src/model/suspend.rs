//! A model that gives its memory back for a while: what backs its addresses is dropped and taken
//! again at the same addresses, so that programs and captured graphs stay as they are.

use super::CompiledModel;
use super::error::ModelError;
use super::options::SuspendedWeights;
use super::origin::load_weights;
use piecewise_backend::device::Device;
use piecewise_backend::weights::WeightSource;

impl<D: Device> CompiledModel<D> {
    /// See [`Model`](super::Model).
    pub(super) fn suspend(&mut self, weights: SuspendedWeights) -> Result<(), ModelError> {
        self.wait_idle()?;
        let weights = self.suspended.map_or(weights, |before| before.max(weights));
        // From here on no step may run, whatever fails.
        self.suspended = Some(weights);
        self.device.drop_backing(self.memory.states)?;
        self.device.drop_backing(self.memory.arena)?;
        if weights == SuspendedWeights::Drop {
            self.device.drop_backing(self.memory.weights)?;
        }
        Ok(())
    }

    /// See [`Model`](super::Model).
    pub(super) fn resume(&mut self, weights: Option<&dyn WeightSource>) -> Result<(), ModelError> {
        let Some(suspended) = self.suspended else { return Ok(()) };
        let resumed = self.take_back(suspended, weights);
        if let Err(error) = resumed {
            let kept = self.suspend(suspended);
            return Err(kept.err().unwrap_or(error));
        }
        self.suspended = None;
        Ok(())
    }

    fn take_back(
        &mut self,
        suspended: SuspendedWeights,
        weights: Option<&dyn WeightSource>,
    ) -> Result<(), ModelError> {
        let Self { device, memory, module, origin, .. } = self;
        if suspended == SuspendedWeights::Drop {
            let source = weights.unwrap_or_else(|| origin.weights());
            device.back(memory.weights)?;
            load_weights(device, module, memory, &origin.compiled.layouts, source, &mut |_| {})?;
        }
        device.back(memory.arena)?;
        device.back(memory.states)?;
        self.wait_idle()
    }

    /// That the model has its memory.
    pub(super) fn check_awake(&self) -> Result<(), ModelError> {
        self.suspended.map_or(Ok(()), |_| Err(ModelError::Suspended))
    }
}
