//! Embeds two texts with the model of `--embedder DIR`, and has the Qwen2.5-VL of `--decoder DIR` go
//! on after `--image FILE`: on the CPU, or where `--device` says.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::device::all_threads;
use piecewise::encoding::{ImageProcessor, JoinedTower, TextEncoder};
use piecewise::models::ImagePrompts;
use piecewise::models::encoder::TextOutput;
use piecewise::prelude::*;
use std::error::Error;
use std::path::Path;

/// Tokens of the largest image.
const MOST: u64 = 256;

fn embed(folder: &Path, layers: ConfigLayers) -> Result<(), Box<dyn Error>> {
    let mut encoder = TextEncoder::load(folder, layers, &[TextOutput::Embedding], |_| {})?;
    for embedding in encoder.embed(&["a cat", "the red dog sees a bird ."]) {
        println!("embedding: {:?}", embedding?);
    }
    Ok(())
}

/// The tower and the decoder of one checkpoint, beside each other on a device.
fn go_on(folder: &Path, image: &Path, layers: ConfigLayers) -> Result<(), Box<dyn Error>> {
    let assembly = Assembly::folder(folder)?.configure(layers.clone());
    let assembly = assembly.max_num_tokens(64).max_num_seqs(2).max_seq_len(512);
    let device = assembly.settings()?.device.open(all_threads())?;
    let mut engine = assembly.on(&device).embedding_rows(MOST).engine()?;
    let mut tower = JoinedTower::load(folder, layers, MOST, &device, |_| {})?;

    let image = ImageProcessor::load(folder)?.item(&std::fs::read(image)?)?;
    let vocabulary = DecoderConfig::load(folder)?.vocab_size;
    let ids = TextTokenizer::load(folder, vocabulary)?.encode("one two three")?;
    let prompts = ImagePrompts::load(folder)?.ok_or("the model reads text alone")?;
    let placed = prompts.place(&ids, &[image.grid])?;
    let rows = tower.add(&image, &mut engine)?;
    engine.add(Request {
        rows: vec![GivenRows { position: placed.positions[0], rows }],
        values: vec![placed.coordinates],
        ..Request::new(placed.ids, 16)
    })?;

    let mut events = Vec::new();
    engine.run(&mut events)?;
    let id = |event: &RequestEvent| match event {
        RequestEvent::Token { id, .. } => Some(*id),
        _ => None,
    };
    println!("after the image: {:?}", Vec::from_iter(events.iter().filter_map(id)));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let flag = |name: &str| std::env::args().skip_while(|arg| arg != name).nth(1);
    let folder = |name: &str| flag(name).ok_or_else(|| format!("{name} is missing"));
    let layers = ConfigLayers::new().set("device", flag("--device").as_deref().unwrap_or("cpu"))?;
    let layers = layers.set("dtype", DType::F32)?;
    embed(folder("--embedder")?.as_ref(), layers.clone())?;
    go_on(folder("--decoder")?.as_ref(), folder("--image")?.as_ref(), layers)
}
