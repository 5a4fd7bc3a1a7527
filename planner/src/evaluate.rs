//! What given lists cost on given traffic, step by step.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::capture_sizes::{CaptureSizes, ListKind};
use crate::error::PlannerError;
use crate::request::{PlanRequest, Question};
use crate::traffic::StepKind;

/// How many steps and tokens replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, derive_more::Add, Serialize)]
pub struct Share {
    /// Steps of the kind, launched ones included.
    pub steps: u64,
    /// Of these, steps for which a size was captured.
    pub replayed_steps: u64,
    /// Tokens of the kind's steps, without padding.
    pub tokens: u64,
    /// Tokens of the steps that replay.
    pub replayed_tokens: u64,
}

impl Share {
    /// The share of steps that replay, 1 when there are none.
    pub fn of_steps(&self) -> f64 {
        if self.steps == 0 { 1.0 } else { self.replayed_steps as f64 / self.steps as f64 }
    }

    /// The share of tokens whose step replays, 1 when there are none.
    pub fn of_tokens(&self) -> f64 {
        if self.tokens == 0 { 1.0 } else { self.replayed_tokens as f64 / self.tokens as f64 }
    }

    fn add(&mut self, steps: u64, tokens: u64, replayed: bool) {
        self.steps += steps;
        self.tokens += tokens;
        if replayed {
            self.replayed_steps += steps;
            self.replayed_tokens += tokens;
        }
    }
}

/// Coverage: context and mixed steps apart from decodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Steps that are no uniform decode.
    pub mixed: Share,
    /// Steps in which each sequence brings the same number of tokens.
    pub decode: Share,
}

impl Coverage {
    /// Of all steps, whatever their kind.
    pub fn all(&self) -> Share {
        self.mixed + self.decode
    }
}

/// How often one captured size is replayed, and what it pads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SizeUse {
    /// Whether it counts tokens or sequences.
    pub list: ListKind,
    /// The captured count, padding included.
    pub size: u32,
    /// Steps of the log that replay it; 0 for a size that only takes memory.
    pub steps: u64,
    /// What those steps compute beyond their own tokens, together.
    pub padding_tokens: u64,
}

/// What lists cost on a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// What the log asks for: tokens of all steps, launched ones included.
    pub real_tokens: u64,
    /// Padding tokens of the steps that replay.
    pub padding_tokens: u64,
    /// Expected nanoseconds of all steps; `None` when a launched step has no known cost.
    pub expected_ns: Option<u128>,
    /// How many steps and tokens replay a graph, by kind of step.
    pub coverage: Coverage,
    /// Graphs to capture: one a size, of decode sizes one for each query length.
    pub graphs: usize,
    /// Bytes that the graphs keep, where known.
    pub memory_bytes: Option<u64>,
    /// Nanoseconds that their capture takes, where known.
    pub capture_ns: Option<u64>,
    /// What becomes of every size, those of tokens first, ascending.
    pub uses: Vec<SizeUse>,
}

impl Outcome {
    /// Padding as a share of the rows that replays and launches compute.
    pub fn padding_share(&self) -> f64 {
        self.padding_tokens as f64 / (self.padding_tokens as f64 + self.real_tokens as f64).max(1.0)
    }

    /// Expected microseconds of a step, where known.
    pub fn mean_step_us(&self) -> Option<f64> {
        let steps = self.coverage.all().steps.max(1);
        self.expected_ns.map(|ns| ns as f64 / 1e3 / steps as f64)
    }
}

