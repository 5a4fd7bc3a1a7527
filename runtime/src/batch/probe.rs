//! Batches that show what an op can be captured for: each fills the same sizes in another way.

use super::buffers::{BatchBuffers, Chunk, ChunkRows, ChunkTokens};
use super::role_map::RoleMap;
use crate::dispatch::Dispatcher;
use crate::memory::{PagePool, PageTable, StateSlot};
use crate::words::{FillError, StepData, StepSizes, SymbolClass, SymbolTable};
use piecewise_ir::dim::SymbolDecl;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::graph::Graph;
use piecewise_ir::literal::Scalar;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::sampling::{SampleControls, Sampling};
use piecewise_kernels::step::CaptureSupport;

/// The sequences of a batch that are planned at least, so that some can be left out.
const SEQUENCES: u64 = 3;
/// The tokens of a mixed step that are planned at least.
const TOKENS: u64 = 8;
/// Elements after which made-up values repeat: no width of a row divides it.
const PATTERN: usize = 4099;

/// Steps of one kind that run at the same sizes.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The least support with which steps of this kind may be captured.
    pub support: CaptureSupport,
    /// What the graph to probe is captured at.
    pub sizes: StepSizes,
    /// What is replayed; nothing where no such step fits the bounds of the graph.
    pub steps: Vec<ProbeStep>,
    /// Whether an op is believed of which these steps show nothing: their inputs are made up of types
    /// alone, and it may refuse them.
    pub believes: bool,
}

/// A step with all that it brings.
#[derive(Clone, Debug)]
pub struct ProbeStep {
    counts: Vec<u64>,
    inputs: Vec<Vec<u8>>,
    short_rows: Vec<(usize, u64)>,
    query_length: Option<u64>,
}

