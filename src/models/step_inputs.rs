//! What a decoder needs of each step, declared in one call.

use super::op_builders::{AttentionMeta, KernelOps, SampleControlInputs, SampleParameters};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::custom::Attrs;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Symbol;
use piecewise_ir::types::Shape;
use piecewise_kernels::attention::{PAGE_ROWS, PagedAttention};
use piecewise_kernels::causal_window::CausalWindow;
use piecewise_kernels::inputs::{Extent, StepInput, engine_inputs};
use piecewise_kernels::sampling::{ControlledSample, Sample, mask_words, token_words};
use piecewise_runtime::words::roles;

/// How large the steps and sequences of a decoder may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepBounds {
    /// The most tokens of a step.
    pub max_tokens: u64,
    /// The most rows of one head call.
    pub max_rows: u64,
    /// The most sequences of a step.
    pub max_sequences: u64,
    /// The longest sequence, prompt and reply together.
    pub max_length: u64,
    /// Rows of the KV pool, a multiple of [`PAGE_ROWS`]; 0 where nothing is paged.
    pub kv_rows: u64,
    /// Slots of the states that each sequence has one row of: as many as sequences run, and one
    /// for each conversation that is kept besides. 0 where there are no such states.
    pub state_slots: u64,
}

/// The inputs, symbols and states that the engine binds for a decoder: token ids with their
/// feedback, positions, the metadata of paged attention, the rows that want logits, and sampling.
/// What the graph returns as sampled ids is what [`Self::sample`] or [`Self::sample_controlled`] gives.
///
/// ```
/// use piecewise::models::{StepBounds, StepInputs};
/// use piecewise::prelude::*;
///
/// let b = Builder::new("bigram");
/// let bounds = StepBounds {
///     max_tokens: 32,
///     max_rows: 4,
///     max_sequences: 4,
///     max_length: 128,
///     kv_rows: 512,
///     state_slots: 0,
/// };
/// let step = StepInputs::declare(&b, &bounds);
/// let table = b.weight("table", [64, 64]);
/// let logits = table.gather(step.ids).gather(step.logit_rows).cast(DType::F32);
/// let sampled = step.sample(logits);
/// let graph = b.finish([logits, sampled])?;
/// assert_eq!(graph.outputs().len(), 2);
/// # Ok::<(), BuildErrors>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'b> {
    /// Counts the rows that are computed: every token of every sequence.
    pub tokens: Symbol,
    /// The rows of a step that want logits.
    pub rows: Symbol,
    /// Counts those that bring a token or more.
    pub sequences: Symbol,
    /// The rows of the KV pool.
    pub kv_rows: Symbol,
    /// `i32 [T]`: the ids, those that the step before sampled among them.
    pub ids: Tensor<'b>,
    /// `i32 [T]`: the position of each token in its sequence.
    pub positions: Tensor<'b>,
    /// `i32 [T]`: the row of the KV pool that each token writes.
    pub kv_slots: Tensor<'b>,
    /// Pages, lengths and rows of each sequence, as paged attention reads them.
    pub attention: AttentionMeta<'b>,
    /// `i32 [R]`: the token rows that want logits.
    pub logit_rows: Tensor<'b>,
    pages: u64,
    slot_rows: Option<Symbol>,
    entries: Symbol,
    sample_slots: Tensor<'b>,
    parameters: SampleParameters<'b>,
    sampled: Tensor<'b>,
}

