use super::super::workload::Lengths;
use super::*;
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::measure::LaunchCounts;
use piecewise_runtime::words::{FallbackReason, MAX_OWN, NO_ROWS, StepSizes};

fn workload() -> Workload {
    let batch = "2".parse().unwrap();
    Workload::decode(batch, 100, Lengths { warmup: 1, timed: 4 }, 1000)
}

fn yardstick() -> Yardstick {
    Yardstick {
        bandwidth: ReadBandwidth { best: 1e9, median: 9e8, bytes: 1 << 30, passes: 3 },
        cache_bytes: 1000,
        traffic: BytesToRead { weights: 500_000, per_position: 100, experts: None },
    }
}

/// A good step of a mode.
fn record(mode: StepMode) -> StepRecord {
    let (graph_launches, plain_launches) = match mode {
        StepMode::None => (0, 30),
        StepMode::Piecewise => (4, 6),
        StepMode::Full => (1, 0),
    };
    StepRecord {
        device: Duration::from_millis(2),
        wall: Duration::from_millis(3),
        submit: Duration::from_micros(40),
        launches: LaunchCounts {
            graph_launches,
            plain_launches,
            graph_nodes: 30,
            programmatic_edges: 20,
        },
        mode,
        sizes: StepSizes {
            tokens: PieceSize::Exact(2),
            rows: PieceSize::Exact(2),
            sequences: 2,
            own: [NO_ROWS; MAX_OWN],
            query_length: Some(1),
        },
        fallback: None,
        ids: vec![7, 8],
    }
}

fn judged(mode: StepMode, records: &[StepRecord], launched: &[StepRecord]) -> Vec<String> {
    let figures = Figures::of(records, &workload(), &yardstick());
    failures(mode, &figures, records, launched, true)
}

/// What `spoil` makes of the third of four good steps in full mode.
fn spoiled(spoil: impl FnOnce(&mut StepRecord)) -> Vec<String> {
    let mut records = vec![record(StepMode::Full); 4];
    spoil(&mut records[2]);
    judged(StepMode::Full, &records, &vec![record(StepMode::None); 4])
}

#[test]
fn good_steps_of_every_mode_pass() {
    for mode in [StepMode::None, StepMode::Piecewise, StepMode::Full] {
        let none = Vec::<String>::new();
        assert_eq!(judged(mode, &vec![record(mode); 4], &vec![record(StepMode::None); 4]), none);
    }
    assert_eq!(spoiled(|_| {}), Vec::<String>::new());
}

#[test]
fn what_the_host_path_costs_is_a_submit_less_the_drivers_calls() {
    let figures = Figures::of(&vec![record(StepMode::Full); 4], &workload(), &yardstick());
    assert_eq!((figures.submit_us.median, figures.host_us), (40.0, None));
    let host = |driver| figures.clone().with_driver_us(driver).host_us;
    assert_eq!([host(Some(15.0)), host(Some(41.0)), host(None)], [Some(25.0), Some(0.0), None]);
}

#[test]
fn figures_are_of_the_timed_steps() {
    let mut records = vec![record(StepMode::Full); 4];
    records[0].device = Duration::from_millis(1);
    records[3].device = Duration::from_millis(9);
    let figures = Figures::of(&records, &workload(), &yardstick());
    assert_eq!(figures.gpu_ms, Spread { median: 2.0, p10: 1.0, p90: 9.0 });
    assert_eq!((figures.wall_ms.median, figures.submit_us.median), (3.0, 40.0));
    assert_eq!((figures.size, figures.steps, figures.graph_launches), (2, 4, 1));
    let positions: u64 = workload().timed().iter().map(|step| step.positions()).sum();
    assert_eq!(figures.bytes, 500_000 + 100 * positions / 4);
    let rate = figures.bytes as f64 / 2e-3;
    assert!((figures.gb_per_s - rate / 1e9).abs() < 1e-12);
    assert!((figures.read_share.unwrap() - rate / 1e9).abs() < 1e-9);
    let cached = Yardstick { cache_bytes: 1 << 30, ..yardstick() };
    assert_eq!(Figures::of(&records, &workload(), &cached).read_share, None);
}

#[test]
fn full_mode_is_one_graph_launch_in_each_step() {
    let two = spoiled(|step| step.launches.graph_launches = 2);
    assert!(two.len() == 1 && two[0].contains("2 graph launches and 0 plain ones"), "{two:?}");
    let plain = spoiled(|step| step.launches.plain_launches = 1);
    assert!(plain.len() == 1 && plain[0].contains("1 graph launches and 1 plain"), "{plain:?}");
}

#[test]
fn a_step_that_fell_back_or_ran_otherwise_fails_the_row() {
    let fell = spoiled(|step| step.fallback = Some(FallbackReason::NotCaptured));
    assert_eq!(fell, ["1 steps fell back: not_captured"]);
    let mut other = record(StepMode::Piecewise);
    other.launches = record(StepMode::Full).launches;
    let other = spoiled(|step| *step = other);
    assert_eq!(other, ["1 steps did not run in mode full"]);
}

#[test]
fn a_row_whose_steps_were_launched_by_choice_says_so() {
    let chosen =
        StepRecord { fallback: Some(FallbackReason::LaunchesFaster), ..record(StepMode::None) };
    let records = vec![chosen; 4];
    assert_eq!(judged(StepMode::None, &records, &records), Vec::<String>::new());
    let names = ("m", "f32", "d");
    let row = Row {
        head: RowHead::new(names, GraphMode::Piecewise, &workload()),
        figures: Some(Figures::of(&records, &workload(), &yardstick())),
        failures: Vec::new(),
        kernels: Vec::new(),
    };
    let shown = serde_json::to_value(&row).unwrap();
    let parts = ["mode", "path", "chosen"].map(|key| shown[key].as_str().unwrap());
    assert_eq!(parts, ["piecewise", "launched", "launches_faster"]);
    assert_eq!(row.summary(), "decode 2 x 100 piecewise, launched: 2.000 ms");
    let pieces = vec![record(StepMode::Piecewise); 4];
    let figures = Figures::of(&pieces, &workload(), &yardstick());
    assert_eq!((figures.path, figures.chosen), (CostPath::Piecewise, None));
}

#[test]
fn more_bytes_than_the_device_reads_fail_the_row() {
    let mut records = vec![record(StepMode::Full); 4];
    records.iter_mut().for_each(|record| record.device = Duration::from_micros(400));
    let failed = judged(StepMode::Full, &records, &vec![record(StepMode::None); 4]);
    assert!(failed.len() == 1 && failed[0].contains("% of the read bandwidth"), "{failed:?}");
}

#[test]
fn other_ids_than_the_launched_run_fail_the_row() {
    let failed = spoiled(|step| step.ids[1] = 9);
    assert_eq!(failed, ["timed step 2 sampled other ids than its launched run"]);
    let good = vec![record(StepMode::Full); 4];
    let failed = judged(StepMode::Full, &good, &[]);
    assert_eq!(failed, ["4 timed steps, 0 launched"]);
}