impl ProbeStep {
    /// Calls `run` with what is submitted.
    pub fn with<R>(&self, run: impl FnOnce(&StepData<'_>) -> R) -> R {
        let inputs: Vec<&[u8]> = self.inputs.iter().map(Vec::as_slice).collect();
        run(&StepData {
            counts: &self.counts,
            inputs: &inputs,
            short_rows: &self.short_rows,
            query_length: self.query_length,
            ..StepData::default()
        })
    }
}

/// What each sequence brings: the position of its first token, and how many.
pub(super) type Plan = Vec<(u64, u64)>;

/// Probes of uniform batches of each query length that has sizes of its own, the shortest first, and of
/// mixed steps.
pub fn probes(roles: &RoleMap, dispatcher: &Dispatcher) -> Vec<Probe> {
    let mut found = Vec::new();
    for &length in &dispatcher.query_lengths {
        let batches = || dispatcher.decode_batches().filter(|(_, q)| *q == length).map(|(b, _)| b);
        let Some(batch) = batches().find(|b| *b >= SEQUENCES).or_else(|| batches().last()) else {
            continue;
        };
        let all = |start: u64, step: u64| (0..batch).map(|i| (start + i * step, length)).collect();
        let fewer = (0..batch.div_ceil(2)).map(|i| (40 + 3 * i, length)).collect();
        let support = match length {
            1 => CaptureSupport::SingleTokenDecode,
            _ => CaptureSupport::UniformBatch,
        };
        let sizes = dispatcher.full_decode(batch, length);
        let all_fit = sizes.rows.rows() >= batch * length;
        let rows = if all_fit { ChunkRows::All } else { ChunkRows::Last };
        found.push(probe(roles, support, sizes, [all(2, 3), all(23, 7), fewer], rows));
    }
    let tokens = dispatcher.tokens.padded(TOKENS).unwrap_or(dispatcher.tokens.max());
    let sizes = dispatcher.full_mixed(tokens.min(dispatcher.max_tokens));
    let tokens = sizes.tokens.rows().min(2 * TOKENS);
    let several = sizes.sequences >= 3 && sizes.rows.rows() >= 3 && tokens >= 6;
    let plans = match several {
        true => [
            vec![(0, tokens)],
            vec![(17, tokens - 4), (33, 1), (2, 2)],
            vec![(40, 1), (5, tokens - 3)],
        ],
        false => [vec![(0, tokens)], vec![(17, tokens)], vec![(3, tokens.div_ceil(2))]],
    };
    found.push(probe(roles, CaptureSupport::Always, sizes, plans, ChunkRows::Last));
    found
}

/// `rows` are those that the second step wants.
fn probe(
    roles: &RoleMap,
    support: CaptureSupport,
    sizes: StepSizes,
    plans: [Plan; 3],
    rows: ChunkRows,
) -> Probe {
    let rows = [ChunkRows::Last, rows, ChunkRows::Last];
    let steps = and_lesser(plans).find_map(|plans| {
        let steps = plans.iter().zip(rows).map(|(plan, rows)| step(roles, plan, rows));
        steps.collect::<Option<Vec<_>>>()
    });
    Probe { support, sizes, steps: steps.unwrap_or_default(), believes: false }
}

/// A probe for a graph of which no role says what its inputs mean: floats of any value, and in all other
/// inputs what they hold in padded rows, which ops must be able to use, at several counts.
pub fn row_probe(graph: &Graph, symbols: &SymbolTable, dispatcher: &Dispatcher) -> Probe {
    let least = graph.symbols().values().map(|decl| decl.min).max().unwrap_or(0);
    let tokens = dispatcher.tokens.padded(TOKENS.max(least)).unwrap_or(dispatcher.tokens.max());
    let sizes = dispatcher.full_mixed(tokens.min(dispatcher.max_tokens));
    let support = CaptureSupport::Always;
    let steps = [1, 2, u64::MAX].into_iter();
    let steps = steps.filter_map(|parts| row_step(graph, symbols, sizes, parts)).collect();
    Probe { support, sizes, steps, believes: true }
}

/// A step of one of so many parts of each count; nothing where the graph may not have so few.
fn row_step(
    graph: &Graph,
    symbols: &SymbolTable,
    sizes: StepSizes,
    parts: u64,
) -> Option<ProbeStep> {
    let mut counts = vec![0; symbols.bounds().len()];
    symbols.fill(&mut counts, |class| sizes.rows_of(class).div_ceil(parts).max(1));
    let fits = |(symbol, decl): (Symbol, &SymbolDecl)| {
        let is_fixed = symbols.class(symbol) == SymbolClass::Fixed;
        is_fixed || (decl.min..=decl.max).contains(&counts[symbol.index()])
    };
    if !graph.symbols().iter().all(fits) {
        return None;
    }
    let inputs = graph.inputs().iter().map(|input| {
        let ty = graph.ty(input.value);
        let values = match input.padding {
            Some(padding) if !ty.dtype.is_float() => padding.to_bytes(),
            None if !ty.dtype.is_float() => vec![0],
            _ => made_up(ty.dtype),
        };
        values.into_iter().cycle().take(ty.bytes(&counts) as usize).collect()
    });
    let inputs = inputs.collect();
    Some(ProbeStep { counts, inputs, short_rows: Vec::new(), query_length: None })
}

/// Values from -4 to 4 in every float type; 0 and 1 in any other, which are safe to follow as indices.
pub(crate) fn made_up(dtype: DType) -> Vec<u8> {
    let value = |i: usize| {
        let mixed = i.wrapping_mul(2_654_435_761) >> 8;
        if dtype.is_float() { (mixed % 2001) as f64 / 250.0 - 4.0 } else { (mixed % 2) as f64 }
    };
    (0..PATTERN).flat_map(|i| Scalar::new(dtype, value(i)).to_bytes()).collect()
}

/// Plans, and those to try where a graph has less room: of sequences that are nearer to their start, and
/// of fewer.
fn and_lesser(plans: [Plan; 3]) -> impl Iterator<Item = [Plan; 3]> {
    let most = plans.iter().map(Vec::len).max().unwrap_or(0);
    let nearer = [1, 4, 16, u64::MAX].map(|by| {
        plans
            .each_ref()
            .map(|plan| plan.iter().map(|(start, tokens)| (start / by, *tokens)).collect())
    });
    let [.., nearest] = nearer.clone();
    let fewer = std::iter::successors(Some(most / 2), |n| Some(n / 2)).take_while(|n| *n > 0);
    let fewer = fewer
        .map(move |n| nearest.each_ref().map(|plan: &Plan| plan.iter().take(n).copied().collect()));
    nearer.into_iter().chain(fewer)
}

/// A step of made-up tokens; nothing where it does not fit.
pub(super) fn step(roles: &RoleMap, plan: &Plan, rows: ChunkRows) -> Option<ProbeStep> {
    let ids = (0..)
        .zip(plan)
        .map(|(number, &(_, tokens))| Vec::from_iter((0..tokens as u32).map(|i| (i + number) % 2)));
    let ids = Vec::from_iter(ids);
    let chunks = plan.iter().zip(&ids).map(|(&(start, _), ids)| (start, ids.as_slice()));
    // An input that can't be filled is named when the first real step comes.
    step_of_ids(roles, &Vec::from_iter(chunks), rows).ok().flatten()
}

/// A step of sequences that nobody else shares pages with, each with the position of its first token
/// and the ids that it brings: what an engine would stage for them. A later step of one
/// sequence alone finds what its earlier steps have kept. `None` where the graph has no room for them.
///
/// # Errors
/// When an input can't be filled.
pub fn step_of_ids(
    roles: &RoleMap,
    chunks: &[(u64, &[u32])],
    rows: ChunkRows,
) -> Result<Option<ProbeStep>, FillError> {
    // A pool of all its rows would take long to make, and its first pages come first in a small one, too.
    let ends = chunks.iter().map(|(start, ids)| start + ids.len() as u64);
    let all = ends.map(|end| end.next_multiple_of(PAGE_ROWS));
    let mut pool = PagePool::new(roles.kv_rows.min(all.sum()));
    let mut batch = BatchBuffers::new(roles.clone());
    for (number, &(start, ids)) in (0..).zip(chunks) {
        let mut table = PageTable::default();
        let length = start + ids.len() as u64;
        if roles.table_pages.is_some() && table.grow(&mut pool, length).is_err() {
            return Ok(None);
        }
        let wide = roles.table_pages.is_none_or(|columns| table.pages().len() <= columns);
        let slot = StateSlot::probed(number);
        let has_slot = u64::from(number) < roles.state_slots;
        if !wide || (roles.state_slots > 0 && !has_slot) {
            return Ok(None);
        }
        batch.push(&Chunk {
            tokens: ChunkTokens::Ids(ids),
            start,
            table: &table,
            slot: has_slot.then_some(&slot),
            rows,
            entry: (u64::from(number) < roles.sampled_entries).then_some(number),
            values: &[],
            sampling: Sampling::default(),
            controls: SampleControls::default(),
        });
    }
    let view = batch.view()?;
    let data = view.data();
    Ok(Some(ProbeStep {
        counts: data.counts.to_vec(),
        inputs: data.inputs.iter().map(|bytes| bytes.to_vec()).collect(),
        short_rows: data.short_rows.to_vec(),
        query_length: data.query_length,
    }))
}
