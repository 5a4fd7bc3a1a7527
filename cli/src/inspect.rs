//! `piecewise inspect`: what a model becomes, without its weights.

use super::amounts::{shown_bytes, shown_ledger};
use super::dumps::DumpArgs;
use super::load::print_settings;
use super::model_source::SourceArgs;
use super::out_file::OutFile;
use super::print::{print_line, print_report};
use super::report;
use comfy_table::{CellAlignment, Table, presets};
use piecewise::assembly::launches::SizeRow;
use piecewise::assembly::plan_view::{PlanView, starred};
use piecewise::assembly::{Assembly, Planned, Registries};
use serde::Serialize;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise inspect --model examples/tiny-qwen3
  piecewise inspect --model examples/tiny-qwen3 --sizes --json
  piecewise inspect --model DIR --nodes              # operations and bytes of each region
  piecewise inspect --model DIR --html report.html   # the step, its memory and kernels as a page
  piecewise inspect --preset qwen3-8b                # a published model, by its shape alone
  piecewise inspect graph.pw                         # a textual graph
  piecewise inspect --model DIR --dump-dir dump      # what each pass did, and what it led to")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Lower every unique piece at every size, and show its launches, why its first ways come first, and
    /// what its kernels take of a GPU.
    #[arg(long)]
    sizes: bool,
    /// Show the nodes of a step with their operations and bytes, one layer for all that are equal.
    #[arg(long)]
    nodes: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a page that shows the step, its slots and its kernels; it needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    dumps: DumpArgs,
}

