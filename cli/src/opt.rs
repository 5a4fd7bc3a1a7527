//! `piecewise opt`: passes on a textual graph.

use super::dumps::DumpArgs;
use super::logs::say;
use super::model_source::read_module;
use super::print::print_line;
use anyhow::ensure;
use piecewise::assembly::Registries;
use piecewise::assembly::dumps::{of_passes, write_module};
use piecewise_ir::text::print_module;
use piecewise_passes::manager::{BisectLog, PrintChanged};
use piecewise_passes::rewrite::Rewrites;
use piecewise_passes::{PassContext, PassManager, Pipeline};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `opt`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise opt model.pw --pipeline canonicalize,cse,dce
  piecewise opt model.pw --pipeline fuse,split --print-after all
  piecewise opt --list-passes            # what a pipeline may name
  piecewise opt model.pw --print-changed # a diff for each pass that changed something
  piecewise opt model.pw --bisect 3      # only the first 3 passes, and those that must run
  piecewise opt model.pw --bisect-rewrites 40 # only the first 40 rewrites of all passes
  piecewise opt model.pw --json          # what each pass matched, and why not more")]
pub(crate) struct OptArgs {
    /// A textual graph, or a graph with its plan.
    #[arg(required_unless_present = "list_passes")]
    file: Option<PathBuf>,
    /// Print the passes that a pipeline may name, those of a compile first with their places in it, and
    /// stop.
    #[arg(long)]
    list_passes: bool,
    /// Passes in order, with options in braces [default: those of a compile].
    #[arg(long)]
    pipeline: Option<String>,
    /// Print a report of the passes as JSON instead of the module.
    #[arg(long)]
    json: bool,
    /// Print a diff for each pass that changed something instead of the module.
    #[arg(long, conflicts_with = "json")]
    print_changed: bool,
    /// Run only the first N passes, and the later ones that a plan can't do without; say on
    /// standard error which passes run and which change something.
    #[arg(long, value_name = "N")]
    bisect: Option<usize>,
    /// Do only the first N rewrites of all passes together, those of fusion too; say on standard error
    /// which rule did the last one, and to what.
    #[arg(long, value_name = "N")]
    bisect_rewrites: Option<u64>,
    #[command(flatten)]
    dumps: DumpArgs,
}

pub(crate) fn run(args: OptArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    let Some(file) = args.file.filter(|_| !args.list_passes) else {
        return list_passes(registries);
    };
    let mut module = read_module(&file)?;
    let pipeline = match &args.pipeline {
        Some(text) => Pipeline::parse(text)?,
        None => registries.pipeline()?.clone(),
    };
    let mut manager = PassManager::new(&pipeline, &registries.passes)?;
    let dumps = args.dumps.config();
    if let Some(dump) = of_passes(&dumps, &registries.passes)? {
        manager = manager.observe(Box::new(dump));
    }
    for observer in args.dumps.observers() {
        manager = manager.observe(observer);
    }
    if let Some(first) = args.bisect {
        let there = pipeline.passes.len();
        ensure!(
            first <= there,
            "--bisect {first}: the pipeline has {there} passes; give 0 to {there}"
        );
        let log = BisectLog::new(print_module, |line: String| say(&line));
        manager = manager.only_first(first).observe(Box::new(log));
    }
    if args.print_changed {
        manager = manager.observe(Box::new(PrintChanged::new(print_module, |diff: String| {
            // A closed standard output leaves nobody to show it to.
            let _ = write!(std::io::stdout(), "{diff}");
        })));
    }
    let mut cx = PassContext::of(registries.ops.defs().clone());
    if let Some(first) = args.bisect_rewrites {
        cx.rewrites = Rewrites::only_first(first);
    }
    let report = manager.run(&mut module, &mut cx)?;
    if let Some((rule, place)) = cx.rewrites.last() {
        let done = cx.rewrites.done();
        say(&format!("bisect: {done} rewrites, the last by `{rule}`: {place}"));
    }
    write_module(&module, &dumps)?;
    if args.json {
        let passes: Vec<_> = report
            .passes
            .iter()
            .map(|run| {
                serde_json::json!({
                    "pass": run.name,
                    "microseconds": run.elapsed.as_micros() as u64,
                    "report": run.report,
                })
            })
            .collect();
        print_line(&serde_json::to_string_pretty(&passes)?)?;
    } else if !args.print_changed {
        print_line(print_module(&module).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Passes in the order in which a compile runs them, and after them those that only a pipeline names.
fn list_passes(registries: &Registries) -> anyhow::Result<ExitCode> {
    let pipeline = registries.pipeline()?;
    for (place, pass) in pipeline.passes.iter().enumerate() {
        print_line(&format!("{:>3}  {}", place + 1, pass.name))?;
    }
    let runs = |name: &&str| pipeline.passes.iter().any(|pass| pass.name == *name);
    let others = registries.passes.names().filter(|name| !runs(name));
    others.map(|name| format!("     {name}")).try_for_each(|line| print_line(&line))?;
    Ok(ExitCode::SUCCESS)
}
