//! `piecewise inspect`: what a model becomes, without its weights.

use super::amounts::shown_bytes;
use super::dumps::DumpArgs;
use super::load::print_settings;
use super::model_source::SourceArgs;
use super::report::Report;
use anyhow::{Context, bail};
use piecewise_backend::artifact::{ArgRef, Artifact, Digest, PieceSize};
use piecewise_ir::entity::Entity;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, Step, Stitch};
use piecewise_ir::op::Op;
use piecewise_runtime::dispatch::Dispatcher;
use piecewise_runtime::model::Ledger;
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise inspect --model examples/tiny-qwen3
  piecewise inspect --model examples/tiny-qwen3 --sizes --json
  piecewise inspect --model DIR --html report.html   # the step, its memory and kernels as a page
  piecewise inspect --preset qwen3-8b                # a published model, by its shape alone
  piecewise inspect graph.pw                         # a textual graph
  piecewise inspect --model DIR --dump-dir dump      # what each pass did, and what it led to")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Lower every unique piece at every size, and show its launches.
    #[arg(long)]
    sizes: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a page that shows the step, its slots and its kernels; it needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    dumps: DumpArgs,
}

pub(crate) fn run(args: InspectArgs) -> anyhow::Result<ExitCode> {
    let assembly = args.source.assembly()?;
    if args.source.prints_settings() {
        return print_settings(&assembly.settings()?, args.json);
    }
    let planned = args.dumps.plan(assembly)?;
    if let Some(file) = &args.html {
        let page = Report { planned: &planned }.page()?;
        std::fs::write(file, page).with_context(|| format!("can't write {}", file.display()))?;
    }
    if args.dumps.stops() {
        let text = piecewise_ir::text::print_module(planned.module());
        match args.json {
            true => super::print_line(&json!({"module": text}).to_string())?,
            false => super::print_line(text.trim_end())?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let lowered = if args.sizes { planned.artifacts()? } else { Vec::new() };
    let dispatcher = &planned.settings().dispatcher;
    let report = report(planned.module(), planned.stitch()?, dispatcher, &lowered)?;
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
    lowered: &[Vec<&Artifact>],
) -> anyhow::Result<Json> {
    let graph = module.graph();
    let (slots, layout) = match (module.slots(), module.layout()) {
        (Some(slots), Some(layout)) => (slots, layout),
        _ => bail!("the pipeline made no plan"),
    };
    let ledger = Ledger::new(graph, layout, 0, &layout.bounds);
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
    let sizes = lowered.iter().enumerate().flat_map(|(unique, artifacts)| {
        artifacts.iter().map(move |artifact| lowered_row(unique, artifact))
    });
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
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
        "weights_bytes": ledger.weights,
        "states_bytes": ledger.states,
        "capture_num_tokens": dispatcher.tokens.sizes(),
        "decode_batch_sizes": dispatcher.batches.sizes(),
        "graph_mode": dispatcher.mode.name(),
        "steps": steps,
        "unique": unique,
        "slots": slot_rows,
        "sizes": sizes,
    }))
}

