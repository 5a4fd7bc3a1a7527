//! The planner on logs that are too large for brute force.

use std::collections::BTreeMap;

use piecewise_planner::{
    ModelledCosts, MonotoneCurve, Objective, PathCosts, PlanRequest, StepCosts, StepKind, Traffic,
    evaluate, plan,
};
use proptest::prelude::*;

fn only_steps(step_ns: MonotoneCurve) -> Option<PathCosts> {
    Some(PathCosts { step_ns, memory_bytes: None, capture_ns: None })
}

fn curve(points: u32, step: u32) -> impl Strategy<Value = MonotoneCurve> {
    proptest::collection::vec(0_u64..1000, points as usize).prop_map(move |rises| {
        let mut value = 1000;
        let points = rises.into_iter().enumerate().map(|(index, rise)| {
            value += rise;
            (index as u32 * step + 1, value)
        });
        MonotoneCurve::fit(points.collect()).unwrap()
    })
}

fn costs() -> impl Strategy<Value = StepCosts> {
    (curve(40, 64), curve(40, 64), curve(40, 64)).prop_map(|(piecewise, full, launched)| {
        StepCosts {
            piecewise: only_steps(piecewise),
            full: only_steps(full),
            launched: only_steps(launched),
            origin: String::new(),
        }
    })
}

/// The cheapest list of at most `graphs` token sizes that covers the largest count, by trying
/// every next size after every size.
fn quadratic(
    counts: &BTreeMap<u32, u64>,
    graphs: usize,
    cost_of: impl Fn(u32, u32) -> u128,
) -> u128 {
    let sizes: Vec<(u32, u64)> = counts.iter().map(|(count, steps)| (*count, *steps)).collect();
    let between = |from: usize, to: usize| -> u128 {
        let served = &sizes[from..to];
        served.iter().map(|(n, f)| u128::from(*f) * cost_of(*n, sizes[to - 1].0)).sum()
    };
    let mut best: Vec<Option<u128>> = vec![None; sizes.len() + 1];
    best[0] = Some(0);
    let mut answer = None;
    for _ in 0..graphs {
        let cheapest_to =
            |to: usize| (0..to).filter_map(|from| Some(best[from]? + between(from, to))).min();
        best = (0..=sizes.len()).map(cheapest_to).collect();
        answer = [answer, best[sizes.len()]].into_iter().flatten().min();
    }
    answer.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn divide_and_conquer_equals_the_quadratic_program(
        counts in proptest::collection::btree_map(1_u32..2400, 1_u64..50, 1..50),
        costs in costs(),
        graphs in 1_usize..12,
        time in any::<bool>(),
        launched in any::<bool>(),
    ) {
        let mut traffic = Traffic::default();
        for (count, steps) in &counts {
            traffic.add(StepKind::Mixed, *count, *steps).unwrap();
        }
        let request = PlanRequest {
            objective: if time { Objective::Time } else { Objective::Padding },
            launched: time && launched,
            max_graphs: Some(graphs),
            ..PlanRequest::default()
        };
        let replay = |size| u128::from(costs.piecewise.as_ref().unwrap().step_ns.at(size));
        let launch = |count| u128::from(costs.launched.as_ref().unwrap().step_ns.at(count));
        let expected = quadratic(&counts, graphs, |count, size| match (time, launched) {
            (true, true) => replay(size).min(launch(count)),
            (true, false) => replay(size),
            _ => u128::from(size - count),
        });
        let found = plan(request.on(&traffic, &costs)).unwrap();
        let cost = match request.objective {
            Objective::Time => found.outcome.expected_ns.unwrap(),
            Objective::Padding => u128::from(found.outcome.padding_tokens),
        };
        prop_assert_eq!(cost, expected);
        let at = found.curve.iter().rfind(|point| point.graphs <= graphs).unwrap();
        let in_units = if time { 1e3 } else { 1.0 };
        prop_assert!((at.cost * in_units - expected as f64).abs() <= expected as f64 * 1e-12);
    }
}

/// Padding below the ridge of the roofline costs no time: the time-optimal list spends its sizes
/// above it, the padding-optimal list does not know of it.
#[test]
fn time_and_padding_choose_differently() {
    let costs = ModelledCosts::default().costs();
    let mut traffic = Traffic::default();
    for (tokens, steps) in [(8, 500), (40, 500), (130, 300), (600, 60), (760, 40), (1024, 50)] {
        traffic.add(StepKind::Mixed, tokens, steps).unwrap();
    }
    let sizes = |objective| {
        let request = PlanRequest { objective, max_graphs: Some(4), ..PlanRequest::default() };
        plan(request.on(&traffic, &costs)).unwrap()
    };
    let (time, padding) = (sizes(Objective::Time), sizes(Objective::Padding));
    assert_eq!(time.sizes.capture_num_tokens, [130, 600, 760, 1024]);
    assert_eq!(padding.sizes.capture_num_tokens, [40, 130, 760, 1024]);
    assert!(time.outcome.padding_tokens > padding.outcome.padding_tokens);
    assert!(time.outcome.expected_ns < padding.outcome.expected_ns);
}

#[test]
fn more_graphs_never_cost_more_and_enough_graphs_leave_no_padding() {
    let costs = ModelledCosts::default().costs();
    let mut traffic = Traffic::default();
    for count in 1..400_u32 {
        let steps = u64::from(count.wrapping_mul(2_654_435_761) % 97);
        traffic.add(StepKind::Mixed, count * 5, steps).unwrap();
        traffic.add(StepKind::Decode { query_length: 1 }, count, 3 * steps).unwrap();
    }
    let request = PlanRequest {
        objective: Objective::Padding,
        max_graphs: Some(4096),
        ..PlanRequest::default()
    };
    let found = plan(request.on(&traffic, &costs)).unwrap();
    assert_eq!(found.outcome.padding_tokens, 0);
    assert!(found.curve.windows(2).all(|pair| pair[0].cost >= pair[1].cost));
    let again = evaluate(request.on(&traffic, &costs), &found.sizes).unwrap();
    assert_eq!(again, found.outcome);
}
