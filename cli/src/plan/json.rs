//! Reports for machines.

use anyhow::Result;
use piecewise_planner::{CaptureSizes, CheckReport, Coverage, Outcome, Plan, Share};
use serde_json::{Value, json};

use super::input::Input;

pub(super) fn plan(input: &Input, plan: &Plan) -> Result<String> {
    let mut report = described(&plan.sizes, &plan.outcome);
    report["toml"] = plan.sizes.to_toml().into();
    report["request"] = serde_json::to_value(&input.request)?;
    report["costs"] = input.costs.origin.clone().into();
    report["log"] = log(input);
    report["warnings"] = serde_json::to_value(&plan.warnings)?;
    report["knee_graphs"] = plan.knee_graphs.into();
    report["curve"] = serde_json::to_value(&plan.curve)?;
    report["sizes"] = serde_json::to_value(&plan.outcome.uses)?;
    finish(&report)
}

pub(super) fn check(input: &Input, checked: &CheckReport) -> Result<String> {
    let mut report = described(&checked.sizes, &checked.outcome);
    report["findings"] = serde_json::to_value(&checked.findings)?;
    report["sizes"] = serde_json::to_value(&checked.outcome.uses)?;
    report["better"] = described(&checked.better_sizes, &checked.better);
    report["better"]["toml"] = checked.better_sizes.to_toml().into();
    report["costs"] = input.costs.origin.clone().into();
    report["log"] = log(input);
    finish(&report)
}

fn described(sizes: &CaptureSizes, of: &Outcome) -> Value {
    let mut described = outcome(of);
    described["capture_num_tokens"] = json!(sizes.capture_num_tokens);
    described["decode_batch_sizes"] = json!(sizes.decode_batch_sizes);
    described
}

fn outcome(outcome: &Outcome) -> Value {
    json!({
        "graphs": outcome.graphs,
        "real_tokens": outcome.real_tokens,
        "padding_tokens": outcome.padding_tokens,
        "padding_share": outcome.padding_share(),
        "expected_us": outcome.expected_ns.map(|ns| ns as f64 / 1e3),
        "mean_step_us": outcome.mean_step_us(),
        "coverage": outcome.coverage.all().of_steps(),
        "coverage_by_kind": coverage(&outcome.coverage),
        "memory_bytes": outcome.memory_bytes,
        "capture_ms": outcome.capture_ns.map(|ns| ns as f64 / 1e6),
    })
}

fn coverage(coverage: &Coverage) -> Value {
    let share = |share: Share| {
        let mut described = json!(share);
        described["share_of_steps"] = share.of_steps().into();
        described["share_of_tokens"] = share.of_tokens().into();
        described
    };
    json!({
        "all": share(coverage.all()),
        "mixed": share(coverage.mixed),
        "decode": share(coverage.decode),
    })
}

fn log(Input { source, log, .. }: &Input) -> Value {
    json!({
        "source": source,
        "steps": log.traffic.steps(),
        "head": log.head,
        "lines": log.lines,
        "idle_lines": log.idle,
        "malformed_lines": log.malformed,
        "first_malformed": log.first_malformed,
        "observed": log.traffic.observed,
    })
}

fn finish(report: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}
