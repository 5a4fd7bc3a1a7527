use super::*;
use crate::batch::{ChunkRows, Sampling};
use crate::steps::CompiledModel;
use crate::testing::{Setup, next_id};
use crate::words::{CaptureWhen, Checks, GraphKind, GraphMode, StepMode};
use piecewise_ir::builder::Builder;
use piecewise_ir::dtype::DType;
use piecewise_kernels::experts::{Experts, RouterScores, Routing};
use std::sync::atomic::Ordering;

/// Room for these positions in each sequence.
const ROOM: [u64; 3] = [64, 48, 32];

fn timer_of(model: CompiledModel, room: &[u64]) -> Result<ModelTimer, MeasureError> {
    let roles = Setup::roles_of(&model);
    ModelTimer::new(model, roles, room)
}

fn timer(setup: Setup) -> ModelTimer {
    let setup = Setup { mode: GraphMode::Full, capture: CaptureWhen::Lazy, ..setup };
    timer_of(setup.build().unwrap(), &ROOM).unwrap()
}

fn chunk(sequence: usize, start: u64, tokens: StepTokens) -> PlannedChunk {
    PlannedChunk { sequence, start, tokens, rows: ChunkRows::Last }
}

/// Prompts of three and two tokens, then decode steps that feed back.
fn conversation(steps: u64) -> Vec<PlannedStep> {
    let prompt = |sequence, ids: &[u32]| chunk(sequence, 0, StepTokens::Ids(ids.to_vec()));
    let mut all = vec![PlannedStep { chunks: vec![prompt(0, &[5, 6, 7]), prompt(1, &[8, 9])] }];
    all.extend((0..steps).map(|i| PlannedStep {
        chunks: vec![chunk(0, 3 + i, StepTokens::Feedback), chunk(1, 2 + i, StepTokens::Feedback)],
    }));
    all
}

/// What the model makes of [`conversation`].
fn expected(steps: u64) -> Vec<Vec<u32>> {
    let mut histories = [vec![5, 6, 7], vec![8, 9]];
    (0..=steps)
        .map(|_| {
            let next: Vec<u32> =
                histories.iter().map(|ids| next_id(ids, Sampling::default())).collect();
            histories.iter_mut().zip(&next).for_each(|(ids, id)| ids.push(*id));
            next
        })
        .collect()
}

#[test]
fn steps_feed_back_on_the_device_in_every_mode_and_launched() {
    let mut timer = timer(Setup::default());
    let steps = conversation(6);
    for (mode, ran) in [
        (GraphMode::None, StepMode::None),
        (GraphMode::Piecewise, StepMode::Piecewise),
        (GraphMode::Full, StepMode::Full),
    ] {
        timer.recapture(mode, &mut |_| {}).unwrap();
        for launched in [true, false] {
            let records = timer.run(&steps, launched).unwrap();
            let ids: Vec<_> = records.iter().map(|record| record.ids.clone()).collect();
            assert_eq!(ids, expected(6), "{} launched {launched}", mode.name());
            let ran = if launched { StepMode::None } else { ran };
            assert!(records.iter().all(|r| r.mode == ran && r.fallback.is_none()));
        }
    }
}

#[test]
fn a_record_tells_what_was_enqueued_and_how_long_it_took() {
    let mut timer = timer(Setup::default());
    let mut of = |mode: GraphMode| {
        let report = timer.recapture(mode, &mut |_| {}).unwrap();
        let records = timer.run(&conversation(3), false).unwrap();
        let last = records.last().unwrap().clone();
        assert_eq!(last.sizes.tokens.rows(), 2);
        assert!(last.device.as_micros() > 3 && last.device.as_micros() < 30, "{last:?}");
        (report, last.launches)
    };
    let (report, launched) = of(GraphMode::None);
    assert_eq!((report.graphs.len(), report.bytes, report.shape.nodes), (0, Some(0), 0));
    let (report, full) = of(GraphMode::Full);
    assert_eq!((launched.graph_launches, launched.graph_nodes), (0, 0));
    assert_eq!((full.graph_launches, full.plain_launches), (1, 0));
    assert_eq!(full.graph_nodes, launched.plain_launches);
    assert!(report.graphs.iter().all(|graph| graph.kind == GraphKind::Full));
    assert_eq!(report.shape.nodes, report.graphs.len() as u64 * full.graph_nodes);
    let (report, pieces) = of(GraphMode::Piecewise);
    assert_eq!((pieces.graph_launches, pieces.plain_launches), (2, 0));
    assert_eq!(pieces.graph_nodes, launched.plain_launches);
    let kinds = [GraphKind::Tokens, GraphKind::Rows];
    assert!(kinds.iter().all(|kind| report.graphs.iter().any(|graph| graph.kind == *kind)));
}

