//! Hostile input: whatever the bytes, the readers answer and do not panic.

use piecewise_planner::{
    ModelledCosts, Objective, PlanRequest, ReadOptions, StepKind, Traffic, check, plan,
    read_configured_sizes, read_costs, read_log,
};
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let number = "-?[0-9]{1,20}(\\.[0-9]{1,3})?(e[0-9]{1,3})?|null|\"full\"|\"none\"";
    let key = "context_tokens|generation_requests|query_length|tokens|rows|size|mode|gpu_us|\
               log|sequences|path|us|memory_bytes|capture_us";
    let json = proptest::collection::vec(
        proptest::collection::vec((key, number), 0..5).prop_map(|fields| {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
            format!("{{{}}}", fields.join(","))
        }),
        0..8,
    )
    .prop_map(|lines| lines.join("\n").into_bytes());
    prop_oneof![json, proptest::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn readers_answer(bytes in bytes(), text in "\\PC{0,60}") {
        let all = ReadOptions { max_malformed_percent: 100.0 };
        if let Ok(log) = read_log(&bytes[..], all) {
            prop_assert!(log.traffic.steps() > 0 && log.malformed + log.idle <= log.lines);
        }
        let _ = read_costs(&bytes[..]);
        let _ = read_configured_sizes(&text);
        let _ = read_configured_sizes(&format!("capture_num_tokens = [{text}]"));
    }

    #[test]
    fn extreme_steps_are_planned(
        steps in proptest::collection::vec(
            (prop_oneof![1_u32..20, (1_u32 << 23)..(1 << 24)], 1_u64..1 << 30, 0_u32..4),
            1..4,
        ),
        time in any::<bool>(),
        graphs in 1_usize..6,
    ) {
        let mut traffic = Traffic::default();
        for (count, number, query) in steps {
            let kind = match query {
                0 => StepKind::Mixed,
                query => StepKind::Decode { query_length: query * 1000 },
            };
            let _ = traffic.add(kind, count, number);
        }
        let costs = ModelledCosts::default().costs();
        let request = PlanRequest {
            objective: if time { Objective::Time } else { Objective::Padding },
            max_graphs: Some(graphs),
            max_num_tokens: Some(1 << 24),
            max_num_seqs: Some(1 << 24),
            ..PlanRequest::default()
        };
        if let Ok(found) = plan(request.on(&traffic, &costs)) {
            prop_assert!(found.outcome.graphs <= graphs);
            prop_assert_eq!(found.outcome.coverage.all().of_steps(), 1.0);
            prop_assert!(found.outcome.padding_share() <= 1.0);
        }
        let small = PlanRequest { max_num_tokens: None, max_num_seqs: None, ..request };
        let configured = read_configured_sizes("capture_num_tokens = [1, 16777216]").unwrap();
        let _ = check(&configured, small.on(&traffic, &costs));
    }
}
