//! Captured graphs and their states.

use crate::dispatch::Stretch;
use crate::words::{GraphCounts, GraphKey, GraphReport, GraphState, StepSizes};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::{Captured, DeviceError};
use std::ops::Range;

/// A graph that may be captured.
#[derive(Debug)]
pub struct GraphSlot<G> {
    graph: Option<G>,
    /// Failed captures in a row.
    failures: u32,
    /// Refused replays in a row, whatever captures came between.
    refusals: u32,
    /// Whether it is not to be captured whatever failed.
    is_given_up: bool,
    counts: GraphCounts,
}

impl<G> GraphSlot<G> {
    /// A graph that is yet to be captured.
    pub fn empty() -> Self {
        let counts = GraphCounts::default();
        Self { graph: None, failures: 0, refusals: 0, is_given_up: false, counts }
    }

    /// The graph, if it is ready.
    pub fn ready(&self) -> Option<&G> {
        self.graph.as_ref()
    }

    /// Where it is, where so many failures in a row disable it; 0 is none.
    pub fn state(&self, attempts: u32) -> GraphState {
        match () {
            () if self.graph.is_some() => GraphState::Ready,
            () if self.is_given_up => GraphState::Disabled,
            () if attempts > 0 && self.failures.max(self.refusals) >= attempts => {
                GraphState::Disabled
            }
            () if self.counts.captures > 0 => GraphState::Stale,
            () => GraphState::Empty,
        }
    }

    /// What became of it so far.
    pub fn counts(&self) -> GraphCounts {
        self.counts
    }

    /// Whether a capture may start: it is neither ready nor disabled.
    pub fn wants_capture(&self, attempts: u32) -> bool {
        matches!(self.state(attempts), GraphState::Empty | GraphState::Stale)
    }

    /// Runs `capture` and keeps its graph.
    ///
    /// # Errors
    /// What `capture` failed with; the failure is counted and the slot stays empty.
    pub fn capture<E>(&mut self, capture: impl FnOnce() -> Result<G, E>) -> Result<(), E> {
        match capture() {
            Ok(graph) => {
                self.graph = Some(graph);
                self.failures = 0;
                self.counts.recaptures += u64::from(self.counts.captures > 0);
                self.counts.captures += 1;
                Ok(())
            }
            Err(error) => {
                self.failures += 1;
                self.counts.failures += 1;
                Err(error)
            }
        }
    }

    /// Replays the graph, if it is ready; whether it did.
    ///
    /// # Errors
    /// What `replay` failed with. A graph that was refused is dropped, and the failure counted.
    pub(crate) fn replay(
        &mut self,
        replay: impl FnOnce(&G) -> Result<(), DeviceError>,
    ) -> Result<bool, DeviceError> {
        let Some(graph) = &self.graph else { return Ok(false) };
        let result = replay(graph);
        match &result {
            Ok(()) => {
                self.counts.launches += 1;
                self.refusals = 0;
            }
            Err(DeviceError::Refused { .. }) => {
                self.graph = None;
                self.refusals += 1;
                self.counts.failures += 1;
            }
            Err(_) => {}
        }
        result.map(|()| true)
    }

    /// Counts a step that would have replayed it.
    pub(crate) fn miss(&mut self) {
        self.counts.misses += 1;
    }

    /// Drops the graph, so that it is captured anew.
    pub fn invalidate(&mut self) {
        self.graph = None;
    }

    /// Drops the graph, which is not captured anew until it is enabled.
    pub(crate) fn give_up(&mut self) {
        (self.graph, self.is_given_up) = (None, true);
    }

    /// Forgets why it was disabled, so that it may be captured again.
    pub fn enable(&mut self) {
        (self.failures, self.refusals, self.is_given_up) = (0, 0, false);
    }
}

/// The graphs of a stretch, by size, ascending.
#[derive(Debug)]
struct StretchGraphs {
    stretch: Stretch,
    sizes: Vec<(PieceSize, GraphSlot<Captured>)>,
}

impl StretchGraphs {
    fn key(&self, size: PieceSize) -> GraphKey {
        let members = &self.stretch.members;
        GraphKey::Stretch { first: members.start, last: members.end - 1, size }
    }

