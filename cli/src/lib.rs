//! The `piecewise` command line, as a library: every command, for the models, ops and passes of the
//! program that calls it.
//!
//! ```no_run
//! use piecewise::prelude::*;
//! use std::process::ExitCode;
//!
//! fn bigram(bounds: &DecoderBounds) -> Result<Graph, BuildErrors> {
//!     let b = Builder::new("bigram").weight_dtype(DType::F32);
//!     let step = StepInputs::declare(&b, &bounds.step());
//!     let logits = b.weight("table", [64, 64]).gather(step.ids).gather(step.logit_rows);
//!     b.finish(step.outputs(&b, logits, bounds.sampling_controls))
//! }
//!
//! /// `bigram serve --model FOLDER`, whose `config.json` has `"model_type": "bigram"`.
//! fn main() -> ExitCode {
//!     piecewise_cli::main_with(Registries::standard().model("bigram", |_| Ok(bigram)))
//! }
//! ```

mod against;
mod amounts;
mod bench;
mod bisect;
#[cfg(test)]
#[path = "../../tests/support/bounded.rs"]
mod bounded;
mod cache;
mod cache_flags;
mod chat;
mod compile;
mod config;
mod cuda_args;
mod doctor;
mod dumps;
mod embed;
mod encode;
mod encoder_args;
mod flags;
mod generate;
mod help;
mod http_client;
mod hub;
mod images;
mod inspect;
mod keeper;
mod kept;
mod kv_events;
mod listen;
mod load;
mod log_queue;
mod logits;
mod logs;
mod model_args;
mod model_source;
mod named;
mod opt;
mod out_file;
mod panics;
mod plan;
mod preset_weights;
mod print;
mod progress;
mod reduce;
mod report;
mod reproducer;
mod run;
mod serve;
mod set_keys;
mod start;
mod statistics;
mod step_file;
mod tensor_file;
mod trial_args;
mod tune;
mod usage;
mod worker;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use flags::Flags;
use logs::{LogArgs, Logging};
use piecewise::assembly::Registries;
use piecewise_runtime::config::ConfigLayers;
use std::ffi::OsString;
use std::process::ExitCode;

/// Compiles transformer models, cuts them at attention into pieces, and replays the pieces, or whole
/// steps, as CUDA graphs; on the CPU in the same way.
#[derive(Debug, Parser)]
#[command(
    name = "piecewise",
    version,
    about,
    after_help = "Examples:
  piecewise generate --model examples/tiny-qwen3 --prompt \"def __init__(self\"
  piecewise inspect --model examples/tiny-qwen3 --sizes
  piecewise plan --log iterations.jsonl --max-graphs 16"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate text from prompts.
    Generate(Box<generate::GenerateArgs>),
    /// Serve a model to any OpenAI client.
    Serve(Box<serve::ServeArgs>),
    /// Serve a model behind vLLM's front end, one of many.
    Worker(Box<worker::WorkerArgs>),
    /// Answer for a worker that has ended; workers start this themselves.
    #[command(hide = true)]
    WorkerStandIn(worker::StandInArgs),
    /// Talk with a model in the terminal.
    Chat(Box<chat::ChatArgs>),
    /// Turn texts into embeddings.
    Embed(Box<embed::EmbedArgs>),
    /// Run an encoder of any kind: tensors in, tensors out.
    Encode(Box<encode::EncodeArgs>),
    /// Write the logits of every position of a prompt.
    Logits(Box<logits::LogitsArgs>),
    /// Show pieces, slots and kernels of a model; needs only its config.json.
    Inspect(Box<inspect::InspectArgs>),
    /// Compile a model ahead of time, into the compile cache; needs no weights and no device.
    Compile(Box<compile::CompileModelArgs>),
    /// Measure which ways of computing a model are faster than the expected ones, and remember them in
    /// the compile cache for every start to come.
    Tune(Box<tune::TuneArgs>),
    /// Look at the compile cache, and look after it.
    Cache(cache::CacheArgs),
    /// Show the settings that there are, or check a file of them.
    Config(config::ConfigArgs),
    /// Measure steps: time, launches, and bytes against what the device reads.
    Bench(Box<bench::BenchArgs>),
    /// Show what this machine has for running models, and what is missing.
    Doctor(doctor::DoctorArgs),
    /// Choose capture sizes from an iteration log.
    Plan(Box<plan::PlanArgs>),
    /// Run passes on a textual graph.
    Opt(Box<opt::OptArgs>),
    /// Run a textual graph on ids or on tensors, and compare what comes out.
    Run(Box<run::RunArgs>),
    /// Find what makes a graph wrong: a pass, one of its rewrites, or a kernel.
    Bisect(Box<bisect::BisectArgs>),
    /// Shrink a textual graph as long as it shows the same fault.
    Reduce(Box<reduce::ReduceArgs>),
}

