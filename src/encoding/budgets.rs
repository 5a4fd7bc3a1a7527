//! Token budgets: which there are, and which no step ever takes.

use super::packing::pack;
use super::protocol::TokenRange;
use crate::models::encoder::EncoderBounds;
use piecewise_planner::{
    GraphMode, MonotoneCurve, PathCosts, PlanRequest, PlannerError, StepCosts, StepKind, Traffic,
};
use std::io::BufRead;

/// What submitting a step costs, in tokens.
const STEP_TOKENS: f64 = 32.0;
/// The smallest budget where none are given and items vary.
const SMALLEST: u64 = 64;

/// The budgets of a path, with what a step may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Budgets {
    /// Ascending; not empty.
    pub(super) sizes: Vec<u64>,
    pub(super) bounds: EncoderBounds,
}

impl Budgets {
    /// The smallest that holds so many tokens.
    pub(super) fn holding(&self, tokens: u64) -> Option<u64> {
        self.sizes.iter().copied().find(|&budget| budget >= tokens)
    }

    /// What a step costs, in tokens: those of its budget, or its own where it is launched, and
    /// something for being one; nothing where there is no such step. `rows` are tokens and frames.
    pub(super) fn cost(&self, rows: &[u64], items: usize, is_launched: bool) -> Option<f64> {
        let &[tokens, frames] = rows else { return None };
        let EncoderBounds { max_rows, max_items, max_frames } = self.bounds;
        let tokens = match is_launched {
            true => Some(tokens).filter(|&tokens| tokens <= max_rows),
            // Where videos have no graphs, images are not counted.
            false => self.holding(tokens).filter(|_| frames <= max_frames || max_frames == 0),
        };
        let tokens = tokens.filter(|_| items as u64 <= max_items)?;
        Some(tokens as f64 + STEP_TOKENS)
    }

    /// The budgets that no step takes, each with the reason.
    pub(super) fn unreachable(&self, range: TokenRange) -> Vec<(u64, String)> {
        let most_items = self.bounds.max_items;
        let below = std::iter::once(0).chain(self.sizes.iter().copied());
        let unreachable = below.zip(&self.sizes).filter_map(|(below, &budget)| {
            let reason = format!(
                "up to {most_items} items of {} to {} tokens each never have from {} to {budget} \
                 together",
                range.least,
                range.most,
                below + 1
            );
            (!is_reachable(range, most_items, below, budget)).then_some((budget, reason))
        });
        unreachable.collect()
    }
}

/// Whether up to `most_items` items have more than `below` and at most `budget` tokens together.
fn is_reachable(range: TokenRange, most_items: u64, below: u64, budget: u64) -> bool {
    let TokenRange { least, most, multiple_of } = range;
    let most = (most - most % multiple_of.max(1)).max(1);
    // The fewest items that can have more than `below`; more of them have no less.
    let items = below / most + 1;
    let next = (below + 1).next_multiple_of(multiple_of.max(1));
    let lowest = items.saturating_mul(least).max(next);
    items <= most_items && lowest <= budget.min(items.saturating_mul(most))
}

/// Where no budgets are given: powers of two from 64 on (of items that are all alike: as many
/// items), and what the largest step has.
pub fn default_budgets(range: TokenRange, bounds: EncoderBounds) -> Vec<u64> {
    let most = bounds.largest_step(range);
    let is_fixed = range.least == range.most;
    let first = if is_fixed { range.least } else { SMALLEST };
    let powers = std::iter::successors(Some(first.max(1)), |budget| budget.checked_mul(2));
    let sizes = powers.take_while(|&budget| budget < most).chain([most]).collect();
    let budgets = Budgets { sizes, bounds };
    let unreachable = budgets.unreachable(range);
    let is_reached = |size: &u64| unreachable.iter().all(|(budget, _)| budget != size);
    let mut reached = Vec::from_iter(budgets.sizes.iter().copied().filter(is_reached));
    if reached.is_empty() {
        reached.push(most);
    }
    reached
}

