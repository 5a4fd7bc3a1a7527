//! Requests to an object store that came to nothing.

/// What a request failed at, and why.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "remote"),
    expect(dead_code, reason = "who has no client asks for nothing")
)]
pub(crate) enum Failed {
    /// This object. Others are as good as before.
    Object(String),
    /// The store.
    Level(String),
}

impl Failed {
    pub(crate) fn reason(self) -> String {
        let (Self::Object(reason) | Self::Level(reason)) = self;
        reason
    }
}
