//! From flags to traffic, costs and a request.

use super::args::{LaunchedArg, PlanArgs};
use anyhow::{Context, Result};
use piecewise_planner::{
    LogHead, ModelledCosts, Objective, PlanRequest, ReadLog, ReadOptions, StepCosts,
    read_costs_file, read_log, read_log_file,
};
use std::io::BufReader;

pub(super) struct Input {
    pub(super) costs: StepCosts,
    pub(super) request: PlanRequest,
    pub(super) source: String,
    /// The steps to plan for, and what else reading the log found.
    pub(super) log: ReadLog,
}

pub(super) fn read(args: &PlanArgs) -> Result<Input> {
    let path = &args.log;
    let options = ReadOptions { max_malformed_percent: args.max_malformed };
    let log = if path.as_os_str() == "-" {
        read_log(BufReader::new(std::io::stdin().lock()), options)
    } else {
        read_log_file(path, options)
    }
    .with_context(|| format!("cannot plan from {}", path.display()))?;
    let costs = match &args.costs {
        Some(path) => read_costs_file(path)
            .with_context(|| format!("cannot use the costs of {}", path.display()))?,
        None => ModelledCosts::default().of_log(&log.head).costs(),
    };
    let mut request = request(args, &costs);
    if args.check.is_none() {
        // Steps of a log are never above its bounds, but for one that was put together.
        let bound = |of_log: Option<u32>, largest: u32| of_log.map(|bound| bound.max(largest));
        let LogHead { max_num_tokens, max_num_seqs, .. } = log.head;
        let tokens = bound(max_num_tokens, log.traffic.largest_tokens());
        request.max_num_tokens = request.max_num_tokens.or(tokens);
        let sequences = bound(max_num_seqs, log.traffic.largest_decode());
        request.max_num_seqs = request.max_num_seqs.or(sequences);
    }
    Ok(Input { costs, request, source: path.display().to_string(), log })
}

fn request(args: &PlanArgs, costs: &StepCosts) -> PlanRequest {
    let objective = args.objective;
    let measured_launches = args.costs.is_some() && costs.launched.is_some();
    let launched = match args.launched {
        Some(choice) => choice == LaunchedArg::PerStep,
        None => objective == Objective::Time && measured_launches,
    };
    PlanRequest {
        objective,
        graph_mode: args.graph_mode,
        max_graphs: args.max_graphs,
        max_num_tokens: args.max_num_tokens,
        max_num_seqs: args.max_num_seqs,
        multiple_of: args.multiple_of,
        launched,
        cover_maximum: !args.leave_tail,
    }
}
