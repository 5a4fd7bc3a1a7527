//! Captured graphs and their states.

use crate::dispatch::StepSizes;
use piecewise_backend::artifact::PieceSize;

/// What happens when a capture fails.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OnCaptureFailure {
    /// Building the model fails.
    #[default]
    Error,
    /// The steps that the graph would have served are launched, and counted.
    Launch,
}

/// A graph that may be captured: `Empty -> Capturing -> Ready`.
#[derive(Debug, Default)]
pub struct GraphSlot<G> {
    graph: Option<G>,
    capturing: bool,
    failures: u32,
}

impl<G> GraphSlot<G> {
    /// A graph that is yet to be captured.
    pub fn empty() -> Self {
        Self { graph: None, capturing: false, failures: 0 }
    }

    /// The graph, if it is ready.
    pub fn ready(&self) -> Option<&G> {
        self.graph.as_ref()
    }

    /// Whether it was disabled: by so many failures in a row, unless that is 0.
    pub fn is_disabled(&self, attempts: u32) -> bool {
        attempts > 0 && self.failures >= attempts
    }

    /// Whether a capture may start: it is neither ready, under way nor disabled.
    pub fn wants_capture(&self, attempts: u32) -> bool {
        self.graph.is_none() && !self.capturing && !self.is_disabled(attempts)
    }

    /// Runs `capture` and keeps its graph.
    ///
    /// # Errors
    /// What `capture` failed with; the failure is counted and the slot stays empty.
    pub fn capture<E>(&mut self, capture: impl FnOnce() -> Result<G, E>) -> Result<(), E> {
        self.capturing = true;
        let result = capture();
        self.capturing = false;
        match result {
            Ok(graph) => {
                self.graph = Some(graph);
                self.failures = 0;
                Ok(())
            }
            Err(error) => {
                self.failures += 1;
                Err(error)
            }
        }
    }

    /// Drops the graph, so that it is captured anew.
    pub fn invalidate(&mut self) {
        self.graph = None;
    }

    /// Forgets failures, so that a disabled graph may be captured again.
    pub fn enable(&mut self) {
        self.failures = 0;
    }
}

/// Which graph of a model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GraphKey {
    /// Of a whole step at these sizes.
    Full(StepSizes),
    /// Of a member of the step at a size of its own rows.
    Piece {
        /// Its place in the step.
        member: usize,
        /// The size.
        size: PieceSize,
    },
}

impl GraphKey {
    /// The size of what it holds.
    pub fn size(&self) -> PieceSize {
        match self {
            Self::Full(sizes) => sizes.whole(),
            Self::Piece { size, .. } => *size,
        }
    }
}

/// The graphs of a model.
#[derive(Debug)]
pub(crate) struct GraphSet<G> {
    /// For each member, graphs by size, ascending; empty for ops.
    pieces: Vec<Vec<(PieceSize, GraphSlot<G>)>>,
    /// Whole steps by their sizes, ascending.
    full: Vec<(StepSizes, GraphSlot<G>)>,
}

impl<G> Default for GraphSet<G> {
    fn default() -> Self {
        Self { pieces: Vec::new(), full: Vec::new() }
    }
}

impl<G> GraphSet<G> {
    /// From now on there are graphs for each member at its sizes, and for whole steps at theirs.
    /// What was captured of them stays.
    pub(crate) fn list(&mut self, pieces: Vec<Vec<PieceSize>>, full: Vec<StepSizes>) {
        let mut before = std::mem::take(self);
        before.pieces.resize_with(pieces.len(), Vec::new);
        let pieces = pieces.into_iter().zip(before.pieces);
        self.pieces = pieces.map(|(sizes, before)| relisted(sizes, before)).collect();
        self.full = relisted(full, before.full);
    }

