//! `piecewise run`: a textual graph on ids or on tensors.

use super::against::Against;
use super::bisect::tolerance;
use super::dumps::DumpArgs;
use super::load::{engine, print_settings};
use super::logs::say;
use super::model_args::CompileArgs;
use super::model_source::read_module;
use super::out_file::OutFile;
use super::preset_weights::WEIGHTS;
use super::print::print_line;
use super::progress::watcher;
use super::tensor_file::write_arrays;
use super::trial_args::TrialArgs;
use anyhow::{bail, ensure};
use piecewise::assembly::{Assembly, Purpose, Registries};
use piecewise::models::Checkpoint;
use piecewise::trial::{
    Outputs, Trial, TrialLevel, differences, largest_error, run_planned, tolerance_of,
};
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::text::print_graph;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::engine::Request;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Elements that are shown of an output.
const SHOWN: usize = 6;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise inspect --model DIR --stop-after fuse > fused.pw
  piecewise run fused.pw --weights DIR --ids 326,680,596 --out logits.safetensors
  piecewise inspect --model DIR --stop-after check > planned.pw
  piecewise run fused.pw --plan planned.pw --weights DIR --ids 326,680,596
  piecewise run graph.pw --input x=random:f32[5,8] --input at=0,1,2,3,4   # with random weights
  piecewise run fused.pw --weights DIR --ids 326,680,596 --compare reference")]
pub(crate) struct RunArgs {
    /// A textual graph, as a dump after any pass has it.
    file: PathBuf,
    /// A textual module with the plan to use; its graph must be that of the file.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// The folder of the checkpoint; random weights without it.
    #[arg(long, value_name = "DIR")]
    weights: Option<PathBuf>,
    #[command(flatten)]
    trial: TrialArgs,
    /// Write what comes out: of a decoder one tensor `logits` f32 [tokens, vocab], else `output_0` and on.
    #[arg(long, value_name = "FILE.safetensors")]
    out: Option<PathBuf>,
    /// Compare what comes out with that of eager or another level, of reference (the reference
    /// evaluator, in f64), of FILE.safetensors that --out wrote, or of another FILE.pw; end with 1 where
    /// it differs.
    #[arg(long, value_name = "WHAT")]
    compare: Option<Against>,
    /// How far an element may be off, in units of the largest one [default: 1e-4 of f32, 1e-2 of f16,
    /// 5e-2 of bf16].
    #[arg(long, value_name = "X", value_parser = tolerance, requires = "compare")]
    tolerance: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compile: CompileArgs,
    #[command(flatten)]
    dumps: DumpArgs,
}