#[test]
fn a_wrong_replay_shows_in_the_ids() {
    let mut timer = timer(Setup { checks: Checks::default(), ..Setup::default() });
    timer.model_mut().fake_mut().faults.wrong_address.store(true, Ordering::Relaxed);
    timer.recapture(GraphMode::Full, &mut |_| {}).unwrap();
    let steps = conversation(4);
    let launched = timer.run(&steps, true).unwrap();
    let replayed = timer.run(&steps, false).unwrap();
    assert!(launched.iter().zip(&replayed).any(|(a, b)| a.ids != b.ids));
}

#[test]
fn a_step_without_some_launches_and_the_times_of_the_others() {
    let mut timer = timer(Setup::default());
    timer.recapture(GraphMode::Full, &mut |_| {}).unwrap();
    let steps = conversation(2);
    let whole = timer.run(&steps, false).unwrap();
    let sizes = whole.last().unwrap().sizes;
    let launches = timer.step_launches(sizes);
    assert_eq!(launches.len() as u64, whole.last().unwrap().launches.graph_nodes);
    let times = timer.timeline(sizes).unwrap();
    assert!(times.launches.iter().zip(&launches).all(|(times, launch)| times.launch == *launch));
    assert!(times.launches.iter().all(|times| times.blocks.len() == 1));

    let mixes = launches.iter().filter(|launch| launch.kernel == "test.mix").count();
    assert!(mixes > 0);
    assert_eq!(timer.leave_out(&|launch| launch.kernel == "test.nothing"), 0);
    let left_out = timer.leave_out(&|launch| launch.kernel == "test.mix");
    assert!(left_out >= mixes);
    assert!(matches!(timer.timeline(sizes), Err(MeasureError::NoTimeline { .. })));
    timer.recapture(GraphMode::Full, &mut |_| {}).unwrap();
    let rest = timer.run(&steps, false).unwrap();
    let nodes = |records: &[StepRecord]| records.last().unwrap().launches.graph_nodes;
    assert_eq!(nodes(&rest), nodes(&whole) - mixes as u64);
    let kernels = timer.step_launches(sizes);
    assert!(kernels.iter().all(|launch| launch.kernel != "test.mix"));
}

#[test]
fn plans_that_do_not_fit_name_step_and_sequence() {
    let mut timer = timer(Setup::default());
    let mut refused = |chunk| {
        let step = PlannedStep { chunks: vec![chunk] };
        match timer.run(&[conversation(0)[0].clone(), step], true) {
            Err(MeasureError::Plan { step: 1, sequence, reason }) => (sequence, reason),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(chunk(3, 0, StepTokens::Feedback)).0, 3);
    let (sequence, reason) = refused(chunk(2, 31, StepTokens::Ids(vec![1, 2])));
    assert_eq!(sequence, 2);
    assert!(reason.contains("position 33") && reason.contains("room for 32"), "{reason}");

    let few = Setup::default().build().unwrap();
    let error = timer_of(few, &[1 << 20]).unwrap_err();
    assert!(matches!(error, MeasureError::Pool(_)), "{error}");
}

#[test]
fn traffic_counts_what_is_attended_to_once() {
    let traffic = BytesToRead { weights: 1000, per_position: 10, experts: None };
    let step = PlannedStep {
        chunks: vec![
            chunk(0, 7, StepTokens::Feedback),
            chunk(1, 4, StepTokens::Ids(vec![1, 2, 3])),
        ],
    };
    assert_eq!((step.tokens(), step.positions()), (4, 15));
    assert_eq!(traffic.bytes(&step), 1150);
}

/// 128 experts, 8 of a token, in two layers.
#[test]
fn traffic_counts_the_experts_that_tokens_choose() {
    let b = Builder::new("experts");
    let rows = b.symbol("T", 1, 8);
    let x = b.input("x", DType::F32, (rows, 2));
    let logits = b.input("logits", DType::F32, (rows, 128));
    let scores = RouterScores::Softmax;
    let routing = Routing { top_k: 8, scores, renormalize: true, scale: 1.0 };
    let layer = |x, name: &str| {
        let _scope = b.scope(name);
        let (gate_up, down) = (b.weight("gate_up", (128, 6, 2)), b.weight("down", (128, 2, 3)));
        b.custom_one(&Experts, &[x, logits, gate_up, down], Experts::attrs(&routing))
    };
    let graph = b.finish([layer(layer(x, "first"), "second")]).unwrap();
    let bytes = graph.weights().iter().map(|weight| graph.ty(weight.value).bytes(&[])).sum();
    let traffic = BytesToRead::of(&graph);
    let experts = ExpertBytes { weights: bytes, count: 128, per_token: 8 };
    assert_eq!(traffic, BytesToRead { experts: Some(experts), ..BytesToRead::default() });
    for (tokens, distinct) in [(0, 0.0), (1, 8.0), (8, 51.6), (32, 111.8), (128, 128.0)] {
        let found = experts.distinct(tokens);
        assert!((found - distinct).abs() < 0.1, "{tokens} tokens: {found}");
    }
    let step = PlannedStep { chunks: vec![chunk(0, 7, StepTokens::Feedback)] };
    assert_eq!(traffic.bytes(&step), bytes / 16);
}
