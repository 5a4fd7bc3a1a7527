//! What an assembly says while it works.

use piecewise_backend::weights::WeightFindings;
use piecewise_runtime::words::{Progress, Quantize};

/// What an assembly tells whoever watches it. Where nobody does, warnings go to the log of `tracing`,
/// and the reason for a device too.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A part of compiling, loading or capturing is done.
    Progress(Progress),
    /// Something that is no reason to stop.
    Warning(&'a str),
    /// Layers were rounded to fewer bits while they were loaded.
    Rounded(Quantize, &'a WeightFindings),
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
        (None, Notice::Rounded(format, found)) => tracing::info!("{}", rounded(format, found)),
        (None, Notice::Progress(_)) => {}
    }
}

/// What [`Notice::Rounded`] says, in a line.
pub fn rounded(format: Quantize, found: &WeightFindings) -> String {
    let Some((mean, most, layer)) = found.mean_and_largest() else {
        return format!("no layer was rounded to {format}");
    };
    let layers = found.errors.len();
    let kept = match &*found.kept {
        [] => String::new(),
        kept => format!("; kept as stored: {}", kept.join(", ")),
    };
    format!(
        "{layers} layers rounded to {format} while loading: relative error {:.2}% on average, at most \
         {:.2}% ({layer}){kept}",
        100.0 * mean,
        100.0 * most
    )
}

/// What tells a watcher, if there is one, how far something is.
pub(super) fn telling(watcher: &mut Option<Watcher>) -> impl FnMut(Progress) + Send + '_ {
    move |progress| {
        if let Some(watcher) = watcher {
            watcher(Notice::Progress(progress));
        }
    }
}
