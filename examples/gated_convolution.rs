//! A decoder without attention: each layer is a gated causal convolution over the last rows of a sequence,
//! which the engine keeps for it from step to step.
//!
//! ```text
//! cargo run --example gated_convolution
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;

const VOCABULARY: u64 = 64;
const WIDTH: u64 = 32;
const LAYERS: u64 = 3;
/// Rows that a convolution sees, its own the last.
const WINDOW: u64 = 4;

fn layer<'b>(b: &'b Builder, step: &StepInputs<'b>, x: Tensor<'b>) -> Tensor<'b> {
    let h = x.rms_norm(b.weight("norm", [WIDTH]), 1e-6);
    let project = |name| h.linear(b.weight(name, [WIDTH, WIDTH]));
    let gated = project("gate_in") * project("value");
    let taps = b.weight("taps", [WIDTH, WINDOW]);
    let mixed = step.causal_convolution(b, "convolution", gated, taps);
    x + (project("gate_out") * mixed).linear(b.weight("out", [WIDTH, WIDTH]))
}

fn model(bounds: &DecoderBounds) -> Result<Graph, BuildErrors> {
    let b = Builder::new("gated_convolution").weight_dtype(bounds.activations);
    let step = StepInputs::declare(&b, &bounds.step());
    let embedding = b.weight("embedding", [VOCABULARY, WIDTH]);
    let mut x = embedding.gather(step.ids);
    for index in 0..LAYERS {
        let _scope = b.scope(format!("layers.{index}"));
        x = layer(&b, &step, x);
    }
    let logits = x.gather(step.logit_rows).matmul_transposed(embedding, DType::F32);
    b.finish(step.outputs(&b, logits, bounds.sampling_controls))
}

/// What follows prompts of so many tokens, in steps of at most `tokens`.
fn replies(tokens: u64, prompts: &[u32]) -> Result<BTreeMap<RequestId, Vec<u32>>, Box<dyn Error>> {
    let mut engine = Assembly::model(model)
        .weights(NormalWeights { std: 0.5, seed: 1 })
        .activations(DType::F32)
        .max_num_tokens(tokens)
        .max_num_seqs(4)
        .max_seq_len(64)
        .engine()?;
    for &length in prompts {
        let prompt = Vec::from_iter((0..length).map(|i| (i * i + length) % 64));
        engine.add(Request::new(prompt, 12))?;
    }
    let mut events = Vec::new();
    engine.run(&mut events)?;
    let mut replies: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for event in events {
        if let RequestEvent::Token { request, id, .. } = event {
            replies.entry(request).or_default().push(id);
        }
    }
    println!("{:?} steps, launched, in pieces, whole", engine.model().statistics().steps_by_mode);
    Ok(replies)
}

fn main() -> Result<(), Box<dyn Error>> {
    let prompts = [23, 5, 9];
    // Together, and the longest prompt in parts of eight tokens at most.
    let together = replies(8, &prompts)?;
    for (reply, prompt) in together.into_values().zip(prompts) {
        let alone = replies(32, &[prompt])?.into_values().next().ok_or("no reply")?;
        assert_eq!(reply, alone);
        println!("after {prompt} tokens, alone and in company: {reply:?}");
    }
    Ok(())
}
