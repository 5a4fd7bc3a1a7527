//! The launches of a program on the stream, prepared where its sizes were launched before.

use super::CudaDevice;
use crate::cuda::bound::{BoundLaunch, Work};
use crate::cuda::driver::KernelLaunch;
use crate::cuda::prepared::{AtSizes, Ready};
use crate::cuda::program::CudaProgram;
use crate::device::DeviceError;
use piecewise_kernels::step::LaunchContext;

impl CudaDevice {
    /// Puts the launches of a program on the stream.
    pub(super) fn launch_program(
        &mut self,
        program: &CudaProgram,
        context: LaunchContext<'_>,
    ) -> Result<(), DeviceError> {
        let sizes = context.sizes();
        // Nobody else has it while the program is launched; without it all is computed again.
        let mut prepared = program.prepared.try_borrow_mut().ok();
        let at = prepared.as_mut().and_then(|prepared| {
            prepared.at(sizes, |at| self.prepare_launches(&program.launches, sizes, at))
        });
        for (i, launch) in program.launches.iter().enumerate() {
            let failed = |reason: String| DeviceError::Launch {
                launch: launch.name.clone(),
                label: launch.label.to_string(),
                reason: format!("at sizes {sizes:?}: {reason}"),
            };
            if at.is_none() {
                launch.check(sizes).map_err(failed)?;
            }
            // Names of launches lie far apart in memory, and the system's driver asks for none.
            if self.driver().wants_scope() {
                self.driver().scope(&[&launch.label, &launch.name], sizes);
            }
            let enqueued = match at {
                Some(at) => self.enqueue_prepared(launch, (at, i), context),
                None => self.enqueue(launch, context, 0),
            };
            enqueued.map_err(failed).map_err(|error| self.lost_or(error))?;
            if self.options.synchronous {
                self.last = Some(launch.clone());
                self.stream.synchronize().map_err(|e| self.lost_or(failed(e.to_string())))?;
            }
        }
        if let Some(last) = program.launches.last() {
            self.last = Some(last.clone());
        }
        Ok(())
    }

    /// Computes what launches hand the driver at these sizes.
    pub(super) fn prepare_launches(
        &self,
        launches: &[std::sync::Arc<BoundLaunch>],
        sizes: &[u64],
        at: &mut AtSizes,
    ) -> Result<(), String> {
        for launch in launches {
            launch.check(sizes)?;
            match &launch.work {
                Work::Kernel(bound) => match self.kernel_launch(bound, sizes)? {
                    Some(kernel) => {
                        let values = bound.values.iter().map(|value| value.at(sizes, 0));
                        at.push_kernel(kernel, values, &bound.maps);
                    }
                    None => at.push(Ready::LeftOut),
                },
                Work::Matmul(_) if self.lt.is_none() => at.push(Ready::AsBound),
                Work::Matmul(bound) => {
                    at.push(Ready::Product(bound.product(sizes)?));
                }
                Work::Host(_) => at.push(Ready::AsBound),
            }
        }
        Ok(())
    }

    /// Puts launch `i` of those that are prepared on the stream.
    fn enqueue_prepared(
        &self,
        launch: &BoundLaunch,
        (at, i): (&AtSizes, usize),
        context: LaunchContext<'_>,
    ) -> Result<(), String> {
        match (at.launch(i), &launch.work) {
            (Ready::LeftOut, _) => return Ok(()),
            (Ready::Kernel { launch: kernel, parameters, maps }, _) => {
                let (stream, parameters) = (self.stream.handle, at.parameters(parameters));
                let kernel = KernelLaunch { stream, parameters, maps: at.maps(maps), ..*kernel };
                self.launch_kernel(launch, &kernel)?;
            }
            (Ready::Product(product), Work::Matmul(bound)) => {
                self.launch_product(bound, product)?
            }
            (Ready::Product(_) | Ready::AsBound, _) => return self.enqueue(launch, context, 0),
        }
        self.count_launch(context);
        Ok(())
    }

    /// Counts a launch in the middle of a step.
    pub(super) fn count_launch(&self, context: LaunchContext<'_>) {
        if matches!(context, LaunchContext::Step(_)) {
            self.count(|counts| counts.plain_launches += 1);
        }
    }
}
