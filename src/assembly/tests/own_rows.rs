//! An engine whose steps bring rows of the model's own kind: windows of two positions, and four
//! patches for each.

use super::*;
use std::ops::Range;

const VOCAB: u64 = 16;
const WINDOWS: &str = "rows.windows";
const PATCHES: &str = "4*rows.windows";
/// Lengths; one is more than a step takes.
const PROMPTS: [u32; 4] = [1, 11, 4, 6];

/// The windows in which a sequence has tokens of the step.
fn windows(sequence: &SequenceView<'_>) -> Range<u64> {
    let positions = sequence.positions();
    positions.start / 2..positions.end.div_ceil(2)
}

/// The id that a patch of a window stands for; of the four, a window takes the one at [`picked`].
fn id_of(window: u64, patch: u64) -> u64 {
    (5 * window + 3 * patch + 1) % VOCAB
}

fn picked(window: u64) -> u64 {
    window % 4
}

/// What its op would declare: a row of numbers for each patch, the patch that each window takes, and
/// the window of each token.
fn inputs() -> [StepInput; 3] {
    let shape = [Extent::of(PATCHES), Extent::Constant(VOCAB)];
    let patches = StepInput::new("own.patches", DType::F32, shape, 0.0).filled(|batch, out| {
        for (window, patch) in batch
            .sequences()
            .flat_map(|sequence| windows(&sequence))
            .flat_map(|window| (0..4).map(move |patch| (window, patch)))
        {
            out.extend((0..VOCAB).map(|id| f32::from(id == id_of(window, patch))));
        }
        Ok(())
    });
    let shape = [Extent::of(WINDOWS)];
    let taken = StepInput::new("own.taken", DType::I32, shape, 0.0).filled(|batch, out| {
        let windows = batch.sequences().flat_map(|sequence| windows(&sequence));
        out.extend(windows.enumerate().map(|(row, at)| (4 * row as u64 + picked(at)) as i32));
        Ok(())
    });
    let shape = [Extent::of(roles::TOKENS)];
    let window_of = StepInput::new("own.window_of", DType::I32, shape, 0.0).filled(|batch, out| {
        let mut before = 0;
        for sequence in batch.sequences() {
            let windows = windows(&sequence);
            let rows = sequence.positions().map(|at| before + at / 2 - windows.start);
            out.extend(rows.map(|row| row as i32));
            before += windows.end - windows.start;
        }
        Ok(())
    });
    [patches, taken, window_of]
}

/// A model whose next id is that of the window of the token before it, at most `most` windows a step.
fn windowed(most: u64) -> Graph {
    let b = Builder::new("windowed");
    let bounds = StepBounds {
        max_tokens: 8,
        max_rows: 4,
        max_sequences: 4,
        max_length: 32,
        kv_rows: 0,
        state_slots: 0,
    };
    let step = StepInputs::declare(&b, &bounds);
    b.symbol_with_role("W", 1, most, WINDOWS);
    b.symbol_with_role("X", 4, 4 * most, PATCHES);
    let [of_patches, of_windows, of_tokens] = inputs();
    let x = step.input(&b, "patches", &of_patches);
    let taken = step.input(&b, "taken", &of_windows);
    let window_of = step.input(&b, "window_of", &of_tokens);
    let x = (x.silu().gather(taken) * 2.0).gather(window_of);
    let logits = x.gather(step.logit_rows);
    b.finish([logits, step.sample(logits)]).unwrap()
}

fn assembly(ops: OpRegistry, most: u64) -> Assembly {
    let assembly = Assembly::graph(windowed(most)).ops(ops).set("cache.enabled", false).threads(1);
    assembly.capture_sizes([1, 2, 4, 8]).set("strict", true).set("checks.poison", true)
}

fn ops(count: impl Fn(&BatchView<'_>) -> u64 + Send + Sync + 'static) -> OpRegistry {
    let mut ops = OpRegistry::builtin();
    ops.declare_inputs("own.windows", inputs()).declare_rows("own.windows", WINDOWS, count);
    ops
}

fn windows_of(batch: &BatchView<'_>) -> u64 {
    batch.sequences().map(|sequence| windows(&sequence).count() as u64).sum()
}

const MAX_TOKENS: u64 = 9;

fn request(length: u32) -> Request {
    Request::new(vec![3; length as usize], MAX_TOKENS)
}

/// What follows a prompt of so many ids.
fn answer(length: u32) -> Vec<u32> {
    let before = u64::from(length) - 1..u64::from(length) - 1 + MAX_TOKENS;
    before.map(|at| id_of(at / 2, picked(at / 2)) as u32).collect()
}

fn answered(events: &[RequestEvent], request: RequestId) -> Vec<u32> {
    let ids = events.iter().filter_map(|event| match *event {
        RequestEvent::Token { request: of, id, .. } if of == request => Some(id),
        _ => None,
    });
    ids.collect()
}

#[test]
fn steps_of_an_engine_bring_rows_of_the_models_own_kind_and_rows_tied_to_them() {
    let mut uncounted = OpRegistry::builtin();
    uncounted.declare_inputs("own.windows", inputs());
    let error = assembly(uncounted, 8).engine().unwrap_err().to_string();
    assert!(error.contains("symbol W has the role \"rows.windows\""), "{error}");
    let counted = Arc::new(AtomicUsize::new(0));
    let most = Arc::clone(&counted);
    let ops = ops(move |batch| {
        let rows = windows_of(batch);
        most.fetch_max(rows as usize, Ordering::Relaxed);
        rows
    });
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let mut engine = assembly(ops.clone(), 8).graph_mode(mode).engine().unwrap();
        counted.store(0, Ordering::Relaxed);
        let requests = PROMPTS.map(|length| engine.add(request(length)).unwrap());
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        for (request, length) in requests.into_iter().zip(PROMPTS) {
            assert_eq!(answered(&events, request), answer(length), "{}", mode.name());
        }
        assert!(counted.load(Ordering::Relaxed) > 4, "more than a window for each sequence");
        let steps = engine.model().statistics().steps_by_mode;
        assert!(steps[mode.mixed() as usize] > 0, "{steps:?} in mode {}", mode.name());
    }
}

