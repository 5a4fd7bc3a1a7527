//! How much time captures between steps may take, and which comes first.

use crate::words::{GraphKey, SymbolClass};
use piecewise_backend::artifact::PieceSize;
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::time::{Duration, Instant};

/// The share of a step's time that captures may take after it.
const SHARE: u32 = 4;

/// After so many steps in which no graph fitted into the share, one is captured all the same: fewer
/// than one step of a hundred waits for that.
const PATIENCE: u32 = 128;

/// How far captures between steps have come.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Whether every listed graph is ready or disabled.
    pub(super) is_done: bool,
    /// Every graph, the largest first.
    pub(super) listed: Vec<GraphKey>,
    /// How many graphs are missing of those that a step replays together. What is asked after each step
    /// is to allocate nothing.
    pub(super) lacking: FxHashMap<(SymbolClass, PieceSize), u64>,
    last_step: Option<Instant>,
    /// The time from the step before to the last one, without captures.
    last: Duration,
    /// The same, smoothed.
    interval: Duration,
    /// What captures have taken since the last step.
    spent: Duration,
    /// What the last capture of a whole step took, and of a stretch.
    cost: [Duration; 2],
    steps_since: u32,
}

impl Pace {
    /// From now on there are these graphs, the largest first.
    pub(super) fn list(&mut self, graphs: Vec<GraphKey>) {
        self.listed = graphs;
        self.wake();
    }

    /// There may be something to capture.
    pub(super) fn wake(&mut self) {
        self.is_done = false;
    }

    pub(super) fn note_step(&mut self, now: Instant) {
        if let Some(last) = self.last_step.replace(now) {
            self.last = now.saturating_duration_since(last).saturating_sub(self.spent);
            self.interval = match self.interval {
                Duration::ZERO => self.last,
                smooth => (smooth * 7 + self.last) / 8,
            };
        }
        self.spent = Duration::ZERO;
        self.steps_since = self.steps_since.saturating_add(1);
    }

    /// What captures may take after the last step: a share of what a step takes, and less after one
    /// that took longer than others, or was launched where they are replayed. Those are the slowest
    /// already, and no capture is to make them slower.
    fn budget(&self) -> Duration {
        let share = self.interval / SHARE;
        (self.interval + share).saturating_sub(self.last).min(share)
    }

    /// Whether the graph may be captured now: it fits, or none has for long, and the last step was not
    /// one of the longer ones.
    pub(super) fn allows(&self, key: GraphKey) -> bool {
        self.fits(key) || self.steps_since >= PATIENCE && self.last <= self.interval
    }

    fn fits(&self, key: GraphKey) -> bool {
        self.spent + self.cost[Self::kind(key)] <= self.budget()
    }

    /// The graph was captured, or it was tried.
    pub(super) fn note_capture(&mut self, key: GraphKey, took: Duration) {
        if !self.fits(key) {
            self.steps_since = 0;
        }
        self.cost[Self::kind(key)] = took;
        self.spent += took;
    }

    fn kind(key: GraphKey) -> usize {
        usize::from(matches!(key, GraphKey::Stretch { .. }))
    }
}

/// A graph that is listed and neither ready nor disabled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    pub(super) key: GraphKey,
    /// Steps that would have replayed it.
    pub(super) misses: u64,
    /// How many graphs such a step lacks with it, of its own kind.
    pub(super) lacking: u64,
}

impl Missing {
    /// Which to capture first, the greater: the one of which the most steps gain for each graph that
    /// they lack, so that what was begun for a size is finished; or else the one that is nearer to
    /// that.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let gains = |one: &Self, other: &Self| u128::from(one.misses) * u128::from(other.lacking);
        gains(self, other).cmp(&gains(other, self)).then(other.lacking.cmp(&self.lacking))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::MAX_OWN;
    use crate::words::{NO_ROWS, StepSizes};
    use piecewise_testing::Rng;

    const PIECES: usize = 29;
    /// How many of twenty steps in pieces run at each of the sizes.
    const STEPS: [u64; 8] = [1, 1, 1, 2, 3, 5, 6, 1];
    const MOST: usize = 2000;

    fn of(member: usize, size: u64) -> GraphKey {
        GraphKey::Stretch { first: member, last: member, size: PieceSize::Exact(size) }
    }

    fn whole(sequences: u64) -> GraphKey {
        let size = PieceSize::Exact(sequences);
        let (own, query_length) = ([NO_ROWS; MAX_OWN], Some(1));
        GraphKey::Full(StepSizes { tokens: size, rows: size, sequences, own, query_length })
    }

