//! What a compile counts: what was made, what was reused, and why the rest was missed.

use super::{IMAGE_KIND, PIECE_KIND};
use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::{Claim, Entry, Store, StoreError};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Counts of one compile of a model.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct CompileCounts {
    /// By kind of entry, how many were compiled: `piece` is lowered, `cubin` is a kernel that the
    /// target's own compiler was called for.
    pub compiled: BTreeMap<&'static str, u64>,
    /// By kind of entry, how many were taken from the store instead.
    pub reused: BTreeMap<&'static str, u64>,
    /// Of those, the ones that another process made meanwhile.
    pub awaited: BTreeMap<&'static str, u64>,
    /// Pieces that the store did not give, by reason.
    pub misses: BTreeMap<&'static str, u64>,
    /// Bytes that the store gave.
    pub bytes_read: u64,
    /// Bytes that the store was given.
    pub bytes_written: u64,
}

impl CompileCounts {
    /// How many entries were compiled, whatever their kind.
    pub fn total_compiled(&self) -> u64 {
        self.compiled.values().sum()
    }

    /// Entries by kind in words: `1 piece, 5 cubins`, or `nothing`.
    pub fn of_kinds(counts: &BTreeMap<&'static str, u64>) -> String {
        let each = counts.iter().map(|(kind, n)| match n {
            1 => format!("1 {kind}"),
            n => format!("{n} {kind}s"),
        });
        let each: Vec<_> = each.collect();
        if each.is_empty() { "nothing".to_owned() } else { each.join(", ") }
    }

    /// Adds the counts of another compile.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.compiled, &other.compiled),
            (&mut self.reused, &other.reused),
            (&mut self.awaited, &other.awaited),
            (&mut self.misses, &other.misses),
        ];
        for (mine, theirs) in pairs {
            for (kind, n) in theirs {
                *mine.entry(kind).or_default() += n;
            }
        }
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

impl std::fmt::Display for CompileCounts {
    /// `compiled 3 pieces, 5 cubins; reused 1 piece; missed pieces: 3 absent`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [compiled, reused] = [&self.compiled, &self.reused].map(Self::of_kinds);
        write!(f, "compiled {compiled}; reused {reused}")?;
        if !self.awaited.is_empty() {
            let awaited = Self::of_kinds(&self.awaited);
            write!(f, " ({awaited} made by another process meanwhile)")?;
        }
        if self.misses.is_empty() {
            return Ok(());
        }
        let misses = self.misses.iter().map(|(reason, n)| format!("{n} {reason}"));
        write!(f, "; missed pieces: {}", misses.collect::<Vec<_>>().join(", "))
    }
}

/// A store that counts what goes through it. Images are part of pieces and not counted alone.
pub(super) struct CountingStore<'a> {
    inner: &'a dyn Store,
    counts: Mutex<CompileCounts>,
}

impl<'a> CountingStore<'a> {
    pub(super) fn new(inner: &'a dyn Store) -> Self {
        Self { inner, counts: Mutex::default() }
    }

    pub(super) fn counts(&self) -> CompileCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut CompileCounts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn count_compiled(&self, kind: &'static str) {
        self.change(|counts| *counts.compiled.entry(kind).or_default() += 1);
    }

    pub(super) fn count_reused(&self, kind: &'static str) {
        self.change(|counts| *counts.reused.entry(kind).or_default() += 1);
    }

    pub(super) fn count_miss(&self, reason: &'static str) {
        self.change(|counts| *counts.misses.entry(reason).or_default() += 1);
    }
}

/// Whether an entry is one that the target's compiler makes: pieces are counted where it is known
/// whether they fit.
fn is_of_compiler(kind: &str) -> bool {
    kind != PIECE_KIND && kind != IMAGE_KIND
}

impl Store for CountingStore<'_> {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.inner.get(kind, key)?;
        if let Some(bytes) = &found {
            self.change(|counts| counts.bytes_read += bytes.len() as u64);
            if is_of_compiler(kind) {
                self.count_reused(kind);
            }
        }
        Ok(found)
    }

    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
        if is_of_compiler(entry.kind) {
            self.count_compiled(entry.kind);
        }
        self.inner.put(entry)?;
        self.change(|counts| counts.bytes_written += entry.bytes.len() as u64);
        Ok(())
    }

    fn claim(&self, kind: &'static str, key: Digest) -> Claim {
        let claim = self.inner.claim(kind, key);
        if let Claim::Made = claim {
            self.change(|counts| *counts.awaited.entry(kind).or_default() += 1);
        }
        claim
    }
}
