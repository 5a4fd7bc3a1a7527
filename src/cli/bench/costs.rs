//! The costs file: what a step costs at each size, for the capture planner.

use super::args::ModeArg;
use super::rows::Row;
use anyhow::Context;
use piecewise_runtime::capture_planner::{CostPath, CostPoint};
use piecewise_runtime::measure::CaptureReport;
use piecewise_runtime::model::GraphKind;
use std::io::Write;
use std::path::Path;

/// What was measured in a mode.
pub(super) struct ModeCosts<'a> {
    pub(super) mode: ModeArg,
    pub(super) rows: Vec<&'a Row>,
    pub(super) captured: Option<&'a CaptureReport>,
}

/// The points of good rows whose tokens are a capture size: others ran padded, and what they cost
/// is what that size costs. A step costs what the host waits for it.
pub(super) fn points(modes: &[ModeCosts<'_>]) -> Vec<CostPoint> {
    let of_mode = |mode: &ModeCosts<'_>| {
        let path = match mode.mode {
            ModeArg::None => CostPath::Launched,
            ModeArg::Piecewise => CostPath::Piecewise,
            ModeArg::Full => CostPath::Full,
        };
        let point = |row: &&Row| {
            let figures = row.figures.as_ref().filter(|_| row.failures.is_empty())?;
            if figures.size != row.head.tokens {
                return None;
            }
            let (memory_bytes, capture_us) = capture_costs(mode, figures.size);
            Some(CostPoint {
                path,
                tokens: u32::try_from(figures.size).ok()?,
                us: 1e3 * figures.wall_ms.median,
                memory_bytes,
                capture_us,
            })
        };
        mode.rows.iter().filter_map(point).collect::<Vec<_>>()
    };
    modes.iter().flat_map(of_mode).collect()
}

/// Bytes and microseconds of the graphs of a size; a head's belong to its own list.
fn capture_costs(mode: &ModeCosts<'_>, size: u64) -> (Option<u64>, Option<f64>) {
    let kind = match mode.mode {
        ModeArg::None => return (None, None),
        ModeArg::Piecewise => GraphKind::Tokens,
        ModeArg::Full => GraphKind::Full,
    };
    let Some(report) = mode.captured else { return (None, None) };
    let graphs = || report.graphs.iter().filter(|g| g.kind == kind && g.size == size);
    if graphs().next().is_none() {
        return (None, None);
    }
    let us = graphs().map(|graph| graph.time.as_secs_f64() * 1e6).sum();
    let bytes = report.bytes.map(|_| graphs().map(|graph| graph.bytes).sum());
    (bytes, Some(us))
}

/// Writes one JSON object a line.
///
/// # Errors
/// When there are none, or the file can't be written.
pub(super) fn write(file: &Path, points: &[CostPoint]) -> anyhow::Result<()> {
    anyhow::ensure!(!points.is_empty(), "no row was measured at a capture size; no costs to write");
    let failed = || format!("can't write {}", file.display());
    let mut text = Vec::new();
    for point in points {
        serde_json::to_writer(&mut text, point).with_context(failed)?;
        text.push(b'\n');
    }
    let written = std::fs::File::create(file).and_then(|mut file| file.write_all(&text));
    written.with_context(failed)
}
