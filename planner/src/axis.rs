//! One list of sizes to choose: its candidates, and what it costs to serve the steps between two
//! neighbouring sizes of the list.
//!
//! Costs are exact integers, so that the choice depends on no rounding. Under the time objective
//! they are pairs (nanoseconds, padding tokens) in one integer, nanoseconds first: of lists with
//! equal time, the one with less padding wins.

use std::collections::{BTreeMap, BTreeSet};

use crate::costs::MonotoneCurve;
use crate::request::Objective;
use crate::traffic::Steps;

/// Nanoseconds stand above this bit, padding tokens below it.
const TIME_SHIFT: u32 = 56;

/// The weight of one unit of the objective in a packed cost.
pub(crate) fn unit(objective: Objective) -> u128 {
    match objective {
        Objective::Time => 1 << TIME_SHIFT,
        Objective::Padding => 1,
    }
}

/// What limits the list, and what its steps cost.
pub(crate) struct AxisLimits<'a> {
    pub(crate) maximum: u32,
    pub(crate) multiple_of: u32,
    /// Whether each step takes the cheaper of replay and launch.
    pub(crate) launched: bool,
    /// Whether the list may end below the maximum.
    pub(crate) may_end_early: bool,
    pub(crate) replay_ns: &'a MonotoneCurve,
    pub(crate) launched_ns: Option<&'a MonotoneCurve>,
}

/// Nodes are 0 (no size yet) and `1..=len` (the candidates, ascending).
#[derive(Debug)]
pub(crate) struct Axis {
    pub(crate) candidates: Vec<u32>,
    pub(crate) graphs_per_size: usize,
    may_end_early: bool,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    /// How many of the counts a node holds.
    held: Vec<usize>,
    /// Prefix sums over the counts: steps, tokens, cost launched.
    steps: Vec<u64>,
    tokens: Vec<u64>,
    launched: Vec<u128>,
    /// Cost of one step replayed at a node, before its own tokens are taken off.
    replay: Vec<u128>,
    /// Counts below this index are cheaper launched than replayed at the node.
    replays_from: Vec<usize>,
}

impl Axis {
    /// The axis of steps by query length and count.
    pub(crate) fn new(objective: Objective, steps: &Steps, limits: &AxisLimits<'_>) -> Self {
        let candidates = candidates(steps, limits);
        let layer = |(query, by_count): (&u32, &BTreeMap<u32, u64>)| {
            Layer::new(objective, *query, by_count, &candidates, limits)
        };
        Self {
            graphs_per_size: steps.len().max(1),
            may_end_early: limits.may_end_early,
            layers: steps.iter().map(layer).collect(),
            candidates,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.candidates.len()
    }

    /// Cost of the steps above node `from` and up to node `to`, all served by `to`.
    pub(crate) fn between(&self, from: usize, to: usize) -> u128 {
        let mut cost = 0;
        for layer in &self.layers {
            let (low, high) = (layer.held[from], layer.held[to]);
            let split = layer.replays_from[to].clamp(low, high);
            let replayed = u128::from(layer.steps[high] - layer.steps[split]) * layer.replay[to];
            cost += replayed - u128::from(layer.tokens[high] - layer.tokens[split]);
            cost += layer.launched[split] - layer.launched[low];
        }
        cost
    }

    /// Cost of the steps above the last chosen node, if the list may end there.
    pub(crate) fn ending_at(&self, node: usize) -> Option<u128> {
        if node == self.len() {
            return Some(0);
        }
        self.may_end_early.then(|| {
            let above = |layer: &Layer| {
                layer.launched.last().map_or(0, |total| total - layer.launched[layer.held[node]])
            };
            self.layers.iter().map(above).sum()
        })
    }
}

impl Layer {
    fn new(
        objective: Objective,
        query: u32,
        by_count: &BTreeMap<u32, u64>,
        candidates: &[u32],
        limits: &AxisLimits<'_>,
    ) -> Self {
        let unit = unit(objective);
        let tokens_of = |count: u32| u64::from(count) * u64::from(query);
        let launched_at = |count: u32| {
            let curve = limits.launched_ns.filter(|_| objective == Objective::Time);
            curve.map_or(0, |c| u128::from(c.at(count.saturating_mul(query))) * unit)
        };
        let by_count: Vec<(u32, u64)> = by_count.iter().map(|(c, n)| (*c, *n)).collect();
        let mut layer = Self {
            held: vec![0],
            steps: vec![0],
            tokens: vec![0],
            launched: vec![0],
            replay: vec![0],
            replays_from: vec![0],
        };
        let (mut all_steps, mut all_tokens, mut all_launched) = (0, 0, 0);
        for (count, number) in &by_count {
            all_steps += number;
            all_tokens += number * tokens_of(*count);
            all_launched += u128::from(*number) * launched_at(*count);
            layer.steps.push(all_steps);
            layer.tokens.push(all_tokens);
            layer.launched.push(all_launched);
        }
        for size in candidates {
            let held = by_count.partition_point(|(count, _)| count <= size);
            let padded = tokens_of(*size);
            let time = match objective {
                Objective::Time => {
                    u128::from(limits.replay_ns.at(size.saturating_mul(query))) * unit
                }
                Objective::Padding => 0,
            };
            let replay = time + u128::from(padded);
            let replays_from = if limits.launched {
                by_count[..held].partition_point(|(count, _)| {
                    replay - u128::from(tokens_of(*count)) > launched_at(*count)
                })
            } else {
                0
            };
            layer.held.push(held);
            layer.replay.push(replay);
            layer.replays_from.push(replays_from);
        }
        layer
    }
}

/// The counts of the log, rounded up to the multiple, and the maximum. With costs that never fall
/// in size, some cheapest list has no other sizes: any of its sizes can shrink to the next count
/// below it.
fn candidates(steps: &Steps, limits: &AxisLimits<'_>) -> Vec<u32> {
    let rounded = |count: &u32| {
        let rounded = count.div_ceil(limits.multiple_of).saturating_mul(limits.multiple_of);
        rounded.min(limits.maximum)
    };
    let counts = steps.values().flat_map(BTreeMap::keys).map(rounded);
    Vec::from_iter(BTreeSet::from_iter(counts.chain([limits.maximum])))
}
