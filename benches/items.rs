//! Encodes made-up items of sizes that it is told, and says how long each call took: one side of a
//! comparison, whose other side is `benches/torch/items.py`, which starts it.
//!
//! `items MODEL KEY=VALUE..`, with settings as a configuration file has them.
//!
//! Each line of standard input is calls to make, `[times, [size, ..]]` in JSON: a size is the length
//! of a text, or an image's frames, rows and columns of patches. Each line of standard output is
//! the median of `[seconds, seconds on the device]`, both with inputs and outputs copied.

#![allow(clippy::print_stderr, reason = "a benchmark prints its figures")]

use anyhow::Context;
use piecewise::encoding::{Encoder, ImageItem, ItemEncoder, TextEncoder, TextItem, VisionEncoder};
use piecewise::models::encoder::TextOutput;
use piecewise::prelude::ConfigLayers;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, settings @ ..] = arguments.as_slice() else {
        anyhow::bail!("give a model's folder, and settings as KEY=VALUE");
    };
    let layers = ConfigLayers::new().file("the arguments", &settings.join("\n"))?;
    let folder = Path::new(model);
    let config = std::fs::read_to_string(folder.join("config.json"))?;
    let config: serde_json::Value = serde_json::from_str(&config)?;
    if config.get("vocab_size").is_some() && config.get("vision_config").is_none() {
        let vocab = config["vocab_size"].as_u64().context("no vocab_size")? as usize;
        let text = |size: &serde_json::Value| {
            let length = size.as_u64().context("a text's size is its length")? as usize;
            let ids = (0..length).map(|i| ((i * 7919 + 1000) % vocab) as u32).collect();
            Ok(TextItem { ids, token_types: Vec::new() })
        };
        serve(TextEncoder::load(folder, layers, &[TextOutput::Rows], |_| {})?, text)
    } else {
        let encoder = VisionEncoder::load(folder, layers, |_| {})?;
        let config = config.get("vision_config").unwrap_or(&config);
        let number = |name: &str| config[name].as_u64();
        let channels = number("num_channels").or(number("in_channels")).unwrap_or(3);
        let patch = number("patch_size").context("no patch_size")?.pow(2);
        let width = (channels * patch * number("temporal_patch_size").unwrap_or(1)) as usize;
        serve(encoder, move |size: &serde_json::Value| {
            let grid: [usize; 3] = serde_json::from_value(size.clone())?;
            let patches = grid.iter().product::<usize>();
            let patches = (0..patches * width).map(|i| (i % 61) as f32 / 30.0 - 1.0).collect();
            Ok(ImageItem { patches, grid })
        })
    }
}

fn serve<M: ItemEncoder>(
    mut encoder: Encoder<M>,
    item: impl Fn(&serde_json::Value) -> anyhow::Result<M::Item>,
) -> anyhow::Result<()> {
    encoder.time_steps(true);
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    for line in std::io::stdin().lock().lines() {
        let (times, sizes): (usize, Vec<serde_json::Value>) = serde_json::from_str(&line?)?;
        let items = sizes.iter().map(&item).collect::<anyhow::Result<Vec<_>>>()?;
        let mut calls = Vec::with_capacity(times);
        for _ in 0..times {
            let before = on_device(&encoder);
            let start = Instant::now();
            for outputs in encoder.encode(&items) {
                outputs?;
            }
            let wall = start.elapsed();
            calls.push((wall, on_device(&encoder) - before));
        }
        calls.sort_unstable();
        let (wall, device) = calls[times / 2];
        writeln!(out, "{}", serde_json::json!([wall.as_secs_f64(), device.as_secs_f64()]))?;
        out.flush()?;
    }
    eprintln!("{}", encoder.statistics());
    Ok(())
}

fn on_device<M: ItemEncoder>(encoder: &Encoder<M>) -> Duration {
    encoder.statistics().paths.iter().map(|path| path.device_time).sum()
}
