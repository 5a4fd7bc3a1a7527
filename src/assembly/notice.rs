//! What an assembly says while it works.

use piecewise_runtime::model::Progress;

/// What an assembly tells whoever watches it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A part of compiling, loading or capturing is done.
    Progress(Progress),
    /// Something that is no reason to stop.
    Warning(&'a str),
    /// The device `auto` is the processor, for this reason.
    OnCpu(&'a str),
}

pub(crate) type Watcher = Box<dyn FnMut(Notice<'_>) + Send>;
