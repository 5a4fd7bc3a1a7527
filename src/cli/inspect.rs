//! `piecewise inspect`: what a model becomes, without its weights.

use super::dumps::DumpArgs;
use super::load::Folder;
use super::lowering::{LoweredPiece, lower};
use super::model_args::ModelArgs;
use super::settings::Workload;
use anyhow::bail;
use comfy_table::{Table, presets};
use piecewise_backend::artifact::{ArgRef, Digest, PieceSize};
use piecewise_ir::entity::Entity;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, Step, Stitch};
use piecewise_ir::op::Op;
use piecewise_runtime::config::Purpose;
use piecewise_runtime::dispatch::Dispatcher;
use serde_json::{Value as Json, json};
use std::process::ExitCode;

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise inspect --model examples/tiny-qwen3
  piecewise inspect --model examples/tiny-qwen3 --sizes --json
  piecewise inspect --model DIR --dump-dir dump      # the module after each pass")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Lower every unique piece at every size, and show its launches.
    #[arg(long)]
    sizes: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dumps: DumpArgs,
}

pub(crate) fn run(args: InspectArgs) -> anyhow::Result<ExitCode> {
    let workload = Workload { purpose: Purpose::Generate, sequences: None };
    let folder = Folder::open(&args.model, workload)?;
    if args.model.compile.print_config {
        folder.settings.print(args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    folder.warn();
    let graph = folder.graph(|_| None)?;
    let module = folder.plan(&args.dumps, graph)?;
    if args.dumps.stops() {
        super::print_line(piecewise_ir::text::print_module(&module).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(stitch) = module.stitch() else { bail!("the pipeline made no pieces") };
    let lowered = match args.sizes {
        true => {
            let compiler = folder.settings.device()?.compiler()?;
            lower(&*compiler, &module, stitch, &folder.settings.dispatcher)?
        }
        false => Vec::new(),
    };
    let report = report(&module, stitch, &folder.settings.dispatcher, &lowered)?;
    if args.json {
        super::print_line(&serde_json::to_string_pretty(&report)?)?;
    } else {
        show(&report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(
    module: &Module,
    stitch: &Stitch,
    dispatcher: &Dispatcher,
    lowered: &[LoweredPiece],
) -> anyhow::Result<Json> {
    let graph = module.graph();
    let (slots, layout) = match (module.slots(), module.layout()) {
        (Some(slots), Some(layout)) => (slots, layout),
        _ => bail!("the pipeline made no plan"),
    };
    let steps: Vec<Json> = stitch.steps.iter().map(|&step| member(graph, stitch, step)).collect();
    let is_piece = |step: &&Step| matches!(step, Step::Piece(_));
    let regions = graph.nodes().filter(|&n| matches!(graph.node(n).op, Op::Region(_))).count();
    let matmuls = graph.nodes().filter(|&n| matches!(graph.node(n).op, Op::MatMul { .. })).count();
    let slot_rows: Vec<Json> = slots
        .slots
        .iter()
        .map(|(slot, data)| {
            json!({
                "slot": slot.to_string(),
                "kind": data.kind,
                "type": graph.ty(data.value).display(graph.symbols()).to_string(),
                "offset": layout.offsets[slot.index()],
                "bytes": layout.sizes[slot.index()],
                "live": [data.live.start, data.live.end],
            })
        })
        .collect();
    let unique: Vec<Json> = stitch
        .unique_pieces()
        .into_iter()
        .map(|id| {
            let piece = &stitch.unique[id];
            json!({
                "unique": id.to_string(),
                "hash": Digest(piece.hash).to_string(),
                "over": piece.over.map(|s| piece.graph.symbols()[s].name.clone()),
                "nodes": piece.graph.nodes().len(),
            })
        })
        .collect();
    let kernels: usize =
        stitch.steps.iter().filter(is_piece).map(|step| stitch.uses[step.id()].nodes.len()).sum();
    Ok(json!({
        "graph": graph.name,
        "pieces": stitch.piece_count(),
        "unique_pieces": stitch.unique_pieces().len(),
        "eager_steps": stitch.split_op_count(),
        "kernels": kernels + stitch.split_op_count(),
        "regions": regions,
        "matmuls": matmuls,
        "arena_bytes": layout.bytes,
        "capture_num_tokens": dispatcher.tokens.sizes(),
        "decode_batch_sizes": dispatcher.batches.sizes(),
        "graph_mode": dispatcher.mode.name(),
        "steps": steps,
        "unique": unique,
        "slots": slot_rows,
        "sizes": lowered.iter().map(lowered_row).collect::<Result<Vec<_>, _>>()?,
    }))
}

fn member(graph: &Graph, stitch: &Stitch, step: Step) -> Json {
    let usage = &stitch.uses[step.id()];
    let name = |node| match &graph.node(node).op {
        Op::Custom(call) => call.name.clone(),
        op => op.mnemonic().to_owned(),
    };
    let kind = match step {
        Step::Prologue(_) => "prologue",
        Step::Piece(_) => "piece",
        Step::Split(_) => "split_op",
    };
    json!({
        "kind": kind,
        "id": step.id().to_string(),
        "unique": usage.unique.to_string(),
        "ops": usage.nodes.iter().map(|&n| name(n)).collect::<Vec<_>>(),
    })
}

fn lowered_row(lowered: &LoweredPiece) -> anyhow::Result<Json> {
    let artifact = &lowered.artifact;
    let launches: Vec<Json> = artifact.alternatives[0]
        .launches
        .iter()
        .map(|launch| {
            let operands: Vec<_> = launch
                .args
                .iter()
                .map(|arg| match arg.at {
                    ArgRef::Operand(position) => format!("#{position}"),
                    ArgRef::Scratch { offset, bytes } => format!("scratch {offset}+{bytes}"),
                })
                .collect();
            json!({
                "name": launch.name,
                "image": launch.image.to_string(),
                "grid": launch.grid,
                "operands": operands,
            })
        })
        .collect();
    let (rows, general) = match artifact.size {
        PieceSize::Exact(rows) => (rows, false),
        PieceSize::General(rows) => (rows, true),
    };
    Ok(json!({
        "unique": format!("u{}", lowered.unique),
        "size": rows,
        "general": general,
        "digest": Digest::of(&serde_json::to_vec(artifact)?).to_string(),
        "scratch": artifact.scratch(),
        "launches": launches,
    }))
}

fn show(report: &Json) -> anyhow::Result<()> {
    let text = |value: &Json| match value {
        Json::String(text) => text.clone(),
        Json::Array(items) => items
            .iter()
            .map(|i| i.as_str().map_or(i.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(" "),
        other => other.to_string(),
    };
    for key in [
        "pieces",
        "unique_pieces",
        "eager_steps",
        "kernels",
        "regions",
        "matmuls",
        "arena_bytes",
        "graph_mode",
        "capture_num_tokens",
        "decode_batch_sizes",
    ] {
        super::print_line(&format!("{key:<20} {}", text(&report[key])))?;
    }
    let tables: [(&str, &[&str]); 4] = [
        ("steps", &["kind", "id", "unique", "ops"]),
        ("unique", &["unique", "over", "nodes", "hash"]),
        ("slots", &["slot", "kind", "type", "offset", "bytes", "live"]),
        ("sizes", &["unique", "size", "general", "scratch", "digest"]),
    ];
    for (name, columns) in tables {
        let rows = report[name].as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() {
            continue;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(columns.to_vec());
        for row in rows {
            table.add_row(columns.iter().map(|column| text(&row[*column])));
        }
        super::print_line(&format!("\n{name}\n{table}"))?;
        if name == "sizes" {
            show_launches(rows)?;
        }
    }
    Ok(())
}

fn show_launches(rows: &[Json]) -> anyhow::Result<()> {
    for row in rows {
        let general = if row["general"] == true { " (general)" } else { "" };
        super::print_line(&format!("\n{} at {}{general}", row["unique"], row["size"]))?;
        for launch in row["launches"].as_array().map(Vec::as_slice).unwrap_or_default() {
            super::print_line(&format!(
                "  {} grid {} operands {} image {}",
                launch["name"].as_str().unwrap_or(""),
                launch["grid"],
                launch["operands"],
                launch["image"].as_str().map_or("", |d| &d[..12]),
            ))?;
        }
    }
    Ok(())
}