/// A prompt is cut where its rows end, and who finds no room for a row waits for a later step.
#[test]
fn own_rows_that_do_not_fit_together_go_into_several_steps() {
    let mut steps = Vec::new();
    for most in [8, 2, 1] {
        let assembly =
            assembly(ops(windows_of), most).purpose(Purpose::Logits).set("strict", false);
        let mut engine = assembly.graph_mode(GraphMode::Piecewise).engine().unwrap();
        let requests = PROMPTS.map(|length| engine.add(request(length)).unwrap());
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        for (request, length) in requests.into_iter().zip(PROMPTS) {
            assert_eq!(answered(&events, request), answer(length), "{most} windows a step");
        }
        steps.push(engine.model().statistics().steps);
        let mut rows = 0;
        let count = |bytes: &[u8]| bytes.len() as u64 / (4 * VOCAB);
        engine.logits(&request(11), &mut |_, bytes| rows += count(bytes)).unwrap();
        assert_eq!(rows, 11);
    }
    assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
}

#[test]
fn a_request_whose_own_rows_no_step_has_room_for_fails_alone() {
    for wild in [9, u64::MAX / 8, u64::MAX] {
        let is_bad = |sequence: SequenceView<'_>| sequence.start() == 0 && sequence.ids()[0] == 14;
        let count = move |batch: &BatchView<'_>| match batch.sequences().any(is_bad) {
            true => wild,
            false => windows_of(batch),
        };
        let mut engine = assembly(ops(count), 8).engine().unwrap();
        let [first, second] = [1, 6].map(|length| engine.add(request(length)).unwrap());
        let bad = engine.add(Request::new([14, 3, 3], 4)).unwrap();
        let last = engine.add(request(4)).unwrap();
        let mut events = Vec::new();
        let error = engine.run(&mut events).unwrap_err();
        assert_eq!(error.request(), Some(bad));
        let error = error.to_string();
        let role = format!("the batch brings {wild} rows of role \"{WINDOWS}\"");
        for part in [&*format!("request {bad}: {role}"), "`own.windows`", "symbol W goes up to 8"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        engine.run(&mut events).unwrap();
        for (request, length) in [(first, 1), (second, 6), (last, 4)] {
            assert_eq!(answered(&events, request), answer(length));
        }
        assert_eq!(engine.ids(bad), None);
    }
}

#[test]
fn sizes_of_own_rows_are_as_configured_and_held_to_the_graph() {
    let assembly = || assembly(ops(windows_of), 8).set("strict", false);
    let layers = |text: &str| ConfigLayers::new().file("a.toml", text);
    let given = layers("capture_own_rows = { \"rows.windows\" = [2, 4] }").unwrap();
    let configured = assembly().configure(given.clone()).settings().unwrap().configured().unwrap();
    assert_eq!(configured.source("capture_own_rows"), Source::File("a.toml".to_owned()));
    let printed = configured.to_string();
    assert_eq!(layers(&printed).unwrap().finish().unwrap().config, configured.config);
    for (sizes, assembly) in [
        (vec![1, 2, 4, 8], assembly()),
        (vec![2, 4], assembly().configure(given)),
        (vec![1, 3], assembly().capture_own_rows([(WINDOWS, [1, 3])])),
        (vec![1, 2, 3], assembly().set("capture_own_rows", BTreeMap::from([(WINDOWS, 3)]))),
    ] {
        let mut engine = assembly.graph_mode(GraphMode::Piecewise).engine().unwrap();
        let own = &engine.model().dispatcher().own;
        assert_eq!(
            (own.len(), own[0].role.as_str(), own[0].sizes.sizes()),
            (1, WINDOWS, &sizes[..])
        );
        let requests = PROMPTS.map(|length| engine.add(request(length)).unwrap());
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        for (request, length) in requests.into_iter().zip(PROMPTS) {
            assert_eq!(answered(&events, request), answer(length), "{sizes:?}");
        }
    }
    let error = |assembly: Assembly| assembly.plan().unwrap_err().to_string();
    let there = "the graph @windowed says rows.windows up to 8";
    for (text, part) in [
        ("{ \"rows.window\" = [2] }", there),
        ("{ \"rows.windows\" = [2, 16] }", there),
        ("{ \"rows.windows\" = 0 }", "capture_own_rows contains 0"),
        ("[2]", "a.toml:1: capture_own_rows can't be [2]"),
    ] {
        let given = layers(&format!("capture_own_rows = {text}"));
        let error = given.map(|given| error(assembly().configure(given)));
        let error = error.unwrap_or_else(|error| error.to_string());
        assert!(error.contains(part), "{text}: {error}");
    }
    let none = error(tiny().capture_own_rows([(WINDOWS, [2])]));
    assert!(none.contains("says no rows.* of its own"), "{none}");
}
