//! `piecewise embed`: vectors from texts.

use super::encoder_args::EncoderArgs;
use super::load::print_settings_of;
use super::model_args::ModelArgs;
use super::progress::{bar, watcher};
use anyhow::{Context, bail};
use piecewise::encoding::{ItemError, TextEncoder, TextItem};
use piecewise::models::encoder::TextOutput;
use safetensors::tensor::{Dtype, TensorView};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Texts that are encoded in one call: packing looks at all of them.
const CALL: usize = 1024;

/// Arguments of `embed`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise embed --model DIR \"a text\" \"another\"
  piecewise embed --model DIR --file lines.txt --out embeddings.npy
  piecewise embed --model DIR --ids 5,6,7 --stats
  piecewise embed --model DIR --file lines.txt --max-num-tokens 2048 --capture-num-tokens 256,2048")]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Texts.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// A file whose lines are texts; empty lines are none.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The token ids of one text instead of texts; repeat it for several.
    #[arg(long, value_name = "ID,..", conflicts_with_all = ["texts", "file"])]
    ids: Vec<String>,
    /// Where embeddings go, by the ending: .npy, .safetensors (one tensor `embeddings`; both f32
    /// [texts, width]) or .jsonl [default: JSON lines on standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    encoder: EncoderArgs,
}

/// How embeddings are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    JsonLines,
    Npy,
    Safetensors,
}

impl Format {
    fn of(out: Option<&Path>) -> anyhow::Result<Self> {
        let Some(out) = out else { return Ok(Self::JsonLines) };
        match out.extension().and_then(|ending| ending.to_str()) {
            Some("npy") => Ok(Self::Npy),
            Some("safetensors") => Ok(Self::Safetensors),
            Some("json" | "jsonl") => Ok(Self::JsonLines),
            _ => bail!("{}: end it in .npy, .safetensors or .jsonl", out.display()),
        }
    }
}

pub(crate) fn run(args: EmbedArgs) -> anyhow::Result<ExitCode> {
    let format = Format::of(args.out.as_deref())?;
    let layers = args.encoder.over(args.model.bounds.layers()?)?;
    if args.model.bounds.compile.print_config {
        return print_settings_of(&layers.finish()?, false);
    }
    let texts = texts(&args)?;
    if texts.is_empty() && args.ids.is_empty() {
        bail!("nothing to embed: give texts, --file or --ids");
    }
    let outputs = [TextOutput::Embedding];
    let mut encoder = TextEncoder::load(&args.model.model, layers, &outputs, watcher())?;
    args.encoder.prepare(&mut encoder)?;
    let embeddings = match args.ids.is_empty() {
        true => of_texts(&mut encoder, &texts),
        false => of_ids(&mut encoder, &args.ids)?,
    };
    let failed = embeddings.iter().filter(|embedding| embedding.is_err()).count();
    for (i, embedding) in embeddings.iter().enumerate() {
        if let Err(error) = embedding {
            super::say(&format!("error: text {}: {error}", i + 1));
        }
    }
    let width = encoder.model().config().hidden_size();
    let bytes = match format {
        Format::JsonLines => json_lines(&texts, &embeddings)?,
        Format::Npy => npy(&embeddings, width),
        Format::Safetensors => {
            let values = values(&embeddings, width);
            let shape = vec![embeddings.len(), width];
            let view = TensorView::new(Dtype::F32, shape, &values)?;
            safetensors::serialize([("embeddings", view)], None)?
        }
    };
    match &args.out {
        None => std::io::stdout().write_all(&bytes)?,
        Some(out) => {
            std::fs::write(out, bytes).with_context(|| format!("can't write {}", out.display()))?;
        }
    }
    args.encoder.finish(&mut encoder)?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Embeddings = Vec<Result<Vec<f32>, ItemError>>;

fn texts(args: &EmbedArgs) -> anyhow::Result<Vec<String>> {
    let mut texts = args.texts.clone();
    if let Some(file) = &args.file {
        let lines = std::fs::read_to_string(file)
            .with_context(|| format!("can't read {}", file.display()))?;
        texts.extend(lines.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
    }
    Ok(texts)
}

fn of_texts(encoder: &mut TextEncoder, texts: &[String]) -> Embeddings {
    let bar = (texts.len() > CALL).then(|| bar("embedding", texts.len()));
    let mut embeddings = Vec::with_capacity(texts.len());
    for call in texts.chunks(CALL) {
        embeddings.extend(encoder.embed(call));
        if let Some(bar) = &bar {
            bar.set_position(embeddings.len() as u64);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    embeddings
}

fn of_ids(encoder: &mut TextEncoder, lists: &[String]) -> anyhow::Result<Embeddings> {
    let item = |list: &String| -> anyhow::Result<TextItem> {
        let ids = list.split(',').map(|id| id.trim().parse());
        let ids = ids.collect::<Result<_, _>>();
        let ids = ids.with_context(|| format!("--ids {list}: a list of numbers, as in 5,6,7"))?;
        Ok(TextItem { ids, token_types: Vec::new() })
    };
    let items = lists.iter().map(item).collect::<anyhow::Result<Vec<_>>>()?;
    let outputs = encoder.encode(&items).into_iter();
    Ok(outputs.map(|one| Ok(one?.into_iter().next().unwrap_or_default())).collect())
}

fn json_lines(texts: &[String], embeddings: &Embeddings) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (i, embedding) in embeddings.iter().enumerate() {
        let object = match embedding {
            Ok(embedding) => serde_json::json!({"text": texts.get(i), "embedding": embedding}),
            Err(error) => serde_json::json!({"text": texts.get(i), "error": error.to_string()}),
        };
        writeln!(bytes, "{object}")?;
    }
    Ok(bytes)
}

/// All embeddings, little-endian; NaN where there is none.
fn values(embeddings: &Embeddings, width: usize) -> Vec<u8> {
    let missing = vec![f32::NAN; width];
    let rows = embeddings.iter().flat_map(|row| row.as_ref().unwrap_or(&missing));
    rows.flat_map(|value| value.to_le_bytes()).collect()
}

/// Version 1.0 of NumPy's format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.
fn npy(embeddings: &Embeddings, width: usize) -> Vec<u8> {
    let shape = format!("({}, {width})", embeddings.len());
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version and length take 10 bytes; the whole is a multiple of 64.
    let padding = (header.len() + 11).next_multiple_of(64) - (header.len() + 11);
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values(embeddings, width));
    bytes
}