impl<'b> StepInputs<'b> {
    /// Declares all of it. A mistake shows when `b` is finished.
    pub fn declare(b: &'b Builder, bounds: &StepBounds) -> Self {
        let tokens = b.symbol_with_role("T", 1, bounds.max_tokens, roles::TOKENS);
        let rows = b.symbol_with_role("R", 1, bounds.max_rows, roles::ROWS);
        let sequences = b.symbol_with_role("S", 1, bounds.max_sequences, roles::SEQUENCES);
        let kv_rows = b.symbol_with_role("P", 0, bounds.kv_rows.max(1), roles::KV_ROWS);
        let entries = b.symbol_with_role("Q", 1, bounds.max_sequences, roles::SAMPLED_ROWS);
        let slot_rows = (bounds.state_slots > 0)
            .then(|| b.symbol_with_role("L", 1, bounds.state_slots, roles::SLOT_ROWS));
        let pages = bounds.max_length.div_ceil(PAGE_ROWS);
        let input = |name: &str, input: &StepInput| declare(b, name, input, pages);
        let [ids, feedback, positions, _, logit_rows, sample_slots, ..] = engine_inputs();
        let [kv_slots, block_table, kv_lengths, query_starts, query_lengths] =
            PagedAttention::inputs();
        let [temperature, top_k, top_p, seed, position] = Sample::inputs();
        let staged = input("ids", &ids);
        let feedback = input("feedback", &feedback);
        let positions = input("positions", &positions);
        let kv_slots = input("slots", &kv_slots);
        let attention = AttentionMeta {
            block_table: input("block_table", &block_table),
            kv_lengths: input("kv_lengths", &kv_lengths),
            query_starts: input("query_starts", &query_starts),
            query_lengths: input("query_lengths", &query_lengths),
        };
        let logit_rows = input("logit_rows", &logit_rows);
        let sample_slots = input("sample_slots", &sample_slots);
        let parameters = SampleParameters {
            temperature: input("temperature", &temperature),
            top_k: input("top_k", &top_k),
            top_p: input("top_p", &top_p),
            seed: input("seed", &seed),
            position: input("sample_position", &position),
        };
        let sampled = b.state("sampled", DType::I32, [entries]).role(roles::SAMPLED);
        // Ids that the previous step sampled never leave the device: -1 takes the staged id.
        // Where a step that runs ahead finds `NO_ID` there, nobody takes what becomes of it; it is an
        // index all the same.
        let fed_back = sampled.gather(feedback).maximum(0);
        let is_staged = feedback.less(0);
        let ids = is_staged.select(staged, fed_back);
        Self {
            tokens,
            rows,
            sequences,
            kv_rows,
            ids,
            positions,
            kv_slots,
            attention,
            logit_rows,
            pages,
            slot_rows,
            entries,
            sample_slots,
            parameters,
            sampled,
        }
    }

    /// An input that an op of one's own declares: its symbols are, by their roles, those of the step
    /// and others declared before, and a constant that it leaves open is the number of pages that
    /// a sequence has at most. A role that no symbol has is a mistake, which shows when `b` is
    /// finished.
    #[track_caller]
    pub fn input(&self, b: &'b Builder, name: &str, input: &StepInput) -> Tensor<'b> {
        declare(b, name, input, self.pages)
    }

    /// What a decoder returns: `logits f32 [R, V]`, the ids `i32 [R]` that are sampled from them, and
    /// with controls what log-probabilities are made from. See [`Self::sample`] and
    /// [`Self::sample_controlled`].
    #[track_caller]
    pub fn outputs(
        &self,
        b: &'b Builder,
        logits: Tensor<'b>,
        sampling_controls: bool,
    ) -> Vec<Tensor<'b>> {
        match sampling_controls {
            true => std::iter::once(logits).chain(self.sample_controlled(b, logits)).collect(),
            false => vec![logits, self.sample(logits)],
        }
    }

