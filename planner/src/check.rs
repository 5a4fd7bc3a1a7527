//! A configuration against a log: what its sizes waste, miss and cannot reach.

use std::collections::BTreeMap;

use serde::Serialize;
use toml::{Table, Value};

use crate::capture_sizes::MAX_GRAPHS;
use crate::capture_sizes::{CaptureSizes, ListKind};
use crate::error::PlannerError;
use crate::evaluate::{Outcome, SizeUse, evaluate};
use crate::planner::plan;
use crate::request::{PlanRequest, Question};
use crate::traffic::MAX_STEP_TOKENS;

/// The lists and limits of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConfiguredSizes {
    /// The lists as written, in the file's order.
    pub sizes: CaptureSizes,
    /// The bound on tokens in a step; unset, the log says what occurs.
    pub max_num_tokens: Option<u32>,
    /// The bound on sequences in a step; unset, the log says what occurs.
    pub max_num_seqs: Option<u32>,
}

/// Something to know about a configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "finding")]
#[non_exhaustive]
pub enum Finding {
    /// Sizes that are there twice or more often.
    Repeated {
        /// Which of the two lists to shorten.
        list: ListKind,
        /// Each of them once, ascending.
        sizes: Vec<u32>,
    },
    /// No step can ever replay these sizes: they hold more than the scheduler allows, and a
    /// smaller size holds all of that, or the graph mode has no such graphs.
    Unreachable {
        /// What the sizes count: tokens or sequences.
        list: ListKind,
        /// What to take out of the list, ascending.
        sizes: Vec<u32>,
        /// The largest count that can occur, 0 where the graph mode rules the list out.
        largest_possible: u32,
    },
    /// No step of the log replays these sizes.
    Unused {
        /// What the sizes count: tokens or sequences.
        list: ListKind,
        /// Those without a step, ascending.
        sizes: Vec<u32>,
    },
    /// Counts above the largest size, whose steps are launched.
    Uncovered {
        /// Which of the two lists ends too early.
        list: ListKind,
        /// The first count that no size holds.
        from: u32,
        /// The largest count that can occur.
        to: u32,
        /// Steps of the log in this range.
        steps: u64,
        /// Steps of the log that this list should serve.
        of_steps: u64,
    },
    /// The configuration allows less than a step of the log has: such steps become several, and are
    /// counted here as they are.
    BoundBelowLog {
        /// `max_num_tokens` or `max_num_seqs`.
        key: &'static str,
        /// What it says.
        bound: u32,
        /// What the log has.
        largest: u32,
    },
    /// A size that serves a wide gap at much padding.
    Gap {
        /// What the sizes count: tokens or sequences.
        list: ListKind,
        /// The next smaller size, 0 for none.
        below: u32,
        /// The upper end of the gap, which serves every count in it.
        size: u32,
        /// Padding tokens of the steps in the gap, over the whole log.
        padding_tokens: u64,
        /// Their share of all padding tokens.
        share_of_padding: f64,
        /// The one further size that saves the most of it.
        add: u32,
        /// How many of them go with that size.
        saves: u64,
    },
}

/// What is wrong with configured lists, and which ones would be better.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckReport {
    /// The lists, ascending and without repeats.
    pub sizes: CaptureSizes,
    /// What is wrong or wasteful, worst first within each kind.
    pub findings: Vec<Finding>,
    /// What the lists cost on the log.
    pub outcome: Outcome,
    /// The lists to use instead, with at most as many graphs, or with the fewest that cover the
    /// maxima where those are more.
    pub better_sizes: CaptureSizes,
    /// The cost of the better lists on the same log.
    pub better: Outcome,
}

/// Gaps that are reported, at most.
const REPORTED_GAPS: usize = 3;

/// Reads the sizes and limits of a configuration, at the top level or in one table.
///
/// # Errors
/// [`PlannerError::ConfigSyntax`], [`PlannerError::ConfigKeyCount`] and
/// [`PlannerError::ConfigValue`].
pub fn read_configured_sizes(text: &str) -> Result<ConfiguredSizes, PlannerError> {
    let table: Table = text.parse()?;
    let [tokens, decode] = ListKind::ALL.map(|list| find(&table, list.key()));
    let (tokens, decode) = (tokens?, decode?);
    if tokens.is_none() && decode.is_none() {
        return Err(PlannerError::ConfigKeyCount { key: ListKind::Tokens.key(), count: 0 });
    }
    let limit = |key| find(&table, key)?.map(|value| size(key, value)).transpose();
    Ok(ConfiguredSizes {
        sizes: CaptureSizes {
            capture_num_tokens: sizes(ListKind::Tokens.key(), tokens)?,
            decode_batch_sizes: sizes(ListKind::Decode.key(), decode)?,
        },
        max_num_tokens: limit("max_num_tokens")?,
        max_num_seqs: limit("max_num_seqs")?,
    })
}