    /// Every graph, the largest first: whole steps, then of each piece its largest, its second
    /// largest and so on.
    pub(crate) fn keys(&self) -> Vec<GraphKey> {
        let mut keys: Vec<_> = self.full.iter().map(|(sizes, _)| GraphKey::Full(*sizes)).collect();
        keys.reverse();
        let pieces = self.pieces.iter().enumerate().map(|(member, sizes)| {
            let mut sizes: Vec<_> = sizes.iter().map(|(size, _)| *size).collect();
            sizes.sort_by_key(|size| std::cmp::Reverse((size.rows(), *size)));
            sizes.into_iter().map(move |size| GraphKey::Piece { member, size })
        });
        let mut pieces: Vec<_> = pieces.collect();
        let most = self.pieces.iter().map(Vec::len).max().unwrap_or(0);
        for _ in 0..most {
            keys.extend(pieces.iter_mut().filter_map(Iterator::next));
        }
        keys
    }

    /// A graph that is listed, ready or not.
    pub(crate) fn slot_mut(&mut self, key: GraphKey) -> Option<&mut GraphSlot<G>> {
        match key {
            GraphKey::Full(sizes) => {
                let i = self.full.binary_search_by_key(&sizes, |(s, _)| *s).ok()?;
                Some(&mut self.full[i].1)
            }
            GraphKey::Piece { member, size } => {
                let sizes = self.pieces.get_mut(member)?;
                let i = sizes.binary_search_by_key(&size, |(n, _)| *n).ok()?;
                Some(&mut sizes[i].1)
            }
        }
    }

    /// The ready graph of a member at a size.
    pub(crate) fn piece(&self, member: usize, size: PieceSize) -> Option<&G> {
        let sizes = &self.pieces[member];
        let i = sizes.binary_search_by_key(&size, |(n, _)| *n).ok()?;
        sizes[i].1.ready()
    }

    /// The ready graph of a whole step.
    pub(crate) fn full(&self, sizes: StepSizes) -> Option<&G> {
        let i = self.full.binary_search_by_key(&sizes, |(s, _)| *s).ok()?;
        self.full[i].1.ready()
    }

    /// Every graph, ready or not.
    pub(crate) fn slots_mut(&mut self) -> impl Iterator<Item = &mut GraphSlot<G>> {
        let pieces = self.pieces.iter_mut().flatten().map(|(_, slot)| slot);
        pieces.chain(self.full.iter_mut().map(|(_, slot)| slot))
    }

    /// The graphs that are ready.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &G> {
        let pieces = self.pieces.iter().flatten().filter_map(|(_, slot)| slot.ready());
        pieces.chain(self.full.iter().filter_map(|(_, slot)| slot.ready()))
    }

    /// The number of graphs that are ready.
    pub(crate) fn ready_count(&self) -> usize {
        self.ready().count()
    }
}

/// Slots for `keys`, ascending; those of `before` are taken over.
fn relisted<K: Ord + Copy, G>(
    mut keys: Vec<K>,
    mut before: Vec<(K, GraphSlot<G>)>,
) -> Vec<(K, GraphSlot<G>)> {
    keys.sort_unstable();
    let mut take = |key: K| {
        let at = before.iter().position(|(known, _)| *known == key);
        at.map_or_else(GraphSlot::empty, |at| before.swap_remove(at).1)
    };
    keys.into_iter().map(|key| (key, take(key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(slot: &mut GraphSlot<u32>) -> Result<(), &'static str> {
        slot.capture(|| Err("planted"))
    }

    #[test]
    fn failures_in_a_row_disable_until_enabled() {
        let mut slot = GraphSlot::empty();
        for _ in 0..2 {
            assert_eq!(fail(&mut slot), Err("planted"));
            assert!(slot.wants_capture(3));
        }
        assert_eq!(slot.capture(|| Ok::<_, ()>(7)), Ok(()));
        assert_eq!((slot.ready(), slot.wants_capture(3)), (Some(&7), false));
        slot.invalidate();
        assert_eq!((slot.ready(), slot.wants_capture(3)), (None, true));
        for _ in 0..3 {
            assert!(!slot.is_disabled(3));
            fail(&mut slot).unwrap_err();
        }
        assert!(slot.is_disabled(3) && !slot.wants_capture(3));
        assert!(slot.wants_capture(4) && slot.wants_capture(0));
        slot.enable();
        assert!(slot.wants_capture(3));
        slot.capture(|| Ok::<_, ()>(8)).unwrap();
        assert_eq!(slot.ready(), Some(&8));
    }
}
