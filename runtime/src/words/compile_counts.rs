//! What a compile counts: what was made, what was reused, and why the rest was missed.

use std::collections::BTreeMap;

/// Counts of one compile of a model.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct CompileCounts {
    /// By kind of entry, how many were compiled: `piece` is lowered, `cubin` is a kernel that the
    /// target's own compiler was called for.
    pub compiled: BTreeMap<&'static str, u64>,
    /// By kind of entry, how many were taken from the store instead.
    pub reused: BTreeMap<&'static str, u64>,
    /// Of those, the kernels that packs had.
    pub from_packs: u64,
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
        self.from_packs += other.from_packs;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

impl std::fmt::Display for CompileCounts {
    /// `compiled 3 pieces, 5 cubins; reused 1 piece; missed pieces: 3 absent`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [compiled, reused] = [&self.compiled, &self.reused].map(Self::of_kinds);
        write!(f, "compiled {compiled}; reused {reused}")?;
        if self.from_packs > 0 {
            write!(f, " ({} of packs)", self.from_packs)?;
        }
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
