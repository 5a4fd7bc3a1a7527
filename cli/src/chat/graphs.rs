//! What a conversation can do with the graphs of its engine: look at them, let those be captured again that
//! failures have disabled, and change their mode.

use piecewise_runtime::engine::Engine;
use piecewise_runtime::mode::GraphMode;
use piecewise_runtime::model::{GraphKey, GraphReport, GraphState};
use std::fmt::Write;

/// Does what `what` says, nothing, `enable` or a mode, and shows the graphs that there are then.
///
/// # Errors
/// When it is neither, a capture fails, or the ops can't be captured for the mode.
pub(super) fn command(engine: &mut dyn Engine, what: &str) -> anyhow::Result<String> {
    match what {
        "" => {}
        "enable" => drop(engine.enable_graphs()?),
        mode => engine.set_graph_mode(mode.parse::<GraphMode>().map_err(anyhow::Error::msg)?)?,
    }
    Ok(shown(engine))
}

fn shown(engine: &dyn Engine) -> String {
    let graphs = engine.graphs();
    let count = |state| graphs.iter().filter(|graph| graph.state == state).count();
    let sum = |of: fn(&GraphReport) -> u64| graphs.iter().map(of).sum::<u64>();
    let mut text = format!(
        "{}: {} ready, {} to be captured, {} stale, {} disabled; {} launches, {} captures, {} of them \
         again, {} failures",
        engine.dispatcher().mode.name(),
        count(GraphState::Ready),
        count(GraphState::Empty),
        count(GraphState::Stale),
        count(GraphState::Disabled),
        sum(|graph| graph.counts.launches),
        sum(|graph| graph.counts.captures),
        sum(|graph| graph.counts.recaptures),
        sum(|graph| graph.counts.failures),
    );
    if let Some(reason) = engine.lowered_mode() {
        let _ = write!(text, "\nlowered: {reason}");
    }
    for graph in graphs.iter().filter(|graph| graph.state == GraphState::Disabled) {
        let what = match graph.key {
            GraphKey::Full(_) => "whole step".to_owned(),
            GraphKey::Piece { member, .. } => format!("part {member}"),
        };
        let size = graph.key.size();
        let _ = write!(text, "\ndisabled: {what} at {size}, {} failures", graph.counts.failures);
    }
    text
}
