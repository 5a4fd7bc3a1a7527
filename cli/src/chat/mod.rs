//! `piecewise chat`: a conversation in the terminal.

mod conversation;
mod graphs;
mod interrupt;

use self::conversation::{Conversation, Outcome, Turn};
use self::interrupt::Interrupt;
use super::dumps::DumpArgs;
use super::load::{engine, generation_defaults, print_settings, vocabulary};
use super::logs::{say, warn};
use super::model_args::ModelArgs;
use super::named::named;
use super::print::print_line;
use super::serve::name_of;
use super::statistics::show_statistics;
use super::step_file::StepFileArgs;
use anyhow::bail;
use piecewise::assembly::Registries;
use piecewise::models::TextTokenizer;
use piecewise_runtime::batch::Sampling;
use piecewise_runtime::config::GenerationConfig;
use piecewise_server::chat::{ChatTemplate, GenerationDefaults, ReplyFormat};
use serde_json::{Map, Value};
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const HELP: &str = "\
/reset   start anew, with the same system message
/stats   show what the last reply took
/graphs  show the graphs: how many are ready, and what failed; `/graphs enable` lets those be captured
         again that failures have disabled, `/graphs recapture` captures all of them again, and
         `/graphs MODE` changes their mode
/exit    leave, as Ctrl-D does
Ctrl-C stops a reply.";

/// Arguments of `chat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise chat --model DIR
  piecewise chat --model DIR --system \"Answer in one line.\" --temperature 0
  piecewise chat --model DIR --chat-template-kwargs '{\"enable_thinking\": false}'
  echo \"What is a graph?\" | piecewise chat --model DIR

In the conversation: /reset, /stats, /graphs, /help, /exit; Ctrl-C stops a reply.")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// A chat template, Jinja or JSON, instead of the model's own.
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Variables of the chat template, as a JSON object.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    chat_template_kwargs: Option<JsonObject>,
    /// The parser of thoughts, `none`, or `auto`: by the chat template.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    reasoning_parser: String,
    /// The most tokens of a reply [default: the model's own, else what the context has room for].
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// 0 takes the likeliest token [default: the model's own, else 0].
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Sample among the K likeliest tokens; 0 is off [default: the model's own].
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Sample among the likeliest tokens that make up this share; 1 is off, 0 takes the likeliest
    /// [default: the model's own].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Sample among tokens at least so likely, as a share of the likeliest one's probability; 0 is
    /// off [default: the model's own].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// What logits of ids that have been are divided by; 1 is off [default: the model's own].
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Whether defaults come from the model's generation_config.json: auto, or none.
    #[arg(long, value_name = "WHETHER", default_value = "auto", value_parser = named::<GenerationConfig>)]
    generation_config: GenerationConfig,
    /// The seed of the first reply; each further one has the next.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Show what ran, on standard error, at the end.
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    steps: StepFileArgs,
    #[command(flatten)]
    dumps: DumpArgs,
}

type JsonObject = Map<String, Value>;

fn json_object(text: &str) -> Result<JsonObject, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

impl ChatArgs {
    fn sampling(&self, defaults: &GenerationDefaults) -> Sampling {
        let off = Sampling::default();
        let chosen = |flag: Option<f32>, default: Option<f32>, off| flag.or(default).unwrap_or(off);
        Sampling {
            temperature: chosen(self.temperature, defaults.temperature, off.temperature),
            top_k: self.top_k.or(defaults.top_k).unwrap_or(off.top_k),
            top_p: chosen(self.top_p, defaults.top_p, off.top_p),
            min_p: chosen(self.min_p, defaults.min_p, off.min_p),
            repetition_penalty: chosen(
                self.repetition_penalty,
                defaults.repetition_penalty,
                off.repetition_penalty,
            ),
            seed: self.seed,
            ..off
        }
    }
}

