//! What an engine ran, for `--stats` of commands that end.

use super::amounts::shown_ledger;
use super::images::TowerReport;
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::tuning::TuningReport;
use piecewise_runtime::engine::Engine;
use std::io::Write;
use std::time::Duration;

/// Shows on standard error what an engine ran: a table, or a JSON object. `generated` tokens took `elapsed`.
pub(crate) fn show_statistics(
    json: bool,
    engine: &Engine,
    tower: Option<&TowerReport>,
    generated: usize,
    elapsed: Duration,
) -> anyhow::Result<()> {
    let model = engine.model();
    let stats = model.statistics();
    let stitch = model.module().stitch();
    let pieces = stitch.map_or(0, |s| s.piece_count());
    let unique = stitch.map_or(0, |s| s.unique_pieces().len());
    let split_ops = stitch.map_or(0, |s| s.split_op_count());
    let mode = model.dispatcher().mode.name();
    let rate = generated as f64 / elapsed.as_secs_f64().max(1e-9);
    let mut out = std::io::stderr();
    if json {
        let mut object = serde_json::json!({
            "pieces": pieces,
            "unique_pieces": unique,
            "split_ops": split_ops,
            "graphs": model.captured_graphs(),
            "graph_mode": mode,
            "reduced_mode": model.reduced_mode(),
            "memory": model.ledger(),
            "rounding_errors": model.weight_findings().errors,
            "statistics": stats,
            "hits": stats.hits(),
            "misses": stats.misses(),
            "padding_share": stats.padding_share(),
            "preemptions": engine.load().preemptions,
            "generated_tokens": generated,
            "tokens_per_second": rate,
        });
        if let Some(tower) = tower {
            object["images"] = serde_json::to_value(tower)?;
        }
        writeln!(out, "{object}")?;
        return Ok(());
    }
    let ledger = model.ledger();
    writeln!(out, "compile          {}", stats.compile)?;
    if stats.tuning != TuningReport::default() {
        writeln!(out, "ways             {}", stats.tuning)?;
    }
    writeln!(out, "device           {}", model.describe_device())?;
    writeln!(out, "pieces           {pieces} ({unique} unique), {split_ops} split ops")?;
    writeln!(out, "graphs           {} ({mode})", model.captured_graphs())?;
    if let Some(reason) = model.reduced_mode() {
        writeln!(out, "graph mode       reduced: {reason}")?;
    }
    writeln!(out, "memory           {}", shown_ledger(&ledger))?;
    for (layer, error) in model.weight_findings().errors {
        writeln!(out, "rounding error   {:.2}% {layer}", 100.0 * error)?;
    }
    if let Some(TowerReport { graphs, graph_mode, memory, statistics }) = tower {
        writeln!(out, "images, compile  {}", statistics.compile)?;
        writeln!(out, "images, graphs   {graphs} ({graph_mode})")?;
        writeln!(out, "images, memory   {} (given back)", shown_ledger(memory))?;
        writeln!(out, "images, hits     {} of {} steps", statistics.hits(), statistics.steps)?;
    }
    let [launched, piecewise, full] = stats.steps_by_mode;
    writeln!(out, "steps            {full} full, {piecewise} piecewise, {launched} launched")?;
    let counted = |counts: &std::collections::BTreeMap<PieceSize, u64>| {
        let shown: Vec<_> = counts
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(size, n)| format!("{size}: {n}"))
            .collect();
        shown.join(", ")
    };
    for (what, counts) in
        [("full replays", &stats.full_replays), ("piece replays", &stats.piece_replays)]
    {
        if counts.values().any(|&n| n > 0) {
            writeln!(out, "{what:<16} by size {}", counted(counts))?;
        }
    }
    let shown = 100.0 * stats.hit_share();
    writeln!(out, "hits             {} of {} steps ({shown:.1}%)", stats.hits(), stats.steps)?;
    for (reason, n) in stats.misses.iter().filter(|(_, n)| **n > 0) {
        writeln!(out, "misses           {n} steps: {reason}")?;
    }
    for (what, times) in [("step, device", &stats.gpu_time), ("step, wall", &stats.wall_time)] {
        for (mode, times) in ["launched", "piecewise", "full"].into_iter().zip(times) {
            let Some(mean) = times.mean() else { continue };
            let most = times.bound_of(0.99).map_or("above 10s".to_owned(), |t| format!("{t:?}"));
            writeln!(out, "{what:<16} {mode}: mean {mean:.1?}, 99% within {most}")?;
        }
    }
    let (captures, failures) = (stats.captures, stats.capture_failures);
    writeln!(out, "captures         {captures} in {:.1?}, {failures} failed", stats.capture_time)?;
    writeln!(out, "padding          {:.1}% of tokens run", 100.0 * stats.padding_share())?;
    writeln!(out, "generated        {generated} tokens, {rate:.1} per second")?;
    Ok(())
}
