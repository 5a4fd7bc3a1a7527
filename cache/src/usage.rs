//! How full the cache is.

/// What the cache takes on the disk, as far as this process knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) written_since: u64,
    /// Whether what is above the bound could not be removed.
    pub(crate) is_stuck: bool,
}
