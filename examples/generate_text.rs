//! Loads a checkpoint and continues several prompts at once: on the CPU, or where `--device` says.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;

const PROMPTS: [&str; 2] = ["def __init__(self", "import numpy as"];
const MAX_TOKENS: u64 = 32;

/// What follows `--device`; the CPU without it.
fn device() -> Result<DeviceSpec, String> {
    let after = std::env::args().skip_while(|arg| arg != "--device").nth(1);
    after.map_or(Ok(DeviceSpec::Cpu), |name| name.parse())
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3");
    let assembly = Assembly::folder(folder)?
        .device(device()?)
        .activations(DType::F32)
        .max_num_seqs(4)
        .max_num_tokens(32)
        .max_seq_len(128);
    let facts = assembly.facts().ok_or("a folder has a decoder")?.clone();
    let tokenizer = TextTokenizer::load(folder.as_ref(), facts.vocab_size)?;
    let mut engine = assembly.engine()?;

    let mut texts: BTreeMap<RequestId, (TextStream<&TextTokenizer>, String)> = BTreeMap::new();
    for prompt in PROMPTS {
        let ids = tokenizer.encode(prompt)?;
        let text_stream = tokenizer.stream_after(&ids)?;
        let request = Request {
            stop_ids: facts.eos_token_ids.as_slice().into(),
            ..Request::new(ids, MAX_TOKENS)
        };
        texts.insert(engine.add(request)?, (text_stream, prompt.to_owned()));
    }

    let mut events = Vec::new();
    let mut has_more = true;
    while has_more {
        has_more = engine.step(&mut events)?;
        for event in events.drain(..) {
            if let RequestEvent::Token { request, id, .. } = event
                && let Some((text_stream, text)) = texts.get_mut(&request)
                && !facts.eos_token_ids.contains(&id)
            {
                text.push_str(&text_stream.push(id)?);
            }
        }
    }

    for (mut text_stream, text) in texts.into_values() {
        println!("{text}{}\n", text_stream.finish()?);
    }
    let [launched, piecewise, full] = engine.model().statistics().steps_by_mode;
    println!("steps: {full} full replays, {piecewise} piecewise, {launched} launched");
    Ok(())
}
