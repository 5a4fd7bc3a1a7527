//! Carving typed temporaries out of the caller's scratch bytes.

use super::CpuMathError;

/// Alignment in bytes that every scratch buffer must have: one cache line, one AVX-512 vector.
pub const SCRATCH_ALIGN: usize = 64;

/// Rounds a byte count up to [`SCRATCH_ALIGN`], saturating.
pub(crate) fn round_up(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(SCRATCH_ALIGN).unwrap_or(usize::MAX & !(SCRATCH_ALIGN - 1))
}

/// Largest power of two that divides the buffer's address.
fn alignment_of(scratch: &[u8]) -> usize {
    1 << scratch.as_ptr().addr().trailing_zeros().min(20)
}

/// Whether `scratch` can serve the `need` bytes that `size_function` counts.
pub(crate) fn check(
    call: &'static str,
    scratch: &[u8],
    need: usize,
    size_function: &'static str,
) -> Result<(), CpuMathError> {
    let (have, align) = (scratch.len(), alignment_of(scratch));
    match need == 0 || (have >= need && align >= SCRATCH_ALIGN) {
        true => Ok(()),
        false => Err(CpuMathError::Scratch { call, need, have, align, size_function }),
    }
}

/// A mutable pointer that threads share, each writing a part of its own.
pub(crate) struct Shared<T>(pub(crate) *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

// SAFETY: sharing the address is harmless; each use through it states why its part is its own.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as for Send.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address; a method, so that closures capture the whole wrapper.
    #[inline(always)]
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}