fn member(graph: &Graph, stitch: &Stitch, step: Step) -> Json {
    let usage = &stitch.uses[step.id()];
    let name = |node| graph.node(node).op.name();
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

fn lowered_row(unique: usize, artifact: &Artifact) -> anyhow::Result<Json> {
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
    let (rows, general) = (artifact.size.rows(), matches!(artifact.size, PieceSize::General(_)));
    Ok(json!({
        "unique": format!("u{unique}"),
        "size": rows,
        "general": general,
        "query_length": artifact.size.query_length(),
        "digest": Digest::of(&serde_json::to_vec(artifact)?).to_string(),
        "scratch": artifact.scratch(),
        "launches": launches,
    }))
}

fn text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

fn show(report: &Json) -> anyhow::Result<()> {
    let number = |key: &str| report[key].as_u64().unwrap_or(0);
    let arena = shown_bytes(number("arena_bytes"));
    let facts = [
        ("model", text(&report["graph"])),
        ("pieces", format!("{} ({} unique)", number("pieces"), number("unique_pieces"))),
        ("split ops", number("eager_steps").to_string()),
        (
            "kernels",
            format!(
                "{} ({} regions, {} matmuls)",
                number("kernels"),
                number("regions"),
                number("matmuls")
            ),
        ),
        ("arena", format!("{arena} ({} bytes)", number("arena_bytes"))),
        ("weights", shown_bytes(number("weights_bytes"))),
        (
            "states",
            format!("{} (the KV cache and sampled ids)", shown_bytes(number("states_bytes"))),
        ),
        ("graph mode", text(&report["graph_mode"])),
        ("token sizes", text(&report["capture_num_tokens"])),
        ("batch sizes", text(&report["decode_batch_sizes"])),
    ];
    for (name, value) in facts {
        super::print_line(&format!("{name:<12} {value}"))?;
    }
    show_table(report, "steps", &["id", "kind", "unique", "ops"], |row, column| match column {
        "ops" => repeated(&row["ops"]),
        _ => text(&row[column]),
    })?;
    show_table(report, "unique", &["unique", "over", "nodes", "hash"], |row, column| {
        let shown = text(&row[column]);
        if column == "hash" { short(&shown).to_owned() } else { shown }
    })?;
    let columns = ["slot", "kind", "type", "offset", "bytes", "live"];
    show_table(report, "slots", &columns, |row, column| match column {
        "offset" => format!("{:#x}", row["offset"].as_u64().unwrap_or(0)),
        "live" => format!("{}..{}", row["live"][0], row["live"][1]),
        _ => text(&row[column]),
    })?;
    let columns = ["unique", "size", "launches", "scratch", "digest"];
    show_table(report, "sizes", &columns, |row, column| match column {
        "size" => size(row),
        "launches" => row["launches"].as_array().map_or(0, Vec::len).to_string(),
        "digest" => short(&text(&row["digest"])).to_owned(),
        _ => text(&row[column]),
    })?;
    show_launches(report)
}

fn size(row: &Json) -> String {
    match (row["general"] == true, row["size"].as_u64(), row["query_length"].as_u64()) {
        (true, _, _) => format!("any to {}", row["size"]),
        (false, Some(rows), Some(each)) => format!("{}x{each}", rows / each.max(1)),
        _ => row["size"].to_string(),
    }
}

/// As much of a digest as tells those of one model apart.
fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// A list with runs of equal entries counted.
fn repeated(ops: &Json) -> String {
    let ops: Vec<String> = ops.as_array().into_iter().flatten().map(text).collect();
    let runs = ops.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].clone(),
        n => format!("{n}x{}", run[0]),
    });
    runs.collect::<Vec<_>>().join(" ")
}

/// Prints the rows of `report[name]`, numbers to the right; nothing where there are none.
fn show_table(
    report: &Json,
    name: &str,
    columns: &[&str],
    cell: impl Fn(&Json, &str) -> String,
) -> anyhow::Result<()> {
    let rows = report[name].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        return Ok(());
    }
    let mut lines = vec![columns.iter().map(|&column| column.to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()));
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let is_number = |text: &String| text.starts_with(|c: char| c.is_ascii_digit());
    let right: Vec<bool> =
        (0..columns.len()).map(|i| lines[1..].iter().all(|line| is_number(&line[i]))).collect();
    super::print_line(&format!("\n{name}"))?;
    for line in &lines {
        let cells = line.iter().enumerate().map(|(i, cell)| match right[i] {
            true => format!("{cell:>width$}", width = widths[i]),
            false => format!("{cell:<width$}", width = widths[i]),
        });
        super::print_line(format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end())?;
    }
    Ok(())
}

fn show_launches(report: &Json) -> anyhow::Result<()> {
    for row in report["sizes"].as_array().map(Vec::as_slice).unwrap_or_default() {
        super::print_line(&format!("\n{} at {}", text(&row["unique"]), size(row)))?;
        for launch in row["launches"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let name = text(&launch["name"]);
            let (grid, operands) = (text(&launch["grid"]), text(&launch["operands"]));
            let image = text(&launch["image"]);
            let image = short(&image);
            super::print_line(&format!("  {image}  grid {grid:<10} {name} ({operands})"))?;
        }
    }
    Ok(())
}
