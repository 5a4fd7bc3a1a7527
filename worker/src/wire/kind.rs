//! What a message asks for.

/// What the first frame of a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Add,
    Abort,
    /// Of ranks that step together, which these don't.
    Wave,
    Utility,
}

impl Kind {
    /// The kind of a message and what it carries, where it is as it should be.
    pub(crate) fn of(frames: &[Vec<u8>]) -> Option<(Self, &[u8])> {
        let [kind, payload, ..] = frames else { return None };
        let kind = match kind.as_slice() {
            [0] => Self::Add,
            [1] => Self::Abort,
            [2] => Self::Wave,
            [3] => Self::Utility,
            _ => return None,
        };
        Some((kind, payload))
    }
}
