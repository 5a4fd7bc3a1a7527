//! A report with fixed figures.

use super::report::{FirstPrompt, ModeReport, Report, Start};
use super::rows::{Figures, Row, RowHead, Spread};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::GraphShape;
use piecewise_backend::device::measure::ReadBandwidth;
use piecewise_backend::tuning::TuningReport;
use piecewise_planner::CostPath;
use piecewise_runtime::measure::{BytesToRead, CaptureReport};
use piecewise_runtime::words::{
    CapturedGraph, CompileCounts, CompileLevel, GraphKind, GraphMode, Ledger,
};
use std::time::Duration;

fn spread(median: f64) -> Spread {
    Spread { median, p10: 0.9 * median, p90: 1.5 * median }
}

/// A row of `tokens` decodes; padded where `size` is more.
pub(super) fn row(mode: GraphMode, tokens: u64, size: u64, ms: f64) -> Row {
    let figures = Figures {
        size,
        path: match mode {
            GraphMode::None => CostPath::Launched,
            GraphMode::Full => CostPath::Full,
            _ => CostPath::Piecewise,
        },
        chosen: None,
        steps: 100,
        gpu_ms: spread(ms),
        wall_ms: spread(1.25 * ms),
        submit_us: spread(12.0),
        driver_us: Some(9.5),
        host_us: Some(2.5),
        graph_launches: u64::from(mode == GraphMode::Full),
        plain_launches: if mode == GraphMode::Full { 0 } else { 293 },
        nodes: if mode == GraphMode::Full { 293 } else { 0 },
        programmatic_edges: 0,
        bytes: 15_212_000_000,
        gb_per_s: 15.212 / ms * 1e3,
        read_share: Some(15.212 / ms / 3.1),
    };
    let (head, failures) = (head(mode, tokens), Vec::new());
    Row { head, figures: Some(figures), failures, kernels: Vec::new() }
}

fn head(mode: GraphMode, tokens: u64) -> RowHead {
    RowHead {
        engine: "piecewise",
        model: "qwen3-8b".to_owned(),
        dtype: "bf16".to_owned(),
        device: "A device".to_owned(),
        kind: if tokens > 8 { "mixed" } else { "decode" },
        mode: mode.name().to_owned(),
        batch: tokens.min(8),
        context: 512,
        tokens,
    }
}

/// Three graphs.
pub(super) fn captured() -> CaptureReport {
    let graph = |sequences| CapturedGraph {
        kind: GraphKind::Full,
        size: PieceSize::Uniform { sequences, query_length: 1 },
        time: Duration::from_millis(40),
        bytes: 4 << 20,
    };
    CaptureReport {
        graphs: vec![graph(512), graph(8), graph(1)],
        time: Duration::from_millis(150),
        bytes: Some(12 << 20),
        shape: GraphShape { launches: 879, nodes: 879, programmatic_edges: 0 },
    }
}

/// Two modes, with a row that failed and one that could not be measured.
pub(super) fn report() -> Report {
    let memory = Ledger {
        slots: 40 << 20,
        scratch: 32 << 20,
        weights: 15 << 30,
        states: 75 << 20,
        ..Ledger::default()
    };
    let entries = CompileCounts {
        compiled: [("cubin", 41), ("piece", 66)].into(),
        ..CompileCounts::default()
    };
    let tuning = TuningReport {
        measured: 12,
        unmeasured: 3,
        time: Duration::from_millis(4200),
        ..TuningReport::default()
    };
    let start = Start {
        plan_s: 0.12,
        open_s: 0.83,
        compile_s: 9.3,
        load_s: 0.8,
        bind_s: 0.05,
        measure_s: 4.2,
        capture_s: 0.02,
        tuning,
        choices: Vec::new(),
        entries,
        memory,
        free_bytes: None,
        held_bytes: None,
        first_prompt: Some(FirstPrompt { tokens: 454, ms: 61.5 }),
    };
    let mut wrong = row(GraphMode::Full, 300, 512, 3.0);
    wrong.failures = vec!["163.6% of the read bandwidth: the timing can't be right".to_owned()];
    let missing = Row {
        head: head(GraphMode::Full, 8),
        figures: None,
        failures: vec!["could not launch: out of memory".to_owned()],
        kernels: Vec::new(),
    };
    let none = vec![row(GraphMode::None, 1, 1, 8.0), row(GraphMode::None, 300, 512, 20.0)];
    let full = vec![row(GraphMode::Full, 1, 1, 6.5), missing, wrong];
    Report {
        engine: "piecewise",
        version: "1.2.3",
        model: "qwen3-8b".to_owned(),
        dtype: "bf16".to_owned(),
        level: CompileLevel::Piecewise,
        device: "A device".to_owned(),
        versions: [("driver", "580.1".to_owned()), ("cuda", "13.0".to_owned())].into(),
        read_bandwidth: ReadBandwidth { best: 3.1e12, median: 3.0e12, bytes: 4 << 30, passes: 36 },
        traffic: BytesToRead { weights: 15_136_000_000, per_position: 147_456, experts: None },
        start,
        without: Vec::new(),
        timeline: None,
        modes: vec![
            ModeReport::new(GraphMode::None, None, none),
            ModeReport::new(GraphMode::Full, Some(&captured()), full),
        ],
    }
}
