//! The planner against every list there is, on small random logs.

use piecewise_planner::{
    CaptureSizes, GraphMode, ListKind, MonotoneCurve, Objective, Outcome, PathCosts, PlanRequest,
    PlanWarning, PlannerError, StepCosts, StepKind, Traffic, evaluate, plan,
};
use proptest::prelude::*;

const TOKENS: u32 = 7;
const BATCHES: u32 = 4;
const LONGEST_QUERY: u32 = 3;

fn curve(most: u64) -> impl Strategy<Value = MonotoneCurve> {
    let points = (TOKENS.max(BATCHES * LONGEST_QUERY)) as usize;
    proptest::collection::vec(1..most, points).prop_map(|mut values| {
        values.sort_unstable();
        let points = values.into_iter().enumerate();
        MonotoneCurve::fit(points.map(|(index, value)| (index as u32 + 1, value)).collect())
            .unwrap()
    })
}

fn path() -> impl Strategy<Value = PathCosts> {
    // Few distinct values, so that equal costs and flat stretches are common.
    let step = prop_oneof![curve(5), curve(100), curve(1_000_000)];
    step.prop_map(|step_ns| PathCosts { step_ns, memory_bytes: None, capture_ns: None })
}

fn costs() -> impl Strategy<Value = StepCosts> {
    (path(), path(), path()).prop_map(|(piecewise, full, launched)| StepCosts {
        piecewise: Some(piecewise),
        full: Some(full),
        launched: Some(launched),
        origin: String::new(),
    })
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let mixed = proptest::collection::vec((1..=TOKENS, 1_u64..30), 0..5);
    let decode = proptest::collection::vec((1..=BATCHES, 1_u64..30), 0..4);
    let second = prop_oneof![
        3 => Just(Vec::new()),
        1 => proptest::collection::vec((1..=BATCHES, 1_u64..30), 1..3),
    ];
    (mixed, decode, second).prop_filter_map("no step", |(mixed, decode, second)| {
        let mut traffic = Traffic::default();
        for (count, steps) in mixed {
            traffic.add(StepKind::Mixed, count, steps).unwrap();
        }
        for (query_length, steps) in [(1, decode), (LONGEST_QUERY, second)] {
            for (count, number) in steps {
                traffic.add(StepKind::Decode { query_length }, count, number).unwrap();
            }
        }
        (traffic.steps() > 0).then_some(traffic)
    })
}

fn request() -> impl Strategy<Value = PlanRequest> {
    let mode = prop_oneof![
        4 => Just(GraphMode::FullAndPiecewise),
        1 => Just(GraphMode::Piecewise),
        1 => Just(GraphMode::Full),
        1 => Just(GraphMode::FullDecodeOnly),
    ];
    (
        (any::<bool>(), mode, 1_usize..8, any::<bool>(), any::<bool>()),
        (1_u32..4, any::<bool>(), any::<bool>()),
    )
        .prop_map(|((time, graph_mode, graphs, tokens, seqs), (multiple_of, a, b))| {
            PlanRequest {
                objective: if time { Objective::Time } else { Objective::Padding },
                graph_mode,
                max_graphs: Some(graphs),
                max_num_tokens: tokens.then_some(BATCHES * LONGEST_QUERY),
                max_num_seqs: seqs.then_some(BATCHES),
                multiple_of,
                launched: time && a,
                cover_maximum: !time || b,
            }
        })
}

/// Every ascending list of allowed sizes up to the maximum; with it, if it must be covered.
fn lists(maximum: u32, multiple_of: u32, must_cover: bool) -> Vec<Vec<u32>> {
    if maximum == 0 {
        return vec![Vec::new()];
    }
    let inner: Vec<u32> = (1..maximum).filter(|size| size % multiple_of == 0).collect();
    let mut lists = Vec::new();
    for mask in 0..1_u32 << inner.len() {
        let mut list: Vec<u32> = Vec::new();
        for (bit, size) in inner.iter().enumerate() {
            if mask & (1 << bit) != 0 {
                list.push(*size);
            }
        }
        if !must_cover {
            lists.push(list.clone());
        }
        list.push(maximum);
        lists.push(list);
    }
    lists
}

