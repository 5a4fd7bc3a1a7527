//! Compiled kernels by source: each is compiled once in a process, by whoever asks first.

use super::nvrtc::{Arch, Nvrtc, Source};
use crate::artifact::Digest;
use crate::compiler::Store;
use piecewise_kernels::cuda::{LaunchRecipe, PRELUDE};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The kind of entry that the store keeps machine code under.
const KIND: &str = "cubin";

/// Options of every kernel.
const OPTIONS: [&str; 1] = ["--std=c++17"];

type Compiled = Result<Arc<[u8]>, String>;

/// Machine code by the digest of everything that changes it.
#[derive(Debug)]
pub(super) struct KernelCache {
    nvrtc: Nvrtc,
    arch: Arch,
    compiled: Mutex<FxHashMap<Digest, Arc<OnceLock<Compiled>>>>,
}

impl KernelCache {
    pub(super) fn new(nvrtc: Nvrtc, arch: Arch) -> Self {
        Self { nvrtc, arch, compiled: Mutex::default() }
    }

    pub(super) fn nvrtc(&self) -> &Nvrtc {
        &self.nvrtc
    }

    pub(super) fn arch(&self) -> Arch {
        self.arch
    }

    fn key(&self, recipe: &LaunchRecipe) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let options = recipe.options.iter().map(String::as_str).chain(OPTIONS);
        let (arch, nvrtc) = (self.arch.to_string(), self.nvrtc.identity());
        for text in [recipe.source.as_str(), PRELUDE, &arch, &nvrtc].into_iter().chain(options) {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        Digest(*hasher.finalize().as_bytes())
    }

    /// The machine code of a recipe's source.
    ///
    /// # Errors
    /// The compiler's log.
    pub(super) fn cubin(&self, recipe: &LaunchRecipe, store: &dyn Store) -> Compiled {
        let key = self.key(recipe);
        let slot = {
            let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(compiled.entry(key).or_default())
        };
        slot.get_or_init(|| self.load_or_compile(recipe, key, store)).clone()
    }

    fn load_or_compile(&self, recipe: &LaunchRecipe, key: Digest, store: &dyn Store) -> Compiled {
        match store.get(KIND, key) {
            Ok(Some(cubin)) if cubin.starts_with(b"\x7fELF") => return Ok(cubin.into()),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a kernel is compiled again"),
        }
        let options: Vec<&str> = recipe.options.iter().map(String::as_str).chain(OPTIONS).collect();
        let source = Source {
            // The same for all: the name of one of several users must not reach the code.
            name: "kernel.cu",
            text: &recipe.source,
            headers: &[("prelude.cuh", PRELUDE)],
            options: &options,
        };
        let cubin = self.nvrtc.compile(&source, self.arch).map_err(|e| e.to_string())?;
        if let Err(error) = store.put(KIND, key, &cubin) {
            tracing::warn!(%error, "a compiled kernel is not kept");
        }
        Ok(cubin.into())
    }
}
