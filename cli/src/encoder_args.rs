//! Flags of every command that runs an encoder.

use super::load::print_settings;
use super::logs::say;
use super::model_args::BoundArgs;
use super::out_file::OutFile;
use super::progress::bar;
use super::set_keys::put;
use anyhow::{Context, bail};
use piecewise::encoding::{Encoder, ItemEncoder, default_tokens, folder_assembly};
use piecewise_runtime::config::ConfigLayers;
use std::fs::File;
use std::io::LineWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How items are packed into steps, and what is said of it.
#[derive(Debug, clap::Args)]
pub(crate) struct EncoderArgs {
    /// Run each item in a step of its own.
    #[arg(long)]
    pub one_by_one: bool,
    /// The most frames of a step that replays, an image being one; 0 launches videos [default: any
    /// number].
    #[arg(long, value_name = "N")]
    pub max_num_frames: Option<u64>,
    #[command(flatten)]
    pub items: ItemLogArgs,
    /// Show what ran, on standard error.
    #[arg(long)]
    pub stats: bool,
}

/// What budgets are planned by.
#[derive(Debug, clap::Args)]
pub(crate) struct ItemLogArgs {
    /// Of an encoder: plan the budgets by this log of items, as --item-log writes it, unless
    /// --capture-num-tokens gives them.
    #[arg(long, value_name = "FILE")]
    pub capture_item_log: Option<PathBuf>,
    /// Of an encoder: write the sizes of the items that were there at a time to this file.
    #[arg(long, value_name = "FILE")]
    pub item_log: Option<PathBuf>,
}

impl ItemLogArgs {
    /// The flags on top of `layers`.
    pub(crate) fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        put(layers, "capture_item_log", self.capture_item_log.as_ref())
    }

    /// Sees whether the log can be written, before there is an encoder to write it.
    pub(crate) fn check_log(&self) -> anyhow::Result<()> {
        OutFile::check(self.item_log.as_ref())
    }

    /// The log that is asked for; each line of it is written at once.
    pub(crate) fn create_log(&self) -> anyhow::Result<Option<LineWriter<File>>> {
        let Some(file) = &self.item_log else { return Ok(None) };
        let log = File::create(file).with_context(|| format!("can't write {}", file.display()))?;
        Ok(Some(LineWriter::new(log)))
    }
}

impl EncoderArgs {
    /// The flags on top of `layers`.
    pub(crate) fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        let layers = put(layers, "max_num_frames", self.max_num_frames)?;
        self.items.over(layers)
    }

    /// What is asked of an encoder before it runs.
    pub(crate) fn prepare<M: ItemEncoder>(&self, encoder: &mut Encoder<M>) -> anyhow::Result<()> {
        encoder.one_by_one(self.one_by_one);
        encoder.time_steps(self.stats);
        if let Some(log) = self.items.create_log()? {
            encoder.log_items(log);
        }
        Ok(())
    }

    /// Ends the log, and shows what ran.
    pub(crate) fn finish<M: ItemEncoder>(&self, encoder: &mut Encoder<M>) -> anyhow::Result<()> {
        if let Some(file) = &self.items.item_log {
            encoder.finish_log().with_context(|| format!("can't write {}", file.display()))?;
        }
        if self.stats {
            say(&encoder.statistics().to_string());
        }
        Ok(())
    }
}

/// Refuses flags that would change nothing of an encoder: those of `bounds`, and `others` that are
/// given.
pub(crate) fn refuse_flags_of_writers(
    folder: &Path,
    bounds: &BoundArgs,
    others: &[(&str, bool)],
) -> anyhow::Result<()> {
    let compile = &bounds.compile;
    let of_bounds = [
        ("--max-seq-len", bounds.max_seq_len.is_some()),
        ("--quantize", bounds.quantize.is_some()),
        ("--no-prefix-cache", compile.no_prefix_cache),
        ("--sampling-controls", compile.sampling_controls.is_some()),
    ];
    match of_bounds.iter().chain(others).find(|(_, is_given)| *is_given) {
        Some((flag, _)) => {
            bail!("{flag} is for models that write text; {} is an encoder", folder.display())
        }
        None => Ok(()),
    }
}

/// Items that are encoded in one call: packing looks at all of them.
const CALL: usize = 1024;

/// Makes a step of the encoder in `folder` as large as it is by default, unless somebody says how large
/// it is.
pub(super) fn with_room(layers: ConfigLayers, folder: &Path) -> anyhow::Result<ConfigLayers> {
    with_room_for(layers, folder, 0)
}

/// Prints every setting that the encoder in `folder` has in force, those that follow from its graph
/// among them.
pub(super) fn print_settings_of_encoder(
    layers: ConfigLayers,
    folder: &Path,
) -> anyhow::Result<ExitCode> {
    let assembly = folder_assembly(folder, with_room(layers, folder)?)?;
    print_settings(&assembly.settings()?, false)
}

/// Makes a step as large as it is by default, or, where `largest` tokens do not fit, as the next power
/// of two, unless somebody says how large it is.
pub(super) fn with_room_for(
    layers: ConfigLayers,
    folder: &Path,
    largest: u64,
) -> anyhow::Result<ConfigLayers> {
    let room = room_for(&layers, folder, largest)?;
    Ok(layers.derived("max_num_tokens", i64::try_from(room)?, "what items may have")?)
}

/// Tokens of a step that holds an item of `largest` tokens.
pub(super) fn room_for(layers: &ConfigLayers, folder: &Path, largest: u64) -> anyhow::Result<u64> {
    let device = layers.clone().finish()?.config.device;
    let usual = default_tokens(folder, device.parse().map_err(anyhow::Error::msg)?)?;
    Ok(if largest <= usual {
        usual
    } else {
        largest.checked_next_power_of_two().unwrap_or(largest)
    })
}

/// What `encode` makes of so many items, in calls.
pub(super) fn in_calls<T>(
    phase: &'static str,
    items: usize,
    mut encode: impl FnMut(Range<usize>) -> Vec<T>,
) -> Vec<T> {
    let bar = (items > CALL).then(|| bar(phase, items));
    let mut results = Vec::with_capacity(items);
    while results.len() < items {
        let start = results.len();
        results.extend(encode(start..items.min(start + CALL)));
        if let Some(bar) = &bar {
            bar.set_position(results.len() as u64);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    results
}