/// Does what the command line of this process asks for, and gives the exit code: the `main` of a program
/// whose commands know `registries`.
pub fn main_with(registries: Registries) -> ExitCode {
    main_of(registries, std::env::args_os())
}

/// The same for arguments of one's own, the first of which is the name of the program.
pub fn main_of(
    registries: Registries,
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> ExitCode {
    let flags = || Flags::of(&Arguments::command());
    let arguments = read(arguments).unwrap_or_else(|error| usage::answered(error, &flags()).exit());
    let logging = match &arguments.command {
        Command::Serve(args) => Logging::Server { access: args.logs_access() },
        Command::Worker(_) => Logging::Worker,
        _ => Logging::Command,
    };
    let _at_end = logs::FlushAtEnd;
    let started = arguments.log.start(logging);
    match started.and_then(|()| run(arguments.command, &registries)) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Reads a command line.
fn read(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Arguments, clap::Error> {
    let matches = help::arranged(Arguments::command()).try_get_matches_from(arguments)?;
    Arguments::from_arg_matches(&matches)
}

fn run(command: Command, registries: &Registries) -> anyhow::Result<ExitCode> {
    let names: Vec<_> =
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    for (name, meant) in ConfigLayers::misspelt_variables(names.iter().map(String::as_str)) {
        logs::warn(&format!("{name} sets nothing; did you mean {meant}?"));
    }
    match command {
        Command::Generate(args) => generate::run(*args, registries),
        Command::Serve(args) => serve::run(*args, registries),
        Command::Worker(args) => worker::run(*args, registries),
        Command::WorkerStandIn(args) => worker::stand_in(&args),
        Command::Chat(args) => chat::run(*args, registries),
        Command::Embed(args) => embed::run(*args, registries),
        Command::Encode(args) => encode::run(*args),
        Command::Logits(args) => logits::run(*args, registries),
        Command::Inspect(args) => inspect::run(*args, registries),
        Command::Compile(args) => compile::run(*args, registries),
        Command::Tune(args) => tune::run(*args, registries),
        Command::Cache(args) => cache::run(args, registries),
        Command::Config(args) => config::run(args, &Flags::of(&Arguments::command())),
        Command::Bench(args) => bench::run(*args, registries),
        Command::Doctor(args) => doctor::run(args),
        Command::Plan(args) => plan::run(*args),
        Command::Opt(args) => opt::run(*args, registries),
        Command::Run(args) => run::run(*args, registries),
        Command::Bisect(args) => bisect::run(*args, registries),
        Command::Reduce(args) => reduce::run(*args, registries),
    }
}

/// Prints an error with its causes and gives the exit code of a failure.
fn fail(error: &anyhow::Error) -> ExitCode {
    let io = error.downcast_ref::<std::io::Error>();
    if io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe) {
        // Whoever read standard output has seen enough.
        return ExitCode::SUCCESS;
    }
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(&format!("\n  because: {cause}"));
        }
    }
    if let Some(file) = reproducer::leave(error, &std::env::temp_dir()) {
        text.push_str(&format!("\n  FILE was left at {}", file.display()));
    }
    logs::say_error(&text);
    ExitCode::FAILURE
}
