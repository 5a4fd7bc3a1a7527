//! `piecewise doctor`: what this machine has for running models, and what will work.

use comfy_table::{ContentArrangement, Table, presets};
use piecewise_backend::cuda::{CudaOptions, CudaProbe, ProbeRow};
use std::path::PathBuf;
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
    let mut rows = vec![cpu()];
    rows.extend(probe.rows());
    super::print_report(args.json, &rows, || super::print_line(&table(&rows)))?;
    match args.require_gpu && probe.check(0).is_err() {
        true => Ok(ExitCode::FAILURE),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn cpu() -> ProbeRow {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let detail = format!("{} with {threads} threads", std::env::consts::ARCH);
    ProbeRow { what: "cpu".to_owned(), works: true, detail }
}

fn table(rows: &[ProbeRow]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["what", "works", "found"]);
    for row in rows {
        table.add_row([row.what.as_str(), if row.works { "yes" } else { "no" }, &row.detail]);
    }
    table.to_string()
}
