//! A trace that is kept in memory until somebody takes it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// What was written of a trace; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptTrace {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl KeptTrace {
    /// What was written until now, which is kept no longer.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for KeptTrace {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