pub(crate) fn run(mut args: ChatArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.model.bring()?;
    let assembly = args.dumps.over(args.model.assembly(registries)?).sequences(1);
    if args.model.bounds.compile.shared.print_config {
        return print_settings(&assembly.settings()?, false);
    }
    let folder = &args.model.model;
    let (vocab, stop_ids) = vocabulary(&assembly);
    let layers = assembly.facts().and_then(|facts| facts.num_layers);
    let Some(template) = ChatTemplate::load(folder, args.chat_template.as_deref())? else {
        bail!(
            "{} has no chat template; name one by --chat-template, or go on from a text by \
             `piecewise generate`",
            folder.display()
        );
    };
    let defaults = generation_defaults(folder, args.generation_config)?;
    let format = ReplyFormat::new(Some(&args.reasoning_parser), Some("none"), &template.source())?;
    let tokenizer = Arc::new(TextTokenizer::load(folder, vocab)?);
    let mut steps = args.steps.create()?;
    let mut engine = engine(assembly, &args.dumps)?;
    steps.start(&mut engine, &name_of(folder), layers)?;
    if args.stats {
        engine.metrics();
    }
    let mut conversation = Conversation {
        tokenizer,
        template,
        format,
        kwargs: args.chat_template_kwargs.clone().unwrap_or_default(),
        sampling: args.sampling(&defaults),
        max_tokens: args.max_tokens.or(defaults.max_new_tokens),
        stop_ids,
        engine,
        messages: Vec::new(),
        kept: None,
    };
    let mut said = Said::default();
    let talked = talk(&mut conversation, args.system.as_deref(), &mut said);
    steps.finish()?;
    if args.stats {
        show_statistics(false, &conversation.engine, None, said.tokens, said.time)?;
    }
    talked.map(|()| ExitCode::SUCCESS)
}

/// What all replies took.
#[derive(Default)]
struct Said {
    tokens: usize,
    time: Duration,
}

fn talk(
    conversation: &mut Conversation,
    system: Option<&str>,
    all: &mut Said,
) -> anyhow::Result<()> {
    conversation.reset(system)?;
    let interrupt = Interrupt::listen()?;
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let mut out = std::io::stdout();
    let mut last: Option<Turn> = None;
    let mut lines = (1_u64..).zip(std::io::stdin().lock().split(b'\n'));
    loop {
        if is_terminal {
            write!(out, "> ")?;
            out.flush()?;
        }
        let Some((number, line)) = lines.next() else { break };
        let line = match String::from_utf8(line?) {
            Ok(line) => line,
            Err(error) => {
                let reason = error.utf8_error();
                warn(&format!("line {number} is no text and left out: {reason}"));
                continue;
            }
        };
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => break,
            "/reset" => {
                conversation.reset(system)?;
                last = None;
            }
            "/stats" => match &last {
                Some(turn) => print_line(&turn.to_string())?,
                None => print_line("nothing was said yet")?,
            },
            "/help" => print_line(HELP)?,
            command if command.split_whitespace().next() == Some("/graphs") => {
                let what = command.trim_start_matches("/graphs").trim();
                match graphs::command(&mut conversation.engine, what) {
                    Ok(text) => print_line(&text)?,
                    Err(error) => warn(&format!("{error:#}")),
                }
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                warn(&format!("there is no command {command}; /help shows those there are"));
            }
            said => {
                let turn = conversation.reply(said, &interrupt, |thought, text| {
                    if !thought.is_empty() && is_terminal {
                        write!(out, "\x1b[2m{thought}\x1b[0m")?;
                    }
                    write!(out, "{text}")?;
                    out.flush()
                });
                let turn = match turn {
                    Ok(turn) => turn,
                    Err(error) if is_terminal => {
                        warn(&format!("{error:#}"));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                print_line("")?;
                match turn.outcome {
                    Outcome::Whole => {}
                    Outcome::Cut => say("(cut; --max-tokens and --max-seq-len bound replies)"),
                    Outcome::Stopped => say("(stopped)"),
                }
                let (tokens, time) = turn.taken();
                all.tokens += tokens;
                all.time += time;
                last = Some(turn);
            }
        }
    }
    Ok(())
}
