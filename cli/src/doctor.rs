//! `piecewise doctor`: what this machine has for running models, and what will work.

use super::amounts::shown_bytes;
use super::model_args::{CONFIG_FILE, ConfigSource};
use super::print::{print_line, print_report};
use anyhow::{Context, bail};
use comfy_table::{ContentArrangement, Table, presets};
use piecewise_backend::cuda::{CudaOptions, CudaProbe, ProbeRow};
use piecewise_runtime::config::CacheConfig;
use piecewise_runtime::store::{CacheStore, NoCache, cache_dir, open_packs, pack_places};
use rustix::fs::statvfs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise doctor
  piecewise doctor --library-dir /opt/cuda/lib64 --require-gpu
  piecewise doctor --json")]
pub(crate) struct DoctorArgs {
    /// A folder to search for NVRTC and cuBLASLt before the system's own; may be repeated.
    #[arg(long = "library-dir", value_name = "DIR")]
    library_dirs: Vec<PathBuf>,
    /// Fail unless models run on the first CUDA device.
    #[arg(long)]
    require_gpu: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let probe =
        CudaProbe::run(&CudaOptions { library_dirs: args.library_dirs, ..CudaOptions::default() });
    let mut rows = vec![program(), cpu()];
    rows.extend(probe.rows());
    rows.extend([cache(), packs(), config()]);
    print_report(args.json, &rows, || print_line(&table(&rows)))?;
    match args.require_gpu && probe.check(0).is_err() {
        true => Ok(ExitCode::FAILURE),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn program() -> ProbeRow {
    let detail = env!("CARGO_PKG_VERSION").to_owned();
    ProbeRow { what: "piecewise".to_owned(), works: true, detail }
}

/// The compile cache that commands take in this folder, and the room that it has.
fn cache() -> ProbeRow {
    let found = ConfigSource::default().layers().and_then(|layers| {
        let config = layers.finish()?.config.cache;
        let dir = cache_dir(&config).context(NoCache::NoFolder)?;
        let opened = CacheStore::open(&CacheConfig { read_only: true, ..config })?;
        let condition = opened.cache.events().conditions.into_iter().next();
        let there = dir.ancestors().find(|folder| folder.exists()).unwrap_or(&dir);
        let free = statvfs(there).with_context(|| format!("can't look at {}", dir.display()))?;
        let free = shown_bytes(free.f_bavail.saturating_mul(free.f_frsize));
        match condition {
            Some(report) => bail!("{}", report.message),
            None => Ok(format!("{}, {free} free", dir.display())),
        }
    });
    row_of("cache", found)
}

/// The kernel packs that come with the program, which none has to.
fn packs() -> ProbeRow {
    let found = ConfigSource::default().layers().and_then(|layers| {
        let config = layers.finish()?.config.cache;
        let packs = open_packs(&config);
        let shown = packs.iter().map(|pack| {
            let (file, kernels) = (pack.path().display(), pack.entries());
            format!("{file} with {kernels} kernels")
        });
        let shown = shown.collect::<Vec<_>>().join(", ");
        let none = || format!("none in {}: kernels are compiled", pack_places(&config));
        Ok(if packs.is_empty() { none() } else { shown })
    });
    row_of("kernel packs", found)
}

/// The configuration that commands read in this folder.
fn config() -> ProbeRow {
    let found = ConfigSource::default().layers().and_then(|layers| {
        layers.finish()?.dispatcher()?;
        let is_there = Path::new(CONFIG_FILE).exists();
        Ok(if is_there { CONFIG_FILE.to_owned() } else { format!("no {CONFIG_FILE} here") })
    });
    row_of("config", found)
}

fn row_of(what: &str, found: anyhow::Result<String>) -> ProbeRow {
    let works = found.is_ok();
    let detail = found.unwrap_or_else(|error| format!("{error:#}"));
    ProbeRow { what: what.to_owned(), works, detail }
}

fn cpu() -> ProbeRow {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let detail = format!("{} with {threads} threads", std::env::consts::ARCH);
    ProbeRow { what: "cpu".to_owned(), works: true, detail }
}

fn table(rows: &[ProbeRow]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        // A pipe or a file: as wide as people read.
        table.set_width(100);
    }
    table.set_header(["what", "works", "found"]);
    for row in rows {
        table.add_row([row.what.as_str(), if row.works { "yes" } else { "no" }, &row.detail]);
    }
    table.to_string()
}