impl EncoderBounds {
    /// The tokens of the largest step: `max_rows`, or what `max_items` items have at most.
    pub(super) fn largest_step(&self, range: TokenRange) -> u64 {
        let items = self.max_items.saturating_mul(range.most);
        let most = self.max_rows.min(items);
        let whole = most - most % range.multiple_of.max(1);
        if whole == 0 { self.max_rows } else { whole }
    }
}

/// Why there are no budgets by a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ItemLogError {
    /// It can't be read or written.
    #[error("the item log {file}: {source}")]
    File {
        /// The file that was given.
        file: String,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// A line is none of a log.
    #[error(
        "{file}, line {line}: {reason}; a line is a call on a path, as in \
         {{\"path\":\"items\",\"tokens\":[12,30,7]}}"
    )]
    Line {
        /// The file that was given.
        file: String,
        /// Counted from 1.
        line: usize,
        /// Why the line can't be read.
        reason: String,
    },
    /// No line has an item for the path.
    #[error("{file} has no item for the path `{path}`")]
    Empty {
        /// The file that was given.
        file: String,
        /// The path as the encoder calls it.
        path: String,
    },
    /// The planner finds no sizes for what the log has.
    #[error(transparent)]
    Plan(#[from] PlannerError),
}

/// A line of a log: the items of a call on a path.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallLine<'a> {
    pub(super) path: std::borrow::Cow<'a, str>,
    /// Of the items that bring any.
    pub(super) tokens: Vec<u64>,
}

/// The calls on `path` of a log: the tokens of the items of each.
///
/// # Errors
/// When it can't be read, a line is none, or no item is there.
pub fn read_item_log(file: &std::path::Path, path: &str) -> Result<Vec<Vec<u64>>, ItemLogError> {
    let name = file.display().to_string();
    let failed = |source| ItemLogError::File { file: name.clone(), source };
    let lines = std::io::BufReader::new(std::fs::File::open(file).map_err(failed)?).lines();
    let mut calls = Vec::new();
    for (i, line) in lines.enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let call: CallLine<'_> = serde_json::from_str(&line).map_err(|error| {
            ItemLogError::Line { file: name.clone(), line: i + 1, reason: error.to_string() }
        })?;
        if call.path == path && call.tokens.iter().any(|&tokens| tokens > 0) {
            calls.push(call.tokens);
        }
    }
    match calls.is_empty() {
        true => Err(ItemLogError::Empty { file: name, path: path.to_owned() }),
        false => Ok(calls),
    }
}

/// The budgets by which the calls of a log cost the least, at most as many as by default, or 8.
///
/// What steps there are follows from the budgets, and the best budgets follow from the steps: the
/// calls are packed as if every size had a graph, the capture planner chooses sizes for those
/// steps, and so on by turns while that makes the calls cheaper.
///
/// # Errors
/// When the planner refuses.
pub fn planned_budgets(
    calls: &[Vec<u64>],
    range: TokenRange,
    bounds: EncoderBounds,
) -> Result<Vec<u64>, PlannerError> {
    let mut best = default_budgets(range, bounds);
    let request = PlanRequest {
        graph_mode: GraphMode::Piecewise,
        max_graphs: Some(best.len().max(GRAPHS)),
        max_num_tokens: best.last().and_then(|&most| u32::try_from(most).ok()),
        ..PlanRequest::default()
    };
    let costs = packing_costs(best.last().copied().unwrap_or(1))?;
    let mut least = cost_of(calls, &Budgets { sizes: best.clone(), bounds }).0;
    // Every whole number of tokens up to the largest step is a budget at first.
    let (_, mut steps) =
        packed(calls, bounds, &|tokens| Some(tokens).filter(|&t| t <= bounds.max_rows));
    for _ in 0..TURNS {
        let mut traffic = Traffic::default();
        for &tokens in &steps {
            let count = u32::try_from(tokens).unwrap_or(u32::MAX);
            traffic.add(StepKind::Mixed, count, 1).map_err(|reason| PlannerError::Setting {
                what: "the item log",
                problem: reason.to_owned(),
            })?;
        }
        let plan = piecewise_planner::plan(request.on(&traffic, &costs))?;
        let sizes = plan.sizes.capture_num_tokens.iter().map(|&size| u64::from(size)).collect();
        let budgets = Budgets { sizes, bounds };
        let (cost, now) = cost_of(calls, &budgets);
        if cost >= least {
            break;
        }
        (least, best, steps) = (cost, budgets.sizes, now);
    }
    Ok(best)
}

