//! The decoder family: Qwen3, Qwen2, Llama and Mistral as one graph.

use super::config::DecoderConfig;
use super::config::quantization::Stored;
use super::op_builders::{AttentionSpec, DecoderStates, KernelOps, KvState};
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
    let prefix = match dtype_of("model.language_model.embed_tokens.weight") {
        Some(_) => "model.language_model",
        None => "model",
    };
    let packed = |module: String| {
        let names = ["weight_packed", "qweight"].map(|leaf| format!("{module}.{leaf}"));
        names.into_iter().find(|name| dtype_of(name).is_some())
    };
    let packed_embedding = packed(format!("{prefix}.embed_tokens"));
    let packed_head = packed("lm_head".to_owned());
    let b = Builder::new("decoder")
        .weight_dtype(config.dtype.unwrap_or(DType::BF16))
        .weight_dtypes(dtype_of);
    let step = StepInputs::declare(&b, &bounds.step());
    let rope = b.rope_table(&config.rope_inverse_frequencies(), bounds.max_length);
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
    let mut x = embedding.gather(step.ids).cast(bounds.activations);
    let mut angles = None;
    if let Some(sections) = config.rope_sections {
        let [.., embeddings, coordinates] = engine_inputs();
        let rows = step.input(&b, "embeddings", &embeddings);
        x = given_rows(&b, x, rows, bounds);
        let coordinates = step.input(&b, "coordinates", &coordinates);
        angles = Some(angles_by_section(&b, rope, coordinates, sections));
    }
    let (dim, kv_heads) = (config.head_dim as u64, config.num_kv_heads as u64);
    let spec = AttentionSpec { scale: (dim as f64).powf(-0.5), causal: true };
    for layer in 0..config.num_layers {
        let _scope = b.scope(format!("{prefix}.layers.{layer}"));
        x = decoder_layer(&b, config, x, |q, k, v| {
            let kv: KvState<'_> = b.kv_state(step.kv_rows, kv_heads, dim, bounds.activations);
            let [q, k] = [q, k].map(|x| match angles {
                Some([cos, sin]) => x.rotate(cos, sin),
                None => x.rope(step.positions, rope),
            });
            kv.write(step.kv_slots, k, v);
            q.paged_attention(kv, &step.attention, spec)
        });
    }
    let x = x.gather(step.logit_rows);
    let norm = b.weight(&format!("{prefix}.norm.weight"), [hidden]);
    let x = x.rms_norm(norm, config.rms_norm_eps);
    let logits = {
        let _scope = b.scope("lm_head");
        let of = |head| x.matmul_transposed(head, DType::F32);
        match (config.tie_word_embeddings, config.stored("lm_head")) {
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
    b.finish(step.outputs(&b, logits, bounds.sampling_controls))
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

/// A layer under the current scope. `mix` takes q `[T, heads, dim]` and k and v
/// `[T, kv_heads, dim]`, not yet rotated, to `[T, heads * dim]`.
pub(super) fn decoder_layer<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    x: Tensor<'b>,
    mix: impl FnOnce(Tensor<'b>, Tensor<'b>, Tensor<'b>) -> Tensor<'b>,
) -> Tensor<'b> {
    let hidden = config.hidden_size as u64;
    let h = x.rms_norm(b.weight("input_layernorm.weight", [hidden]), config.rms_norm_eps);
    let x = x + attention(b, config, h, mix);
    let norm = b.weight("post_attention_layernorm.weight", [hidden]);
    x + feed_forward(b, config, x.rms_norm(norm, config.rms_norm_eps))
}

fn attention<'b>(
    b: &'b Builder,
    config: &DecoderConfig,
    h: Tensor<'b>,
    mix: impl FnOnce(Tensor<'b>, Tensor<'b>, Tensor<'b>) -> Tensor<'b>,
) -> Tensor<'b> {
    let _scope = b.scope("self_attn");
    let hidden = config.hidden_size as u64;
    let dim = config.head_dim as u64;
    let (heads, kv_heads) = (config.num_heads as u64, config.num_kv_heads as u64);
    let project = |name: &str, heads: u64| {
        config.linear(b, name, h, [heads * dim, hidden], config.qkv_bias).heads(dim)
    };
    let (mut q, mut k) = (project("q_proj", heads), project("k_proj", kv_heads));
    let v = project("v_proj", kv_heads);
    if config.qk_norm {
        q = q.rms_norm(b.weight("q_norm.weight", [dim]), config.rms_norm_eps);
        k = k.rms_norm(b.weight("k_norm.weight", [dim]), config.rms_norm_eps);
    }
    config.linear(b, "o_proj", mix(q, k, v), [hidden, heads * dim], config.output_bias)
}

