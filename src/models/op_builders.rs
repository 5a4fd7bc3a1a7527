//! Builder methods of the ops that `kernels` defines, as extension traits.

use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::custom::Attrs;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Symbol;
use piecewise_kernels::attention::PagedAttention;
use piecewise_kernels::experts::{Experts, Routing};
use piecewise_kernels::sampling::{ControlledSample, Sample};
use piecewise_kernels::segments::{SegmentAttention, SegmentMean};
use piecewise_runtime::words::roles;

/// The keys and values of a layer: two states, a row a token.
#[derive(Clone, Copy, Debug)]
pub struct KvState<'b> {
    /// `[P, kv_heads, dim]`
    pub keys: Tensor<'b>,
    /// `[P, kv_heads, value_dim]`
    pub values: Tensor<'b>,
}

impl<'b> KvState<'b> {
    /// Writes `keys [T, kv_heads, dim]` and `values [T, kv_heads, value_dim]` at `slots i32 [T]`;
    /// a slot of -1 writes nowhere.
    #[track_caller]
    pub fn write(self, slots: Tensor<'b>, keys: Tensor<'b>, values: Tensor<'b>) {
        self.keys.scatter(slots, keys);
        self.values.scatter(slots, values);
    }
}

/// The metadata that paged attention reads.
#[derive(Clone, Copy, Debug)]
pub struct AttentionMeta<'b> {
    /// `i32 [S, B]`: the pages of each sequence in order.
    pub block_table: Tensor<'b>,
    /// `i32 [S]`: the keys of each sequence.
    pub kv_lengths: Tensor<'b>,
    /// `i32 [S]`: the first row of each sequence.
    pub query_starts: Tensor<'b>,
    /// `i32 [S]`: the rows of each sequence.
    pub query_lengths: Tensor<'b>,
}

/// How attention scores and masks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionSpec {
    /// Times each score; usually `1 / sqrt(dim)`.
    pub scale: f64,
    /// Whether a row sees only keys up to its own.
    pub causal: bool,
}

impl AttentionSpec {
    /// The same, where a row sees only rows at most so far from it; `None` bounds nothing.
    #[must_use]
    pub fn window(self, rows: impl Into<Option<u32>>) -> SegmentAttentionSpec {
        SegmentAttentionSpec { attention: self, window: rows.into() }
    }

    /// The same for paged attention, which can do more.
    pub fn paged<'b>(self) -> PagedAttentionSpec<'b> {
        PagedAttentionSpec { attention: self, window: None, softcap: None, sinks: None }
    }
}

/// How paged attention scores and masks: as an [`AttentionSpec`], and maybe with less keys, a cap, or sinks.
#[derive(Clone, Copy, Debug)]
pub struct PagedAttentionSpec<'b> {
    attention: AttentionSpec,
    window: Option<u32>,
    softcap: Option<f64>,
    sinks: Option<Tensor<'b>>,
}

impl<'b> PagedAttentionSpec<'b> {
    /// How many keys a causal row sees, the last of which is its own, as `sliding_window` of transformers;
    /// at least 1. `None` hides none.
    #[must_use]
    pub fn sliding_window(self, keys: impl Into<Option<u32>>) -> Self {
        Self { window: keys.into(), ..self }
    }

    /// Scaled scores become `cap * tanh(score / cap)`; above 0. `None` caps nothing.
    #[must_use]
    pub fn softcap(self, cap: impl Into<Option<f64>>) -> Self {
        Self { softcap: cap.into(), ..self }
    }

    /// `[heads]`: a score of each head that joins the softmax of its rows, and brings no value.
    #[must_use]
    pub fn sinks(self, sinks: Tensor<'b>) -> Self {
        Self { sinks: Some(sinks), ..self }
    }
}

impl From<AttentionSpec> for PagedAttentionSpec<'_> {
    fn from(attention: AttentionSpec) -> Self {
        attention.paged()
    }
}

/// How attention within segments scores and masks: as an [`AttentionSpec`], with a window or without.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SegmentAttentionSpec {
    attention: AttentionSpec,
    window: Option<u32>,
}

impl From<AttentionSpec> for SegmentAttentionSpec {
    fn from(attention: AttentionSpec) -> Self {
        attention.window(None)
    }
}

/// How rows of logits become tokens.
#[derive(Clone, Copy, Debug)]
pub struct SampleParameters<'b> {
    /// `f32 [R]`: 0 takes the largest logit.
    pub temperature: Tensor<'b>,
    /// `i32 [R]`: 0 is off.
    pub top_k: Tensor<'b>,
    /// `f32 [R]`: 1 is off.
    pub top_p: Tensor<'b>,
    /// `i64 [R]`: the seed of each sequence.
    pub seed: Tensor<'b>,
    /// `i32 [R]`: the position of the token that is sampled.
    pub position: Tensor<'b>,
}

