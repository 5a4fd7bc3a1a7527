//! The graph of a decoder: what every family has around its layers.

use super::config::{DecoderConfig, LayerAttention, LayerRope, RopeConfig};
use super::layers::{Mix, norm, plain_weight};
use super::op_builders::{AttentionSpec, DecoderStates, KernelOps, KvState, PagedAttentionSpec};
use super::step_inputs::{StepBounds, StepInputs};
use piecewise_ir::builder::{BuildErrors, Builder, Tensor};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_kernels::inputs::engine_inputs;
use piecewise_runtime::words::roles;

/// What a decoder graph is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecoderBounds {
    /// The dtype of activations and of the KV cache.
    pub activations: DType,
    /// The most tokens of a step.
    pub max_tokens: u64,
    /// The most rows of one head call.
    pub max_rows: u64,
    /// The most sequences of a step.
    pub max_sequences: u64,
    /// The longest sequence, prompt and reply together.
    pub max_length: u64,
    /// Rows of the KV pool, a multiple of
    /// [`PAGE_ROWS`](piecewise_kernels::attention::PAGE_ROWS).
    pub kv_rows: u64,
    /// Slots of states that each sequence has one row of.
    pub state_slots: u64,
    /// Rows that may stand for tokens at once, of a model that reads images.
    pub embedding_rows: u64,
    /// Whether requests may ask for penalties, biases, masks, `min_p` and log-probabilities.
    pub sampling_controls: bool,
}

impl DecoderBounds {
    /// Those that [`StepInputs::declare`] takes.
    pub fn step(&self) -> StepBounds {
        let Self { max_tokens, max_rows, max_sequences, max_length, kv_rows, state_slots, .. } =
            *self;
        StepBounds { max_tokens, max_rows, max_sequences, max_length, kv_rows, state_slots }
    }
}

/// The graph of a decoder: from the inputs of a step to what [`StepInputs::outputs`] gives.
/// `dtype_of` knows what the checkpoint stores a tensor as; unknown tensors are of the
/// configuration's dtype.
///
/// # Errors
/// Mistakes of this function, for configurations that it does not fit.
pub fn decoder(
    config: &DecoderConfig,
    bounds: &DecoderBounds,
    dtype_of: impl Fn(&str) -> Option<DType> + 'static,
) -> Result<Graph, BuildErrors> {
    let family = config.family.description();
    let (prefix, head) = names(&dtype_of);
    let packed = |module: String| {
        let names = ["weight_packed", "qweight"].map(|leaf| format!("{module}.{leaf}"));
        names.into_iter().find(|name| dtype_of(name).is_some())
    };
    let packed_embedding = packed(format!("{prefix}.embed_tokens"));
    let packed_head = packed(head.to_owned());
    let b = Builder::new("decoder")
        .weight_dtype(config.dtype.unwrap_or(DType::BF16))
        .weight_dtypes(dtype_of);
    let step = StepInputs::declare(&b, &bounds.step());
    let ropes = Ropes::new(&b, config, bounds.max_length);
    let vocab = config.vocab_size as u64;
    let hidden = config.hidden_size as u64;
    let embedding = match packed_embedding {
        None => plain_weight(&b, &format!("{prefix}.embed_tokens.weight"), [vocab, hidden]),
        Some(name) => b.fail(format!(
            "checkpoint tensor \"{name}\" is an embedding in few bits, which is not read: take a checkpoint \
             whose `quantization_config` in config.json leaves embeddings out (`ignore`, \
             `modules_to_not_convert`)"
        )),
    };
    let rows = embedding.gather(step.ids).cast(bounds.activations);
    let mut x = (family.embed)(config, rows);
    let mut angles = None;
    if let (Some(sections), Some((table, _))) = (config.rope_sections, ropes.main) {
        let [.., embeddings, coordinates] = engine_inputs();
        let rows = step.input(&b, "embeddings", &embeddings);
        x = given_rows(&b, x, rows, bounds);
        let coordinates = step.input(&b, "coordinates", &coordinates);
        angles = Some(angles_by_section(&b, table, coordinates, sections));
    }
    let (dim, kv_heads) = (config.head_dim as u64, config.num_kv_heads as u64);
    for layer in 0..config.num_layers {
        let _scope = b.scope(format!("{prefix}.layers.{layer}"));
        let of_layer = config.attention_of(layer);
        let mix: &Mix<'_, '_> = &|[q, k, v]| {
            let kv: KvState<'_> = b.kv_state(step.kv_rows, kv_heads, dim, bounds.activations);
            let [q, k] = [q, k].map(|x| match angles {
                Some([cos, sin]) => x.rotate(cos, sin),
                None => ropes.turn(x, step.positions, of_layer),
            });
            kv.write(step.kv_slots, k, v);
            q.paged_attention(kv, &step.attention, scores(config, of_layer, bounds.max_length))
        };
        x = match config.experts_of(layer) {
            None => (family.layer)(&b, config, x, mix),
            Some(experts) => (family.sparse_layer)(&b, config, experts, x, mix),
        };
    }
    let x = x.gather(step.logit_rows);
    let x = norm(&b, config, family.norm, &format!("{prefix}.norm"), x);
    let logits = {
        let _scope = b.scope(head);
        let of = |head| x.matmul_transposed(head, DType::F32);
        match (config.tie_word_embeddings, config.stored(head)) {
            (true, _) => of(embedding),
            (false, None) => match packed_head {
                None => of(plain_weight(&b, "weight", [vocab, hidden])),
                Some(name) => b.fail(format!(
                    "checkpoint tensor \"{name}\" is a head in few bits, but `quantization_config` of \
                     config.json does not say how it is kept (`targets`, `ignore`): take a checkpoint \
                     whose head is in floats"
                )),
            },
            (false, Some(stored)) => stored.linear(&b, x, [vocab, hidden], DType::F32),
        }
    };
    let logits = (family.logits)(config, logits);
    b.finish(step.outputs(&b, logits, bounds.sampling_controls))
}

