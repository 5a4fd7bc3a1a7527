//! `piecewise logits`: the logits of every position of a prompt.

use super::dumps::DumpArgs;
use super::load::{engine, print_settings, vocabulary};
use super::model_args::ModelArgs;
use super::out_file::{OutFile, write_tensors};
use super::print::print_line;
use piecewise::assembly::{Purpose, Registries};
use piecewise::models::TextTokenizer;
use piecewise::models::tokenizer::check_token_ids;
use piecewise_runtime::engine::Request;
use safetensors::tensor::{Dtype, TensorView};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `logits`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise logits --model DIR --prompt \"def __init__(self\" --out logits.safetensors
  piecewise logits --model DIR --ids 326,680,596 --dtype f32 --out logits.safetensors")]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; needs the folder's tokenizer.json.
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["ids", "print_config"], conflicts_with = "ids")]
    prompt: Option<String>,
    /// Token ids instead of text.
    #[arg(long, value_delimiter = ',', value_name = "ID,..")]
    ids: Option<Vec<u32>>,
    /// The file to write: one tensor `logits` f32 [tokens, vocab].
    #[arg(long, required_unless_present = "print_config", value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// Say what was written as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dumps: DumpArgs,
}

pub(crate) fn run(mut args: LogitsArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.model.bring()?;
    let assembly = args.dumps.over(args.model.assembly(registries)?);
    let assembly = assembly.sequences(1).purpose(Purpose::Logits);
    let settings = assembly.settings()?;
    let printed = args.model.bounds.compile.shared.print_config;
    let Some(out) = args.out.as_ref().filter(|_| !printed) else {
        return print_settings(&settings, args.json);
    };
    let (vocab, _) = vocabulary(&assembly);
    let ids = match (&args.ids, &args.prompt) {
        (Some(ids), _) => {
            check_token_ids(ids, vocab)?;
            ids.clone()
        }
        (None, Some(prompt)) => TextTokenizer::load(&args.model.model, vocab)?.encode(prompt)?,
        (None, None) => Vec::new(),
    };
    let file = OutFile::claim(out)?;
    let mut engine = engine(assembly, &args.dumps)?;
    let mut bytes = Vec::new();
    engine.logits(&Request::new(ids.clone(), 1), &mut |_, rows| bytes.extend_from_slice(rows))?;
    file.write(|path| write_logits(path, ids.len(), vocab, &bytes))?;
    let shown = out.display().to_string();
    if args.json {
        let object = serde_json::json!({"out": shown, "ids": ids, "shape": [ids.len(), vocab]});
        print_line(&object.to_string())?;
    } else {
        print_line(&format!("wrote logits f32 [{}, {vocab}] to {shown}", ids.len()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes one tensor `logits` f32 `[tokens, vocab]`.
pub(crate) fn write_logits(
    out: &std::path::Path,
    tokens: usize,
    vocab: usize,
    bytes: &[u8],
) -> anyhow::Result<()> {
    let view = TensorView::new(Dtype::F32, vec![tokens, vocab], bytes)?;
    write_tensors(out, [("logits", view)])
}
