//! From flags to traffic, costs and a request.

use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail};
use piecewise_planner::{
    IterationLogWriter, LogHead, ModelledCosts, Objective, PlanRequest, PlannerError, ReadLog,
    ReadOptions, Simulation, StepCosts, StepKind, Traffic, TrafficShape, read_costs_file, read_log,
    read_log_file,
};

use super::args::{LaunchedArg, PlanArgs};

pub(super) struct Input {
    pub(super) traffic: Traffic,
    pub(super) costs: StepCosts,
    pub(super) request: PlanRequest,
    pub(super) source: String,
    /// What reading the log found; `None` for simulated traffic.
    pub(super) log: Option<ReadLog>,
}

pub(super) fn read(args: &PlanArgs) -> Result<Input> {
    if let Some(shape) = args.simulation.simulate {
        let costs = costs(args, &LogHead::default())?;
        let mut request = request(args, &costs)?;
        let simulation = simulation(args, shape);
        request.max_num_tokens = Some(simulation.max_num_tokens);
        request.max_num_seqs = Some(simulation.max_num_seqs);
        let traffic = simulate(&simulation, &costs, args.simulation.save_log.as_deref())?;
        let source = format!(
            "simulated {}: {} requests, {}, prompts {}, outputs {}, seed {}",
            shape,
            simulation.requests,
            simulation.rate.map_or("all at the start".to_owned(), |rate| format!("{rate}/s")),
            simulation.prompt,
            simulation.output,
            simulation.seed
        );
        return Ok(Input { traffic, costs, request, source, log: None });
    }
    let Some(path) = &args.log else {
        bail!("neither --log nor --simulate was given");
    };
    let options = ReadOptions { max_malformed_percent: args.max_malformed };
    let mut log = if path.as_os_str() == "-" {
        read_log(BufReader::new(std::io::stdin().lock()), options)
    } else {
        read_log_file(path, options)
    }
    .with_context(|| format!("cannot plan from {}", path.display()))?;
    let traffic = std::mem::take(&mut log.traffic);
    let costs = costs(args, &log.head)?;
    let mut request = request(args, &costs)?;
    if args.check.is_none() {
        // Steps of a log are never above its bounds, but for one that was put together.
        let bound = |of_log: Option<u32>, largest: u32| of_log.map(|bound| bound.max(largest));
        let LogHead { max_num_tokens, max_num_seqs, .. } = log.head;
        let tokens = bound(max_num_tokens, traffic.largest_tokens());
        request.max_num_tokens = request.max_num_tokens.or(tokens);
        let sequences = bound(max_num_seqs, traffic.largest_decode());
        request.max_num_seqs = request.max_num_seqs.or(sequences);
    }
    Ok(Input { traffic, costs, request, source: path.display().to_string(), log: Some(log) })
}

fn costs(args: &PlanArgs, head: &LogHead) -> Result<StepCosts> {
    if let Some(path) = &args.costs {
        return read_costs_file(path)
            .with_context(|| format!("cannot use the costs of {}", path.display()));
    }
    let (model, default) = (&args.model, ModelledCosts::default().of_log(head));
    let modelled = ModelledCosts {
        parameters: model.parameters.unwrap_or(default.parameters),
        bytes_per_parameter: model.bytes_per_parameter.unwrap_or(default.bytes_per_parameter),
        layers: model.layers.unwrap_or(default.layers),
        bandwidth: model.bandwidth.unwrap_or(default.bandwidth),
        flops: model.flops.unwrap_or(default.flops),
        ..default
    };
    Ok(modelled.costs()?)
}

fn request(args: &PlanArgs, costs: &StepCosts) -> Result<PlanRequest> {
    let objective = args.objective;
    let measured_launches = args.costs.is_some() && costs.launched.is_some();
    let launched = match args.launched {
        Some(choice) => choice == LaunchedArg::PerStep,
        None => objective == Objective::Time && measured_launches,
    };
    let capture_budget_ns = match args.capture_budget {
        Some(seconds) if !(0.0..=1e9).contains(&seconds) => {
            bail!("--capture-budget is {seconds}: give seconds, from 0 to 1e9")
        }
        seconds => seconds.map(|seconds| (seconds * 1e9) as u64),
    };
    Ok(PlanRequest {
        objective,
        graph_mode: args.graph_mode,
        max_graphs: args.max_graphs,
        max_num_tokens: args.max_num_tokens,
        max_num_seqs: args.max_num_seqs,
        multiple_of: args.multiple_of,
        launched,
        cover_maximum: !args.leave_tail,
        memory_budget: args.memory_budget,
        capture_budget_ns,
        memory_price: args.memory_price,
        capture_price: args.capture_price,
    })
}

fn simulation(args: &PlanArgs, shape: TrafficShape) -> Simulation {
    let given = &args.simulation;
    let default = shape.simulation();
    let max_num_tokens = args.max_num_tokens.unwrap_or(default.max_num_tokens);
    Simulation {
        requests: given.requests.unwrap_or(default.requests),
        rate: given.rate.map_or(default.rate, |rate| rate.0),
        prompt: given.prompt_lengths.unwrap_or(default.prompt),
        output: given.output_lengths.unwrap_or(default.output),
        max_num_tokens,
        max_num_seqs: args.max_num_seqs.unwrap_or(default.max_num_seqs),
        max_chunk: given.max_chunk.unwrap_or(max_num_tokens),
        kv_tokens: given.kv_tokens.unwrap_or(default.kv_tokens),
        seed: given.seed.unwrap_or(default.seed),
    }
}

fn simulate(simulation: &Simulation, costs: &StepCosts, save: Option<&Path>) -> Result<Traffic> {
    let mut log = save.map(IterationLogWriter::create).transpose()?;
    let failed = |source| PlannerError::file("write", save.unwrap_or(Path::new("")))(source);
    let head = LogHead {
        max_num_tokens: Some(simulation.max_num_tokens),
        max_num_seqs: Some(simulation.max_num_seqs),
        ..LogHead::default()
    };
    log.as_mut().map_or(Ok(()), |log| log.write_head(&head)).map_err(failed)?;
    let mut traffic = Traffic::default();
    let mut refused = None;
    simulation.run(costs, |record| {
        let (kind, count) = match record.query_length {
            Some(query_length) => (StepKind::Decode { query_length }, record.generation_requests),
            None => (StepKind::Mixed, record.context_tokens + record.generation_requests),
        };
        refused = refused.or(traffic.add(kind, count, 1).err());
        traffic.most_sequences = traffic.most_sequences.max(record.sequences);
        log.as_mut().map_or(Ok(()), |log| log.write(record).map_err(failed))
    })?;
    log.as_mut().map_or(Ok(()), IterationLogWriter::flush).map_err(failed)?;
    match refused {
        Some(reason) => bail!("the simulation made a step that no log can have: {reason}"),
        None => Ok(traffic),
    }
}
