//! `piecewise embed`: vectors from texts.

use super::encoder_args::{
    EncoderArgs, in_calls, print_settings_of_encoder, refuse_flags_of_writers, with_room,
};
use super::logs::say;
use super::model_args::ModelArgs;
use super::out_file::OutFile;
use super::progress::watcher;
use anyhow::{Context, bail};
use piecewise::assembly::Registries;
use piecewise::encoding::TextEncoder;
use piecewise::models::encoder::{TextOutput, is_encoder};
use safetensors::tensor::{Dtype, TensorView};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `embed`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise embed --model DIR --text \"a sentence\" --text \"another\"
  piecewise embed --model DIR --file lines.txt --out embeddings.npy
  piecewise embed --model DIR --file lines.txt --max-num-tokens 2048 --capture-num-tokens 256,2048")]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A text; repeat it for several.
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// A file whose lines are texts, after those of --text; empty lines are none.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Where embeddings go, by the ending: .npy, .safetensors (one tensor `embeddings`; both f32
    /// [texts, width]), .json (a list of objects) or .jsonl (an object a line) [default: the objects
    /// on standard output, one a line].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    encoder: EncoderArgs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
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
            Some("json") => Ok(Self::Json),
            Some("jsonl") => Ok(Self::JsonLines),
            _ => bail!("{}: end it in .npy, .safetensors, .json or .jsonl", out.display()),
        }
    }
}

pub(crate) fn run(mut args: EmbedArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.model.bring()?;
    let format = Format::of(args.out.as_deref())?;
    refuse_flags_of_writers(&args.model.model, &args.model.bounds, &[])?;
    let layers = args.encoder.over(args.model.bounds.layers()?)?;
    if args.model.bounds.compile.shared.print_config {
        return print_settings_of_encoder(layers, &args.model.model);
    }
    let (texts, unread) = texts(&args)?;
    if texts.is_empty() {
        bail!("nothing to embed: give --text or --file");
    }
    let folder = &args.model.model;
    if !is_encoder(folder)? && registries.models.read(folder).is_ok() {
        let folder = folder.display();
        bail!("the model in {folder} writes text and has no embeddings; use `generate`");
    }
    let out = args.out.as_deref().map(OutFile::claim).transpose()?;
    args.encoder.items.check_log()?;
    let layers = with_room(layers, &args.model.model)?;
    let outputs = [TextOutput::Embedding];
    let mut encoder = TextEncoder::load(&args.model.model, layers, &outputs, watcher())?;
    args.encoder.prepare(&mut encoder)?;
    let embeddings = in_calls("embedding", texts.len(), |call| encoder.embed(&texts[call]));
    let embedded = embeddings.into_iter().map(|row| row.map_err(|error| error.to_string()));
    let mut embeddings: Embeddings = embedded.collect();
    for (at, reason) in unread {
        embeddings[at] = Err(reason);
    }
    let failed = embeddings.iter().filter(|embedding| embedding.is_err()).count();
    for (i, embedding) in embeddings.iter().enumerate() {
        if let Err(error) = embedding {
            say(&format!("error: text {}: {error}", i + 1));
        }
    }
    let width = encoder.model().config().hidden_size();
    let bytes = match format {
        Format::Json => serde_json::to_vec(&Vec::from_iter(objects(&texts, &embeddings)))?,
        Format::JsonLines => {
            let lines = objects(&texts, &embeddings).map(|object| format!("{object}\n"));
            String::from_iter(lines).into_bytes()
        }
        Format::Npy => npy(&embeddings, width),
        Format::Safetensors => {
            let values = values(&embeddings, width);
            let shape = vec![embeddings.len(), width];
            let view = TensorView::new(Dtype::F32, shape, &values)?;
            safetensors::serialize([("embeddings", view)], None)?
        }
    };
    match out {
        None => std::io::stdout().write_all(&bytes)?,
        Some(out) => out.write(|path| Ok(std::fs::write(path, bytes)?))?,
    }
    args.encoder.finish(&mut encoder)?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Embeddings = Vec<Result<Vec<f32>, String>>;
/// Why some texts, by number, are none.
type Unread = Vec<(usize, String)>;

/// The texts, and why some of them, by number, can't be read: those stand with marks in the place of what
/// is no text, so that a row is a line.
fn texts(args: &EmbedArgs) -> anyhow::Result<(Vec<String>, Unread)> {
    let (mut texts, mut unread) = (args.text.clone(), Unread::new());
    if let Some(file) = &args.file {
        let name = file.display();
        let bytes = std::fs::read(file).with_context(|| format!("can't read {name}"))?;
        for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Err(error) = std::str::from_utf8(line) {
                let reason = format!("line {} of {name} is no text: {error}", number + 1);
                unread.push((texts.len(), reason));
            }
            let text = String::from_utf8_lossy(line);
            if !text.trim().is_empty() {
                texts.push(text.into_owned());
            }
        }
    }
    Ok((texts, unread))
}

/// What JSON says of each text.
fn objects<'a>(
    texts: &'a [String],
    embeddings: &'a Embeddings,
) -> impl Iterator<Item = serde_json::Value> + 'a {
    texts.iter().zip(embeddings).map(|(text, embedding)| match embedding {
        Ok(embedding) => serde_json::json!({"text": text, "embedding": embedding}),
        Err(error) => serde_json::json!({"text": text, "error": error}),
    })
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