    /// A token id for each row of `logits f32 [R, V]`: `i32 [R]`, which is to be an output of the graph.
    ///
    /// Sampling goes through this, greedy or not: besides choosing, it keeps the ids where the next
    /// step takes them before the host has read them. A graph that returns other ids, such as
    /// `logits.argmax(1)`, or none is an error of [`Assembly::engine`](crate::assembly::Assembly::engine).
    #[track_caller]
    pub fn sample(&self, logits: Tensor<'b>) -> Tensor<'b> {
        let sampled = logits.sample(&self.parameters);
        self.sampled.scatter(self.sample_slots, sampled);
        sampled
    }

    /// The same with all that requests may ask of sampling, and what
    /// [`Details`](piecewise_kernels::sampling::Details) makes log-probabilities from: both are to be
    /// outputs of the graph.
    #[track_caller]
    pub fn sample_controlled(&self, b: &'b Builder, logits: Tensor<'b>) -> [Tensor<'b>; 2] {
        let [controls, penalties] = ControlledSample::inputs();
        let vocabulary = logits.shape().last().and_then(Dim::as_constant).unwrap_or(1);
        let state = |name, words: u64, role| {
            let shape = [Dim::from(self.entries), Dim::constant(words)];
            b.state(name, DType::I32, shape).role(role)
        };
        let inputs = SampleControlInputs {
            controls: self.input(b, "sample_controls", &controls),
            penalties: self.input(b, "sample_penalties", &penalties),
            masks: state("sample_masks", mask_words(vocabulary), roles::SAMPLE_MASKS),
            tokens: state("sample_tokens", token_words(vocabulary), roles::SAMPLE_TOKENS),
        };
        let [sampled, details] = logits.sample_controlled(&self.parameters, &inputs);
        self.sampled.scatter(self.sample_slots, sampled);
        [sampled, details]
    }

    /// A state `[slots, shape...]` under the current scope of which each sequence has one row,
    /// all zeros before its first token. Without `state_slots` it has no rows.
    #[track_caller]
    pub fn slot_state(
        &self,
        b: &'b Builder,
        name: &str,
        dtype: DType,
        shape: impl IntoIterator<Item = u64>,
    ) -> Tensor<'b> {
        let slots = self.slot_rows.map_or(Dim::constant(0), Dim::from);
        let rest = shape.into_iter().map(Dim::constant);
        let shape: Shape = std::iter::once(slots).chain(rest).collect();
        b.state(name, dtype, shape).role(roles::SEQUENCE_STATE)
    }

    /// Each row of `x [T, width]` beside those before it in its sequence, `rows` of them together, 2 or more:
    /// `[T, width, rows]`, the latest last, and zeros before the first token. What the next step needs of
    /// them is in a state under the current scope, of which each sequence has one row.
    #[track_caller]
    pub fn causal_window(
        &self,
        b: &'b Builder,
        name: &str,
        x: Tensor<'b>,
        rows: u64,
    ) -> Tensor<'b> {
        let width = x.shape().last().and_then(Dim::as_constant).unwrap_or(1);
        let state = self.slot_state(b, name, x.dtype(), [width, rows.saturating_sub(1)]);
        let [_, _, _, slots, ..] = engine_inputs();
        let slots = b
            .input_of_role(slots.role())
            .unwrap_or_else(|| self.input(b, "sequence_slots", &slots));
        let AttentionMeta { query_starts, query_lengths, .. } = self.attention;
        let operands = [x, state, slots, query_starts, query_lengths];
        b.custom_one(&CausalWindow, &operands, Attrs::new())
    }

    /// A causal convolution of each column of `x [T, width]` over its sequence: `[T, width]`, of each row the sum
    /// over [`Self::causal_window`] times `taps [width, rows]`, in f32 and rounded once. The last tap is the
    /// row's own, as in the weight `[width, 1, rows]` of torch's `Conv1d` of `width` groups.
    #[track_caller]
    pub fn causal_convolution(
        &self,
        b: &'b Builder,
        name: &str,
        x: Tensor<'b>,
        taps: Tensor<'b>,
    ) -> Tensor<'b> {
        let rows = taps.shape().last().and_then(Dim::as_constant).unwrap_or(1);
        let window = self.causal_window(b, name, x, rows);
        let products = window.cast(DType::F32) * taps.cast(DType::F32);
        products.reduce_sum([2]).reshape(x.shape()).cast(x.dtype())
    }
}

#[track_caller]
fn declare<'b>(b: &'b Builder, name: &str, input: &StepInput, pages: u64) -> Tensor<'b> {
    let mut shape = Shape::new();
    for extent in input.shape() {
        shape.push(match extent {
            Extent::Symbolic { of, times, plus } => {
                let Some(symbol) = b.symbol_of_role(of) else {
                    return b.fail(format!(
                        "input \"{name}\" of role \"{}\" has an axis over the symbol of role \"{of}\", \
                         and there is none; declare it first, by `symbol_with_role`",
                        input.role()
                    ));
                };
                Dim::affine(*plus, [(symbol, *times)])
            }
            Extent::Constant(n) => Dim::constant(*n),
            Extent::AnyConstant => Dim::constant(pages),
        });
    }
    let padding = input.padding().to_f64();
    b.input(name, input.dtype(), shape).padding(padding).role(input.role())
}

#[cfg(test)]
mod tests;