fn find<'a>(table: &'a Table, key: &'static str) -> Result<Option<&'a Value>, PlannerError> {
    let mut found = Vec::new();
    let mut tables = vec![table];
    while let Some(table) = tables.pop() {
        found.extend(table.get(key));
        tables.extend(table.values().filter_map(Value::as_table));
    }
    match found[..] {
        [] => Ok(None),
        [value] => Ok(Some(value)),
        _ => Err(PlannerError::ConfigKeyCount { key, count: found.len() }),
    }
}

fn sizes(key: &'static str, value: Option<&Value>) -> Result<Vec<u32>, PlannerError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(|value| size(key, value)).collect(),
        Some(value) => {
            let pattern = crate::sizes::SizeList::default_pattern(u64::from(size(key, value)?));
            // No size is above the number, which fits.
            Ok(pattern.sizes().iter().map(|&size| size as u32).collect())
        }
    }
}

fn size(key: &'static str, value: &Value) -> Result<u32, PlannerError> {
    let usable = value.as_integer().and_then(|value| u32::try_from(value).ok());
    usable.filter(|size| (1..=MAX_STEP_TOKENS).contains(size)).ok_or_else(|| {
        PlannerError::ConfigValue {
            key,
            found: value.to_string().chars().take(80).collect(),
            expected: "an integer from 1 to 16777216 (a size list, or one number for the default pattern up to it)",
        }
    })
}

/// Checks lists against a log. Limits that the request leaves open are taken from the
/// configuration, where they are not below what the log has.
///
/// # Errors
/// Those of [`plan`] and [`evaluate`]; and for more than
/// [`MAX_GRAPHS`] sizes.
pub fn check(
    configured: &ConfiguredSizes,
    question: Question<'_>,
) -> Result<CheckReport, PlannerError> {
    let asked = question.request;
    let mut findings = Vec::new();
    let mut limit = |key, asked: Option<u32>, own: Option<u32>, largest| match (asked, own) {
        (None, Some(bound)) if bound < largest => {
            findings.push(Finding::BoundBelowLog { key, bound, largest });
            Some(largest)
        }
        _ => asked.or(own),
    };
    let (tokens, sequences) =
        (question.traffic.largest_tokens(), question.traffic.largest_decode());
    let max_num_tokens =
        limit("max_num_tokens", asked.max_num_tokens, configured.max_num_tokens, tokens);
    let max_num_seqs =
        limit("max_num_seqs", asked.max_num_seqs, configured.max_num_seqs, sequences);
    let request = &PlanRequest { max_num_tokens, max_num_seqs, ..asked.clone() };
    let question = Question { request, ..question };
    request.validate(question.traffic)?;
    let sizes =
        CaptureSizes::of(|list| ascending(list, configured.sizes.list(list), &mut findings));
    let outcome = evaluate(question, &sizes)?;
    for list in ListKind::ALL {
        check_list(list, &sizes, &outcome, question, &mut findings);
    }
    let mut gaps = gaps(&sizes, &outcome, question);
    gaps.truncate(REPORTED_GAPS);
    findings.extend(gaps);
    let (graphs, most) = (outcome.graphs.max(1) as u64, MAX_GRAPHS as u64);
    PlannerError::check_limits([("the number of configured graphs", graphs, most)])?;
    let equal = PlanRequest { max_graphs: Some(outcome.graphs.max(1)), ..request.clone() };
    let better = match plan(Question { request: &equal, ..question }) {
        Err(PlannerError::TooFewGraphs { least, .. }) => {
            let request = &PlanRequest { max_graphs: Some(least), ..equal };
            plan(Question { request, ..question })
        }
        found => found,
    }?;
    let (better_sizes, better) = (better.sizes, better.outcome);
    Ok(CheckReport { sizes, findings, outcome, better_sizes, better })
}

