//! Steps the engine of a model of one's own without a server: 24 prompts, some removed, some continued, one after the other or as
//! they arrive while others run, in every graph mode; the tokens must be the same each time. The processor is
//! a device of one's own, which counts what it launches and replays.

mod counting;

use counting::Counts;
use piecewise::device::all_threads;
use piecewise::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

/// What came of the prompts that are not removed, and how many were removed and continued.
#[derive(Clone, PartialEq, Default)]
struct Served {
    texts: BTreeMap<usize, Vec<u32>>,
    removed: usize,
    extended: usize,
}

const PROMPTS: usize = 24;

/// What follows a flag of the command line.
fn flag(name: &str) -> Option<String> {
    std::env::args().skip_while(|arg| arg != name).nth(1)
}

fn engine(mode: GraphMode, counts: &Counts) -> Result<Engine, Box<dyn Error>> {
    let here = |name| format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
    let settings = flag("--settings").unwrap_or_else(|| here("outside.toml"));
    let folder = flag("--model").unwrap_or_else(|| here("model"));
    let device = match flag("--device") {
        Some(name) => name.parse::<DeviceSpec>()?.open(all_threads())?,
        None => counts.open()?,
    };
    let assembly = outside::registries().folder(folder)?.check_weights();
    let layers = assembly.facts().and_then(|facts| facts.num_layers).unwrap_or(0);
    let planned = assembly
        .configure(ConfigLayers::new().read(Path::new(&settings))?)
        .graph_mode(mode)
        .on(&device)
        .plan()?;
    match planned.passes().of("doubling").map_or(0, |report| report.matches("doubled")) {
        doubled if doubled == layers => Ok(planned.engine()?),
        doubled => Err(format!("{doubled} of {layers} products were doubled").into()),
    }
}

/// A prompt of one of many lengths; every fourth is longer than a step.
fn request(number: usize) -> Request {
    let length = if number % 4 == 3 { 40 + number } else { 1 + number * 5 % 17 };
    let id = |i: usize| ((number * 97 + i * i * 31 + i * 7) % 256) as u32;
    Request { keep: number % 5 == 1, ..Request::new((0..length).map(id).collect::<Vec<_>>(), 12) }
}

/// Runs every prompt, with others or one after the other.
fn serve(engine: &mut Engine, alone: bool) -> Result<Served, Box<dyn Error>> {
    let (mut numbers, mut served) = (BTreeMap::new(), Served::default());
    let (mut arrived, mut steps, mut events) = (0, 0, Vec::new());
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
                RequestEvent::Token { request, id, .. } => {
                    let number = numbers[&request];
                    let text = served.texts.entry(number).or_default();
                    text.push(id);
                    if number % 7 == 4 && text.len() == 3 {
                        engine.remove(request)?;
                        served.texts.remove(&number);
                        served.removed += 1;
                    }
                }
                RequestEvent::Finished { request, .. } if engine.kept().contains(&request) => {
                    engine.extend(request, Request::new([numbers[&request] as u32, 3, 250], 8))?;
                    served.extended += 1;
                }
                _ => {}
            }
        }
    }
    Ok(served)
}

/// How many ids there are, and FNV-1a of all in order.
fn digest(served: &Served) -> String {
    let ids = served.texts.values().flatten();
    let bytes = ids.clone().flat_map(|id| id.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} tokens {hash:016x}", ids.count())
}

fn main() -> Result<(), Box<dyn Error>> {
    let counts = Counts::default();
    let modes = [GraphMode::None, GraphMode::Piecewise, GraphMode::Full];
    let mut expected = None;
    for (i, mode) in [modes, modes].concat().into_iter().enumerate() {
        let (mut engine, alone) = (engine(mode, &counts)?, i < modes.len());
        counts.take();
        let found = serve(&mut engine, alone)?;
        let [launches, replays] = counts.take();
        let Served { texts, removed, extended } = &found;
        let statistics = engine.model().statistics();
        let ran = statistics.steps_by_mode[mode.mixed() as usize];
        let how = format!("{} {}", mode.name(), if alone { "alone" } else { "in company" });
        println!(
            "{how} on {}: {}, {removed} removed, {extended} extended; {ran} steps, {launches} launches, {replays} replays; compile: {}",
            engine.model().describe_device(),
            digest(&found),
            statistics.compile
        );
        let counts_fit = match mode {
            // Another device is not counted.
            _ if flag("--device").is_some() => launches + replays == 0,
            GraphMode::None => launches > 0 && replays == 0,
            GraphMode::Full => launches == 0 && replays == ran,
            _ => replays > 0,
        };
        if !counts_fit {
            return Err(
                format!("{how}, {ran} steps: {launches} launches, {replays} replays").into()
            );
        }
        let expected = expected.get_or_insert_with(|| found.clone());
        if found != *expected || removed * extended == 0 || ran == 0 {
            let lost = expected.texts.iter().find(|(number, text)| texts.get(number) != Some(text));
            return Err(format!(
                "{how}, {ran} steps, {removed} removed, {extended} extended: not {lost:?}"
            )
            .into());
        }
    }
    let compiled = engine(GraphMode::Full, &counts)?.model().statistics().compile.total_compiled();
    match compiled {
        0 => Ok(()),
        _ => Err(format!("the second start compiled {compiled} entries").into()),
    }
}
