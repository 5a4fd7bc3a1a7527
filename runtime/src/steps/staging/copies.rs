//! What a step uses of the staged prefix, by the pieces in which it is copied to the device.

use crate::words::StepData;
use piecewise_backend::device::{Address, ByteRows, Device, DeviceError, HostBlock};
use rayon::prelude::*;
use std::ops::Range;

/// Bytes between two parts of the mirror that cost less to copy along than a copy of its own does.
pub(super) const GAP: usize = 64 << 10;
/// The most bytes of a piece: while one is copied to the device, the next is filled.
const PIECE: usize = 4 << 20;

/// Bytes that are worth the threads of others to copy, and the share of each.
const SHARED_COPY: usize = 1 << 20;
const SHARE: usize = 256 << 10;

/// Fills `to` with parts that follow one another, but for the first `skipped` bytes of them.
pub(super) fn copy(parts: &[&[u8]], mut skipped: usize, mut to: &mut [u8]) {
    let is_shared = to.len() >= SHARED_COPY;
    let mut shares = Vec::new();
    for part in parts {
        let (before, part) = part.split_at(skipped.min(part.len()));
        skipped -= before.len();
        let part = &part[..part.len().min(to.len())];
        let (target, rest) = std::mem::take(&mut to).split_at_mut(part.len());
        to = rest;
        match is_shared {
            true => shares.extend(target.chunks_mut(SHARE).zip(part.chunks(SHARE))),
            false => target.copy_from_slice(part),
        }
    }
    shares.into_par_iter().for_each(|(to, from)| to.copy_from_slice(from));
}

/// Bytes of the staged prefix that a step uses.
#[derive(Clone, Debug)]
struct Used {
    at: Range<usize>,
    /// The input whose bytes they are, where the mirror does not have them.
    input: Option<usize>,
}

/// All that a step uses, ascending once it is cut.
#[derive(Debug)]
pub(super) struct Pieces {
    used: Vec<Used>,
    /// The same as it is copied: near parts in one piece, and large ones in several.
    pieces: Vec<Range<usize>>,
    /// How many of the pieces are in their block before the first is copied.
    filled: usize,
}

