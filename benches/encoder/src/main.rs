//! Encodes texts as it is told, and says how long each call took: one side of a comparison, whose
//! other side is `benches/torch/encode.py`, which starts it.
//!
//!     piecewise-bench-encoder MODEL
//!
//! Each line of standard input is a call, `[one_by_one, ["a text", ..]]` in JSON; each line of
//! standard output is its answer: `[seconds, first value of each embedding]`.

use anyhow::Context;
use piecewise::encoding::TextEncoder;
use piecewise::models::encoder::TextOutput;
use piecewise::prelude::ConfigLayers;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().context("give a model folder")?;
    let layers = ConfigLayers::new()
        .set("dtype", "f32")?
        .set("max_num_seqs", 32)?
        .set("max_num_tokens", 4096)?;
    let outputs = [TextOutput::Embedding];
    let mut encoder = TextEncoder::load(Path::new(&model), layers, &outputs, |_| {})?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    for line in std::io::stdin().lock().lines() {
        let (one_by_one, texts): (bool, Vec<String>) = serde_json::from_str(&line?)?;
        let start = Instant::now();
        let mut embeddings = Vec::with_capacity(texts.len());
        match one_by_one {
            true => texts.iter().for_each(|text| embeddings.extend(encoder.embed(&[text]))),
            false => embeddings = encoder.embed(&texts),
        }
        let seconds = start.elapsed().as_secs_f64();
        let first = embeddings.into_iter().map(|embedding| Ok(embedding?[0]));
        let first = first.collect::<anyhow::Result<Vec<_>>>()?;
        writeln!(out, "{}", serde_json::to_string(&(seconds, first))?)?;
        out.flush()?;
    }
    eprintln!("{}", encoder.statistics());
    Ok(())
}
