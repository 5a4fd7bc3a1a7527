//! What an assembly says while it works.

use piecewise_runtime::words::Progress;

/// What an assembly tells whoever watches it. Where nobody does, warnings go to the log of `tracing`,
/// and the reason for a device too.
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

/// Tells the watcher, or the log.
pub(super) fn tell(watcher: &mut Option<Watcher>, notice: Notice<'_>) {
    match (watcher, notice) {
        (Some(watcher), notice) => watcher(notice),
        (None, Notice::Warning(text)) => tracing::warn!("{text}"),
        (None, Notice::OnCpu(reason)) => tracing::info!("running on the CPU: {reason}"),
        (None, Notice::Progress(_)) => {}
    }
}

/// What tells a watcher, if there is one, how far something is.
pub(super) fn telling(watcher: &mut Option<Watcher>) -> impl FnMut(Progress) + Send + '_ {
    move |progress| {
        if let Some(watcher) = watcher {
            watcher(Notice::Progress(progress));
        }
    }
}