/// Graphs that there may be where fewer are the default.
const GRAPHS: usize = 8;
/// The most turns between packing and planning.
const TURNS: usize = 8;

/// What the calls cost by these budgets, and the tokens of their steps.
fn cost_of(calls: &[Vec<u64>], budgets: &Budgets) -> (f64, Vec<u64>) {
    packed(calls, budgets.bounds, &|tokens| budgets.holding(tokens))
}

fn packed(
    calls: &[Vec<u64>],
    bounds: EncoderBounds,
    size: &dyn Fn(u64) -> Option<u64>,
) -> (f64, Vec<u64>) {
    let step = |rows: &[u64], items: usize| {
        let size = size(rows[0]).filter(|_| items as u64 <= bounds.max_items);
        size.map(|size| size as f64 + STEP_TOKENS)
    };
    let (mut cost, mut steps) = (0.0, Vec::new());
    for call in calls {
        let tokens = call.iter().filter(|&&tokens| tokens > 0);
        let items = Vec::from_iter(tokens.map(|&tokens| vec![tokens]));
        for members in pack(&items, &step).steps {
            let tokens: u64 = members.iter().map(|&i| items[i][0]).sum();
            cost += step(&[tokens], members.len()).unwrap_or(0.0);
            steps.push(tokens);
        }
    }
    (cost, steps)
}