pub(crate) fn run(mut args: RunArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    let is_reference = args.compile.takes_reference();
    let layers = args.compile.layers()?;
    let put_together = |file: &Path| args.assembly(file, &layers, registries);
    let file = with_plan(&args)?;
    if args.compile.shared.print_config {
        return print_settings(&put_together(file)?.settings()?, args.json);
    }
    let out = args.out.as_deref().map(OutFile::claim).transpose()?;
    if args.weights.is_none() && !read_module(file)?.graph().weights().is_empty() {
        say("run: the weights are random numbers; --weights DIR takes those of a checkpoint");
    }
    let outputs = if is_reference {
        ensure!(
            args.plan.is_none() && !args.dumps.stops(),
            "--level reference runs no pass and knows no plan; leave --plan and --stop-after out"
        );
        let trial = Trial::new(put_together(file)?)?;
        let feed = trial.feed(&args.trial.given(trial.graph())?)?;
        trial.run(TrialLevel::Reference, &feed)?
    } else {
        let assembly = args.dumps.over(put_together(file)?);
        match &args.trial.ids {
            // As an engine runs them, over the KV cache that requests share.
            Some(ids) if args.trial.inputs.is_empty() => {
                logits(assembly.purpose(Purpose::Logits), ids, &args.dumps)?
            }
            _ => {
                let given = args.trial.given(read_module(file)?.graph())?;
                let planned = args.dumps.plan(assembly)?;
                if args.dumps.stops() {
                    bail!("the passes were stopped early; there is nothing to run");
                }
                run_planned(planned, &registries.ops, &given)?
            }
        }
    };
    if let Some(out) = out {
        out.write(|path| write_arrays(path, &outputs))?;
    }
    let compared = match &args.compare {
        Some(against) => Some(compared(&args, against, &outputs, file, &put_together)?),
        None => None,
    };
    let is_right = compared.as_ref().is_none_or(|compared| compared["is_right"] == true);
    if args.json {
        print_line(&shown_json(&args, &outputs, compared).to_string())?;
    } else {
        show(&args, &outputs, compared.as_ref())?;
    }
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl RunArgs {
    fn assembly(
        &self,
        file: &Path,
        layers: &ConfigLayers,
        registries: &Registries,
    ) -> anyhow::Result<Assembly> {
        let assembly = Assembly::file(file)?.registries(registries.clone());
        let assembly = assembly.configure(layers.clone()).watch(watcher());
        Ok(match &self.weights {
            Some(folder) => assembly.checkpoint(Checkpoint::open(folder)?),
            None => assembly.weights(WEIGHTS),
        })
    }
}

/// The logits of every position.
fn logits(assembly: Assembly, ids: &[u32], dumps: &DumpArgs) -> anyhow::Result<Outputs> {
    let mut engine = engine(assembly, dumps)?;
    let vocab = engine.options().vocab as usize;
    let mut bytes = Vec::new();
    let request = Request::new(ids.to_vec(), 1);
    engine.logits(&request, &mut |_, rows| bytes.extend_from_slice(rows))?;
    let array = Array::from_bytes(DType::F32, vec![ids.len(), vocab], &bytes);
    Ok(Outputs { names: vec!["logits".to_owned()], arrays: vec![array] })
}

/// What is different from what else was computed, as JSON.
fn compared(
    args: &RunArgs,
    against: &Against,
    found: &Outputs,
    file: &Path,
    put_together: &dyn Fn(&Path) -> anyhow::Result<Assembly>,
) -> anyhow::Result<Value> {
    let trial = Trial::new(put_together(file)?.sequences(1))?;
    let feed = trial.feed(&args.trial.given(trial.graph())?)?;
    let expected = against.outputs(&trial, &feed, &args.trial, put_together)?;
    let tolerance = args.tolerance.unwrap_or_else(|| tolerance_of(trial.graph()));
    let wrong = differences(&expected, found, tolerance)?;
    Ok(json!({
        "is_right": wrong.is_empty(),
        "tolerance": tolerance,
        "largest_error": largest_error(&expected, found),
        "wrong": wrong,
        "said": wrong.iter().map(ToString::to_string).collect::<Vec<_>>(),
    }))
}

fn digest(array: &Array) -> String {
    blake3::hash(&array.to_bytes()).to_hex().to_string()
}

fn shown_json(args: &RunArgs, outputs: &Outputs, compared: Option<Value>) -> Value {
    let mut object = match (outputs.names.as_slice(), outputs.arrays.as_slice()) {
        ([name], [logits]) if name == "logits" => json!({
            "ids": args.trial.ids,
            "next": greedy(logits),
            "shape": logits.shape,
            "logits_blake3": digest(logits),
        }),
        (names, arrays) => {
            let output = |(name, array): (&String, &Array)| {
                json!({
                    "name": name,
                    "dtype": array.dtype.name(),
                    "shape": array.shape,
                    "blake3": digest(array),
                })
            };
            json!({"outputs": names.iter().zip(arrays).map(output).collect::<Vec<_>>()})
        }
    };
    if let Some(compared) = compared {
        object["compared"] = compared;
    }
    object
}

fn show(args: &RunArgs, outputs: &Outputs, compared: Option<&Value>) -> anyhow::Result<()> {
    for (name, array) in outputs.names.iter().zip(&outputs.arrays) {
        let dims = array.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if name == "logits" {
            print_line(&format!("likeliest next id after each position: {:?}", greedy(array)))?;
        }
        print_line(&format!("{name} {} [{dims}], blake3 {}", array.dtype, digest(array)))?;
        if name != "logits" {
            let shown = array.data.iter().take(SHOWN).map(ToString::to_string);
            let more = if array.data.len() > SHOWN { ", .." } else { "" };
            print_line(&format!("  {}{more}", shown.collect::<Vec<_>>().join(", ")))?;
        }
    }
    let (Some(compared), Some(against)) = (compared, &args.compare) else { return Ok(()) };
    let (error, tolerance) = (&compared["largest_error"], &compared["tolerance"]);
    let error = error.as_f64().map_or("infinitely".to_owned(), |error| format!("{error:.3e}"));
    print_line(&format!(
        "compared with {against}: off by at most {error} of the largest element, where {tolerance} is allowed"
    ))?;
    let said = compared["said"].as_array().into_iter().flatten();
    said.filter_map(Value::as_str).try_for_each(|said| print_line(&format!("  {said}")))
}

/// The file that has the plan, if one was given; its graph is that of the other file.
fn with_plan(args: &RunArgs) -> anyhow::Result<&Path> {
    let Some(plan) = &args.plan else { return Ok(&args.file) };
    let (module, with_plan) = (read_module(&args.file)?, read_module(plan)?);
    let (plan_name, name) = (plan.display(), args.file.display());
    if print_graph(with_plan.graph()) != print_graph(module.graph()) {
        bail!("the graph in {plan_name} is not that in {name}: a plan belongs to one graph");
    }
    if with_plan.layout().is_none() {
        bail!("{plan_name} has no plan to its end; dump it after `plan`");
    }
    Ok(plan)
}

/// The index of the largest logit of each row.
fn greedy(logits: &Array) -> Vec<usize> {
    let top = |row: &[f64]| {
        row.iter().enumerate().fold((0, f64::NEG_INFINITY), |best, (i, &logit)| {
            if logit > best.1 { (i, logit) } else { best }
        })
    };
    logits.data.chunks_exact(logits.row_len().max(1)).map(|row| top(row).0).collect()
}
