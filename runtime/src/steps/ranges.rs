//! NVTX ranges of steps: what a profiler calls the launches and replays of each part.

use crate::words::{StepMode, StepPart};
use piecewise_backend::nvtx::{Nvtx, NvtxRange};
use piecewise_ir::module::Module;
use std::ffi::{CStr, CString};
use std::ops::Range;

/// A profiler, and what it hears.
#[derive(Debug)]
pub(super) struct StepRanges {
    nvtx: Nvtx,
    parts: Vec<CString>,
}

impl StepRanges {
    /// Of the profiler that started this process, if one listens to NVTX.
    pub(super) fn of_environment(module: &Module) -> Option<Self> {
        let nvtx = Nvtx::of_environment().unwrap_or_else(|error| {
            tracing::warn!("{error}");
            None
        });
        let Some(nvtx) = nvtx else {
            tracing::info!("nobody hears the ranges of steps: no profiler started this process");
            return None;
        };
        let name = |part: StepPart| {
            let name = format!("{} {}", part.name, part.path);
            // Names of a graph hold no NUL; one that did would be heard without a name.
            CString::new(name.trim_end()).unwrap_or_default()
        };
        let parts = StepPart::of(module).into_iter().map(name).collect();
        Some(Self { nvtx, parts })
    }

    pub(super) fn step(&self, mode: StepMode) -> NvtxRange {
        let name: &CStr = match mode {
            StepMode::None => c"step: launched",
            StepMode::Piecewise => c"step: pieces replayed",
            StepMode::Full => c"step: replayed whole",
        };
        self.nvtx.range(name)
    }

    /// The range of a member, by its place.
    pub(super) fn member(&self, place: usize) -> Option<NvtxRange> {
        self.parts.get(place).map(|name| self.nvtx.range(name))
    }

    /// The range of members in a row, by their places.
    pub(super) fn members(&self, places: &Range<usize>) -> Option<NvtxRange> {
        let (first, last) = (self.parts.get(places.start)?, self.parts.get(places.end - 1)?);
        if places.len() == 1 {
            return self.member(places.start);
        }
        let [first, last] = [first, last].map(|name| name.to_string_lossy());
        let name = CString::new(format!("{first} to {last}")).unwrap_or_default();
        Some(self.nvtx.range(&name))
    }
}
