//! The report for people.

use super::super::amounts::{shown_bytes, shown_ledger};
use super::launches::timeline_lines;
use super::report::{ModeReport, Report, StartReport};
use super::rows::kernel_lines;
use super::rows::{Row, Spread};
use comfy_table::{CellAlignment, Table, presets};
use piecewise_backend::device::measure::Versions;
use piecewise_backend::tuning::TuningReport;
use piecewise_runtime::words::CompileLevel;

const HEADER: [&str; 16] = [
    "step",
    "mode",
    "size",
    "device ms",
    "p10",
    "p90",
    "wall ms",
    "submit us",
    "driver us",
    "graphs",
    "launches",
    "nodes",
    "edges",
    "GB/s",
    "of read",
    "result",
];

pub(super) fn report(report: &Report) -> String {
    let mut lines = vec![format!("{} {}, {}", report.model, report.dtype, report.device)];
    lines.extend(versions(&report.versions));
    let read = &report.read_bandwidth;
    if report.level != CompileLevel::Piecewise {
        lines.push(format!("level            {}", report.level.name()));
    }
    lines.push(format!(
        "read bandwidth   {:.1} GB/s at best, {:.1} in the median of {} passes over {}",
        read.best / 1e9,
        read.median / 1e9,
        read.passes,
        shown_bytes(read.bytes)
    ));
    lines.extend(start(&report.start));
    lines.extend(report.modes.iter().filter_map(captures));
    lines.push(format!(
        "bytes of a step  {} of weights that matmuls read, {} of keys and values for each \
         position; nothing else is counted",
        shown_bytes(report.traffic.weights),
        shown_bytes(report.traffic.per_position)
    ));
    let is_whole = report.without.is_empty();
    if !is_whole {
        let names = report.without.join(", ");
        lines.push(format!("left out         {names}; what the steps compute is not held"));
    }
    lines.push(String::new());
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEADER);
    for row in report.rows() {
        table.add_row(cells(row, is_whole));
    }
    for index in 2..HEADER.len() - 1 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    lines.extend(table.lines().map(|row| row.trim_end().to_owned()));
    for row in report.rows() {
        if let Some(reason) = row.figures.as_ref().and_then(|figures| figures.chosen) {
            lines.push(format!("chosen {} {}: {reason}", row.step(), row.mode()));
        }
        for failure in &row.failures {
            lines.push(format!("FAILED {} {}: {failure}", row.step(), row.head.mode));
        }
    }
    lines.extend(report.rows().flat_map(kernel_lines));
    lines.extend(report.timeline.iter().flat_map(timeline_lines));
    lines.join("\n") + "\n"
}

pub(super) fn startup(report: &StartReport) -> String {
    let mut lines = vec![format!("{} {}, {}", report.model, report.dtype, report.device)];
    lines.extend(versions(&report.versions));
    lines.extend(start(&report.start));
    lines.extend(captures(&report.captured));
    let seconds = report.start_without_load_s;
    lines.push(format!("start in all     {seconds:.2} s without loading weights"));
    lines.join("\n") + "\n"
}

/// Of a device that has any.
fn versions(versions: &Versions) -> Option<String> {
    let shown = versions.iter().map(|(name, version)| format!("{name} {version}"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    (!shown.is_empty()).then(|| format!("versions         {shown}"))
}

fn start(start: &super::report::Start) -> Vec<String> {
    let mut lines = vec![format!(
        "start            {:.2} s plan, {:.2} s open the device, {:.2} s compile, {:.2} s load, \
         {:.2} s bind",
        start.plan_s, start.open_s, start.compile_s, start.load_s, start.bind_s
    )];
    if start.tuning != TuningReport::default() {
        let other = start.choices.iter().filter(|ways| ways.differ()).count();
        let all = start.choices.len();
        let shown = format!("{}; {other} of {all} not by the first ways", start.tuning);
        lines.push(format!("ways             {shown}"));
    }
    lines.push(format!("entries          {}", start.entries));
    if let Some(first) = &start.first_prompt {
        lines.push(format!(
            "first token      {:.1} ms after {} tokens, launched, the first step of all",
            first.ms, first.tokens
        ));
    }
    lines.push(format!("memory           {}", shown_ledger(&start.memory)));
    lines
}

/// What a mode's graphs took, if it has any.
fn captures(mode: &ModeReport) -> Option<String> {
    let captured = mode.captured.filter(|captured| captured.graphs > 0)?;
    let memory = captured.bytes.map_or_else(|| "memory unknown".to_owned(), shown_bytes);
    let name = format!("capture {}", mode.mode);
    Some(format!(
        "{name:<16} {} graphs in {:.2} s ({:.2} s with the warm-up), {memory}; {} launches, \
         {} nodes, {} programmatic edges",
        captured.graphs,
        captured.capture_s,
        captured.total_s,
        captured.launches,
        captured.nodes,
        captured.programmatic_edges
    ))
}

fn cells(row: &Row, is_whole: bool) -> Vec<String> {
    let result = match (row.failures.is_empty(), is_whole) {
        (false, _) => "FAILED",
        (true, true) => "ok",
        (true, false) => "not held",
    };
    let mut cells = vec![row.step(), row.mode()];
    let Some(figures) = &row.figures else {
        cells.resize(HEADER.len() - 1, "-".to_owned());
        cells.push(result.to_owned());
        return cells;
    };
    let ms = |ms: f64| format!("{ms:.3}");
    let Spread { median, p10, p90 } = figures.gpu_ms;
    cells.extend([
        figures.size.to_string(),
        ms(median),
        ms(p10),
        ms(p90),
        ms(figures.wall_ms.median),
        format!("{:.1}", figures.submit_us.median),
        figures.driver_us.map_or("-".to_owned(), |us| format!("{us:.1}")),
        figures.graph_launches.to_string(),
        figures.plain_launches.to_string(),
        figures.nodes.to_string(),
        figures.programmatic_edges.to_string(),
        format!("{:.1}", figures.gb_per_s),
        figures.read_share.map_or("cached".to_owned(), |share| format!("{:.1}%", 100.0 * share)),
        result.to_owned(),
    ]);
    cells
}

#[cfg(test)]
mod tests;
