//! NVRTC, opened by the first kernel that is not in the cache.

use super::library::{CudaLibrary, LibraryError};
use super::nvrtc::{Nvrtc, NvrtcError};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// NVRTC as it will be found when it is needed. Clones share what was opened.
#[derive(Clone, Debug)]
pub struct LazyNvrtc {
    dirs: Vec<PathBuf>,
    pub(super) driver_major: Option<u32>,
    /// Empty until it was found: a library that is not there yet is looked for again.
    opened: Arc<OnceLock<Nvrtc>>,
    is_missing: bool,
}

impl LazyNvrtc {
    /// NVRTC in `dirs`, or where the loader finds it. Where the driver's major version is known,
    /// newer ones are passed over, and so is code that they made.
    pub fn new(dirs: Vec<PathBuf>, driver_major: Option<u32>) -> Self {
        Self { dirs, driver_major, opened: Arc::default(), is_missing: false }
    }

    /// No NVRTC: only what a store has is run, and nothing looks for the library.
    pub fn missing() -> Self {
        Self { is_missing: true, ..Self::new(Vec::new(), None) }
    }

    /// The library, opened now if it was not yet.
    ///
    /// # Errors
    /// When there is none, or it lacks a function.
    pub fn get(&self) -> Result<&Nvrtc, NvrtcError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = self.open()?;
        Ok(self.opened.get_or_init(|| opened))
    }

    /// The library, if something asked for it and it is there.
    pub(super) fn opened(&self) -> Option<&Nvrtc> {
        self.opened.get()
    }

    fn open(&self) -> Result<Nvrtc, NvrtcError> {
        if self.is_missing {
            let (library, tried) = (CudaLibrary::Nvrtc, "nothing: it is left out".to_owned());
            return Err(LibraryError::NotFound { library, tried }.into());
        }
        Nvrtc::open(&self.dirs, self.driver_major)
    }
}

impl From<Nvrtc> for LazyNvrtc {
    fn from(nvrtc: Nvrtc) -> Self {
        Self { opened: Arc::new(nvrtc.into()), ..Self::new(Vec::new(), None) }
    }
}