struct Candidate {
    /// Nanoseconds or tokens.
    cost: u128,
    padding: u64,
    graphs: usize,
}

fn objective(outcome: &Outcome, request: &PlanRequest) -> u128 {
    match request.objective {
        Objective::Time => outcome.expected_ns.unwrap(),
        Objective::Padding => u128::from(outcome.padding_tokens),
    }
}

/// All lists within the constraints.
fn all_plans(traffic: &Traffic, costs: &StepCosts, request: &PlanRequest) -> Vec<Candidate> {
    let mut plans = Vec::new();
    let multiple_of = request.multiple_of;
    let tokens =
        lists(request.maximum(ListKind::Tokens, traffic), multiple_of, request.cover_maximum);
    let decodes = lists(request.maximum(ListKind::Decode, traffic), multiple_of, true);
    for capture_num_tokens in &tokens {
        for decode_batch_sizes in &decodes {
            let sizes = CaptureSizes {
                capture_num_tokens: capture_num_tokens.clone(),
                decode_batch_sizes: decode_batch_sizes.clone(),
            };
            if sizes.graphs(request.query_lengths(traffic)) > request.max_graphs.unwrap() {
                continue;
            }
            let outcome = evaluate(request.on(traffic, costs), &sizes).unwrap();
            plans.push(Candidate {
                cost: objective(&outcome, request),
                padding: outcome.padding_tokens,
                graphs: outcome.graphs,
            });
        }
    }
    plans
}

fn compare_with_brute_force(
    traffic: &Traffic,
    costs: &StepCosts,
    request: &PlanRequest,
) -> Result<(), TestCaseError> {
    let plans = all_plans(traffic, costs, request);
    let best = plans.iter().map(|plan| plan.cost).min();
    let found = match plan(request.on(traffic, costs)) {
        Ok(found) => found,
        Err(PlannerError::TooFewGraphs { .. }) => {
            prop_assert_eq!(best, None, "a plan exists");
            return Ok(());
        }
        Err(error) => return Err(TestCaseError::fail(error.to_string())),
    };
    if found.warnings.contains(&PlanWarning::DecodesShareTokenSizes) {
        prop_assert_eq!(best, None, "two lists were possible");
        return Ok(());
    }
    let sizes = &found.sizes;
    prop_assert!(found.outcome.graphs <= request.max_graphs.unwrap());
    for (list, maximum) in [
        (&sizes.capture_num_tokens, request.maximum(ListKind::Tokens, traffic)),
        (&sizes.decode_batch_sizes, request.maximum(ListKind::Decode, traffic)),
    ] {
        prop_assert!(list.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(list.iter().all(|size| size % request.multiple_of == 0 || *size == maximum));
        if request.cover_maximum && maximum > 0 {
            prop_assert_eq!(list.last(), Some(&maximum));
        }
    }
    let cost = objective(&found.outcome, request);
    prop_assert_eq!(Some(cost), best, "{:?}", sizes);

    let as_cheap = || plans.iter().filter(|plan| Some(plan.cost) == best);
    let fewest = as_cheap().map(|plan| plan.graphs).min().unwrap();
    prop_assert_eq!(found.outcome.graphs, fewest);
    // Padding breaks ties of time; under the padding objective it is part of the cost itself.
    let padding = as_cheap().filter(|plan| plan.graphs == fewest).map(|plan| plan.padding);
    if request.objective == Objective::Time {
        prop_assert_eq!(Some(found.outcome.padding_tokens), padding.min());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn equals_brute_force_under_every_constraint(
        traffic in traffic(),
        costs in costs(),
        request in request(),
    ) {
        compare_with_brute_force(&traffic, &costs, &request)?;
    }

    #[test]
    fn equals_brute_force_without_constraints(
        traffic in traffic(),
        costs in costs(),
        graphs in 1_usize..8,
        time in any::<bool>(),
    ) {
        let request = PlanRequest {
            objective: if time { Objective::Time } else { Objective::Padding },
            max_graphs: Some(graphs),
            ..PlanRequest::default()
        };
        compare_with_brute_force(&traffic, &costs, &request)?;
    }

}
