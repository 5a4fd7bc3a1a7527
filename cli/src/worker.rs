//! `piecewise worker`: an engine behind vLLM's front end.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::dumps::DumpArgs;
use super::hub::folder_of;
use super::keeper::{keep, on_signals};
use super::kv_events::{KvEventArgs, bind, publish};
use super::listen::{addresses, are_loopback};
use super::load::{engine, layers_for_requests, print_settings_of_server, vocabulary};
use super::logs::{tell, warn};
use super::model_args::BoundArgs;
use super::out_file::OutFile;
use super::progress::watcher;
use super::serve::name_of;
use super::set_keys::put_server;
use super::start::log_engine;
use super::step_file::{StepFileArgs, StepFiles};
use anyhow::{Context, bail};
use piecewise::assembly::Registries;
use piecewise::models::TextTokenizer;
use piecewise_ir::dtype::DType;
use piecewise_runtime::engine_thread::ThreadOptions;
use piecewise_server::chat::{ChatTemplate, ReplyFormat};
use piecewise_server::structured::Structures;
use piecewise_worker::{Address, Model, StandIn, Worker, WorkerOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of `worker`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  vllm-rs serve DIR --data-parallel-size-local 0 --data-parallel-size 2 --data-parallel-rpc-port 29550
  piecewise worker --model DIR --handshake tcp://127.0.0.1:29550 --rank 0
  piecewise worker --model DIR --handshake tcp://127.0.0.1:29550 --rank 1 --device cuda:1")]
pub(crate) struct WorkerArgs {
    /// A Hugging Face model folder, or a model of the hub by its name; the front end has the same.
    #[arg(short, long, value_name = "DIR|NAME")]
    model: PathBuf,
    /// Where the front end takes engines.
    #[arg(long, value_name = "tcp://HOST:PORT")]
    handshake: Address,
    /// Which of the front end's engines this is, from 0.
    #[arg(long, value_name = "N")]
    rank: u16,
    /// The most requests that may wait beyond those that run; more are told to try again
    /// [default: 1024].
    #[arg(long, value_name = "N")]
    max_queue: Option<u64>,
    /// How replies have thoughts, by the name of a parser, where the front end has one: a structure
    /// begins behind them. `auto` is as the chat template says.
    #[arg(long, value_name = "NAME", default_value = "none")]
    reasoning_parser: String,
    /// Where the worker notes the front end that it is with, to find it when it is started again
    /// [default: piecewise-worker in the folder for temporary files].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Leave nobody behind who answers the front end once the worker has ended.
    #[arg(long)]
    no_stand_in: bool,
    /// Stay as the parent of the worker and start it again when it dies, for a container whose first
    /// process this is: requests that it had are answered, and its place with the front end is kept.
    #[arg(long)]
    restart: bool,
    /// Drain once the parent is gone, which `--restart` made.
    #[arg(long, hide = true)]
    kept: bool,
    /// Answer /health, /ready and /metrics over HTTP at this address, such as 127.0.0.1:9100.
    #[arg(long, value_name = "HOST:PORT")]
    metrics_address: Option<String>,
    /// Let the front end put the engine to sleep and wake it, and whoever reaches --metrics-address, which
    /// must be of this machine, change its graphs besides.
    #[arg(long)]
    admin: bool,
    #[command(flatten)]
    steps: StepFileArgs,
    #[command(flatten)]
    kv_events: KvEventArgs,
    #[command(flatten)]
    bounds: BoundArgs,
    #[command(flatten)]
    dumps: DumpArgs,
}

/// Arguments of the process that answers for a worker that has ended.
#[derive(Debug, clap::Args)]
pub(crate) struct StandInArgs {
    rank: u16,
    outputs: Address,
}

pub(crate) fn run(mut args: WorkerArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    if args.restart {
        let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--restart");
        return keep(&Vec::from_iter(arguments.chain(["--kept".into()])));
    }
    #[cfg(target_os = "linux")]
    if args.kept {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    args.model = folder_of(&args.model)?;
    let layers = put_server(layers_for_requests(&args.bounds)?, "max_queue", args.max_queue)?;
    let layers = put_server(layers, "admin", args.admin.then_some(true))?;
    let layers = args.kv_events.over(args.steps.over(layers)?)?;
    let server = layers.clone().finish()?.config.server;
    let assembly = registries.folder(&args.model)?.configure(layers);
    let assembly = args.dumps.over(assembly).watch(watcher());
    let settings = assembly.settings()?;
    if args.bounds.compile.shared.print_config {
        return print_settings_of_server(&settings);
    }
    let probes = args.metrics_address.as_ref().map(|address| {
        let flag = format!("--metrics-address {address}");
        addresses(&flag, address).map(|addresses| (address, addresses))
    });
    let probes = probes.transpose()?;
    if let Some((address, addresses)) = &probes
        && server.admin
        && !are_loopback(addresses)
    {
        bail!(
            "--admin lets whoever reaches {address} put the engine to sleep; use an address of this \
             machine for --metrics-address, such as 127.0.0.1:{}",
            addresses[0].port()
        );
    }
    let publisher = bind(&server, args.rank)?;
    let probes = probes.map(|(address, addresses)| {
        TcpListener::bind(&*addresses).with_context(|| format!("can't listen at {address}"))
    });
    let probes = probes.transpose()?;
    let config = settings.configured()?.config;
    let dtype = config.dtype.unwrap_or(DType::F32);
    let dtype = torch_name(dtype).to_owned();
    let (vocab, end_ids) = vocabulary(&assembly);
    let structures = structures(&args.model, vocab, &end_ids)?;
    let template = ChatTemplate::load(&args.model, None)?;
    let template = template.as_ref().map(ChatTemplate::source).unwrap_or_default();
    let reasoning = ReplyFormat::new(Some(&args.reasoning_parser), Some("none"), &template)?;
    let mut steps = StepFiles::create(server.iteration_log.as_deref(), server.trace.as_deref())?;
    let num_layers = assembly.facts().and_then(|facts| facts.num_layers);
    let stand_in = match args.no_stand_in {
        true => None,
        false => Some(StandIn {
            program: std::env::current_exe().context("where is this program?")?,
            arguments: vec!["worker-stand-in".into()],
        }),
    };
    let is_chosen = args.state_dir.is_some();
    let usual = || std::env::temp_dir().join("piecewise-worker");
    let options = WorkerOptions {
        handshake: args.handshake,
        rank: args.rank,
        state_dir: args.state_dir.unwrap_or_else(usual),
        stand_in,
        admin: server.admin,
        thread: ThreadOptions {
            max_queue: usize::try_from(server.max_queue).unwrap_or(usize::MAX),
            ..ThreadOptions::default()
        },
    };
    if is_chosen {
        let folder = &options.state_dir;
        let made = std::fs::create_dir_all(folder).map_err(anyhow::Error::from);
        let written = made.and_then(|()| OutFile::check(Some(&options.note_file())));
        written.with_context(|| format!("--state-dir {} is of no use", folder.display()))?;
    }
    let mut engine = engine(assembly, &args.dumps)?;
    publish(publisher.as_ref(), &mut engine);
    let name = name_of(&args.model);
    steps.start(&mut engine, &name, num_layers)?;
    log_engine(&name, &config, &engine, started);
    let model = Model { dtype, structures, reasoning };
    let worker = Worker::new(engine, model, options).context("no thread for the engine")?;
    super::logs::count_lost(worker.metrics());
    if let Some(probes) = probes {
        tell(&format!("metrics at http://{}/metrics", worker.answer_probes(probes)?));
    }
    let (handle, mut is_told) = (worker.handle(), false);
    // A first signal lets requests end, a second one ends them.
    on_signals(move |_| match std::mem::replace(&mut is_told, true) {
        false => handle.drain(),
        true => handle.stop(),
    })?;
    let drained = worker.run(&mut |line| tell(line));
    steps.finish()?;
    match drained {
        true => Ok(ExitCode::SUCCESS),
        false => {
            warn("ended before every request had its answer");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Answers for a worker, once it has ended.
pub(crate) fn stand_in(args: &StandInArgs) -> anyhow::Result<ExitCode> {
    piecewise_worker::stand_in(args.rank, &args.outputs)?;
    Ok(ExitCode::SUCCESS)
}

/// What PyTorch calls the dtype of activations.
fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::Bool => "bool",
        DType::E4M3 => "float8_e4m3fn",
        DType::I4 => "int4",
    }
}

fn structures(folder: &Path, vocab: usize, end_ids: &[u32]) -> anyhow::Result<Option<Structures>> {
    let vocabulary = TextTokenizer::load(folder, vocab)?.vocabulary();
    let made = Structures::new(&vocabulary, end_ids);
    Ok(made.inspect_err(|error| warn(&format!("answers can't keep to structures: {error}"))).ok())
}
