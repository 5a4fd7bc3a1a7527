//! `piecewise run`: a textual graph with a checkpoint's weights.

use super::dumps::DumpArgs;
use super::load::{check_checkpoint, engine, plan_dumped};
use super::logits::write_logits;
use super::model_args::CompileArgs;
use super::model_source::{check_brought_plan, read_module};
use super::settings::Settings;
use anyhow::bail;
use piecewise::models::Checkpoint;
use piecewise_ir::module::Module;
use piecewise_ir::text::print_graph;
use piecewise_runtime::config::Purpose;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise inspect --model DIR --stop-after fuse > fused.pw
  piecewise run fused.pw --weights DIR --ids 326,680,596 --out logits.safetensors
  piecewise inspect --model DIR --stop-after check > planned.pw
  piecewise run fused.pw --plan planned.pw --weights DIR --ids 326,680,596")]
pub(crate) struct RunArgs {
    /// A textual graph, as a dump after any pass has it.
    file: PathBuf,
    /// A textual module with the plan to use; its graph must be that of the file.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// The folder of the checkpoint.
    #[arg(long, value_name = "DIR")]
    weights: PathBuf,
    /// Token ids.
    #[arg(long, value_delimiter = ',', required = true, value_name = "ID,..")]
    ids: Vec<u32>,
    /// Write the logits of every position: one tensor `logits` f32 [tokens, vocab].
    #[arg(long, value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compile: CompileArgs,
    #[command(flatten)]
    dumps: DumpArgs,
}

pub(crate) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let (mut module, plan_file) = read(&args)?;
    let settings = Settings::of_graph(&args.compile, module.graph())?;
    if args.compile.print_config {
        settings.print(args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    settings.warn();
    if module.layout().is_none() {
        module = plan_dumped(&settings, module.into_graph(), &args.dumps)?.0;
        if args.dumps.stops() {
            bail!("the passes were stopped early; there is nothing to run");
        }
    } else {
        check_brought_plan(&module, plan_file)?;
    }
    let checkpoint = Checkpoint::open(&args.weights)?;
    check_checkpoint(module.graph(), &checkpoint)?;
    let mut engine = engine(&settings, Purpose::Logits, module, &checkpoint)?;
    let vocab = engine.options().vocab as usize;
    let mut bytes = Vec::new();
    engine.logits(&args.ids, &mut |_, rows| bytes.extend_from_slice(rows))?;
    if let Some(out) = &args.out {
        write_logits(out, args.ids.len(), vocab, &bytes)?;
    }
    let next = greedy(&bytes, vocab);
    let digest = blake3::hash(&bytes).to_hex();
    if args.json {
        let object = serde_json::json!({
            "ids": args.ids,
            "next": next,
            "shape": [args.ids.len(), vocab],
            "logits_blake3": digest.as_str(),
        });
        super::print_line(&object.to_string())?;
    } else {
        super::print_line(&format!("likeliest next id after each position: {next:?}"))?;
        super::print_line(&format!("logits f32 [{}, {vocab}], blake3 {digest}", args.ids.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The module of the file, with the plan given or the file's own if there is one, and the file
/// that the plan is in.
fn read(args: &RunArgs) -> anyhow::Result<(Module, &Path)> {
    let module = read_module(&args.file)?;
    if let Some(file) = &args.plan {
        let with_plan = read_module(file)?;
        if print_graph(with_plan.graph()) != print_graph(module.graph()) {
            bail!(
                "the graph in {} is not that in {}: a plan belongs to one graph",
                file.display(),
                args.file.display()
            );
        }
        if with_plan.layout().is_none() {
            bail!("{} has no plan to its end; dump it after `check`", file.display());
        }
        return Ok((with_plan, file));
    }
    Ok((module, &args.file))
}

/// The index of the largest logit of each row.
fn greedy(bytes: &[u8], vocab: usize) -> Vec<usize> {
    let logits: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let top = |row: &[f32]| {
        row.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (i, &logit)| {
            if logit > best.1 { (i, logit) } else { best }
        })
    };
    logits.chunks_exact(vocab.max(1)).map(|row| top(row).0).collect()
}