/// The cost of packing as the planner takes it: a nanosecond for each thousandth of a token.
fn packing_costs(most: u64) -> Result<StepCosts, PlannerError> {
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let powers = std::iter::successors(Some(1_u32), |n| n.checked_mul(2));
    let points = powers.take_while(|&n| n < most).chain([most]);
    let points = points.map(|n| (n, (f64::from(n) + STEP_TOKENS) as u64 * 1000)).collect();
    let curve = MonotoneCurve::fit(points);
    let path = curve.map(|step_ns| PathCosts { step_ns, memory_bytes: None, capture_ns: None });
    Ok(StepCosts { piecewise: path, origin: "tokens".to_owned(), ..StepCosts::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_testing::{Rng, soak};

    fn bounds(max_rows: u64, max_items: u64) -> EncoderBounds {
        EncoderBounds { max_rows, max_items, max_frames: u64::MAX }
    }

    #[test]
    fn default_budgets_double_and_end_at_the_largest_step() {
        let sizes = |range, rows, items| default_budgets(range, bounds(rows, items));
        assert_eq!(sizes(TokenRange::up_to(512), 1000, 64), [64, 128, 256, 512, 1000]);
        assert_eq!(sizes(TokenRange::up_to(20), 1000, 4), [64, 80]);
        assert_eq!(sizes(TokenRange::up_to(20), 32, 4), [32]);
        assert_eq!(sizes(TokenRange::always(37), 512, 64), [37, 74, 148, 296, 481]);
        assert_eq!(sizes(TokenRange::always(729), 512, 64), [512]);
        let few = TokenRange { least: 256, most: 256 * 5, multiple_of: 256 };
        assert_eq!(sizes(few, 4096, 8), [256, 512, 1024, 2048, 4096]);
    }

    /// Against every total of every number of items.
    #[test]
    fn unreachable_budgets_are_those_that_no_items_make() {
        let mut rng = Rng::new(3);
        for _ in 0..soak(300) {
            let multiple_of = 1 + rng.below(5) as u64;
            let least = multiple_of * (1 + rng.below(6) as u64);
            let range = TokenRange { least, most: least + rng.below(20) as u64, multiple_of };
            let max_items = 1 + rng.below(5) as u64;
            let mut totals = vec![std::collections::BTreeSet::from([0])];
            for _ in 0..max_items {
                let one = (range.least..=range.most).filter(|n| n.is_multiple_of(multiple_of));
                let one = Vec::from_iter(one);
                let before = totals.last().unwrap();
                let next = before.iter().flat_map(|sum| one.iter().map(move |n| sum + n));
                totals.push(next.collect());
            }
            let all = Vec::from_iter(totals.iter().skip(1).flatten().copied());
            let mut sizes = Vec::from_iter((0..4).map(|_| 1 + rng.below(160) as u64));
            sizes.sort_unstable();
            sizes.dedup();
            let budgets = Budgets { sizes, bounds: bounds(200, max_items) };
            let found = budgets.unreachable(range);
            let taken = |budget| all.iter().any(|&t| budgets.holding(t) == Some(budget));
            let expected = budgets.sizes.iter().copied().filter(|&budget| !taken(budget));
            let found = found.into_iter().map(|(budget, _)| budget);
            assert!(found.eq(expected), "{range:?}, {budgets:?}");
        }
        let one = Budgets { sizes: vec![36, 50, 128], bounds: bounds(128, 1) };
        let said = Vec::from_iter(one.unreachable(TokenRange::always(36)));
        assert_eq!(
            said[0],
            (
                50,
                "up to 1 items of 36 to 36 tokens each never have from 37 to 50 together"
                    .to_owned()
            )
        );
        assert_eq!(said.len(), 2);
    }

    #[test]
    fn planned_budgets_never_cost_more_than_the_default_and_find_what_is_there() {
        let mut rng = Rng::new(6);
        for _ in 0..soak(40) {
            let most = 200 + rng.below(800) as u64;
            let bounds = bounds(most, 1 + rng.below(16) as u64);
            let range = TokenRange::up_to(150);
            let call = |rng: &mut Rng| {
                let count = 1 + rng.below(14);
                Vec::from_iter((0..count).map(|_| 1 + rng.below(150) as u64))
            };
            let calls = Vec::from_iter((0..20).map(|_| call(&mut rng)));
            let default = default_budgets(range, bounds);
            let planned = planned_budgets(&calls, range, bounds).unwrap();
            assert!(planned.len() <= default.len().max(GRAPHS));
            let cost =
                |sizes: &[u64]| cost_of(&calls, &Budgets { sizes: sizes.to_vec(), bounds }).0;
            assert!(cost(&planned) <= cost(&default), "{planned:?} against {default:?}");
        }
        // Calls of 100 and of 300 tokens: both have graphs, and the largest step has.
        let calls = [vec![100], vec![100, 200], vec![100]];
        let planned = planned_budgets(&calls, TokenRange::up_to(512), bounds(512, 4)).unwrap();
        assert!([100, 300, 512].iter().all(|size| planned.contains(size)), "{planned:?}");
    }

    #[test]
    fn a_log_is_read_by_its_path_and_a_wrong_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("items.jsonl");
        let read = |text: &str, path| {
            std::fs::write(&file, text).unwrap();
            read_item_log(&file, path).map_err(|error| error.to_string())
        };
        let lines = "{\"path\":\"a\",\"tokens\":[1,2]}\n\n{\"path\":\"b\",\"tokens\":[3]}\n";
        assert_eq!(read(lines, "a"), Ok(vec![vec![1, 2]]));
        assert!(read(lines, "c").unwrap_err().contains("no item for the path `c`"));
        assert!(read("{\"path\":\"a\"}", "a").unwrap_err().contains("line 1: missing field"));
        assert!(read("\n{\"path\":\"a\",\"tokens\":[-1]}", "a").unwrap_err().contains("line 2"));
        let missing = read_item_log(&folder.path().join("none"), "a").unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
    }
}
