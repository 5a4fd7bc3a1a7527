//! The `piecewise` command line.

mod amounts;
mod bench;
mod cache;
mod cache_flags;
mod chat;
mod compile;
mod config;
mod doctor;
mod dumps;
mod embed;
mod encode;
mod encoder_args;
mod generate;
mod images;
mod inspect;
mod keeper;
mod kept;
mod kv_events;
mod load;
mod logits;
mod model_args;
mod model_source;
mod named;
mod opt;
mod plan;
mod preset_weights;
mod progress;
mod report;
mod run;
mod serve;
mod step_file;
mod tune;
mod worker;

use clap::{Parser, Subcommand};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
  piecewise plan --simulate chat --max-graphs 16"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
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
    /// Choose capture sizes from an iteration log, from simulated traffic, or for a bound.
    Plan(Box<plan::PlanArgs>),
    /// Run passes on a textual graph.
    Opt(Box<opt::OptArgs>),
    /// Run a textual graph with a checkpoint's weights.
    Run(Box<run::RunArgs>),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .with_env_var("PIECEWISE_LOG")
        .from_env_lossy();
    // Who asks for the lines about steps or requests wants to see them.
    let mut shown = vec!["piecewise::stats=info"];
    if matches!(&arguments.command, Command::Serve(args) if !args.no_access_log) {
        shown.push("piecewise::access=info");
    }
    let shown = shown.iter().filter_map(|directive| directive.parse().ok());
    let filter = shown.fold(filter, EnvFilter::add_directive);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
    match run(arguments) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Generate(args) => generate::run(*args),
        Command::Serve(args) => serve::run(*args),
        Command::Worker(args) => worker::run(*args),
        Command::WorkerStandIn(args) => worker::stand_in(&args),
        Command::Chat(args) => chat::run(*args),
        Command::Embed(args) => embed::run(*args),
        Command::Encode(args) => encode::run(*args),
        Command::Logits(args) => logits::run(*args),
        Command::Inspect(args) => inspect::run(*args),
        Command::Compile(args) => compile::run(*args),
        Command::Tune(args) => tune::run(*args),
        Command::Cache(args) => cache::run(args),
        Command::Config(args) => config::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::Doctor(args) => doctor::run(args),
        Command::Plan(args) => plan::run(*args),
        Command::Opt(args) => opt::run(*args),
        Command::Run(args) => run::run(*args),
    }
}

/// Prints an error with its causes and gives the exit code of a failure.
fn fail(error: &anyhow::Error) -> ExitCode {
    let io = error.downcast_ref::<std::io::Error>();
    if io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe) {
        // Whoever read standard output has seen enough.
        return ExitCode::SUCCESS;
    }
    let mut text = format!("error: {error}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(&format!("\n  because: {cause}"));
        }
    }
    // A closed standard error leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::FAILURE
}

/// Says something on standard error that is no reason to stop.
fn warn(text: &str) {
    say(&format!("warning: {text}"));
}

/// Writes a line to standard error.
fn say(line: &str) {
    // A closed standard error leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a line to standard output.
///
/// # Errors
/// When standard output is closed.
fn print_line(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// Prints a report as JSON, or as `show` does.
///
/// # Errors
/// When standard output is closed.
fn print_report(
    json: bool,
    report: &impl serde::Serialize,
    show: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if json { print_line(&serde_json::to_string_pretty(report)?) } else { show() }
}
