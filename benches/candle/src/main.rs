//! Batch-1 greedy decoding by piecewise and by candle on the CPU: the same weights, the same
//! number of threads, one run, the sides taking turns.

mod bandwidth;
mod candle_side;
mod contest;
mod golden;
mod machine;
mod model;
mod piecewise_side;
mod profile;
mod report;
mod startup;
mod weights;

use clap::Parser;
use model::Model;
use piecewise_ir::dtype::DType;
use std::path::PathBuf;

/// Decode speed of piecewise beside candle on this machine.
#[derive(Debug, Parser)]
struct Args {
    /// Threads of every side, and of the bandwidth measurement; 0 takes every core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// What is measured.
    #[arg(long, value_delimiter = ',', default_value = "tiny,0.6b")]
    models: Vec<Shape>,
    /// Ids of the prompt.
    #[arg(long, default_value_t = 128)]
    prompt: usize,
    /// Decode steps of each generation.
    #[arg(long, default_value_t = 128)]
    steps: usize,
    /// Steps that a side runs before the next has its turn; the first of them is not timed.
    #[arg(long, default_value_t = 8)]
    turn: usize,
    /// Whole generations of each side.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The folder of the tiny model.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tiny-qwen3"))]
    tiny: PathBuf,
    /// Show where a step's time goes, by launch.
    #[arg(long)]
    profile: bool,
    /// Leave candle out.
    #[arg(long)]
    alone: bool,
    /// Measure what happens before the first token instead.
    #[arg(long)]
    startup: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Shape {
    /// examples/tiny-qwen3 with its weights.
    Tiny,
    /// The shape of Qwen3-0.6B with random weights.
    #[value(name = "0.6b")]
    Small,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let threads = match args.threads {
        0 => std::thread::available_parallelism()?.get(),
        threads => threads,
    };
    // SAFETY: no other thread has been started, so nobody reads the environment meanwhile. It is
    // the only way to tell candle how many threads its own pools have.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", threads.to_string()) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    println!("{}", machine::describe(threads));
    if args.startup {
        return startup::measure(&args.tiny, threads);
    }
    for shape in &args.models {
        let model = match shape {
            Shape::Tiny => Model::load(&args.tiny)?,
            Shape::Small => Model::qwen3_0_6b()?,
        };
        if *shape == Shape::Tiny {
            golden::check(&args.tiny, &model, &pool, threads, args.alone)?;
        }
        contest::run(&args, &model, &pool, threads)?;
    }
    println!("load at the end {}", machine::load());
    Ok(())
}

/// The activation types that piecewise is measured with.
const ACTIVATIONS: [DType; 2] = [DType::BF16, DType::F32];