fn ascending(list: ListKind, sizes: &[u32], findings: &mut Vec<Finding>) -> Vec<u32> {
    let mut ascending = sizes.to_vec();
    ascending.sort_unstable();
    let mut repeated: Vec<u32> =
        ascending.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    repeated.dedup();
    ascending.dedup();
    if !repeated.is_empty() {
        findings.push(Finding::Repeated { list, sizes: repeated });
    }
    ascending
}

fn check_list(
    list: ListKind,
    sizes: &CaptureSizes,
    outcome: &Outcome,
    question: Question<'_>,
    findings: &mut Vec<Finding>,
) {
    let Question { traffic, request, .. } = question;
    let own = sizes.list(list);
    let (limit, in_mode) = match list {
        ListKind::Tokens => (request.max_num_tokens, request.graph_mode.has_token_graphs()),
        ListKind::Decode => (request.max_num_seqs, request.graph_mode.has_decode_graphs()),
    };
    let largest_possible = match list {
        _ if !in_mode => 0,
        ListKind::Tokens => limit.unwrap_or(traffic.largest_tokens()),
        ListKind::Decode => {
            let shortest = traffic.decode().keys().next().copied().unwrap_or(1);
            let most = request.max_num_tokens.map_or(u32::MAX, |tokens| tokens / shortest);
            limit.unwrap_or(traffic.largest_decode()).min(most)
        }
    };
    let limited = !in_mode || limit.is_some();
    let first_unreachable =
        own.partition_point(|size| *size < largest_possible) + usize::from(in_mode);
    let first_unreachable = first_unreachable.min(own.len());
    if limited && first_unreachable < own.len() {
        let sizes = own[first_unreachable..].to_vec();
        findings.push(Finding::Unreachable { list, sizes, largest_possible });
    }
    let reachable = if limited { &own[..first_unreachable] } else { own };
    let unused: Vec<u32> = outcome
        .uses
        .iter()
        .filter(|size| size.list == list && size.steps == 0 && reachable.contains(&size.size))
        .map(|size| size.size)
        .collect();
    if !unused.is_empty() {
        findings.push(Finding::Unused { list, sizes: unused });
    }
    let largest = own.last().copied().unwrap_or(0);
    if in_mode && largest < largest_possible {
        let served = traffic.of_list(list, request.graph_mode);
        let of_steps: u64 = served.values().flat_map(BTreeMap::values).sum();
        let above =
            |by_count: &BTreeMap<u32, u64>| by_count.range(largest + 1..).map(|s| s.1).sum::<u64>();
        let steps = served.values().map(above).sum::<u64>();
        if of_steps > 0 {
            findings.push(Finding::Uncovered {
                list,
                from: largest + 1,
                to: largest_possible,
                steps,
                of_steps,
            });
        }
    }
}

fn gaps(sizes: &CaptureSizes, outcome: &Outcome, question: Question<'_>) -> Vec<Finding> {
    let mut gaps: Vec<(u64, Finding)> = Vec::new();
    for size_use in outcome.uses.iter().filter(|size| size.padding_tokens > 0) {
        let SizeUse { list, size, padding_tokens, .. } = *size_use;
        let own = sizes.list(list);
        let index = own.partition_point(|other| *other < size);
        let below = index.checked_sub(1).map_or(0, |index| own[index]);
        let (add, saves) = best_addition(list, below, size, question);
        if saves == 0 {
            continue;
        }
        let gap = Finding::Gap {
            list,
            below,
            size,
            padding_tokens,
            share_of_padding: padding_tokens as f64 / outcome.padding_tokens.max(1) as f64,
            add,
            saves,
        };
        gaps.push((saves, gap));
    }
    gaps.sort_by_key(|(saves, _)| std::cmp::Reverse(*saves));
    gaps.into_iter().map(|(_, gap)| gap).collect()
}