    fn place(&self, size: PieceSize) -> Option<usize> {
        self.sizes.binary_search_by_key(&size, |(known, _)| *known).ok()
    }

    fn ready(&self, sizes: &StepSizes) -> Option<&Captured> {
        let place = self.place(self.stretch.size(sizes)?)?;
        self.sizes[place].1.ready()
    }
}

/// The graphs of a model.
#[derive(Debug, Default)]
pub(crate) struct GraphSet {
    /// In the order of the step.
    stretches: Vec<StretchGraphs>,
    /// Whole steps by their sizes, ascending.
    full: Vec<(StepSizes, GraphSlot<Captured>)>,
}

impl GraphSet {
    /// From now on there are graphs for each stretch at its sizes, and for whole steps at theirs.
    /// What was captured of them stays.
    pub(crate) fn list(&mut self, stretches: Vec<(Stretch, Vec<PieceSize>)>, full: Vec<StepSizes>) {
        let mut before = std::mem::take(self);
        let listed = stretches.into_iter().map(|(stretch, sizes)| {
            let same = before.stretches.iter_mut().find(|known| known.stretch == stretch);
            let known = same.map_or_else(Vec::new, |known| std::mem::take(&mut known.sizes));
            StretchGraphs { stretch, sizes: relisted(sizes, known) }
        });
        self.stretches = listed.collect();
        self.full = relisted(full, before.full);
    }

    /// Every graph, the largest first: whole steps, then of each stretch its largest, its second
    /// largest and so on.
    pub(crate) fn keys(&self) -> Vec<GraphKey> {
        let mut keys: Vec<_> = self.full.iter().map(|(sizes, _)| GraphKey::Full(*sizes)).collect();
        keys.reverse();
        let stretches = self.stretches.iter().map(|stretch| {
            let mut sizes: Vec<_> = stretch.sizes.iter().map(|(size, _)| *size).collect();
            sizes.sort_by_key(|size| std::cmp::Reverse((size.rows(), *size)));
            sizes.into_iter().map(|size| stretch.key(size))
        });
        let mut stretches: Vec<_> = stretches.collect();
        let most = self.stretches.iter().map(|stretch| stretch.sizes.len()).max().unwrap_or(0);
        for _ in 0..most {
            keys.extend(stretches.iter_mut().filter_map(Iterator::next));
        }
        keys
    }

    /// Every graph, ready or not, where so many failures in a row disable one.
    pub(crate) fn reports(&self, attempts: u32) -> Vec<GraphReport> {
        let full = self.full.iter().map(|(sizes, slot)| (GraphKey::Full(*sizes), slot));
        let stretches = self.stretches.iter().flat_map(|stretch| {
            stretch.sizes.iter().map(|(size, slot)| (stretch.key(*size), slot))
        });
        let report = |(key, slot): (GraphKey, &GraphSlot<Captured>)| GraphReport {
            key,
            state: slot.state(attempts),
            counts: slot.counts(),
        };
        full.chain(stretches).map(report).collect()
    }

    /// A graph that is listed, ready or not.
    pub(crate) fn slot_mut(&mut self, key: GraphKey) -> Option<&mut GraphSlot<Captured>> {
        match key {
            GraphKey::Full(sizes) => {
                let i = self.full.binary_search_by_key(&sizes, |(s, _)| *s).ok()?;
                Some(&mut self.full[i].1)
            }
            GraphKey::Stretch { first, size, .. } => {
                let graphs = self.place_of(first)?;
                let graphs = &mut self.stretches[graphs];
                let i = graphs.place(size)?;
                Some(&mut graphs.sizes[i].1)
            }
        }
    }

    /// The place among the stretches of the one that begins at a member.
    fn place_of(&self, first: usize) -> Option<usize> {
        self.stretches.binary_search_by_key(&first, |graphs| graphs.stretch.members.start).ok()
    }

    /// The members that are captured together from a member on, or else that member alone.
    pub(crate) fn unit_at(&self, member: usize) -> Range<usize> {
        let stretch = self.place_of(member).map(|place| &self.stretches[place].stretch);
        stretch.map_or(member..member + 1, |stretch| stretch.members.clone())
    }

