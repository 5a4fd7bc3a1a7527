//! Serves a model of one's own: 24 prompts that arrive while others run, some removed, some
//! continued, in every graph mode; the tokens must be the same in each, and those of a prompt that
//! runs alone.

mod doubling;
mod gated;
mod model;

use doubling::Doubling;
use gated::GatedLinearAttention;
use piecewise::prelude::*;
use piecewise::runtime::config::ConfigLayers;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

type Texts = BTreeMap<usize, Vec<u32>>;

const PIPELINE: &str =
    "canonicalize,doubling,fold,merge_matmuls,cse,dce,fuse,split,destination,plan,check";
const PROMPTS: usize = 24;

fn engine(mode: GraphMode) -> Result<Box<dyn Engine>, Box<dyn Error>> {
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/outside.toml");
    let device = std::env::args().skip_while(|arg| arg != "--device").nth(1);
    let device = device.map_or(Ok(DeviceSpec::Cpu), |name| name.parse())?;
    let engine = Assembly::graph(model::graph()?)
        .configure(ConfigLayers::new().read(Path::new(settings))?)
        .graph_mode(mode)
        .device(device)
        .ops(GatedLinearAttention::registry())
        .pass("doubling", &[], |_| Ok(Box::new(Doubling)))
        .pipeline(PIPELINE)
        .weights(NormalWeights { std: 0.2, seed: 5 })
        .engine()?;
    Ok(engine)
}

/// A prompt of one of many lengths; every fourth is longer than a step.
fn request(number: usize) -> Request {
    let length = if number % 4 == 3 { 40 + number } else { 1 + number * 5 % 17 };
    let id = |i: usize| ((number * 97 + i * i * 31 + i * 7) % model::VOCAB as usize) as u32;
    Request { keep: number % 5 == 1, ..Request::new((0..length).map(id).collect::<Vec<_>>(), 12) }
}

fn is_removed(number: usize) -> bool {
    number % 7 == 4
}

/// Runs every prompt, with others or one after the other, and returns what came of those that are
/// not removed.
fn serve(engine: &mut dyn Engine, alone: bool) -> Result<Texts, Box<dyn Error>> {
    let (mut numbers, mut texts) = (BTreeMap::new(), Texts::new());
    let (mut arrived, mut steps) = (0, 0);
    let mut events = Vec::new();
    while arrived < PROMPTS || engine.has_work() {
        let arrives = if alone { !engine.has_work() } else { steps % 2 == 0 };
        if arrives && arrived < PROMPTS {
            numbers.insert(engine.add(request(arrived))?, arrived);
            arrived += 1;
        }
        engine.step(&mut events)?;
        steps += 1;
        for event in events.drain(..) {
            match event {
                RequestEvent::PromptToken { .. } | RequestEvent::Preempted { .. } => {}
                RequestEvent::Token { request, id, .. } => {
                    let number = numbers[&request];
                    let text: &mut Vec<u32> = texts.entry(number).or_default();
                    text.push(id);
                    if is_removed(number) && text.len() == 3 {
                        engine.remove(request)?;
                    }
                }
                RequestEvent::Finished { request, .. } => {
                    if engine.kept().contains(&request) {
                        engine
                            .extend(request, Request::new([numbers[&request] as u32, 3, 250], 8))?;
                    }
                }
            }
        }
    }
    texts.retain(|&number, _| !is_removed(number));
    Ok(texts)
}

/// FNV-1a of all ids in order.
fn digest(texts: &Texts) -> u64 {
    let bytes = texts.values().flatten().flat_map(|id| id.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let expected = serve(&mut *engine(GraphMode::None)?, true)?;
    println!("none, one by one: {:016x}", digest(&expected));
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let mut engine = engine(mode)?;
        let found = serve(&mut *engine, false)?;
        let statistics = engine.model().statistics();
        let [launched, piecewise, full] = statistics.steps_by_mode;
        println!(
            "{} on {}: {:016x}; {full} full, {piecewise} piecewise, {launched} launched; compile: {}",
            mode.name(),
            engine.model().describe_device(),
            digest(&found),
            statistics.compile
        );
        if found != expected {
            let number = expected.iter().find(|(number, text)| found.get(number) != Some(text));
            return Err(
                format!("prompt {number:?} has other tokens in mode {}", mode.name()).into()
            );
        }
    }
    let compiled = engine(GraphMode::Full)?.model().statistics().compile.total_compiled();
    match compiled {
        0 => Ok(()),
        _ => Err(format!("the second start compiled {compiled} entries").into()),
    }
}
