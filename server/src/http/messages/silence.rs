//! When a stream has said nothing for so long that it says that it is still there.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// The time since a stream last said something.
pub(super) struct Silence {
    longest: Duration,
    since: Instant,
    ends: Pin<Box<Sleep>>,
}

impl Silence {
    /// One that begins now and is to last at most so long.
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest, since: Instant::now(), ends: Box::pin(sleep(longest)) }
    }

    /// It begins anew.
    pub(super) fn broken(&mut self) {
        self.since = Instant::now();
    }

    /// Waits until it has lasted as long as it may.
    pub(super) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.ends.as_mut().poll(context));
            // A timer is not set anew for every token.
            let end = self.since + self.longest;
            if end <= Instant::now() {
                return Poll::Ready(());
            }
            self.ends.as_mut().reset(end);
        }
    }
}