pub(crate) fn run(mut args: InspectArgs, registries: &Registries) -> anyhow::Result<ExitCode> {
    args.source.bring()?;
    let assembly = args.dumps.over(args.source.assembly(registries)?);
    if args.source.prints_settings() {
        return print_settings(&assembly.settings()?, args.json);
    }
    let html = args.html.as_deref().map(OutFile::claim).transpose()?;
    let planned = args.dumps.plan(assembly)?;
    if let Some(file) = html {
        let page = report::page(&planned)?;
        file.write(|path| Ok(std::fs::write(path, page)?))?;
    }
    if args.dumps.stops() {
        let text = piecewise_ir::text::print_module(planned.module());
        match args.json {
            true => print_line(&json!({"module": text}).to_string())?,
            false => print_line(text.trim_end())?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let tower = args.source.tower()?.map(Assembly::plan).transpose()?;
    let view = |planned: &Planned| match args.sizes {
        true => {
            // Here a piece that does not compile is an error.
            planned.artifacts()?;
            PlanView::lowered(planned)
        }
        false => PlanView::of(planned),
    };
    let images = tower.as_ref().map(view).transpose()?;
    let inspected = Inspected { plan: view(&planned)?, images };
    let shown = |plan: &PlanView| {
        show(plan)?;
        if args.nodes { show_nodes(plan) } else { Ok(()) }
    };
    print_report(args.json, &inspected, || {
        shown(&inspected.plan)?;
        let Some(images) = &inspected.images else { return Ok(()) };
        print_line("\nimages, whose tower is a model beside this one\n")?;
        shown(images)
    })?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Inspected {
    #[serde(flatten)]
    plan: PlanView,
    /// Of a decoder that reads images, its vision tower.
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<PlanView>,
}

fn show(plan: &PlanView) -> anyhow::Result<()> {
    let (bytes, arena) = (plan.arena.bytes, shown_bytes(plan.arena.bytes));
    let PlanView { pieces, unique_pieces, kernels, regions, matmuls, .. } = plan;
    let facts = [
        ("model", plan.graph.clone()),
        ("pieces", format!("{pieces} ({unique_pieces} unique)")),
        ("split ops", plan.split_ops.to_string()),
        ("kernels", format!("{kernels} ({regions} regions, {matmuls} matmuls)")),
        ("arena", format!("{arena} ({bytes} bytes)")),
        ("memory", shown_ledger(&plan.memory)),
        ("graph mode", plan.graph_mode.to_owned()),
        ("token sizes", listed(&plan.capture_num_tokens)),
        ("batch sizes", listed(&plan.decode_batch_sizes)),
    ];
    for (name, value) in facts {
        print_line(&format!("{name:<12} {value}"))?;
    }
    let unique = |index: usize| plan.unique[index].id.clone();
    let rows = plan.steps.iter().map(|step| {
        [step.id.clone(), step.kind.to_owned(), unique(step.unique), repeated(&step.ops)]
    });
    show_table("steps", ["id", "kind", "unique", "ops"], rows)?;
    let rows = plan.scaled.iter().map(|row| {
        let listed =
            |extents: &[u64]| extents.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        [
            row.products.to_string(),
            row.dtype.to_owned(),
            row.bits.to_string(),
            listed(&row.shape),
            listed(&row.block),
            if row.zeros { "yes" } else { "no" }.to_owned(),
            row.bytes.to_string(),
            row.scale_bytes.to_string(),
        ]
    });
    let columns = ["products", "dtype", "bits", "weight", "block", "zeros", "bytes", "of scales"];
    show_table("products with scales", columns, rows)?;
    let rows = plan.unique.iter().map(|unique| {
        let over = unique.over.clone().unwrap_or_else(|| "-".to_owned());
        [unique.id.clone(), over, unique.nodes.to_string(), short(&unique.hash).to_owned()]
    });
    show_table("unique", ["unique", "over", "nodes", "hash"], rows)?;
    let rows = plan.slots.iter().map(|slot| {
        [
            slot.id.clone(),
            slot.kind.name().to_owned(),
            plan.values[slot.value].ty.clone(),
            format!("{:#x}", slot.offset),
            slot.bytes.to_string(),
            format!("{}..{}", slot.first, slot.last),
        ]
    });
    show_table("slots", ["slot", "kind", "type", "offset", "bytes", "live"], rows)?;
    let sizes = || plan.unique.iter().flat_map(|u| u.sizes.iter().map(move |size| (&u.id, size)));
    let rows = sizes().map(|(unique, size)| {
        let (launches, scratch) = (size.launches.len().to_string(), size.scratch.to_string());
        [unique.clone(), at(size), launches, scratch, short(&size.digest).to_owned()]
    });
    show_table("sizes", ["unique", "size", "launches", "scratch", "digest"], rows)?;
    for (unique, size) in sizes() {
        print_line(&format!("\n{unique} at {}", at(size)))?;
        for launch in &size.launches {
            let grid = launch.grid.map(|blocks| blocks.to_string()).join(" ");
            let (image, operands) = (short(&launch.image), launch.operands.join(" "));
            let name = &launch.name;
            print_line(&format!("  {image}  grid {grid:<10} {name} ({operands})"))?;
        }
        for first in &size.first {
            let others = first.others.join(", ");
            let others =
                if others.is_empty() { String::new() } else { format!(" (then {others})") };
            print_line(&format!("  {}: {}, {}{others}", first.name, first.way, first.why))?;
        }
    }
    show_kernels(plan)
}

/// What kernels take of a multiprocessor, where it is one of a GPU.
fn show_kernels(plan: &PlanView) -> anyhow::Result<()> {
    let rows = plan.images.iter().filter_map(|image| {
        let of = image.listing.resources?;
        let known = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        Some([
            short(&image.digest).to_owned(),
            image.listing.name.clone(),
            of.registers.to_string(),
            of.stack_bytes.to_string(),
            format!("{}+{}", of.local_loads, of.local_stores),
            of.shared_bytes.to_string(),
            of.threads.to_string(),
            known(of.blocks_of_multiprocessor),
            known(of.occupancy_percent),
            of.limited_by.unwrap_or("-").to_owned(),
        ])
    });
    let columns = [
        "image",
        "kernel",
        "registers",
        "stack",
        "loads+stores",
        "shared",
        "threads",
        "blocks",
        "occupancy %",
        "limited by",
    ];
    show_table("kernels", columns, rows)
}

/// What each node computes and moves at the largest step, equal ones counted.
fn show_nodes(plan: &PlanView) -> anyhow::Result<()> {
    let mut rows: Vec<(usize, [String; 6])> = Vec::new();
    for node in &plan.nodes {
        let op = match node.fuses.is_empty() {
            true => node.op.clone(),
            false => format!("{}: {}", node.op, node.fuses.join(", ")),
        };
        let row = [
            starred(&node.scope),
            op,
            node.operations.map_or("-".to_owned(), |count| count.to_string()),
            node.bytes.bytes_read.to_string(),
            node.bytes.weight_bytes.to_string(),
            node.bytes.bytes_written.to_string(),
        ];
        match rows.iter_mut().find(|(_, known)| *known == row) {
            Some((times, _)) => *times += 1,
            None => rows.push((1, row)),
        }
    }
    let rows = rows.into_iter().map(|(times, [scope, op, operations, read, weights, written])| {
        [times.to_string(), scope, operations, read, weights, written, op]
    });
    let columns =
        ["times", "written in", "operations", "bytes read", "of weights", "bytes written", "node"];
    show_table("nodes", columns, rows)
}

fn listed(sizes: &[u64]) -> String {
    sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn at(size: &SizeRow) -> String {
    match (size.general, size.query_length) {
        (true, _) => format!("any to {}", size.rows),
        (false, Some(each)) => format!("{}x{each}", size.rows / each.max(1)),
        (false, None) => size.rows.to_string(),
    }
}

/// As much of a digest as tells those of one model apart.
fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// A list with runs of equal entries counted.
fn repeated(ops: &[String]) -> String {
    let runs = ops.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].clone(),
        n => format!("{n}x{}", run[0]),
    });
    runs.collect::<Vec<_>>().join(" ")
}

/// Prints a table, columns of numbers to the right; nothing where it has no rows.
fn show_table<const N: usize>(
    name: &str,
    columns: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    let rows = Vec::from_iter(rows);
    if rows.is_empty() {
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns);
    table.add_rows(&rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        if rows.iter().all(|row| row[i].starts_with(|c: char| c.is_ascii_digit())) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    print_line(&format!("\n{name}"))?;
    table.lines().try_for_each(|line| print_line(format!(" {line}").trim_end()))
}
