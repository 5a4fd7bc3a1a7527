//! One launch on the stream: a kernel, a matmul of the library, or a host function.

use super::CudaDevice;
use crate::cuda::bound::{BoundKernel, BoundLaunch, BoundMatmul, Work};
use crate::cuda::driver::KernelLaunch;
use crate::cuda::lt::LtProduct;
use piecewise_kernels::op::cuda::CudaOpArgs;
use piecewise_kernels::step::LaunchContext;
use smallvec::SmallVec;

impl CudaDevice {
    /// Whether a kernel may start before the kernel ahead of it ends.
    pub(super) fn is_programmatic(&self, bound: &BoundKernel) -> bool {
        bound.recipe.programmatic && self.arch().has_programmatic_launch() && !self.options.serial
    }

    /// A kernel's launch at these padded sizes, without its parameters; `None` where it has no work.
    pub(in crate::cuda) fn kernel_launch(
        &self,
        bound: &BoundKernel,
        sizes: &[u64],
    ) -> Result<Option<KernelLaunch<'static>>, String> {
        let recipe = &bound.recipe;
        let grid = recipe
            .grid_at(sizes, self.context.device.multiprocessors)
            .map_err(|e| format!("kernel `{}`: {e}", recipe.entry))?;
        Ok((!grid.contains(&0)).then(|| KernelLaunch {
            function: bound.kernel.function,
            grid,
            block: recipe.block,
            cluster: recipe.cluster,
            shared_bytes: recipe.dynamic_shared,
            programmatic: self.is_programmatic(bound),
            stream: self.stream.handle,
            parameters: &[],
            maps: &[],
        }))
    }

    /// Puts a launch on the stream; its blocks note their times at `stamps`, if they do.
    pub(super) fn enqueue(
        &self,
        launch: &BoundLaunch,
        context: LaunchContext<'_>,
        stamps: u64,
    ) -> Result<(), String> {
        let sizes = context.sizes();
        let enqueued = match &launch.work {
            Work::Kernel(bound) => {
                let Some(kernel) = self.kernel_launch(bound, sizes)? else { return Ok(()) };
                let parameters: SmallVec<[u64; 32]> =
                    bound.values.iter().map(|value| value.at(sizes, stamps)).collect();
                let kernel = KernelLaunch { parameters: &parameters, maps: &bound.maps, ..kernel };
                self.launch_kernel(launch, &kernel)
            }
            Work::Matmul(_) if self.lt.is_none() => {
                let product = self.driver().product(&launch.name, self.stream.handle);
                product.map_err(|e| e.to_string())
            }
            Work::Matmul(bound) => self.launch_product(bound, &bound.product(sizes)?),
            Work::Host(bound) => {
                let image = bound.image().ok_or("its image is no host function")?;
                let args = CudaOpArgs {
                    name: &image.name,
                    attrs: &image.attrs,
                    types: &image.types,
                    addresses: &bound.addresses,
                    scratch: bound.scratch,
                    counts: bound.counts,
                    stream: self.stream.handle,
                    context,
                };
                bound.op.enqueue(&args).map_err(|e| e.to_string())
            }
        };
        if enqueued.is_ok() {
            self.count_launch(context);
        }
        enqueued
    }

    pub(super) fn launch_kernel(
        &self,
        launch: &BoundLaunch,
        kernel: &KernelLaunch<'_>,
    ) -> Result<(), String> {
        let launched = self.driver().launch(kernel);
        launched
            .map_err(|e| format!("kernel `{}` with grid {:?}: {e}", launch.kernel(), kernel.grid))
    }

    pub(super) fn launch_product(
        &self,
        bound: &BoundMatmul,
        product: &LtProduct,
    ) -> Result<(), String> {
        let enqueued = self.loaded_lt()?.enqueue(product, &bound.call, self.stream.handle);
        enqueued.map_err(|e| e.to_string())
    }

    /// Makes the plans of a program's matmuls: the library may allocate and load code at their
    /// first use, which a capture would not allow.
    pub(super) fn prepare(&self, launch: &BoundLaunch, sizes: &[u64]) -> Result<(), String> {
        launch.check(sizes)?;
        let Work::Matmul(bound) = &launch.work else { return Ok(()) };
        let Some(lt) = &self.lt else { return Ok(()) };
        let prepared = lt.prepare(&bound.product(sizes)?);
        prepared.map(drop).map_err(|e| e.to_string())
    }
}
