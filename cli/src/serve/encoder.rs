//! Serving an encoder: embeddings, or scores of a cross-encoder.

use super::super::encoder_args::{print_settings_of_encoder, refuse_flags_of_writers, with_room};
use super::super::print::announce;
use super::super::progress::watcher;
use super::super::start::log_encoder;
use super::listening::{listen, number};
use super::{ServeArgs, ended, name_of};
use anyhow::{Context, bail};
use piecewise::encoding::{EncoderThread, TextEncoder, text_output};
use piecewise::models::Checkpoint;
use piecewise::models::encoder::{Modality, ScoreActivation, TextEncoderConfig, TextOutput};
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::{ConfigLayers, GenerationConfig, RuntimeConfig, ServerConfig};
use piecewise_server::{EncoderKind, Matryoshka, ServedEncoder};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

pub(super) fn run(
    args: &ServeArgs,
    folder: &Path,
    layers: ConfigLayers,
    started: Instant,
) -> anyhow::Result<ExitCode> {
    let server = layers.clone().finish()?.config.server;
    let of_writers = [
        ("--chat-template", server.chat_template.is_some()),
        ("--reasoning-parser", server.reasoning_parser.is_some()),
        ("--tool-call-parser", server.tool_call_parser.is_some()),
        ("--generation-config", server.generation_config != GenerationConfig::Auto),
        ("--kv-events-endpoint", server.kv_events_endpoint.is_some()),
        ("--iteration-log", server.iteration_log.is_some()),
        ("--trace", server.trace.is_some()),
        ("--admin", server.admin),
    ];
    refuse_flags_of_writers(folder, &args.bounds, &of_writers)?;
    if let Some(flag) = args.dumps.looks_on() {
        let folder = folder.display();
        bail!("{flag} shows nothing of an encoder that serves; try `inspect --model {folder}`");
    }
    if Modality::of(folder)? == Modality::Vision {
        bail!("{} reads images, which no endpoint takes; use `encode`", folder.display());
    }
    let config = TextEncoderConfig::load(folder)?;
    let layers = args.dumps.over_layers(layers)?;
    let layers = with_room(args.items.over(layers)?, folder)?;
    let settings = layers.clone().finish()?.config;
    let room = usize::try_from(settings.max_num_tokens)?;
    if args.bounds.compile.shared.print_config {
        return print_settings_of_encoder(layers, folder);
    }
    let (output, kind) = kind(&server, folder, &config)?;
    let log = args.items.create_log()?;
    let (listening, model_name) = listen(&server, name_of(folder))?;
    let mut encoder = TextEncoder::load(folder, layers, &[output], watcher())?;
    if let Some(log) = log {
        encoder.log_items(log);
    }
    let dtype = settings.dtype.or(config.stored_dtype()).unwrap_or(DType::F32);
    let settings = RuntimeConfig { dtype: Some(dtype), ..settings };
    log_encoder(&name_of(folder), &settings, encoder.compiled(), started);
    let tokenizer = encoder.model().tokenizer().cloned().map(Arc::new);
    let served = ServedEncoder { tokenizer, longest: config.longest().min(room), kind };
    let thread = EncoderThread::start(encoder, number(server.max_queue).max(1), &model_name);
    let thread = thread.context("no thread for the encoder")?;
    super::super::logs::count_lost(thread.handle().metrics());
    ended(listening.serve_encoder(thread, served, || announce("ready"))?)
}

/// What the folder makes of texts.
fn kind(
    server: &ServerConfig,
    folder: &Path,
    config: &TextEncoderConfig,
) -> anyhow::Result<(TextOutput, EncoderKind)> {
    let output = text_output(folder)?;
    if output == TextOutput::Scores {
        let labels = config.labels(&Checkpoint::open(folder)?);
        if labels != 1 {
            bail!("{} gives {labels} scores; what ranks gives 1", folder.display());
        }
        return Ok((output, EncoderKind::Scores(ScoreActivation::load(folder)?)));
    }
    let file = folder.join("config.json");
    let text = std::fs::read(&file).with_context(|| format!("can't read {}", file.display()))?;
    let shortened = match server.matryoshka {
        true => Matryoshka::Any,
        false => Matryoshka::of(&serde_json::from_slice(&text)?),
    };
    let (width, normalized) = (config.hidden_size(), config.normalize);
    Ok((output, EncoderKind::Embeddings { width, normalized, shortened }))
}