fn feed_forward<'b>(b: &'b Builder, config: &DecoderConfig, h: Tensor<'b>) -> Tensor<'b> {
    let _scope = b.scope("mlp");
    let (hidden, inner) = (config.hidden_size as u64, config.intermediate_size as u64);
    let gate = config.linear(b, "gate_proj", h, [inner, hidden], config.mlp_bias);
    let up = config.linear(b, "up_proj", h, [inner, hidden], config.mlp_bias);
    config.linear(b, "down_proj", gate.swiglu(up), [hidden, inner], config.mlp_bias)
}

impl DecoderConfig {
    /// The linear layers `[out, in]` of each layer, by the ends of their paths.
    pub(super) fn linears(&self) -> [(&'static str, [u64; 2]); 7] {
        let (hidden, inner) = (self.hidden_size as u64, self.intermediate_size as u64);
        let [heads, kv_heads] =
            [self.num_heads, self.num_kv_heads].map(|heads| (heads * self.head_dim) as u64);
        [
            ("self_attn.q_proj", [heads, hidden]),
            ("self_attn.k_proj", [kv_heads, hidden]),
            ("self_attn.v_proj", [kv_heads, hidden]),
            ("self_attn.o_proj", [hidden, heads]),
            ("mlp.gate_proj", [inner, hidden]),
            ("mlp.up_proj", [inner, hidden]),
            ("mlp.down_proj", [hidden, inner]),
        ]
    }

    /// How the linear layer of a path is kept, where that is not as it is.
    fn stored(&self, module: &str) -> Option<Stored> {
        self.quantization.as_ref().and_then(|quantization| quantization.stored(module))
    }

    /// A checkpoint linear as [`linear`] has it, in the form in which the checkpoint keeps it.
    fn linear<'b>(
        &self,
        b: &'b Builder,
        name: &str,
        x: Tensor<'b>,
        shape: [u64; 2],
        bias: bool,
    ) -> Tensor<'b> {
        let Some(stored) = self.stored(&b.path(name)) else {
            return linear(b, name, x, shape, bias);
        };
        let _scope = b.scope(name);
        with_bias(b, stored.linear(b, x, shape, x.dtype()), shape[0], bias)
    }
}

/// A checkpoint linear of `shape` `[out, in]`, with its bias if it has one.
pub(super) fn linear<'b>(
    b: &'b Builder,
    name: &str,
    x: Tensor<'b>,
    shape: [u64; 2],
    bias: bool,
) -> Tensor<'b> {
    let _scope = b.scope(name);
    with_bias(b, x.linear(plain_weight(b, "weight", shape)), shape[0], bias)
}

/// A weight that is kept in floats.
#[track_caller]
fn plain_weight<'b>(b: &'b Builder, name: &str, shape: [u64; 2]) -> Tensor<'b> {
    let weight = b.weight(name, shape);
    if !weight.dtype().is_narrow() {
        return weight;
    }
    let (path, dtype) = (b.path(name), weight.dtype());
    b.fail(format!(
        "checkpoint tensor \"{path}\" is stored as {dtype}, but `quantization_config` of config.json \
         does not say how the layer is kept, so its scales would be left out"
    ))
}

fn with_bias<'b>(b: &'b Builder, y: Tensor<'b>, width: u64, bias: bool) -> Tensor<'b> {
    if bias { y + b.weight("bias", [width]).cast(y.dtype()) } else { y }
}
