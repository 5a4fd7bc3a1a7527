//! Writes tokens after made-up prompts with the library: one side of a comparison, whose other side
//! is `piecewise worker`, by `tests/worker/cost.py`, which starts both.
//!
//! `tokens MODEL KEY=VALUE..`, with settings as a configuration file has them.
//!
//! Each line of standard input is `[requests, tokens]` in JSON: so many requests at once, and so
//! many tokens of each. Each line of standard output is how many tokens were written.

use anyhow::Context;
use piecewise::prelude::*;
use std::io::{BufRead, Write};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, settings) = arguments.split_first().context("give a model's folder")?;
    let layers = ConfigLayers::new().file("the arguments", &settings.join("\n"))?;
    let mut engine = Assembly::folder(model)?.configure(layers).engine()?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    let mut events = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let (requests, tokens): (u64, u64) = serde_json::from_str(&line?)?;
        for _ in 0..requests {
            engine.add(Request::new(vec![5, 6, 7], tokens))?;
        }
        let (mut written, mut has_more) = (0_u64, true);
        while has_more {
            has_more = engine.step(&mut events)?;
            let is_token = |event: &RequestEvent| matches!(event, RequestEvent::Token { .. });
            written += events.drain(..).filter(is_token).count() as u64;
        }
        writeln!(out, "{written}")?;
        out.flush()?;
    }
    Ok(())
}
