//! Reports for people.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use piecewise_planner::{
    CheckReport, Finding, LogHead, Objective, Outcome, Plan, PlanWarning, Share,
};

use super::input::Input;

pub(super) fn plan(input: &Input, plan: &Plan) -> String {
    let mut text = header(input);
    let outcome = &plan.outcome;
    for warning in &plan.warnings {
        let _ = writeln!(text, "warning: {}", describe_warning(warning));
    }
    text.push('\n');
    text.push_str(&plan.sizes.to_toml());
    text.push('\n');
    let _ = writeln!(
        text,
        "{} graphs{}: {}",
        outcome.graphs,
        if outcome.graphs == plan.knee_graphs { " (the knee of the curve)" } else { "" },
        describe_outcome(outcome)
    );
    text.push_str(&coverage(outcome));
    if !plan.curve.is_empty() {
        let _ =
            writeln!(text, "\nWhat more graphs buy (each row the best plan of at most so many):\n");
        text.push_str(&curve(input.request.objective, plan));
    }
    text
}

pub(super) fn check(input: &Input, checked: &CheckReport) -> String {
    let mut text = header(input);
    text.push('\n');
    if checked.findings.is_empty() {
        let _ = writeln!(text, "nothing to report: every size is used, every count is covered");
    }
    for finding in &checked.findings {
        let _ = writeln!(text, "{}", describe_finding(finding));
    }
    let (now, better) = (&checked.outcome, &checked.better);
    let _ = writeln!(text, "\nnow, {} graphs: {}", now.graphs, describe_outcome(now));
    text.push_str(&coverage(now));
    let gains = match input.request.objective {
        Objective::Time => better.expected_ns < now.expected_ns || now.expected_ns.is_none(),
        Objective::Padding => better.padding_tokens < now.padding_tokens,
    };
    let covers_more = better.coverage.all().replayed_steps > now.coverage.all().replayed_steps;
    if gains || covers_more {
        let _ = writeln!(text, "\nwith {} graphs: {}\n", better.graphs, describe_outcome(better));
        text.push_str(&checked.better_sizes.to_toml());
    } else {
        let _ = writeln!(text, "\nno lists of as many graphs are better on this log");
    }
    text
}

fn header(input: &Input) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "traffic: {}, {} steps", input.source, input.log.traffic.steps());
    let log = &input.log;
    let LogHead { model, device, max_num_tokens, max_num_seqs, .. } = &log.head;
    let of = model.as_ref().zip(device.as_ref());
    if let Some((model, device)) = of {
        let _ = writeln!(text, "of: {model} on {device}");
    }
    if let Some((tokens, sequences)) = max_num_tokens.zip(*max_num_seqs) {
        let _ = writeln!(text, "bounds: {tokens} tokens, {sequences} sequences");
    }
    if log.malformed > 0 {
        let _ = writeln!(text, "malformed: {} of {} lines", log.malformed, log.lines);
        for malformed in &log.first_malformed {
            let _ = writeln!(text, "  {malformed}");
        }
    }
    let observed = log.traffic.observed;
    if observed.known_steps > 0 {
        let _ = writeln!(
            text,
            "in the log itself {} of {} steps replayed",
            observed.replayed_steps, observed.known_steps
        );
    }
    let _ = writeln!(text, "costs: {}", input.costs.origin);
    text
}

fn describe_outcome(outcome: &Outcome) -> String {
    let mut text = format!(
        "{} padding tokens ({} of the rows)",
        outcome.padding_tokens,
        percent(outcome.padding_share())
    );
    if let Some(us) = outcome.mean_step_us() {
        let _ = write!(text, ", {us:.1} us a step");
    }
    if let Some(bytes) = outcome.memory_bytes {
        let _ = write!(text, ", {:.0} MiB of graphs", bytes as f64 / f64::from(1 << 20));
    }
    if let Some(ns) = outcome.capture_ns {
        let _ = write!(text, ", {:.2} s of capture", ns as f64 / 1e9);
    }
    text
}

fn coverage(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (name, share) in [
        ("all steps", outcome.coverage.all()),
        ("context and mixed", outcome.coverage.mixed),
        ("decode", outcome.coverage.decode),
    ] {
        if share.steps > 0 {
            let _ = writeln!(text, "  {}", describe_share(name, &share));
        }
    }
    text
}