/// What rows ask of sampling besides, and what that goes by.
#[derive(Clone, Copy, Debug)]
pub struct SampleControlInputs<'b> {
    /// `i32 [R, 4]`: 0 asks for nothing.
    pub controls: Tensor<'b>,
    /// `f32 [R, 4]`: `min_p`, and the penalties for presence, frequency and repetition.
    pub penalties: Tensor<'b>,
    /// A state `i32 [Q, mask_words(V)]`.
    pub masks: Tensor<'b>,
    /// A state `i32 [Q, token_words(V)]`.
    pub tokens: Tensor<'b>,
}

/// Runs of packed rows: `i32 [S]` each, rows one after the other from row 0. A length of 0 is a
/// segment of no rows.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'b> {
    /// The first row of each.
    pub starts: Tensor<'b>,
    /// How many rows each has.
    pub lengths: Tensor<'b>,
}

/// The weights of all experts of a layer, of one dtype.
#[derive(Clone, Copy, Debug)]
pub struct ExpertWeights<'b> {
    /// `[experts, 2 * inner, width]`: of each expert the rows of its gate, then those of what is gated.
    pub gate_up: Tensor<'b>,
    /// `[experts, width, inner]`
    pub down: Tensor<'b>,
}

/// States that a decoder keeps for each layer, as methods of the builder.
pub trait DecoderStates {
    /// The KV state of a layer, under the current scope: `rows` is the symbol of the pool.
    fn kv_state(&self, rows: Symbol, kv_heads: u64, head_dim: u64, dtype: DType) -> KvState<'_>;
}

impl DecoderStates for Builder {
    #[track_caller]
    fn kv_state(&self, rows: Symbol, kv_heads: u64, head_dim: u64, dtype: DType) -> KvState<'_> {
        let shape = (rows, kv_heads, head_dim);
        KvState {
            keys: self.state("keys", dtype, shape).role(roles::KV_CACHE),
            values: self.state("values", dtype, shape).role(roles::KV_CACHE),
        }
    }
}

/// Ops of `kernels` as methods of tensors.
pub trait KernelOps<'b>: Into<Tensor<'b>> {
    /// Paged attention of `self [T, heads, dim]`: `[T, heads * value_dim]`. The spec is an
    /// [`AttentionSpec`], or what [`paged`](AttentionSpec::paged) makes of one.
    #[track_caller]
    fn paged_attention(
        self,
        kv: KvState<'b>,
        meta: &AttentionMeta<'b>,
        spec: impl Into<PagedAttentionSpec<'b>>,
    ) -> Tensor<'b> {
        let query: Tensor<'b> = self.into();
        let AttentionMeta { block_table, kv_lengths, query_starts, query_lengths } = *meta;
        let PagedAttentionSpec { attention, window, softcap, sinks } = spec.into();
        let seven =
            [query, kv.keys, kv.values, block_table, kv_lengths, query_starts, query_lengths];
        let operands: Vec<_> = seven.into_iter().chain(sinks).collect();
        let attrs =
            PagedAttention::bounded_attrs(attention.scale, attention.causal, window, softcap);
        query.builder().custom_one(&PagedAttention, &operands, attrs)
    }

    /// A token id for each row of `self f32 [R, V]`: `i32 [R]`.
    #[track_caller]
    fn sample(self, parameters: &SampleParameters<'b>) -> Tensor<'b> {
        let logits: Tensor<'b> = self.into();
        let SampleParameters { temperature, top_k, top_p, seed, position } = *parameters;
        let operands = [logits, temperature, top_k, top_p, seed, position];
        logits.builder().custom_one(&Sample, &operands, Attrs::new())
    }

    /// The same with what rows ask for besides, and `i32 [R, DETAIL_WORDS]`, from which
    /// [`Details`](piecewise_kernels::sampling::Details) makes log-probabilities.
    #[track_caller]
    fn sample_controlled(
        self,
        parameters: &SampleParameters<'b>,
        inputs: &SampleControlInputs<'b>,
    ) -> [Tensor<'b>; 2] {
        let logits: Tensor<'b> = self.into();
        let SampleParameters { temperature, top_k, top_p, seed, position } = *parameters;
        let SampleControlInputs { controls, penalties, masks, tokens } = *inputs;
        let parameters = [temperature, top_k, top_p, seed, position];
        let operands = [&[logits], &parameters[..], &[controls, penalties, masks, tokens]].concat();
        match *logits.builder().custom(&ControlledSample, &operands, Attrs::new()) {
            [sampled, details] => [sampled, details],
            // What does not fit is said when the graph is finished.
            _ => [logits; 2],
        }
    }

    /// Attention of `self [T, heads, dim]` over `keys` and `values` `[K, kv_heads, dim]`: the rows
    /// of each segment of queries over those of the same segment of keys: `[T, heads * dim]`. The spec
    /// may have a [window](AttentionSpec::window).
    #[track_caller]
    fn segment_attention(
        self,
        keys: Tensor<'b>,
        values: Tensor<'b>,
        [of_queries, of_keys]: [Segments<'b>; 2],
        spec: impl Into<SegmentAttentionSpec>,
    ) -> Tensor<'b> {
        let query: Tensor<'b> = self.into();
        let Segments { starts, lengths } = of_queries;
        let operands = [query, keys, values, starts, lengths, of_keys.starts, of_keys.lengths];
        let SegmentAttentionSpec { attention, window } = spec.into();
        let attrs = SegmentAttention::attrs(attention.scale, attention.causal, window);
        query.builder().custom_one(&SegmentAttention, &operands, attrs)
    }

    /// Each row of `self [T, width]` through the experts that its `logits [T, experts]` choose: `[T, width]`.
    #[track_caller]
    fn experts(
        self,
        logits: Tensor<'b>,
        weights: ExpertWeights<'b>,
        routing: &Routing,
    ) -> Tensor<'b> {
        let rows: Tensor<'b> = self.into();
        let operands = [rows, logits, weights.gate_up, weights.down];
        rows.builder().custom_one(&Experts, &operands, Experts::attrs(routing))
    }

    /// The mean over the rows of each segment of `self [T, width]`: `[S, width]`.
    #[track_caller]
    fn segment_mean(self, segments: Segments<'b>) -> Tensor<'b> {
        let rows: Tensor<'b> = self.into();
        let operands = [rows, segments.starts, segments.lengths];
        rows.builder().custom_one(&SegmentMean, &operands, Attrs::new())
    }
}

