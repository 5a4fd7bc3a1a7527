//! A model that gives its memory back in the middle of a request, and goes on.
//!
//! ```text
//! cargo run --example suspend
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::prelude::*;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3"));
    let assembly = Assembly::folder(folder)?.max_num_tokens(64).max_num_seqs(4).max_seq_len(128);
    let mut engine = assembly.engine()?;
    let metrics = engine.metrics();

    let request = engine.add(Request::new([326, 680, 596], 12))?;
    let mut events = Vec::new();
    for _ in 0..5 {
        engine.step(&mut events)?;
    }
    let graphs = engine.model().statistics().captures;

    engine.suspend(SuspendedWeights::Drop, &mut events)?;
    let checkpoint = Checkpoint::open(folder)?;
    engine.resume(Some(&checkpoint))?;

    engine.run(&mut events)?;
    let tokens = events.iter().filter(|event| matches!(event, RequestEvent::Token { .. })).count();
    let captures = engine.model().statistics().captures;
    assert_eq!((tokens, captures), (12, graphs), "no capture, nothing lost");
    let snapshot = metrics.snapshot();
    println!("request {request}: {tokens} tokens in {} steps", snapshot.statistics.steps);
    println!("{} graphs, captured once; {:?}", snapshot.graphs, snapshot.memory);
    Ok(())
}