fn describe_share(name: &str, share: &Share) -> String {
    format!(
        "{name}: {} of {} steps replay ({}), {} of the tokens",
        share.replayed_steps,
        share.steps,
        percent(share.of_steps()),
        percent(share.of_tokens())
    )
}

fn curve(objective: Objective, plan: &Plan) -> String {
    let unit = match objective {
        Objective::Time => "expected time, s",
        Objective::Padding => "padding tokens",
    };
    let mut table = table(&["graphs", "token sizes", "decode sizes", unit, ""]);
    let mut shown = 0;
    for point in &plan.curve {
        let knee = point.graphs == plan.knee_graphs;
        let chosen = point.graphs == plan.outcome.graphs;
        // Rows thin out as the curve flattens.
        if !(knee || chosen || point.graphs * 8 >= shown * 9 || point.graphs <= 8) {
            continue;
        }
        shown = point.graphs;
        let cost = match objective {
            Objective::Time => format!("{:.4}", point.cost / 1e6),
            Objective::Padding => format!("{:.0}", point.cost),
        };
        let mark = match (knee, chosen) {
            (true, true) => "knee, chosen",
            (true, false) => "knee",
            (false, true) => "chosen",
            _ => "",
        };
        table.add_row([
            point.graphs.to_string(),
            point.token_sizes.to_string(),
            point.decode_sizes.to_string(),
            cost,
            mark.to_owned(),
        ]);
    }
    format!("{table}\n")
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn describe_warning(warning: &PlanWarning) -> String {
    match warning {
        PlanWarning::NoMixedSteps => {
            "no mixed step in the traffic: no token size was chosen, prompts would run launched"
                .to_owned()
        }
        PlanWarning::NoDecodes => {
            "no uniform decode in the traffic: no decode size was chosen".to_owned()
        }
        PlanWarning::DecodesShareTokenSizes => {
            "too few graphs for two lists: decodes replay token sizes too; set the graph mode to \
             piecewise"
                .to_owned()
        }
        PlanWarning::MoreSequencesThanDecodeSizes { most_sequences, largest } => format!(
            "a step has {most_sequences} sequences, the largest decode size is {largest}: plan with \
             --max-num-seqs {most_sequences}, since rows and sequences use the decode sizes"
        ),
        PlanWarning::NoBound { list, bound_key, largest } => format!(
            "{} ends at {largest}, the largest that the log has, and larger steps would be launched: \
             give --{}",
            list.key(),
            bound_key.replace('_', "-")
        ),
        PlanWarning::EndsBelowBound { list, bound_key, largest, bound } => format!(
            "{} ends at {largest}, and steps come to {bound} ({bound_key}): larger ones are launched",
            list.key()
        ),
        other => format!("{other:?}"),
    }
}

fn describe_finding(finding: &Finding) -> String {
    match finding {
        Finding::Repeated { list, sizes } => {
            format!("{}: {} repeated; remove", list.key(), join(sizes))
        }
        Finding::BoundBelowLog { key, bound, largest } => format!(
            "{key} = {bound} is below a step of {largest} in the log; such a step becomes several, and is \
             counted here as it is"
        ),
        Finding::Unreachable { list, sizes, largest_possible: 0 } => format!(
            "{}: {} unreachable, the graph mode has no such graphs; remove",
            list.key(),
            join(sizes)
        ),
        Finding::Unreachable { list, sizes, largest_possible } => format!(
            "{}: {} unreachable, no step is larger than {largest_possible} and a smaller size \
             holds that; remove",
            list.key(),
            join(sizes)
        ),
        Finding::Unused { list, sizes } => {
            format!("{}: {} not replayed by any step of the log", list.key(), join(sizes))
        }
        Finding::Uncovered { list, from, to, steps, of_steps } => format!(
            "{}: {from} to {to} uncovered, {steps} of {of_steps} steps ({}) are there; add {to}",
            list.key(),
            percent(*steps as f64 / (*of_steps).max(1) as f64)
        ),
        Finding::Gap { list, below, size, padding_tokens, share_of_padding, add, saves } => {
            format!(
                "{}: steps of {} to {size} run at {size}: {padding_tokens} padding tokens, {} of \
                 all padding; adding {add} saves {saves}",
                list.key(),
                below + 1,
                percent(*share_of_padding)
            )
        }
        other => format!("{other:?}"),
    }
}

fn join(sizes: &[u32]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = sizes.iter().take(SHOWN).map(u32::to_string).collect();
    match sizes.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
