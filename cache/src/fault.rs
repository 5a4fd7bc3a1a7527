//! Places at which a test can end the process or make the operating system's answer an error.

use std::io;
use std::sync::Arc;

/// A place in the code between two effects on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultPoint {
    /// Half of an entry's payload is in its temporary file.
    Write,
    /// The temporary file is whole, not yet synced.
    Sync,
    /// The temporary file is synced and does not have its name yet.
    Rename,
    /// The next entry by age is about to be evicted.
    Evict,
    /// A file is about to be removed.
    Remove,
    /// An entry was found bad and is about to be read again, before it is set aside.
    Reread,
    /// An entry of an archive was read and is about to be kept.
    Import,
}

/// What happens at a [`FaultPoint`]: an error stands for the one that the operating system would
/// have returned there. A hook belongs to one [`Cache`](crate::Cache); without one nothing happens.
#[derive(Clone, derive_more::Debug)]
#[debug("FaultHook")]
pub struct FaultHook(Arc<dyn Fn(FaultPoint) -> io::Result<()> + Send + Sync>);

impl FaultHook {
    /// A hook that calls `at`, on any thread.
    pub fn new(at: impl Fn(FaultPoint) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(at))
    }
}

pub(crate) fn reach(hook: Option<&FaultHook>, point: FaultPoint) -> io::Result<()> {
    hook.map_or(Ok(()), |hook| (hook.0)(point))
}
