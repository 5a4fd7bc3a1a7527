//! Loaded images and their kernels.

use super::context::Context;
use super::driver::{Handle, Outcome};
use crate::artifact::Digest;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A cubin on the device.
#[derive(Debug)]
struct Module {
    context: Arc<Context>,
    handle: Handle,
    /// By entry, the most dynamic shared memory that a launch may ask for: a setting of the
    /// kernel, which all programs that use it share.
    shared_bytes: Mutex<FxHashMap<String, u32>>,
}

impl Module {
    fn allow_shared(&self, entry: &str, function: Handle, bytes: u32) -> Outcome<()> {
        let mut most = self.shared_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if most.get(entry).is_none_or(|&most| most < bytes) {
            self.context.driver.allow_shared(function, bytes)?;
            most.insert(entry.to_owned(), bytes);
        }
        Ok(())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.give_back(|driver| driver.unload_module(self.handle));
    }
}

/// A kernel that can be launched. It holds its module.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) function: Handle,
    _module: Arc<Module>,
}

/// Modules by the digest of their cubin, so that pieces and sizes share them. A module lives as
/// long as a kernel of it.
#[derive(Debug)]
pub(super) struct Modules {
    context: Arc<Context>,
    loaded: FxHashMap<Digest, Weak<Module>>,
}

impl Modules {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), loaded: FxHashMap::default() }
    }

    /// The kernel `entry` of `cubin`, its code on the device: the first launch of a kernel must
    /// not load code, since it may come inside a capture.
    pub(super) fn kernel(
        &mut self,
        cubin: &[u8],
        entry: &str,
        shared_bytes: u32,
    ) -> Outcome<Arc<Kernel>> {
        let driver = &self.context.driver;
        let digest = Digest::of(cubin);
        let module = match self.loaded.get(&digest).and_then(Weak::upgrade) {
            Some(module) => module,
            None => {
                let handle = driver.load_module(cubin)?;
                let shared_bytes = Mutex::default();
                let context = self.context.clone();
                let module = Arc::new(Module { context, handle, shared_bytes });
                self.loaded.insert(digest, Arc::downgrade(&module));
                module
            }
        };
        let function = driver.function(module.handle, entry)?;
        if shared_bytes > 0 {
            module.allow_shared(entry, function, shared_bytes)?;
        }
        driver.load_function(function)?;
        Ok(Arc::new(Kernel { function, _module: module }))
    }
}
