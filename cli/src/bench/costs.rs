//! The costs file: what a step costs at each size, for the capture planner.

use super::rows::{Row, RowHead};
use piecewise_planner::{CostPath, CostPoint};
use piecewise_runtime::measure::CaptureReport;
use piecewise_runtime::words::{CapturedGraph, GraphKind, GraphMode};
use std::path::Path;

/// What was measured in a mode.
pub(super) struct ModeCosts<'a> {
    pub(super) mode: GraphMode,
    pub(super) rows: Vec<&'a Row>,
    pub(super) captured: Option<&'a CaptureReport>,
}

/// The points of good rows whose tokens are a capture size: others ran padded, and what they cost
/// is what that size costs. A step costs what the host waits for it, by the way that it ran: where
/// pieces were launched because that is faster, it is a launched one.
pub(super) fn points(modes: &[ModeCosts<'_>]) -> Vec<CostPoint> {
    let of_mode = |mode: &ModeCosts<'_>| {
        // Their steps are those of two of the others.
        if mode.mode.decode() != mode.mode.mixed() {
            return Vec::new();
        }
        let point = |row: &&Row| {
            let figures = row.figures.as_ref().filter(|_| row.failures.is_empty())?;
            if figures.size != row.head.tokens || row.head.kind == "prefill" {
                return None;
            }
            let (memory_bytes, capture_us) = match figures.path {
                CostPath::Launched => (None, None),
                _ => capture_costs(mode, &row.head, figures.size),
            };
            Some(CostPoint {
                path: figures.path,
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

/// Bytes and microseconds of the graphs of a row's size; a head's belong to its own list, and a
/// whole step of decodes has its own graph beside that of other steps of as many tokens.
fn capture_costs(mode: &ModeCosts<'_>, row: &RowHead, size: u64) -> (Option<u64>, Option<f64>) {
    let kind = match mode.mode {
        GraphMode::Piecewise => GraphKind::Tokens,
        GraphMode::Full => GraphKind::Full,
        _ => return (None, None),
    };
    let Some(report) = mode.captured else { return (None, None) };
    let is_decode = row.kind == "decode";
    let is_of_row = |graph: &&CapturedGraph| {
        let uniform = graph.size.query_length().is_some();
        let fits = mode.mode != GraphMode::Full || uniform == is_decode;
        graph.kind == kind && graph.size.rows() == size && fits
    };
    let graphs = || report.graphs.iter().filter(is_of_row);
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
    let mut text = Vec::new();
    for point in points {
        serde_json::to_writer(&mut text, point)?;
        text.push(b'\n');
    }
    Ok(std::fs::write(file, text)?)
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use piecewise_planner::read_costs_file;

    #[test]
    fn good_rows_at_capture_sizes_come_back_as_the_planner_reads_them() {
        let report = testing::captured();
        let mut wrong = testing::row(GraphMode::Full, 64, 64, 1.0);
        wrong.failures = vec!["wrong".to_owned()];
        let full = [
            testing::row(GraphMode::Full, 1, 1, 6.0),
            testing::row(GraphMode::Full, 8, 8, 7.0),
            testing::row(GraphMode::Full, 300, 512, 9.0),
            wrong,
        ];
        let none = [testing::row(GraphMode::None, 8, 8, 20.0)];
        let mut faster = testing::row(GraphMode::Piecewise, 2, 2, 16.0);
        faster.figures.as_mut().unwrap().path = CostPath::Launched;
        let pieces = [faster, testing::row(GraphMode::Piecewise, 4, 4, 14.0)];
        let modes = [
            ModeCosts {
                mode: GraphMode::Piecewise,
                rows: pieces.iter().collect(),
                captured: Some(&report),
            },
            ModeCosts { mode: GraphMode::None, rows: none.iter().collect(), captured: None },
            ModeCosts {
                mode: GraphMode::Full,
                rows: full.iter().collect(),
                captured: Some(&report),
            },
        ];
        let points = points(&modes);
        let found: Vec<_> = points.iter().map(|p| (p.path, p.tokens, p.us)).collect();
        let expected = [
            (CostPath::Launched, 2, 20_000.0),
            (CostPath::Piecewise, 4, 17_500.0),
            (CostPath::Launched, 8, 25_000.0),
            (CostPath::Full, 1, 7500.0),
            (CostPath::Full, 8, 8750.0),
        ];
        assert_eq!(found, expected);
        assert_eq!((points[0].memory_bytes, points[0].capture_us), (None, None));
        assert_eq!((points[3].memory_bytes, points[3].capture_us), (Some(4 << 20), Some(40_000.0)));

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("costs.jsonl");
        write(&file, &points).unwrap();
        let costs = read_costs_file(&file).unwrap();
        assert_eq!(costs.path(CostPath::Full).unwrap().step_ns.at(8), 8_750_000);
        assert_eq!(costs.launched.unwrap().step_ns.at(8), 25_000_000);
        assert!(write(&file, &[]).is_err());
    }
}
