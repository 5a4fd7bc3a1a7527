//! How a CUDA device comes to be: opened, shared, and opened anew after it was lost.

use super::CudaDevice;
use crate::binding::Images;
use crate::cuda::context::Context;
use crate::cuda::driver::Driver;
use crate::cuda::driver::system::SystemDriver;
use crate::cuda::error::CudaError;
use crate::cuda::kernel_cache::KernelCache;
use crate::cuda::lazy_nvrtc::LazyNvrtc;
use crate::cuda::library::library_dirs;
use crate::cuda::lt::CublasLt;
use crate::cuda::lt_api::LtLibrary;
use crate::cuda::lt_view::LtView;
use crate::cuda::materialize::Loader;
use crate::cuda::memory::Memory;
use crate::cuda::module::Modules;
use crate::cuda::options::CudaOptions;
use crate::cuda::stream::Stream;
use crate::device::DeviceError;
use piecewise_kernels::op::OpRegistry;
use std::cell::Cell;
use std::sync::Arc;

impl CudaDevice {
    /// Opens a device of this machine, over [`SystemDriver`]. `registry` has the custom ops that programs
    /// may call. NVRTC is opened by the first kernel that no store has.
    ///
    /// # Errors
    /// When the driver, a library or the device is missing or too old.
    pub fn open(options: CudaOptions, registry: OpRegistry) -> Result<Self, CudaError> {
        let driver = SystemDriver::open()?;
        let major = Some(driver.version.major());
        let nvrtc = LazyNvrtc::new(library_dirs(&options.library_dirs), major);
        Self::over(Arc::new(driver), nvrtc, options, registry)
    }

    /// Opens a device over a driver of one's own: one that hands its calls on to [`SystemDriver`], or one
    /// that has no GPU. cuBLASLt is opened where the driver names a version, as the system's does;
    /// without it, products are the driver's ([`Driver::product`]).
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn over(
        driver: Arc<dyn Driver>,
        nvrtc: LazyNvrtc,
        options: CudaOptions,
        registry: OpRegistry,
    ) -> Result<Self, CudaError> {
        let Some(version) = driver.version() else {
            return Self::assemble(driver, nvrtc, options, registry);
        };
        let dirs = library_dirs(&options.library_dirs);
        // Both take a tenth of a second.
        let (library, device) = std::thread::scope(|scope| {
            let library = scope.spawn(|| LtLibrary::open(&dirs, Some(version.major())));
            let device = Self::assemble(driver, nvrtc, options, registry);
            (library.join(), device)
        });
        let library = library.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let mut device = device?;
        device.load(library)?;
        Ok(device)
    }

    /// Computes products by a library from now on.
    pub(in crate::cuda) fn load(&mut self, library: LtLibrary) -> Result<(), CudaError> {
        let lt = CublasLt::create(&self.context, library).map_err(CudaError::CublasLt)?;
        self.lt = Some(LtView::new(lt));
        Ok(())
    }

    /// A device of a driver, without cuBLASLt.
    fn assemble(
        driver: Arc<dyn Driver>,
        nvrtc: LazyNvrtc,
        options: CudaOptions,
        registry: OpRegistry,
    ) -> Result<Self, CudaError> {
        if let Some(folder) = &options.dot_dir {
            std::fs::create_dir_all(folder).map_err(|error| CudaError::DotDir {
                folder: folder.clone(),
                reason: error.to_string(),
            })?;
        }
        let context = Context::retain(driver, options.ordinal)?;
        let kernels = Arc::new(KernelCache::new(nvrtc, context.device.arch));
        Self::in_context(context, kernels, None, options, registry)
    }

    /// A device with memory and a stream of its own in a context.
    pub(super) fn in_context(
        context: Arc<Context>,
        kernels: Arc<KernelCache>,
        lt: Option<LtView>,
        options: CudaOptions,
        registry: OpRegistry,
    ) -> Result<Self, CudaError> {
        let stream = Stream::new(&context).map_err(|source| CudaError::Call {
            action: format!("make a stream on CUDA device {}", options.ordinal),
            source,
        })?;
        Ok(Self {
            last: None,
            counts: Cell::default(),
            images: Images::default(),
            modules: Modules::new(&context),
            lt,
            blocks: Vec::new(),
            loader: Loader::new(&stream, kernels),
            memory: Memory::new(&context),
            stream,
            context,
            registry,
            has_host_functions: false,
            options,
        })
    }

    /// See [`Device::reopen`](crate::device::Device::reopen).
    pub(super) fn open_anew(&mut self) -> Result<(), DeviceError> {
        let action = format!("open CUDA device {} anew", self.options.ordinal);
        let failed = |reason: String| DeviceError::Lost { action: action.clone(), reason };
        let driver = &self.context.driver;
        // Another device of the context may have reset it by now.
        if !self.context.is_lost() {
            driver.reset_context(self.options.ordinal).map_err(|e| failed(e.to_string()))?;
        }
        let context = Context::retain(driver.clone(), self.options.ordinal);
        let context = context.map_err(|error| match &error {
            CudaError::Call { source, .. } if source.is_sticky() => {
                DeviceError::ProcessRefused { action: action.clone(), reason: error.to_string() }
            }
            error => failed(error.to_string()),
        })?;
        let lt = self.lt.as_ref().map(|lt| lt.reopened(&context)).transpose();
        let lt = lt.map_err(|e| failed(e.to_string()))?;
        let (kernels, options) = (Arc::clone(&self.loader.kernels), self.options.clone());
        let made = Self::in_context(context, kernels, lt, options, self.registry.clone());
        let mut made = made.map_err(|e| failed(e.to_string()))?;
        made.counts.set(self.counts.get());
        std::mem::swap(self, &mut made);
        Ok(())
    }
}
