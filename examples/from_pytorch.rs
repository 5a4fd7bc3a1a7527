//! `examples/from_pytorch.py` with our builder, part by part: the same model, weights and tokens.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::prelude::*;
use std::error::Error;
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3");
const VOCAB: u64 = 2048;
const HIDDEN: u64 = 256;
const INNER: u64 = 768;
const LAYERS: u64 = 6;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const DIM: u64 = 64;
const EPS: f64 = 1e-6;
const THETA: f64 = 10_000.0;

/// How large the steps and sequences of an engine may be.
const BOUNDS: StepBounds = StepBounds {
    max_tokens: 32,
    max_rows: 4,
    max_sequences: 4,
    max_length: 128,
    kv_rows: 512,
    state_slots: 0,
};

fn rope_table(b: &Builder) -> Tensor<'_> {
    let frequencies: Vec<f64> =
        (0..DIM).step_by(2).map(|i| THETA.powf(-(i as f64) / DIM as f64)).collect();
    b.rope_table(&frequencies, BOUNDS.max_length)
}

fn linear<'b>(b: &'b Builder, name: &str, x: Tensor<'b>, shape: [u64; 2]) -> Tensor<'b> {
    let _scope = b.scope(name);
    x.linear(b.weight("weight", shape))
}

fn norm<'b>(b: &'b Builder, name: &str, x: Tensor<'b>, width: u64) -> Tensor<'b> {
    let _scope = b.scope(name);
    x.rms_norm(b.weight("weight", [width]), EPS)
}

fn attention<'b>(
    b: &'b Builder,
    step: &StepInputs<'b>,
    table: Tensor<'b>,
    h: Tensor<'b>,
) -> Tensor<'b> {
    let _scope = b.scope("self_attn");
    let q = norm(b, "q_norm", linear(b, "q_proj", h, [HEADS * DIM, HIDDEN]).heads(DIM), DIM);
    let k = norm(b, "k_norm", linear(b, "k_proj", h, [KV_HEADS * DIM, HIDDEN]).heads(DIM), DIM);
    let v = linear(b, "v_proj", h, [KV_HEADS * DIM, HIDDEN]).heads(DIM);
    let (q, k) = (q.rope(step.positions, table), k.rope(step.positions, table));
    let kv = b.kv_state(step.kv_rows, KV_HEADS, DIM, DType::F32);
    kv.write(step.kv_slots, k, v);
    let spec = AttentionSpec { scale: (DIM as f64).powf(-0.5), causal: true };
    let mixed = q.paged_attention(kv, &step.attention, spec);
    linear(b, "o_proj", mixed, [HIDDEN, HEADS * DIM])
}

fn mlp<'b>(b: &'b Builder, h: Tensor<'b>) -> Tensor<'b> {
    let _scope = b.scope("mlp");
    let gate = linear(b, "gate_proj", h, [INNER, HIDDEN]);
    let up = linear(b, "up_proj", h, [INNER, HIDDEN]);
    linear(b, "down_proj", gate.silu() * up, [HIDDEN, INNER])
}

fn layer<'b>(
    b: &'b Builder,
    step: &StepInputs<'b>,
    table: Tensor<'b>,
    x: Tensor<'b>,
) -> Tensor<'b> {
    let x = x + attention(b, step, table, norm(b, "input_layernorm", x, HIDDEN));
    x + mlp(b, norm(b, "post_attention_layernorm", x, HIDDEN))
}

fn decoder() -> Result<Graph, BuildErrors> {
    let b = Builder::new("ported").weight_dtype(DType::BF16);
    let step = StepInputs::declare(&b, &BOUNDS);
    let table = rope_table(&b);
    let _scope = b.scope("model");
    let embedding = b.weight("embed_tokens.weight", [VOCAB, HIDDEN]);
    let mut x = embedding.gather(step.ids).cast(DType::F32);
    for index in 0..LAYERS {
        let _scope = b.scope(format!("layers.{index}"));
        x = layer(&b, &step, table, x);
    }
    let x = norm(&b, "norm", x.gather(step.logit_rows), HIDDEN);
    let logits = x.matmul_transposed(embedding, DType::F32);
    b.finish([logits, step.sample(logits)])
}

fn main() -> Result<(), Box<dyn Error>> {
    let weights = Checkpoint::open(Path::new(FOLDER))?;
    let mut engine = Assembly::graph(decoder()?).checkpoint(weights).engine()?;
    let tokenizer = TextTokenizer::load(FOLDER.as_ref(), VOCAB as usize)?;
    let mut ids = tokenizer.encode("def __init__(self")?;
    let request = engine.add(Request { keep: true, ..Request::new(ids.clone(), 24) })?;
    engine.run(&mut Vec::new())?;
    ids = engine.ids(request).ok_or("the request is kept")?.to_vec();
    println!("{}", tokenizer.decode(&ids)?);
    Ok(())
}
