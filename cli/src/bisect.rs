//! `piecewise bisect`: what makes a graph wrong.

use super::against::Against;
use super::load::print_settings;
use super::logs::say;
use super::model_source::SourceArgs;
use super::print::{print_line, print_report};
use super::trial_args::TrialArgs;
use anyhow::ensure;
use piecewise::assembly::Registries;
use piecewise::bisect::{Bisection, Culprit, Finding, PassFault, Verdict, WrongValue};
use piecewise::trial::{Trial, tolerance_of};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `bisect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise bisect --model examples/tiny-qwen3 --ids 326,680,596
  piecewise bisect graph.pw --weights DIR --against reference --tolerance 1e-3
  piecewise bisect graph.pw --input x=random:f32[5,8]   # with random weights
  piecewise bisect new.pw --against old.pw --weights DIR

It ends with 0 where nothing is wrong, and with 1 where something is, found or not.")]
pub(crate) struct BisectArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    wrong: WrongArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What is wrong, and how it shows.
#[derive(Debug, clap::Args)]
pub(crate) struct WrongArgs {
    /// The folder of a checkpoint, for a textual graph; random weights without it.
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,
    #[command(flatten)]
    pub trial: TrialArgs,
    /// What it should give: that of eager or another level, of reference (the reference evaluator, in
    /// f64), of FILE.safetensors that `run --out` wrote, or of another FILE.pw.
    #[arg(long, value_name = "WHAT", default_value = "eager")]
    pub against: Against,
    /// How far an element may be off, in units of the largest one [default: 1e-4 of f32, 1e-2 of f16,
    /// 5e-2 of bf16].
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub tolerance: Option<f64>,
}

/// Reads a tolerance.
pub(crate) fn tolerance(text: &str) -> Result<f64, String> {
    let read = text.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
    read.ok_or_else(|| {
        format!("`{text}` is no tolerance; write one such as 1e-3, or 0 for equal bits")
    })
}

pub(crate) fn run(mut args: BisectArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.source.bring()?;
    let BisectArgs { source, wrong, json } = &args;
    let assembly = source.tried(registries, wrong.weights.as_deref())?;
    if source.prints_settings() {
        return print_settings(&assembly.settings()?, *json);
    }
    let trial = Trial::new(assembly)?;
    let feed = trial.feed(&wrong.trial.given(trial.graph())?)?;
    let other = |file: &Path| source.tried_text(file, registries, wrong.weights.as_deref());
    let expected = wrong.against.outputs(&trial, &feed, &wrong.trial, &other)?;
    ensure!(!expected.arrays.is_empty(), "the graph returns nothing to compare");
    let tolerance = wrong.tolerance.unwrap_or_else(|| tolerance_of(trial.graph()));
    let bisection = Bisection { trial: &trial, feed, expected, tolerance };
    let finding = bisection.run(&mut |line| say(&format!("bisect: {line}")))?;
    print_report(*json, &finding, || show(&finding))?;
    Ok(match finding.wrong {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn show(finding: &Finding) -> anyhow::Result<()> {
    let Some(wrong) = &finding.wrong else { return print_line("nothing is wrong") };
    match &finding.culprit {
        Culprit::Nothing => {}
        Culprit::Pass(fault) => show_pass(fault)?,
        Culprit::Kernel(value) => {
            print_line("no pass is at fault: a kernel does not do what its op says")?;
            show_value(value)?;
        }
        Culprit::Replay { said } => {
            print_line("no pass is at fault: launched it is right, and replayed it is not")?;
            print_line(&format!("  {said}"))?;
        }
        Culprit::Unknown { because } => print_line(&format!("nothing is found: {because}"))?,
    }
    print_line(&format!("the whole: {wrong}"))
}

fn show_pass(fault: &PassFault) -> anyhow::Result<()> {
    let PassFault { number, name, rewrite, diff, verdict, first_wrong } = fault;
    print_line(&format!("pass ({number}) {name} is at fault"))?;
    match rewrite {
        Some(rewrite) => {
            let flags = format!("--bisect {number} --bisect-rewrites {}", rewrite.number);
            let (rule, place, of) = (&rewrite.rule, &rewrite.place, rewrite.of);
            let it = format!("rewrite {} of {of}, `{rule}`: {place}", rewrite.number);
            print_line(&format!("  {it}\n  seen by: piecewise opt .. {flags} --print-changed"))?;
        }
        None => print_line(
            "  it counts no rewrites, or they alone do not tell: `PassContext::rewrites` has it asked \
             for each",
        )?,
    }
    let judged = match verdict {
        Verdict::WrongRewrite => "what it did changes what the graph computes",
        Verdict::WrongKernel => "what it did is right: a kernel that is made of it is not",
        Verdict::Unknown => {
            "an op has no reference implementation, so that nobody can tell what it did from the kernel \
             that is made of it"
        }
        Verdict::Failed => "what it did does not end, or can't be compiled",
    };
    print_line(&format!("  {judged}"))?;
    first_wrong.as_ref().map_or(Ok(()), show_value)?;
    match diff.is_empty() {
        true => Ok(()),
        false => print_line(diff.trim_end()),
    }
}

fn show_value(value: &WrongValue) -> anyhow::Result<()> {
    let WrongValue { line, scope, source, difference } = value;
    print_line(&format!("first wrong value: {difference}\n  {line}"))?;
    let place = match (source.as_str(), scope.as_str()) {
        ("", "") => "nobody said where it was written".to_owned(),
        ("", scope) => format!("written in {scope}"),
        (source, "") => format!("written at {source}"),
        (source, scope) => format!("written at {source}, in {scope}"),
    };
    print_line(&format!("  {place}"))
}