impl Pieces {
    /// Has room for so many parts of so many bytes in all.
    pub(super) fn new(parts: usize, bytes: usize) -> Self {
        let pieces = Vec::with_capacity(parts + bytes / PIECE);
        Self { used: Vec::with_capacity(parts), pieces, filled: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.used.clear();
    }

    /// Adds bytes of the mirror, or those of an input where the mirror does not have them.
    pub(super) fn push(&mut self, at: Range<usize>, input: Option<usize>) {
        self.used.push(Used { at, input });
    }

    /// The inputs whose bytes do not come by the mirror, and how many those are.
    #[cfg(test)]
    pub(super) fn direct(&self) -> impl Iterator<Item = (usize, usize)> {
        self.used.iter().filter_map(|used| Some((used.input?, used.at.len())))
    }

    /// Makes pieces of all that was added.
    pub(super) fn cut(&mut self) {
        self.used.sort_unstable_by_key(|used| used.at.start);
        self.pieces.clear();
        // What lies between two near parts is of no meaning to the step, here as on the device.
        let mut used = self.used.iter().map(|used| used.at.clone()).filter(|at| !at.is_empty());
        let mut part = used.next();
        while let Some(mut whole) = part {
            part = used.next();
            while let Some(next) = part.take_if(|next| next.start <= whole.end + GAP) {
                whole.end = whole.end.max(next.end);
                part = used.next();
            }
            let starts = whole.clone().step_by(PIECE);
            self.pieces.extend(starts.map(|start| start..whole.end.min(start + PIECE)));
        }
    }

    /// Fills the first pieces of a block, at least as many bytes as the largest has. Without a mirror, what
    /// it would have is in the block.
    pub(super) fn fill_first(
        &mut self,
        bytes: &mut [u8],
        mirror: Option<&[u8]>,
        step: &StepData<'_>,
    ) {
        let (mut filled, mut left) = (0, PIECE);
        while let Some(piece) = self.pieces.get(filled).filter(|_| left > 0) {
            self.fill(&mut bytes[piece.clone()], piece, mirror, step);
            left = left.saturating_sub(piece.len());
            filled += 1;
        }
        self.filled = filled;
    }

    /// Enqueues the copies of a block to where the prefix lies on the device; the pieces that are not
    /// in the block yet are filled meanwhile.
    pub(super) fn copy_in(
        &self,
        device: &mut dyn Device,
        (block, to): (HostBlock, Address),
        mirror: Option<&[u8]>,
        step: &StepData<'_>,
    ) -> Result<(), DeviceError> {
        for (i, piece) in self.pieces.iter().enumerate() {
            let (offset, bytes) = (piece.start as u64, piece.len() as u64);
            if i >= self.filled {
                let place = device.host_bytes_mut(block, offset..offset + bytes)?;
                self.fill(place, piece, mirror, step);
            }
            device.copy_in(block, offset, bytes, to.offset(offset))?;
        }
        Ok(())
    }

    /// Fills the bytes of a piece.
    fn fill(
        &self,
        bytes: &mut [u8],
        piece: &Range<usize>,
        mirror: Option<&[u8]>,
        step: &StepData<'_>,
    ) {
        for Used { at, input } in &self.used {
            let part = at.start.max(piece.start)..at.end.min(piece.end);
            if part.is_empty() {
                continue;
            }
            let to = &mut bytes[part.start - piece.start..part.end - piece.start];
            match (input, mirror) {
                (Some(input), _) => copy(step.parts_of(*input), part.start - at.start, to),
                (None, Some(mirror)) => copy(&[&mirror[part]], 0, to),
                (None, None) => {}
            }
        }
    }
}

/// Moves rows that follow one another to where they lie apart, the last first.
pub(super) fn spread(bytes: &mut [u8], rows: ByteRows) {
    let (width, pitch) = (rows.width as usize, rows.pitch as usize);
    for row in (1..rows.count as usize).rev().filter(|_| width < pitch) {
        bytes.copy_within(row * width..(row + 1) * width, row * pitch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeDevice;

    fn numbered(bytes: usize, first: usize) -> Vec<u8> {
        Vec::from_iter((first..first + bytes).map(|i| (i % 251) as u8))
    }

    #[test]
    fn parts_follow_one_another() {
        for sizes in [vec![], vec![3], vec![0, 5, 1], vec![SHARED_COPY - 1, 1, SHARE + 7, 0]] {
            let all = numbered(sizes.iter().sum(), 0);
            let mut rest = all.as_slice();
            let parts = sizes.iter().map(|&size| rest.split_off(..size).unwrap());
            let parts = Vec::from_iter(parts);
            let half = all.len() / 2;
            for piece in [0..all.len(), all.len().min(2)..all.len().min(5), half..all.len()] {
                let mut to = vec![0xee; piece.len()];
                copy(&parts, piece.start, &mut to);
                assert!(to == all[piece.clone()], "{sizes:?}, {piece:?}");
            }
        }
    }

    /// Counts, a large input in parts that end within pieces, what lies near its end and what lies far
    /// from it are all on the device once the copies ran, which they do after the last was enqueued.
    #[test]
    fn all_that_a_step_uses_arrives() {
        let large = numbered(2 * PIECE + 12_345, 3);
        let (first, second) = large.split_at(PIECE / 3);
        let (second, third) = second.split_at(PIECE + 77);
        let step = StepData {
            counts: &[],
            inputs: &[&[]],
            parts: &[(0, &[first, second, &[], third])],
            ..StepData::default()
        };
        let ranges = [0..8, 256..256 + large.len(), 300 + large.len()..999 + large.len()];
        let far = ranges[2].end + GAP + 1..ranges[2].end + GAP + PIECE + 2;
        let mirror = numbered(far.end + 10, 0);
        let mut device = FakeDevice::default();
        let memory = device.reserve("staged", mirror.len() as u64).unwrap();
        device.back(memory).unwrap();
        let block = device.host_block(mirror.len() as u64).unwrap();
        let mut pieces = Pieces::new(4, mirror.len());
        for with_large in [true, false] {
            pieces.clear();
            device.copied_in.clear();
            let used = ranges.iter().cloned().chain([far.clone()]);
            for (i, at) in used.enumerate().filter(|(i, _)| *i != 1 || with_large) {
                pieces.push(at, (i == 1).then_some(0));
            }
            pieces.cut();
            let bytes = device.host_bytes_mut(block, block.all()).unwrap();
            pieces.fill_first(bytes, Some(&mirror), &step);
            pieces.copy_in(&mut device, (block, memory.base), Some(&mirror), &step).unwrap();
            assert!(device.copied_in.len() >= 4, "{:?}", device.copied_in);
            assert!(device.copied_in.iter().all(|&bytes| bytes <= PIECE as u64));
            let mut found = vec![0; mirror.len()];
            device.read(memory.base, &mut found).unwrap();
            for at in [0..8, ranges[2].clone(), far.clone()] {
                assert!(found[at.clone()] == mirror[at.clone()], "{at:?}");
            }
            assert!(found[ranges[1].clone()] == large);
        }
    }

    #[test]
    fn rows_are_spread() {
        let rows = |width, pitch, count| ByteRows { width, pitch, count };
        for (rows, expected) in [
            (rows(2, 3, 3), &[1, 2, 3, 3, 4, 6, 5, 6][..]),
            (rows(2, 2, 3), &[1, 2, 3, 4, 5, 6]),
            (rows(3, 5, 2), &[1, 2, 3, 4, 5, 4, 5, 6]),
            (rows(0, 4, 2), &[1, 2, 3, 4]),
            (rows(2, 3, 1), &[1, 2]),
            (rows(2, 3, 0), &[]),
        ] {
            let mut bytes = Vec::from_iter(1..=rows.span() as u8);
            spread(&mut bytes, rows);
            assert_eq!(bytes, expected, "{rows:?}");
        }
    }
}
