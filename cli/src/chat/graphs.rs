//! What a conversation can do with the graphs of its engine: look at them, let those be captured again that
//! failures have disabled, capture all of them again, and change their mode.

use piecewise_runtime::engine::Engine;
use piecewise_runtime::words::{GraphKey, GraphMode, GraphState, GraphTotals};
use std::fmt::Write;

/// Does what `what` says, nothing, `enable`, `recapture` or a mode, and shows the graphs that there are then.
///
/// # Errors
/// When it is neither, a capture fails, or the ops can't be captured for the mode.
pub(super) fn command(engine: &mut Engine, what: &str) -> anyhow::Result<String> {
    match what {
        "" => {}
        "enable" => drop(engine.enable_graphs()?),
        "recapture" => {
            engine.invalidate_graphs();
            engine.enable_graphs()?;
        }
        mode => engine.set_graph_mode(mode.parse::<GraphMode>().map_err(anyhow::Error::msg)?)?,
    }
    Ok(shown(engine))
}

fn shown(engine: &Engine) -> String {
    let model = engine.model();
    let graphs = model.graphs();
    let GraphTotals { ready, empty, stale, disabled, counts } = GraphTotals::of(&graphs);
    let mut text = format!(
        "{}: {ready} ready, {empty} to be captured, {stale} stale, {disabled} disabled; {} launches, \
         {} captures, {} of them again, {} failures",
        model.dispatcher().mode.name(),
        counts.launches,
        counts.captures,
        counts.recaptures,
        counts.failures,
    );
    if let Some(reason) = model.reduced_mode() {
        let _ = write!(text, "\nlowered: {reason}");
    }
    for graph in graphs.iter().filter(|graph| graph.state == GraphState::Disabled) {
        let what = match graph.key {
            GraphKey::Full(_) => "whole step".to_owned(),
            GraphKey::Stretch { first, last, .. } if first == last => format!("part {first}"),
            GraphKey::Stretch { first, last, .. } => format!("parts {first} to {last}"),
        };
        let size = graph.key.size();
        let _ = write!(text, "\ndisabled: {what} at {size}, {} failures", graph.counts.failures);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise::assembly::Assembly;
    use piecewise::device::{DeviceSpec, OpenDevice};
    use piecewise_backend::cpu::CpuDevice;
    use piecewise_kernels::op::OpRegistry;
    use piecewise_runtime::engine::Request;
    use piecewise_testing::{DeviceFault, DeviceFaults, FaultKind, FaultPoint, FaultyDevice};
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn what_a_failure_disabled_is_shown_enabled_and_replayed() {
        let faults = DeviceFaults::default();
        let device = CpuDevice::new(Arc::new(OpRegistry::new()), 1).unwrap();
        let device = OpenDevice::new(DeviceSpec::Cpu, FaultyDevice::new(device, faults.clone()));
        let capture = DeviceFault {
            point: FaultPoint::Capture,
            kind: FaultKind::Refused,
            after: 0,
            times: 1,
        };
        faults.fail(capture);
        let mut engine = Assembly::folder(Path::new("../examples/tiny-qwen3"))
            .unwrap()
            .on(&device)
            .set("cache.enabled", false)
            .set("graph_mode", "full_decode_only")
            .set("probe_capture", false)
            .set("on_capture_failure", "launch")
            .set("capture_attempts", 1u64)
            .max_num_tokens(8)
            .max_num_seqs(1)
            .engine()
            .unwrap();
        let decode = |engine: &mut Engine| {
            let mut events = Vec::new();
            engine.add(Request::new(vec![1, 2], 3)).unwrap();
            engine.run(&mut events).unwrap();
        };
        decode(&mut engine);
        let of_graphs = "full_decode_only: 0 ready, 0 to be captured, 0 stale, 1 disabled; 0 launches, \
                         0 captures, 0 of them again, 1 failures\ndisabled: whole step at 1x1, 1 failures";
        assert_eq!(command(&mut engine, "").unwrap(), of_graphs);
        assert!(command(&mut engine, "full_decode_only").unwrap().contains(" 1 disabled"));
        let enabled = command(&mut engine, "enable").unwrap();
        assert!(
            enabled.starts_with("full_decode_only: 1 ready, ") && !enabled.contains("\n"),
            "{enabled}"
        );
        decode(&mut engine);
        let replayed = command(&mut engine, "").unwrap();
        assert!(replayed.contains(" 0 disabled; 2 launches, 1 captures, "), "{replayed}");
        let again = command(&mut engine, "recapture").unwrap();
        let made = "1 ready, 0 to be captured, 0 stale, 0 disabled; 2 launches, 2 captures, 1 of them again";
        assert!(again.contains(made), "{again}");
        decode(&mut engine);
        assert!(command(&mut engine, "").unwrap().contains("; 4 launches, "));
    }
}