    fn is_whole(key: GraphKey) -> bool {
        matches!(key, GraphKey::Full(_))
    }

    /// The graphs of a model of 28 layers, and 2,000 steps that want some of them.
    struct Steps {
        missing: Vec<Missing>,
        rng: Rng,
    }

    impl Steps {
        fn new() -> Self {
            let graph = |key, lacking| Missing { key, misses: 0, lacking };
            let pieces = (1..=8).flat_map(|size| (0..PIECES).map(move |member| of(member, size)));
            let mut missing: Vec<_> = pieces.map(|key| graph(key, PIECES as u64)).collect();
            missing.extend((1..=4).map(|size| graph(whole(size), 1)));
            Self { missing, rng: Rng::new(17) }
        }

        fn together(a: GraphKey, b: GraphKey) -> bool {
            is_whole(a) == is_whole(b) && a.size() == b.size()
        }

        /// One of the graphs that the next step wants, half of them whole ones, and whether it is
        /// launched.
        fn step(&mut self) -> (GraphKey, bool) {
            let rng = &mut self.rng;
            let mut at = rng.below(20) as u64;
            let in_pieces = STEPS.iter().zip(1..).find(|(steps, _)| {
                let is_here = at < **steps;
                at = at.saturating_sub(**steps);
                is_here
            });
            let wanted = match rng.one_in(2) {
                true => whole(1 + rng.below(4) as u64),
                false => of(0, in_pieces.unwrap().1),
            };
            let lacks = self.missing.iter_mut().filter(|graph| Self::together(graph.key, wanted));
            (wanted, lacks.map(|graph| graph.misses += 1).count() > 0)
        }

        fn first(&self, order: fn(&Missing, &Missing) -> Ordering) -> Option<GraphKey> {
            let first = |first, graph| if order(&graph, &first).is_gt() { graph } else { first };
            self.missing.iter().copied().reduce(first).map(|graph| graph.key)
        }

        fn capture(&mut self, key: GraphKey) {
            self.missing.retain(|graph| graph.key != key);
            let rest = self.missing.iter_mut().filter(|graph| Self::together(graph.key, key));
            rest.for_each(|graph| graph.lacking -= 1);
        }
    }

    /// How many steps are launched where a graph is captured after every fifth.
    fn launched(order: fn(&Missing, &Missing) -> Ordering) -> u64 {
        let mut steps = Steps::new();
        let mut launched = 0;
        for step in 0..MOST {
            launched += u64::from(steps.step().1);
            if let Some(first) = steps.first(order).filter(|_| step % 5 == 0) {
                steps.capture(first);
            }
        }
        launched
    }

    /// Of ten steps one takes three times as long as the others. By a clock of their own, so that
    /// nothing is timed.
    #[test]
    fn captures_come_after_the_short_steps_a_few_at_a_time_and_long_ones_one_in_128() {
        const SHORT: u64 = 500;
        let (mut steps, mut pace) = (Steps::new(), Pace::default());
        // As graphs of 28 layers were on an H100.
        let cost = |key| if is_whole(key) { 1022 } else { 70 };
        let (start, mut now) = (Instant::now(), 0);
        let (mut waited, mut knows_whole) = (Vec::new(), false);
        for step in 0..MOST {
            steps.step();
            let is_long = step % 10 == 9;
            now += if is_long { 3 * SHORT } else { SHORT };
            pace.note_step(start + Duration::from_micros(now));
            let mut spent = 0;
            while let Some(key) = steps.first(Missing::order).filter(|key| pace.allows(*key)) {
                assert!(!is_long, "step {step} is one of the slowest already");
                steps.capture(key);
                pace.note_capture(key, Duration::from_micros(cost(key)));
                spent += cost(key);
                if is_whole(key) && std::mem::replace(&mut knows_whole, true) {
                    waited.push(step);
                }
            }
            now += spent;
        }
        assert!(steps.missing.is_empty(), "{} graphs are missing", steps.missing.len());
        assert!(waited.iter().zip(&waited[1..]).all(|(a, b)| b - a >= 128), "{waited:?}");
        assert_eq!(waited.len(), 3, "all but the first, of which nobody knew how long it takes");
    }

    #[test]
    fn fewer_steps_are_launched_than_where_what_most_have_wanted_comes_first() {
        let by_misses = launched(|a, b| a.misses.cmp(&b.misses));
        let in_order = launched(Missing::order);
        assert!(in_order * 10 < by_misses * 9, "{in_order} and {by_misses}");
    }
}