impl<'b> KernelOps<'b> for Tensor<'b> {}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::text::print_graph;

    #[test]
    fn paged_attention_says_what_is_not_left_at_its_default() {
        let b = Builder::new("scores");
        let rows = b.symbol("T", 1, 8);
        let (pool, sequences) = (b.symbol("P", 16, 64), b.symbol("S", 1, 4));
        let x = b.input("x", DType::F32, (rows, 2, 4));
        let kv = b.kv_state(pool, 2, 4, DType::F32);
        let index = |name| b.input(name, DType::I32, [sequences]).padding(0);
        let meta = AttentionMeta {
            block_table: b.input("block_table", DType::I32, (sequences, 4)).padding(0),
            kv_lengths: index("kv_lengths"),
            query_starts: index("query_starts"),
            query_lengths: index("query_lengths"),
        };
        let spec = AttentionSpec { scale: 0.5, causal: true };
        let sinks = b.weight("sinks", [2]);
        let outputs = [
            x.paged_attention(kv, &meta, spec),
            x.paged_attention(kv, &meta, spec.paged().sliding_window(None).softcap(None)),
            x.paged_attention(kv, &meta, spec.paged().sliding_window(3).softcap(50.0)),
            x.paged_attention(kv, &meta, spec.paged().sinks(sinks)),
        ];
        let text = print_graph(&b.finish(outputs).unwrap());
        let calls = text.lines().filter_map(|line| line.split_once("attention\""));
        let calls = Vec::from_iter(calls.map(|(_, call)| call.split(" rows ").next().unwrap()));
        assert_eq!(calls[0], calls[1]);
        assert!(calls[0].contains("{causal=true, scale=0.5}"), "{}", calls[0]);
        let bounded = "{causal=true, scale=0.5, softcap=50.0, window=3}";
        assert!(calls[2].contains(bounded), "{}", calls[2]);
        assert!(calls[3].contains("%query_lengths, w0 {"), "{}", calls[3]);
    }

    #[test]
    fn attention_within_segments_takes_a_spec_with_a_window_or_without() {
        let b = Builder::new("windows");
        let (rows, segments) = (b.symbol("T", 1, 8), b.symbol_with_role("S", 1, 4, "rows.items"));
        let x = b.input("x", DType::F32, (rows, 2, 4));
        let index = |name| b.input(name, DType::I32, [segments]).padding(0);
        let items = Segments { starts: index("starts"), lengths: index("lengths") };
        let spec = AttentionSpec { scale: 0.5, causal: false };
        let outputs = [
            x.segment_attention(x, x, [items; 2], spec),
            x.segment_attention(x, x, [items; 2], spec.window(3)),
            x.segment_attention(x, x, [items; 2], spec.window(None)),
        ];
        let text = print_graph(&b.finish(outputs).unwrap());
        let windows = text.lines().filter(|line| line.contains("segment_attention"));
        let windows = windows.map(|line| line.contains("window=3"));
        assert_eq!(windows.collect::<Vec<_>>(), [false, true, false]);
    }
}