    /// The graph of a step of these sizes for the stretch that begins at a member.
    pub(crate) fn key_at(&self, member: usize, sizes: &StepSizes) -> Option<GraphKey> {
        let graphs = &self.stretches[self.place_of(member)?];
        graphs.stretch.size(sizes).map(|size| graphs.key(size))
    }

    /// The same graph, if it is ready.
    pub(crate) fn ready_at(&self, member: usize, sizes: &StepSizes) -> Option<&Captured> {
        self.stretches[self.place_of(member)?].ready(sizes)
    }

    /// Whether every stretch has a graph for these sizes.
    pub(crate) fn has_pieces(&self, sizes: StepSizes) -> bool {
        self.stretches.iter().all(|graphs| graphs.ready(&sizes).is_some())
    }

    /// The ready graph of a whole step.
    pub(crate) fn full(&self, sizes: StepSizes) -> Option<&Captured> {
        let i = self.full.binary_search_by_key(&sizes, |(s, _)| *s).ok()?;
        self.full[i].1.ready()
    }

    /// Every graph, ready or not.
    pub(crate) fn slots_mut(&mut self) -> impl Iterator<Item = &mut GraphSlot<Captured>> {
        let stretches = self.stretches.iter_mut().flat_map(|graphs| &mut graphs.sizes);
        stretches.map(|(_, slot)| slot).chain(self.full.iter_mut().map(|(_, slot)| slot))
    }

    /// Those that a step can replay now.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Captured> {
        let stretches = self.stretches.iter().flat_map(|graphs| &graphs.sizes);
        stretches
            .filter_map(|(_, slot)| slot.ready())
            .chain(self.full.iter().filter_map(|(_, slot)| slot.ready()))
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
    use crate::words::GraphState;

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
            assert_ne!(slot.state(3), GraphState::Disabled);
            fail(&mut slot).unwrap_err();
        }
        assert!(slot.state(3) == GraphState::Disabled && !slot.wants_capture(3));
        assert!(slot.wants_capture(4) && slot.wants_capture(0));
        assert_eq!(slot.state(3), GraphState::Disabled);
        slot.enable();
        assert_eq!(slot.state(3), GraphState::Stale);
        slot.capture(|| Ok::<_, ()>(8)).unwrap();
        assert_eq!(slot.ready(), Some(&8));
        let counts = slot.counts();
        assert_eq!((counts.captures, counts.recaptures, counts.failures), (2, 1, 5));
    }

    #[test]
    fn refused_replays_in_a_row_disable_whatever_captures_come_between() {
        let refused =
            |_: &u32| Err(DeviceError::Refused { label: String::new(), reason: String::new() });
        let mut slot = GraphSlot::empty();
        assert_eq!(slot.state(3), GraphState::Empty);
        assert!(!slot.replay(refused).unwrap(), "nothing to replay");
        let capture = |slot: &mut GraphSlot<u32>| slot.capture(|| Ok::<_, ()>(1)).unwrap();
        // A replay that goes well ends the row.
        for good in [true, false] {
            for _ in 0..2 {
                capture(&mut slot);
                slot.replay(refused).unwrap_err();
                assert_eq!(slot.state(3), GraphState::Stale);
            }
            capture(&mut slot);
            if good {
                assert!(slot.replay(|_| Ok(())).unwrap());
            } else {
                slot.replay(refused).unwrap_err();
            }
            slot.invalidate();
        }
        assert_eq!(slot.state(3), GraphState::Disabled);
        let counts = slot.counts();
        assert_eq!((counts.launches, counts.failures, counts.recaptures), (1, 5, 5));
        // Another failure than a refusal says nothing about the graph.
        slot.enable();
        capture(&mut slot);
        let other = |_: &u32| {
            let (action, reason) = (String::new(), String::new());
            Err(DeviceError::Driver { action, reason })
        };
        slot.replay(other).unwrap_err();
        assert_eq!(slot.state(3), GraphState::Ready);
    }
}