/// The size between two neighbours that saves the most padding tokens.
fn best_addition(list: ListKind, below: u32, size: u32, question: Question<'_>) -> (u32, u64) {
    let Question { traffic, request, .. } = question;
    let mut inside: BTreeMap<u32, u64> = BTreeMap::new();
    for (query, by_count) in traffic.of_list(list, request.graph_mode) {
        for (count, steps) in by_count.range(below + 1..size) {
            let rows = inside.entry(*count).or_default();
            *rows = rows.saturating_add(steps.saturating_mul(u64::from(query)));
        }
    }
    let mut held = 0_u64;
    let mut best = (0, 0);
    for (count, rows) in inside {
        held = held.saturating_add(rows);
        let saves = held.saturating_mul(u64::from(size - count));
        if saves > best.1 {
            best = (count, saves);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::ModelledCosts;
    use crate::mode::GraphMode;
    use crate::request::Objective;
    use crate::traffic::{StepKind, Traffic};

    fn traffic() -> Traffic {
        let mut traffic = Traffic::default();
        for (tokens, steps) in [(100, 50), (520, 200), (900, 10), (3000, 5)] {
            traffic.add(StepKind::Mixed, tokens, steps).unwrap();
        }
        for (batch, steps) in [(3, 10), (17, 100), (60, 10)] {
            traffic.add(StepKind::Decode { query_length: 1 }, batch, steps).unwrap();
        }
        traffic
    }

    fn report(config: &str, request: &PlanRequest) -> CheckReport {
        let costs = ModelledCosts::default().costs();
        check(&read_configured_sizes(config).unwrap(), request.on(&traffic(), &costs)).unwrap()
    }

    #[test]
    fn finds_what_is_wrong() {
        let request = PlanRequest { objective: Objective::Padding, ..PlanRequest::default() };
        let report = report(
            "max_num_tokens = 4096\nmax_num_seqs = 64\n[capture]\n\
             capture_num_tokens = [1024, 128, 64, 2048, 128]\ndecode_batch_sizes = [8, 32, 64, 128]\n",
            &request,
        );
        assert_eq!(report.sizes.capture_num_tokens, [64, 128, 1024, 2048]);
        let expected = [
            Finding::Repeated { list: ListKind::Tokens, sizes: vec![128] },
            Finding::Unused { list: ListKind::Tokens, sizes: vec![64, 2048] },
            Finding::Uncovered {
                list: ListKind::Tokens,
                from: 2049,
                to: 4096,
                steps: 5,
                of_steps: 265,
            },
            Finding::Unreachable { list: ListKind::Decode, sizes: vec![128], largest_possible: 64 },
        ];
        assert_eq!(report.findings[..4], expected);
        let Finding::Gap { below: 128, size: 1024, add: 520, saves, .. } = report.findings[4]
        else {
            panic!("{:?}", report.findings[4]);
        };
        assert_eq!(saves, 200 * (1024 - 520));
        assert_eq!(report.better_sizes.capture_num_tokens.last(), Some(&4096));
    }

    #[test]
    fn the_graph_mode_rules_lists_out() {
        let request = PlanRequest { graph_mode: GraphMode::Piecewise, ..PlanRequest::default() };
        let report = report("capture_num_tokens = 4096\ndecode_batch_sizes = [64]", &request);
        assert!(report.findings.contains(&Finding::Unreachable {
            list: ListKind::Decode,
            sizes: vec![64],
            largest_possible: 0
        }));
        assert_eq!(report.sizes.capture_num_tokens[7..10], [128, 256, 288]);
        assert_eq!(report.sizes.capture_num_tokens.last(), Some(&4096));
    }

    #[test]
    fn too_few_graphs_are_raised_to_the_fewest_that_cover() {
        let request = PlanRequest { graph_mode: GraphMode::Full, ..PlanRequest::default() };
        let report = report("decode_batch_sizes = [60]", &request);
        assert_eq!(report.outcome.coverage.all().replayed_steps, 120);
        assert_eq!(report.better_sizes.capture_num_tokens, [3000]);
        assert_eq!(report.better_sizes.decode_batch_sizes, [60]);
    }

    #[test]
    fn bad_configurations_are_named() {
        for (config, reason) in [
            ("capture_num_tokens = [", "no TOML"),
            ("capture_num_tokens = [8, -3]", "`capture_num_tokens` in the configuration is -3"),
            ("decode_batch_sizes = \"all\"", "is \"all\""),
            ("capture_num_tokens = [0]", "is 0"),
            ("level = \"piecewise\"", "0 keys `capture_num_tokens`"),
            ("capture_num_tokens=[1]\n[a]\ncapture_num_tokens=[2]", "2 keys"),
        ] {
            let error = read_configured_sizes(config).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