/// What the names of a decoder's tensors begin with, and that of its head: `dtype_of` knows a tensor
/// that is there.
fn names(dtype_of: impl Fn(&str) -> Option<DType>) -> (&'static str, &'static str) {
    const WRAPPED: [(&str, &str); 2] =
        [("model.language_model", "lm_head"), ("language_model.model", "language_model.lm_head")];
    let is_there = |prefix: &str| dtype_of(&format!("{prefix}.embed_tokens.weight")).is_some();
    let found = WRAPPED.into_iter().find(|(prefix, _)| is_there(prefix));
    found.unwrap_or(("model", "lm_head"))
}

/// How the scores of a layer are made; a window that no sequence outgrows is none.
fn scores<'b>(
    config: &DecoderConfig,
    of_layer: LayerAttention,
    max_length: u64,
) -> PagedAttentionSpec<'b> {
    let window = of_layer.window.filter(|window| u64::from(*window) < max_length);
    let spec = AttentionSpec { scale: config.score_scale(), causal: true };
    spec.paged().sliding_window(window).softcap(config.score_softcap)
}

/// The tables of cosines and sines of the ropes that layers have, each with how many dimensions of a head
/// it turns.
struct Ropes<'b> {
    b: &'b Builder,
    main: Option<(Tensor<'b>, u64)>,
    sliding: Option<(Tensor<'b>, u64)>,
}

impl<'b> Ropes<'b> {
    fn new(b: &'b Builder, config: &DecoderConfig, max_length: u64) -> Self {
        let turns = |rope: LayerRope| {
            (0..config.num_layers).any(|layer| config.attention_of(layer).rope == rope)
        };
        let made = |rope: &RopeConfig| {
            let table = rope.table(config.head_dim, max_length);
            let rotated = 2 * table.frequencies.len() as u64;
            (b.scaled_rope_table(&table.frequencies, max_length, table.factor), rotated)
        };
        let sliding = config.sliding_rope.as_ref().filter(|_| turns(LayerRope::Sliding));
        Self {
            b,
            main: turns(LayerRope::Main).then(|| made(&config.rope)),
            sliding: sliding.map(made),
        }
    }

    /// `x [T, heads, dim]` turned as a layer does it.
    fn turn(&self, x: Tensor<'b>, positions: Tensor<'b>, of_layer: LayerAttention) -> Tensor<'b> {
        let rope = match of_layer.rope {
            LayerRope::Main => self.main,
            LayerRope::Sliding => self.sliding.or(self.main),
            LayerRope::None => None,
        };
        let Some((table, rotated)) = rope else { return x };
        let dim = x.shape().last().and_then(Dim::as_constant).unwrap_or(rotated);
        if rotated == dim {
            return x.rope(positions, table);
        }
        let turned = x.slice(2, 0..rotated).rope(positions, table);
        self.b.concat(&[turned, x.slice(2, rotated..dim)], 2)
    }
}

/// `x [T, hidden]` with rows of the state of embeddings where `rows i32 [T]` names one.
fn given_rows<'b>(
    b: &'b Builder,
    x: Tensor<'b>,
    rows: Tensor<'b>,
    bounds: &DecoderBounds,
) -> Tensor<'b> {
    let most = bounds.embedding_rows.max(1);
    let symbol = b.symbol_with_role("E", 1, most, roles::EMBEDDING_ROWS);
    let shape = x.shape();
    let [tokens, hidden] = &*shape else { return x };
    let state = b.state("embeddings", DType::F32, (symbol, hidden.clone()));
    let given = state.role(roles::EMBEDDINGS).gather(rows.maximum(0)).cast(x.dtype());
    let is_given = rows.less(0).logical_not();
    is_given.reshape([tokens.clone(), Dim::constant(1)]).select(given, x)
}

/// Cosines and sines, f32 `[T, 1, half]` each, of tokens that lie at `coordinates i32 [T, 3]`: so many
/// pairs of a head turn by each of the three.
fn angles_by_section<'b>(
    b: &'b Builder,
    table: Tensor<'b>,
    coordinates: Tensor<'b>,
    sections: [usize; 3],
) -> [Tensor<'b>; 2] {
    let sections = sections.map(|pairs| pairs as u64);
    let half: u64 = sections.iter().sum();
    let shape = coordinates.shape();
    let tokens = shape.first().cloned().unwrap_or_else(|| Dim::constant(0));
    let by_axis = [0, 1, 2].map(|axis| {
        let places = coordinates.slice(1, axis..axis + 1).reshape([tokens.clone()]);
        table.gather(places)
    });
    [0, half].map(|start| {
        let mut first = start;
        let parts = by_axis.into_iter().zip(sections).filter(|(_, pairs)| *pairs > 0);
        let parts = parts.map(|(angles, pairs)| {
            first += pairs;
            angles.slice(1, first - pairs..first)
        });
        let angles = b.concat(&Vec::from_iter(parts), 1);
        angles.reshape([tokens.clone(), Dim::constant(1), Dim::constant(half)])
    })
}
