//! `piecewise cache explain`

use crate::load::print_settings;
use crate::model_source::SourceArgs;
use crate::print::{print_line, print_report};
use piecewise::assembly::{Planned, Registries};
use piecewise_backend::artifact::PieceSize;
use piecewise_cache::{EntryInfo, FactorDifference, KeyHex};
use piecewise_runtime::store::{CacheStore, PIECE_KIND};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

/// Arguments of `cache explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise cache explain --model examples/tiny-qwen3
  piecewise cache explain --preset qwen3-8b --device cuda:sm_90a --max-num-seqs 16")]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What the cache has of a unique piece at a size.
#[derive(Serialize)]
struct Explained {
    unique: String,
    size: PieceSize,
    key: String,
    found: bool,
    /// Where it is not found, the key of the entry that is most like it.
    nearest: Option<String>,
    differing: Vec<FactorDifference>,
}

pub(super) fn run(mut args: ExplainArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.source.bring()?;
    let assembly = args.source.assembly(registries)?;
    let settings = assembly.settings()?;
    if args.source.prints_settings() {
        return print_settings(&settings, args.json);
    }
    let mut config = settings.config.cache;
    config.read_only = true;
    config.remote_url = None;
    let store = Arc::new(CacheStore::open(&config)?);
    let mut entries = store.cache.entries()?;
    entries.retain(|entry| entry.kind == PIECE_KIND);
    // A dump or a budget compiles, and what is explained is left as it is.
    let planned = assembly.store(store.clone()).plan()?;
    let mut pieces = explained(&planned, "", &entries)?;
    for (name, other) in args.source.beside()? {
        let other = other.store(store.clone()).plan()?;
        let mut others = explained(&other, &format!("{name}/"), &entries)?;
        // Those that it shares are listed.
        others.retain(|other| pieces.iter().all(|piece| piece.key != other.key));
        pieces.extend(others);
    }
    print_report(args.json, &pieces, || show(&pieces, store.cache.dir()))?;
    Ok(ExitCode::SUCCESS)
}

/// What `entries` have of each piece, whose name is `prefix` and that of the plan.
fn explained(
    planned: &Planned,
    prefix: &str,
    entries: &[EntryInfo],
) -> anyhow::Result<Vec<Explained>> {
    let compiler = planned.compiler()?;
    let explained = planned.jobs()?.into_iter().map(|job| {
        let key = job.key(compiler)?;
        let digest = key.digest();
        let found = entries.iter().any(|entry| entry.key == digest.0);
        let nearest = if found { None } else { nearest(entries, &key.factors()) };
        let (nearest, differing) = nearest.unzip();
        Ok(Explained {
            unique: format!("{prefix}{}", job.unique),
            size: job.at.size,
            key: digest.to_string(),
            found,
            nearest: nearest.map(|entry| KeyHex(&entry.key).to_string()),
            differing: differing.unwrap_or_default(),
        })
    });
    explained.collect()
}

/// The entry that differs in the fewest factors, and how.
fn nearest<'e>(
    entries: &'e [EntryInfo],
    wanted: &[(&str, &str)],
) -> Option<(&'e EntryInfo, Vec<FactorDifference>)> {
    let compared = entries.iter().map(|entry| (entry, entry.differences(wanted)));
    compared.min_by_key(|(_, differing)| differing.len())
}

fn show(pieces: &[Explained], dir: &std::path::Path) -> anyhow::Result<()> {
    let found = pieces.iter().filter(|piece| piece.found).count();
    let dir = dir.display();
    print_line(&format!("{found} of {} pieces are in {dir}", pieces.len()))?;
    // Sizes of a piece mostly miss for one reason, which is told once.
    let mut reasons: BTreeMap<String, Missing<'_>> = BTreeMap::new();
    for piece in pieces.iter().filter(|piece| !piece.found) {
        // Where ops or operands differ, the digest of the piece says nothing more.
        let is_told = |name: &str| piece.differing.iter().any(|differing| differing.name == name);
        let told = is_told("ops") || is_told("operands");
        let telling = piece.differing.iter().filter(|d| !(told && d.name == "piece"));
        let lines = telling.map(|differing| format!("  {differing}"));
        let reason = match &piece.nearest {
            None => "  there is no lowered piece at all".to_owned(),
            Some(_) => lines.collect::<Vec<_>>().join("\n"),
        };
        let missing = reasons.entry(reason).or_default();
        missing.sizes.entry(&piece.unique).or_default().push(piece.size.to_string());
        missing.nearest = missing.nearest.or(piece.nearest.as_deref());
    }
    for (reason, missing) in reasons {
        let names = missing.sizes.iter().map(|(unique, sizes)| {
            let sizes = sizes.join(", ");
            format!("{unique} at {sizes}")
        });
        print_line(&format!("\nmissing: {}", names.collect::<Vec<_>>().join("; ")))?;
        if let Some(key) = missing.nearest {
            print_line(&format!("  the nearest is {}, which differs in", &key[..12]))?;
        }
        print_line(&reason)?;
    }
    Ok(())
}

/// Pieces that are missing for one reason.
#[derive(Default)]
struct Missing<'a> {
    /// By unique piece.
    sizes: BTreeMap<&'a str, Vec<String>>,
    /// The nearest entry of the first of them.
    nearest: Option<&'a str>,
}
