//! Names of answers.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A name that no other answer has, of this process or another.
pub(crate) fn next(kind: &str) -> String {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{kind}-{:016x}{:08x}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed))
}
