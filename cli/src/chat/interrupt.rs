//! Ctrl-C as a wish, not as the end of the program.

use crate::logs::say;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether Ctrl-C was pressed during a reply.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt {
    is_replying: Arc<AtomicBool>,
    is_asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes Ctrl-C from now on.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let seen = interrupt.clone();
        std::thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            while runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                if seen.is_replying.load(Ordering::Relaxed) {
                    seen.is_asked.store(true, Ordering::Relaxed);
                } else {
                    say("\n(/exit or Ctrl-D leaves)");
                }
            }
        })?;
        Ok(interrupt)
    }

    /// From here on Ctrl-C asks for a stop, until [`Self::end`].
    pub(super) fn begin(&self) {
        self.is_asked.store(false, Ordering::Relaxed);
        self.is_replying.store(true, Ordering::Relaxed);
    }

    /// From here on Ctrl-C is answered with how to leave.
    pub(super) fn end(&self) {
        self.is_replying.store(false, Ordering::Relaxed);
    }

    /// Whether a stop was asked for since [`Self::begin`].
    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }
}
