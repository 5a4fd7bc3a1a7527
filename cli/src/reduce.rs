//! `piecewise reduce`: a textual graph made small that shows the same fault.

use super::bisect::WrongArgs;
use super::load::print_settings;
use super::logs::say;
use super::model_source::SourceArgs;
use super::out_file::OutFile;
use super::print::print_line;
use anyhow::{Context, bail, ensure};
use piecewise::assembly::Registries;
use piecewise::bisect::reduce;
use piecewise::trial::{Given, Outputs, Trial, TrialError, TrialLevel, differences, tolerance_of};
use piecewise_ir::graph::Graph;
use piecewise_ir::text::print_graph;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Arguments of `reduce`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise reduce graph.pw --weights DIR --out small.pw      # wrong beside eager, still
  piecewise reduce --model DIR --ids 1,2,3 --against reference --out small.pw
  piecewise reduce graph.pw --out small.pw --test ./fails.sh  # as long as `./fails.sh FILE` ends with 0

What is left reads random values where it read others: `piecewise bisect small.pw` shows the same.")]
pub(crate) struct ReduceArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    wrong: WrongArgs,
    /// A command that is given the file of a graph and ends with 0 where it shows the fault; without it,
    /// a graph does that gives what it should not, or fails where what it is held against does not.
    #[arg(long, value_name = "COMMAND")]
    test: Option<String>,
    /// The most graphs that are tried.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    max_tests: usize,
    /// Where to write the small graph; standard output without it.
    #[arg(long, value_name = "FILE.pw")]
    out: Option<PathBuf>,
}

/// How a graph is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Differs,
    Fails,
}

pub(crate) fn run(mut args: ReduceArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.source.bring()?;
    let ReduceArgs { source, wrong, test, max_tests, out } = &args;
    let assembly = source.tried(registries, wrong.weights.as_deref())?;
    if source.prints_settings() {
        return print_settings(&assembly.settings()?, false);
    }
    let out = out.as_deref().map(OutFile::claim).transpose()?;
    let trial = Trial::new(assembly)?;
    let graph = trial.graph().clone();
    let mut tests = 0;
    let mut still: Box<dyn FnMut(&Graph) -> bool> = match test {
        Some(command) => {
            let folder =
                std::env::temp_dir().join(format!("piecewise-reduce-{}", std::process::id()));
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("can't make {}", folder.display()))?;
            let folder = Scratch(folder);
            ensure!(
                shows(command, &folder.0, &graph)?,
                "`{command}` does not end with 0 for the graph as it is; there is nothing to shrink"
            );
            Box::new(move |graph| shows(command, &folder.0, graph).unwrap_or(false))
        }
        None => {
            let Some(fault) = fault_of(wrong, &trial)? else {
                bail!("the graph is right within the tolerance; there is nothing to shrink");
            };
            let trial = &trial;
            Box::new(move |graph| {
                fault_of(wrong, &trial.of_graph(graph.clone())).ok().flatten() == Some(fault)
            })
        }
    };
    let reduction = reduce(&graph, *max_tests, &mut |graph| {
        let is_kept = still(graph);
        tests += 1;
        if is_kept {
            say(&format!("reduce: {} nodes after {tests} tries", graph.order().len()));
        }
        is_kept
    });
    let (from, to) = (graph.order().len(), reduction.graph.order().len());
    let left = if reduction.is_done { "" } else { ", and more could be tried (--max-tests)" };
    say(&format!("reduce: {from} nodes are {to}, after {} tries{left}", reduction.tests));
    let text = print_graph(&reduction.graph);
    match out {
        Some(out) => out.write(|path| Ok(std::fs::write(path, text)?))?,
        None => print_line(text.trim_end())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a graph is wrong, and how.
///
/// # Errors
/// When it can't be told: what it is held against fails.
fn fault_of(wrong: &WrongArgs, trial: &Trial) -> anyhow::Result<Option<Fault>> {
    let given = wrong.trial.given(trial.graph())?;
    // What was cut off reads nothing any more.
    let inputs = given.inputs.into_iter();
    let inputs = inputs.filter(|(name, _)| trial.graph().inputs().iter().any(|i| i.name == *name));
    let given = Given { inputs: inputs.collect(), ..given };
    let feed = trial.feed(&given)?;
    let no_file = |_: &Path| bail!("a graph that shrinks is held against a level or the reference");
    let expected = wrong.against.outputs(trial, &feed, &wrong.trial, &no_file)?;
    let tolerance = wrong.tolerance.unwrap_or_else(|| tolerance_of(trial.graph()));
    let found = || -> Result<Outputs, TrialError> { trial.run(TrialLevel::Compiled(None), &feed) };
    Ok(match catch_unwind(AssertUnwindSafe(found)) {
        Ok(Ok(found)) => {
            let is_wrong = !differences(&expected, &found, tolerance)?.is_empty();
            is_wrong.then_some(Fault::Differs)
        }
        Ok(Err(_)) | Err(_) => Some(Fault::Fails),
    })
}

/// Whether a command says of a graph that it shows the fault.
#[expect(clippy::disallowed_methods, reason = "the user's command takes as long as it takes")]
fn shows(command: &str, folder: &Path, graph: &Graph) -> anyhow::Result<bool> {
    let file = folder.join("graph.pw");
    std::fs::write(&file, print_graph(graph))
        .with_context(|| format!("can't write {}", file.display()))?;
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{command} \"$1\""), "sh"]).arg(&file);
    let status = shell.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).status();
    Ok(status.with_context(|| format!("can't run `{command}`"))?.success())
}

/// A folder that is gone with its holder.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Who took it away meanwhile has done this.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
