//! `piecewise generate`: text from prompts.

use super::dumps::DumpArgs;
use super::images::PromptImages;
use super::load::{engine, print_settings, vocabulary};
use super::model_args::ModelArgs;
use super::out_file::OutFile;
use super::print::print_line;
use super::statistics::show_statistics;
use super::step_file::StepFileArgs;
use anyhow::{Context, bail};
use piecewise::assembly::Registries;
use piecewise::models::{TextStream, TextTokenizer, TokenizerError};
use piecewise_runtime::batch::Sampling;
use piecewise_runtime::engine::{Engine, Request, RequestEvent, TokenLogprobs};
use piecewise_runtime::words::RequestId;
use piecewise_runtime::words::{FinishReason, Usage};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Arguments of `generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise generate --model examples/tiny-qwen3 --prompt \"def __init__(self\"
  piecewise generate --model DIR --prompt \"import\" --prompt \"class\" --max-tokens 32 --json
  piecewise generate --model DIR --prompt \"def\" --temperature 0.8 --top-p 0.95 --seed 7
  piecewise generate --model DIR --prompt \"def\" --then \"\\nclass\" --then \"\\nimport\"
  piecewise generate --model DIR --image cat.png --prompt \"What is this?\"
  piecewise generate --model DIR --prompt \"def\" --iteration-log steps.jsonl
  piecewise generate --model DIR --prompt \"def\" --metrics steps.prom --stats-interval 10
  piecewise generate --model DIR --prompt \"def\" --trace steps.pftrace
  piecewise generate --model DIR --prompt \"def\" --graph-mode full --stats --check poison")]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A prompt; repeat it for several, which run in one batch.
    #[arg(long, required_unless_present = "print_config", value_name = "TEXT")]
    prompt: Vec<String>,
    /// Images that every prompt is about, PNG, JPEG or WebP, of a Qwen2.5-VL: each in the place of an
    /// <|image_pad|> of the prompt, or all before it.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    image: Vec<PathBuf>,
    /// What every conversation goes on with once its reply is there; repeat it for further turns.
    #[arg(long, value_name = "TEXT")]
    then: Vec<String>,
    /// The most tokens to generate for each turn.
    #[arg(long, default_value_t = 64)]
    max_tokens: u64,
    /// Go on past the ids that end a text.
    #[arg(long)]
    ignore_eos: bool,
    /// 0 takes the likeliest token.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Sample among the K likeliest tokens; 0 is off.
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: u32,
    /// Sample among the likeliest tokens that make up this share; 1 is off, 0 takes the likeliest.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// Sample among tokens at least this many times as likely as the likeliest; 0 is off.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "SHARE")]
    min_p: f32,
    /// Taken from the logit of every token that was generated; 0 is off.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "X")]
    presence_penalty: f32,
    /// Taken from the logit of a token for each time that it was generated; 0 is off.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "X")]
    frequency_penalty: f32,
    /// Positive logits of tokens of the prompt and of generated ones are divided by it, others
    /// multiplied; 1 is off.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true, value_name = "X")]
    repetition_penalty: f32,
    /// Add to the logit of an id; repeat it for several.
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// With --json: the log-probability of each token, and of the N likeliest beside it, at most 20.
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<u32>,
    /// The seed of the first prompt; each further prompt has the next one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// One JSON object for each turn of each prompt instead of text.
    #[arg(long)]
    json: bool,
    /// Show what ran, on standard error (with --json: as one more object, on standard error).
    #[arg(long)]
    stats: bool,
    /// Write what was counted to this file at the end, in the text format of Prometheus.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    #[command(flatten)]
    steps: StepFileArgs,
    #[command(flatten)]
    dumps: DumpArgs,
}

/// An id and what is added to its logit.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id, bias.parse().ok()?)));
    let found = parts.and_then(|(id, bias)| Some((id.parse().ok()?, bias)));
    found.ok_or_else(|| "it must be an id and a number, such as 17=-2.5".to_owned())
}

impl GenerateArgs {
    fn sampling(&self, seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            seed,
        }
    }
}

/// A prompt on its way.
struct Reply<'t> {
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    text: String,
    stream: TextStream<&'t TextTokenizer>,
    finish: Option<FinishReason>,
    failure: Option<String>,
    usage: Usage,
}

pub(crate) fn run(mut args: GenerateArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.model.bring()?;
    let prompts = args.prompt.len() as u64;
    // Room for their keys and values; what is compiled does not depend on how many there are.
    let assembly = args.dumps.over(args.model.assembly(registries)?).sequences(prompts);
    let settings = assembly.settings()?;
    if args.model.bounds.compile.shared.print_config {
        return print_settings(&settings, args.json);
    }
    let (vocab, stop_ids) = vocabulary(&assembly);
    let layers = assembly.facts().and_then(|facts| facts.num_layers);
    let tokenizer = TextTokenizer::load(&args.model.model, vocab)?;
    let folder = &args.model.model;
    let mut images = match args.image.is_empty() {
        true => None,
        false => Some(PromptImages::read(folder, &args.image, &assembly)?),
    };
    let assembly = match &images {
        Some(images) => images.decoder(assembly),
        None => assembly,
    };
    let metrics = args.metrics.as_deref().map(OutFile::claim).transpose()?;
    let mut steps = args.steps.create()?;
    let mut engine = engine(assembly, &args.dumps)?;
    if let Some(images) = &mut images {
        let layers = args.dumps.over_layers(args.model.bounds.layers()?)?;
        images.encode(folder, layers, &mut engine)?;
    }
    if args.stats || args.metrics.is_some() {
        engine.metrics();
    }
    let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
    steps.start(&mut engine, &name, layers)?;
    let encoded = |text: &String, ids: Result<_, TokenizerError>| {
        ids.with_context(|| format!("prompt {text:?} can't be encoded"))
    };
    // What can't be encoded is said before anything is generated.
    let first = args.prompt.iter().map(|text| encoded(text, tokenizer.encode(text)));
    let first: Vec<Vec<u32>> = first.collect::<Result<_, _>>()?;
    let then = args.then.iter().map(|text| encoded(text, tokenizer.encode_more(text)));
    let then: Vec<Vec<u32>> = then.collect::<Result<_, _>>()?;
    let mut conversations: Vec<RequestId> = Vec::new();
    let mut failure = None;
    let (mut generated, mut elapsed) = (0, Duration::ZERO);
    for turn in 0..=args.then.len() {
        let mut replies: Vec<(RequestId, Reply<'_>)> = Vec::new();
        for (i, prompt) in args.prompt.iter().enumerate() {
            let (text, prompt_ids) = match turn.checked_sub(1) {
                None => (prompt, first[i].clone()),
                Some(turn) => (&args.then[turn], then[turn].clone()),
            };
            let request = Request {
                stop_ids: stop_ids.as_slice().into(),
                ignore_eos: args.ignore_eos,
                sampling: args.sampling(args.seed.wrapping_add(i as u64)),
                logit_bias: args.logit_bias.as_slice().into(),
                logprobs: args.logprobs,
                keep: turn < args.then.len(),
                ..Request::new(prompt_ids, args.max_tokens)
            };
            let request = match &images {
                Some(images) if turn == 0 => images.place(request)?,
                _ => request,
            };
            let prompt_ids = request.prompt.clone();
            let id = match conversations.get(i) {
                Some(&id) => engine.extend(id, request).map(|()| id),
                None => engine.add(request).inspect(|&id| conversations.push(id)),
            };
            let id = id.with_context(|| format!("prompt {} ({text:?})", i + 1))?;
            let reply = Reply {
                prompt: text.clone(),
                stream: tokenizer.stream_after(engine.ids(id).unwrap_or(&prompt_ids))?,
                prompt_ids: prompt_ids.to_vec(),
                ids: Vec::new(),
                logprobs: Vec::new(),
                text: String::new(),
                finish: None,
                failure: None,
                usage: Usage::default(),
            };
            replies.push((id, reply));
        }
        let started = Instant::now();
        serve(&args, &mut engine, &stop_ids, &mut replies)?;
        elapsed += started.elapsed();
        generated += replies.iter().map(|(_, reply)| reply.ids.len()).sum::<usize>();
        for (number, (_, reply)) in (1..).zip(replies) {
            if let (Some(message), None) = (&reply.failure, &failure) {
                failure = Some(format!("prompt {number} ({:?}): {message}", reply.prompt));
            }
            finish(&args, reply)?;
        }
        if failure.is_some() {
            break;
        }
    }
    steps.finish()?;
    if let Some(file) = metrics {
        let text = engine.metrics().text()?;
        file.write(|path| Ok(std::fs::write(path, text)?))?;
    }
    if args.stats {
        let tower = images.as_ref().and_then(PromptImages::tower);
        show_statistics(args.json, &engine, tower, generated, elapsed)?;
    }
    match failure {
        Some(failure) => bail!(failure),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn serve(
    args: &GenerateArgs,
    engine: &mut Engine,
    stop_ids: &[u32],
    replies: &mut [(RequestId, Reply<'_>)],
) -> anyhow::Result<()> {
    let streams = !args.json && replies.len() == 1;
    if streams {
        write!(std::io::stdout(), "{}", replies[0].1.prompt)?;
    }
    let mut events = Vec::new();
    let mut more = true;
    while more {
        more = engine.step(&mut events)?;
        for event in events.drain(..) {
            let request = event.request();
            let Some((_, reply)) = replies.iter_mut().find(|(id, _)| *id == request) else {
                continue;
            };
            match event {
                RequestEvent::Token { id, logprobs, .. } => {
                    reply.ids.push(id);
                    reply.logprobs.extend(logprobs.map(|logprobs| *logprobs));
                    if !args.ignore_eos && stop_ids.contains(&id) {
                        continue;
                    }
                    let text = reply.stream.push(id)?;
                    if streams {
                        write!(std::io::stdout(), "{text}")?;
                        std::io::stdout().flush()?;
                    }
                    reply.text.push_str(&text);
                }
                RequestEvent::Finished { reason, message, usage, .. } => {
                    (reply.finish, reply.usage) = (Some(reason), usage);
                    let lost = || "its rows were lost with the device".into();
                    reply.failure =
                        reason.is_failure().then(|| message.unwrap_or_else(lost).into_string());
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn finish(args: &GenerateArgs, reply: Reply<'_>) -> anyhow::Result<()> {
    let Reply { prompt, prompt_ids, ids, logprobs, mut text, mut stream, finish, failure, usage } =
        reply;
    let rest = stream.finish()?;
    text.push_str(&rest);
    if args.json {
        let mut object = serde_json::json!({
            "prompt": prompt,
            "prompt_ids": prompt_ids,
            "ids": ids,
            "text": text,
            "finish_reason": finish,
            "usage": usage,
        });
        if let Some(failure) = failure {
            object["error"] = failure.into();
        }
        if args.logprobs.is_some() {
            object["logprobs"] = serde_json::json!(logprobs);
        }
        return print_line(&object.to_string());
    }
    if args.prompt.len() == 1 {
        return print_line(&rest);
    }
    print_line(&format!("{prompt}{text}\n"))
}
