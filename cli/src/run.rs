//! `piecewise run`: a textual graph with a checkpoint's weights.

use super::dumps::DumpArgs;
use super::load::{engine, print_settings};
use super::logits::write_logits;
use super::model_args::CompileArgs;
use super::model_source::read_module;
use super::out_file::OutFile;
use super::print::print_line;
use super::progress::watcher;
use anyhow::bail;
use piecewise::assembly::{Assembly, Purpose, Registries};
use piecewise::models::Checkpoint;
use piecewise_ir::text::print_graph;
use piecewise_runtime::engine::Request;
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

pub(crate) fn run(args: RunArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    let layers = args.compile.layers()?;
    let assembly = Assembly::file(with_plan(&args)?)?
        .registries(registries.clone())
        .configure(layers)
        .watch(watcher());
    let assembly = args.dumps.over(assembly.purpose(Purpose::Logits));
    let settings = assembly.settings()?;
    if args.compile.shared.print_config {
        return print_settings(&settings, args.json);
    }
    let assembly = assembly.checkpoint(Checkpoint::open(&args.weights)?);
    let out = args.out.as_deref().map(OutFile::claim).transpose()?;
    let mut engine = engine(assembly, &args.dumps)?;
    let vocab = engine.options().vocab as usize;
    let mut bytes = Vec::new();
    engine
        .logits(&Request::new(args.ids.clone(), 1), &mut |_, rows| bytes.extend_from_slice(rows))?;
    if let Some(out) = out {
        out.write(|path| write_logits(path, args.ids.len(), vocab, &bytes))?;
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
        print_line(&object.to_string())?;
    } else {
        print_line(&format!("likeliest next id after each position: {next:?}"))?;
        print_line(&format!("logits f32 [{}, {vocab}], blake3 {digest}", args.ids.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The file that has the plan, if one was given; its graph is that of the other file.
fn with_plan(args: &RunArgs) -> anyhow::Result<&Path> {
    let Some(plan) = &args.plan else { return Ok(&args.file) };
    let (module, with_plan) = (read_module(&args.file)?, read_module(plan)?);
    let (plan_name, name) = (plan.display(), args.file.display());
    if print_graph(with_plan.graph()) != print_graph(module.graph()) {
        bail!("the graph in {plan_name} is not that in {name}: a plan belongs to one graph");
    }
    if with_plan.layout().is_none() {
        bail!("{plan_name} has no plan to its end; dump it after `plan`");
    }
    Ok(plan)
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
