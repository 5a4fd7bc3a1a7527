//! Captured graphs and their states.

use crate::dispatch::StepSizes;

/// What happens when a capture fails.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OnCaptureFailure {
    /// Building the model fails.
    #[default]
    Error,
    /// The steps that the graph would have served are launched, and counted.
    Launch,
}

/// Failures in a row after which a graph is no longer captured.
const MAX_FAILURES: u32 = 3;

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

    /// Whether it was disabled by failures in a row.
    pub fn is_disabled(&self) -> bool {
        self.failures >= MAX_FAILURES
    }

    /// Whether a capture may start: it is neither ready, under way nor disabled.
    pub fn wants_capture(&self) -> bool {
        self.graph.is_none() && !self.capturing && !self.is_disabled()
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

/// The graphs of a model.
#[derive(Debug)]
pub(crate) struct GraphSet<G> {
    /// For each member, graphs by size, ascending; empty for ops.
    pub pieces: Vec<Vec<(u64, GraphSlot<G>)>>,
    /// Whole steps by their sizes, ascending.
    pub full: Vec<(StepSizes, GraphSlot<G>)>,
}

impl<G> GraphSet<G> {
    /// The ready graph of a member at a size.
    pub(crate) fn piece(&self, member: usize, size: u64) -> Option<&G> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(slot: &mut GraphSlot<u32>) -> Result<(), &'static str> {
        slot.capture(|| Err("planted"))
    }

    #[test]
    fn three_failures_in_a_row_disable_until_enabled() {
        let mut slot = GraphSlot::empty();
        for _ in 0..2 {
            assert_eq!(fail(&mut slot), Err("planted"));
            assert!(slot.wants_capture());
        }
        assert_eq!(slot.capture(|| Ok::<_, ()>(7)), Ok(()));
        assert_eq!((slot.ready(), slot.wants_capture()), (Some(&7), false));
        slot.invalidate();
        assert_eq!((slot.ready(), slot.wants_capture()), (None, true));
        for _ in 0..3 {
            assert!(!slot.is_disabled());
            fail(&mut slot).unwrap_err();
        }
        assert!(slot.is_disabled() && !slot.wants_capture());
        slot.enable();
        assert!(slot.wants_capture());
        slot.capture(|| Ok::<_, ()>(8)).unwrap();
        assert_eq!(slot.ready(), Some(&8));
    }
}
