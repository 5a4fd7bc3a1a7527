//! `piecewise bench encoder`: calls of an encoder, launched and replayed.

use super::super::encoder_args::with_room_for;
use super::super::hub::folder_of;
use super::super::print::print_report;
use super::super::progress::watcher;
use super::super::set_keys::put;
use super::graph::{Measured, Row, show};
use anyhow::{anyhow, bail};
use piecewise::encoding::{
    Encoder, ItemEncoder, TextEncoder, TextItem, VisionEncoder, read_item_log, text_output,
};
use piecewise::models::encoder::{ImageItem, Modality, TextEncoderConfig, VisionConfig};
use piecewise::trial::StepTiming;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::words::GraphMode;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Measure calls of an encoder of texts or images, launched and replayed: the mean and the 99th percentile of
/// their wall time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise bench encoder --model DIR --tokens 16,128,512
  piecewise bench encoder --model DIR --items items.jsonl --graph-mode none,full
  piecewise bench encoder --model Qwen/Qwen3-Embedding-0.6B --tokens 64x32 --device cuda

Items are made up: random ids, grey images. A call is over when the outputs of all its items are on the
host. Items of a log are those that --item-log of embed, encode and serve wrote.")]
pub(crate) struct EncoderBenchArgs {
    /// The folder of an encoder, or a model of the hub by its name.
    #[arg(short, long, value_name = "DIR|NAME")]
    pub(super) model: PathBuf,
    /// Calls by their items: N is one item of N tokens, NxM are M items of N tokens each.
    #[arg(
        long,
        value_name = "N|NxM,..",
        value_delimiter = ',',
        required_unless_present = "items",
        conflicts_with = "items"
    )]
    pub(super) tokens: Vec<Call>,
    /// A log of items, as --item-log writes it: each of its calls is timed, and a row is of them all.
    #[arg(long, value_name = "FILE")]
    pub(super) items: Option<PathBuf>,
    /// Timed runs of each call.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) steps: u64,
    /// Untimed runs before them.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(super) warmup: u64,
    #[command(flatten)]
    pub(super) on: Measured,
}

/// Items of as many tokens each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    tokens: u64,
    items: usize,
}

impl std::str::FromStr for Call {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (tokens, items) = text.split_once('x').unwrap_or((text, "1"));
        match (tokens.parse(), items.parse()) {
            (Ok(tokens @ 1..), Ok(items @ 1..=100_000)) => Ok(Self { tokens, items }),
            _ => {
                Err(format!("`{text}` is no call; write N tokens, or NxM for M items of N tokens"))
            }
        }
    }
}

/// What a log calls the one path of an encoder in a folder.
const PATH: &str = "items";

/// What a row is of: its name, and the tokens of the items of each call.
type Subject = (String, Vec<Vec<u64>>);

pub(super) fn run(args: &EncoderBenchArgs) -> anyhow::Result<ExitCode> {
    let folder = folder_of(&args.model)?;
    let layers = args.on.layers()?;
    let mut subjects: Vec<Subject> = Vec::from_iter(args.tokens.iter().map(|call| {
        let name = match call.items {
            1 => call.tokens.to_string(),
            items => format!("{}x{items}", call.tokens),
        };
        (name, vec![vec![call.tokens; call.items]])
    }));
    if let Some(file) = &args.items {
        let calls = read_item_log(file, PATH)?;
        subjects.push((format!("{} calls", calls.len()), calls));
    }
    let largest = subjects.iter().flat_map(|(_, calls)| calls.iter().flatten()).max();
    let layers = with_room_for(layers, &folder, largest.copied().unwrap_or(1))?;
    let mut rows = Vec::new();
    for &mode in &args.on.graph_mode {
        let layers = put(layers.clone(), "graph_mode", Some(mode))?;
        rows.extend(match Modality::of(&folder)? {
            Modality::Text => of_texts(args, &folder, layers, mode, &subjects)?,
            Modality::Vision => of_images(args, &folder, layers, mode, &subjects)?,
        });
    }
    print_report(args.on.json, &serde_json::json!({ "rows": rows }), || show(&rows))?;
    Ok(ExitCode::SUCCESS)
}

fn of_texts(
    args: &EncoderBenchArgs,
    folder: &Path,
    layers: ConfigLayers,
    mode: GraphMode,
    subjects: &[Subject],
) -> anyhow::Result<Vec<Row>> {
    let vocab = TextEncoderConfig::load(folder)?.vocab_size() as u64;
    let mut encoder = TextEncoder::load(folder, layers, &[text_output(folder)?], watcher())?;
    // Ids that no two neighbours share.
    let id = |place: u64| (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % vocab;
    let item = |tokens: u64| {
        let ids = (0..tokens).map(|place| id(place) as u32).collect();
        Ok(TextItem { ids, token_types: Vec::new() })
    };
    timed(args, mode, &mut encoder, subjects, item)
}

fn of_images(
    args: &EncoderBenchArgs,
    folder: &Path,
    layers: ConfigLayers,
    mode: GraphMode,
    subjects: &[Subject],
) -> anyhow::Result<Vec<Row>> {
    let config = VisionConfig::load(folder)?;
    let mut encoder = VisionEncoder::load(folder, layers, watcher())?;
    let item = |tokens: u64| -> anyhow::Result<ImageItem> {
        config.item_of_tokens(tokens).map_err(|reason| anyhow!("{}: {reason}", folder.display()))
    };
    timed(args, mode, &mut encoder, subjects, item)
}

/// A row for each subject, over all runs of all its calls.
fn timed<M: ItemEncoder>(
    args: &EncoderBenchArgs,
    mode: GraphMode,
    encoder: &mut Encoder<M>,
    subjects: &[Subject],
    item: impl Fn(u64) -> anyhow::Result<M::Item>,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::with_capacity(subjects.len());
    for (name, calls) in subjects {
        let before = counts(encoder);
        let mut times = Vec::with_capacity(calls.len() * args.steps as usize);
        for call in calls {
            let items =
                call.iter().map(|&tokens| item(tokens)).collect::<anyhow::Result<Vec<_>>>()?;
            for run in 0..args.warmup + args.steps {
                let started = Instant::now();
                let outputs = encoder.encode(&items);
                let took = started.elapsed();
                if let Some(error) = outputs.into_iter().find_map(Result::err) {
                    bail!("items of {call:?} tokens have no outputs: {error}");
                }
                if run >= args.warmup {
                    times.push(took);
                }
            }
        }
        let after = counts(encoder);
        let [hits, misses, steps] = [0, 1, 2].map(|i| after[i] - before[i]);
        let ran = format!("{hits} items replayed, {misses} launched, in {steps} steps");
        rows.push(Row::of(mode, name.clone(), StepTiming { ran, times }));
    }
    Ok(rows)
}

/// Items that replayed, items that were launched, and steps so far.
fn counts<M: ItemEncoder>(encoder: &Encoder<M>) -> [u64; 3] {
    let statistics = encoder.statistics();
    let paths = statistics.paths.iter();
    paths.fold([0; 3], |[hits, misses, steps], path| {
        [hits + path.hits, misses + path.misses.values().sum::<u64>(), steps + path.steps]
    })
}
