//! The keys that programs set most, by methods that know their types; [`Assembly::set`] sets any.

use super::Assembly;
use crate::device::DeviceSpec;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::dtype::DType;
use piecewise_runtime::mode::{CompileLevel, GraphMode};
use piecewise_runtime::model::{CaptureWhen, Checks};
use std::collections::BTreeMap;
use std::path::Path;

impl Assembly {
    /// How far the graph is compiled.
    pub fn level(self, level: CompileLevel) -> Self {
        self.set("level", level)
    }

    /// Which graphs are captured: none, the pieces, whole steps, or both.
    pub fn graph_mode(self, mode: GraphMode) -> Self {
        self.set("graph_mode", mode)
    }

    /// The sizes, ascending, at which graphs are captured: a step runs at the smallest that holds
    /// its rows, and launched above the largest. Without it, a pattern up to the bound.
    pub fn capture_sizes(self, sizes: impl IntoIterator<Item = u64>) -> Self {
        self.set("capture_num_tokens", Vec::from_iter(sizes))
    }

    /// The sizes, ascending, for rows of the graph's own kinds, by their role; a kind that is not named
    /// has the default pattern up to its bound. A step that brings more than the largest is launched.
    ///
    /// ```
    /// # use piecewise::prelude::*;
    /// # fn sizes(assembly: Assembly) -> Assembly {
    /// assembly.capture_own_rows([("rows.windows", [2, 8, 16])])
    /// # }
    /// ```
    pub fn capture_own_rows<R: Into<String>, S: IntoIterator<Item = u64>>(
        self,
        sizes: impl IntoIterator<Item = (R, S)>,
    ) -> Self {
        let sizes = sizes.into_iter().map(|(role, sizes)| (role.into(), Vec::from_iter(sizes)));
        self.set("capture_own_rows", BTreeMap::from_iter(sizes))
    }

    /// The custom ops that the graph is cut at, by name; without it, those whose definitions say
    /// so. An op that is not cut at becomes part of a piece.
    pub fn split_at<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        self.set("splitting_ops", names.into_iter().map(Into::into).collect::<Vec<String>>())
    }

    /// Never cuts the graph: every op becomes part of a piece.
    pub fn never_split(self) -> Self {
        self.set("splitting_ops", Vec::<String>::new())
    }

    /// The most tokens of a step; longer prompts are cut into chunks.
    pub fn max_num_tokens(self, tokens: u64) -> Self {
        self.set("max_num_tokens", tokens)
    }

    /// The most sequences of a step.
    pub fn max_num_seqs(self, sequences: u64) -> Self {
        self.set("max_num_seqs", sequences)
    }

    /// The longest sequence, prompt and reply together.
    pub fn max_seq_len(self, tokens: u64) -> Self {
        self.set("max_seq_len", tokens)
    }

    /// Bytes that the model may take; what weights and buffers leave is for the KV cache.
    pub fn memory_budget(self, bytes: u64) -> Self {
        self.set("memory_budget", bytes)
    }

    /// The share of what is free on the device that the model may take, above 0 and at most 1; beside
    /// [`Self::memory_budget`] the smaller of the two counts.
    pub fn memory_fraction(self, share: f64) -> Self {
        self.set("memory_fraction", share)
    }

    /// When graphs are captured; without it, all of them while the model is built.
    pub fn capture(self, when: CaptureWhen) -> Self {
        self.set("capture", when)
    }

    /// Makes a step that does not replay, or a mode that can't be, an error.
    pub fn strict(self) -> Self {
        self.set("strict", true)
    }

    /// The folder of the compile cache.
    pub fn cache_dir(self, folder: impl AsRef<Path>) -> Self {
        self.set("cache.dir", folder.as_ref())
    }

    /// Keeps nothing that is compiled between starts.
    pub fn no_cache(self) -> Self {
        self.set("cache.enabled", false)
    }

    /// The dtype of activations and of the KV cache; without it, the checkpoint's own.
    pub fn activations(self, dtype: DType) -> Self {
        self.set("dtype", dtype)
    }

    /// Whether ways and algorithms are chosen by measurement; without it, where the device is a CUDA
    /// device.
    pub fn tune(self, mode: TuneMode) -> Self {
        self.set("tune", mode)
    }

    /// Checks that run with every step, for debugging.
    pub fn checks(self, checks: Checks) -> Self {
        self.set("checks.poison", checks.poison)
            .set("checks.addresses", checks.addresses)
            .set("checks.compare", checks.compare)
    }

    /// Where it runs, by name; the CPU, unless said otherwise.
    pub fn device(self, device: DeviceSpec) -> Self {
        self.set("device", device.to_string())
    }
}
