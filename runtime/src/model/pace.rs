//! How much time captures between steps may take, and which comes first.

use super::graphs::GraphKey;
use std::cmp::Ordering;
use std::time::{Duration, Instant};

/// The share of the time from step to step that captures may take.
const SHARE: u32 = 4;

/// After so many steps in which no graph fitted into the share, one is captured all the same: fewer
/// than one step of a hundred waits for that.
pub(super) const PATIENCE: u32 = 128;

/// How far captures between steps have come.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Whether every listed graph is ready or disabled.
    pub(super) is_done: bool,
    last_step: Option<Instant>,
    /// The smoothed time from step to step.
    interval: Duration,
    /// What the last capture of a whole step took, and of a piece.
    cost: [Duration; 2],
    pub(super) steps_since: u32,
}

impl Pace {
    /// There may be something to capture.
    pub(super) fn wake(&mut self) {
        self.is_done = false;
    }

    pub(super) fn note_step(&mut self, now: Instant) {
        if let Some(last) = self.last_step.replace(now) {
            let interval = now.saturating_duration_since(last);
            self.interval = match self.interval {
                Duration::ZERO => interval,
                smooth => (smooth * 7 + interval) / 8,
            };
        }
        self.steps_since = self.steps_since.saturating_add(1);
    }

    /// What captures may take after a step.
    pub(super) fn budget(&self) -> Duration {
        self.interval / SHARE
    }

    pub(super) fn cost(&mut self, key: GraphKey) -> &mut Duration {
        &mut self.cost[usize::from(matches!(key, GraphKey::Piece { .. }))]
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
    use piecewise_backend::artifact::PieceSize;
    use piecewise_ir::testing::Rng;

    const PIECES: usize = 29;
    /// Whole steps have a member of their own here.
    const WHOLE: usize = PIECES;
    /// How many of twenty steps in pieces run at each of the sizes.
    const STEPS: [u64; 8] = [1, 1, 1, 2, 3, 5, 6, 1];

    fn of(member: usize, size: u64) -> GraphKey {
        GraphKey::Piece { member, size: PieceSize::Exact(size) }
    }

    /// How many of 2,000 steps are launched, half of them whole ones, where a graph is captured after
    /// every fifth.
    fn launched(order: fn(&Missing, &Missing) -> Ordering) -> u64 {
        let graph = |key, lacking| Missing { key, misses: 0, lacking };
        let pieces = (1..=8).flat_map(|size| (0..PIECES).map(move |member| of(member, size)));
        let mut missing: Vec<_> = pieces.map(|key| graph(key, PIECES as u64)).collect();
        missing.extend((1..=4).map(|size| graph(of(WHOLE, size), 1)));
        let is_whole = |key: GraphKey| matches!(key, GraphKey::Piece { member: WHOLE, .. });
        let together =
            |a: GraphKey, b: GraphKey| is_whole(a) == is_whole(b) && a.size() == b.size();
        let mut rng = Rng::new(17);
        let mut launched = 0;
        for step in 0..2000 {
            let mut at = rng.below(20) as u64;
            let in_pieces = STEPS.iter().zip(1..).find(|(steps, _)| {
                let is_here = at < **steps;
                at = at.saturating_sub(**steps);
                is_here
            });
            let wanted = match rng.one_in(2) {
                true => of(WHOLE, 1 + rng.below(4) as u64),
                false => of(0, in_pieces.unwrap().1),
            };
            let lacks = missing.iter_mut().filter(|graph| together(graph.key, wanted));
            launched += u64::from(lacks.map(|graph| graph.misses += 1).count() > 0);
            let first =
                missing.iter().copied().filter(|_| step % 5 == 0).reduce(|first, graph| {
                    if order(&graph, &first).is_gt() { graph } else { first }
                });
            let Some(first) = first else { continue };
            missing.retain(|graph| graph.key != first.key);
            let rest = missing.iter_mut().filter(|graph| together(graph.key, first.key));
            rest.for_each(|graph| graph.lacking -= 1);
        }
        launched
    }

    #[test]
    fn fewer_steps_are_launched_than_where_what_most_have_wanted_comes_first() {
        let by_misses = launched(|a, b| a.misses.cmp(&b.misses));
        let in_order = launched(Missing::order);
        assert!(in_order * 10 < by_misses * 9, "{in_order} and {by_misses}");
    }
}