/// Serves every step of the log from the lists, by the dispatch rule: a uniform decode takes the
/// smallest decode size that holds it, else the smallest token size; any other step takes the
/// smallest token size; what no size holds runs launched, and so does, with `request.launched`, a
/// step that is cheaper launched. Lists must be ascending.
///
/// # Errors
/// [`PlannerError::CostsMissing`] for a path that is replayed but was not measured.
pub fn evaluate(question: Question<'_>, sizes: &CaptureSizes) -> Result<Outcome, PlannerError> {
    let Question { traffic, request, .. } = question;
    let mut outcome = Outcome {
        real_tokens: 0,
        padding_tokens: 0,
        expected_ns: Some(0),
        coverage: Coverage::default(),
        graphs: sizes.graphs(request.query_lengths(traffic)),
        memory_bytes: None,
        capture_ns: None,
        uses: Vec::new(),
    };
    let size_use = |(list, size)| SizeUse { list, size, steps: 0, padding_tokens: 0 };
    let mut uses: BTreeMap<(ListKind, u32), SizeUse> =
        sizes.iter().map(|key| (key, size_use(key))).collect();
    for (kind, count, steps) in traffic.iter() {
        let tokens = kind.tokens(count);
        let service = serve(question, kind, count, sizes)?;
        let all_tokens = u64::from(tokens) * steps;
        outcome.real_tokens += all_tokens;
        let share = match kind {
            StepKind::Mixed => &mut outcome.coverage.mixed,
            StepKind::Decode { .. } => &mut outcome.coverage.decode,
        };
        share.add(steps, all_tokens, service.replay.is_some());
        if let Some(replay) = service.replay {
            let padding = u64::from(replay.padding) * steps;
            outcome.padding_tokens += padding;
            if let Some(used) = uses.get_mut(&(replay.list, replay.size)) {
                used.steps += steps;
                used.padding_tokens += padding;
            }
        }
        outcome.expected_ns = outcome
            .expected_ns
            .zip(service.ns)
            .map(|(sum, ns)| sum + u128::from(ns) * u128::from(steps));
    }
    outcome.uses = uses.into_values().collect();
    [outcome.memory_bytes, outcome.capture_ns] = resources(question, sizes);
    Ok(outcome)
}

/// What serves one step, and how long that takes.
struct Service {
    /// What it replays; `None` when it is launched.
    replay: Option<Replay>,
    /// Its nanoseconds; `None` when it is launched and that was not measured.
    ns: Option<u64>,
}

/// The captured size that holds a step.
struct Replay {
    list: ListKind,
    size: u32,
    /// Tokens that are computed and thrown away.
    padding: u32,
}

/// Serves one step from the lists, by the rule of [`evaluate`].
fn serve(
    question: Question<'_>,
    kind: StepKind,
    count: u32,
    sizes: &CaptureSizes,
) -> Result<Service, PlannerError> {
    let Question { costs, request, .. } = question;
    let tokens = kind.tokens(count);
    let launched_ns = costs.launched.as_ref().map(|path| path.step_ns.at(tokens));
    let launched = Service { replay: None, ns: launched_ns };
    let Some((list, size)) = dispatch(kind, count, sizes, request) else { return Ok(launched) };
    let padded = if list == ListKind::Decode { kind.tokens(size) } else { size };
    let ns = costs.path(request.list_path(list))?.step_ns.at(padded);
    let padding = padded - tokens;
    let cheaper_launched = launched_ns.is_some_and(|launched| (launched, 0) < (ns, padding));
    if request.launched && cheaper_launched {
        return Ok(launched);
    }
    Ok(Service { replay: Some(Replay { list, size, padding }), ns: Some(ns) })
}

fn dispatch(
    kind: StepKind,
    count: u32,
    sizes: &CaptureSizes,
    request: &PlanRequest,
) -> Option<(ListKind, u32)> {
    let mode = request.graph_mode;
    if matches!(kind, StepKind::Decode { .. })
        && mode.has_decode_graphs()
        && let Some(size) = CaptureSizes::cover(&sizes.decode_batch_sizes, count)
    {
        return Some((ListKind::Decode, size));
    }
    if !mode.has_token_graphs() {
        return None;
    }
    let size = CaptureSizes::cover(&sizes.capture_num_tokens, kind.tokens(count))?;
    Some((ListKind::Tokens, size))
}

/// Bytes and nanoseconds of all graphs, where they are known for each.
fn resources(question: Question<'_>, sizes: &CaptureSizes) -> [Option<u64>; 2] {
    let Question { traffic, costs, request } = question;
    let queries: Vec<u32> = match traffic.decode() {
        empty if empty.is_empty() => vec![1],
        decode => decode.keys().copied().collect(),
    };
    [0, 1].map(|resource| {
        let mut sum = 0_u64;
        for (list, size) in sizes.iter() {
            let path = costs.path(request.list_path(list)).ok()?;
            let curve = path.resources()[resource].as_ref()?;
            let queries = if list == ListKind::Decode { &queries[..] } else { &[1] };
            for query in queries {
                sum = sum.saturating_add(curve.at(size.saturating_mul(*query)));
            }
        }
        Some(sum)
    })
}
