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

/// A model whose next id is that of the window of the token before it.
fn windowed() -> Graph {
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
    let windows = b.symbol_with_role("W", 1, 8, WINDOWS);
    let patches = b.symbol_with_role("X", 4, 32, PATCHES);
    let [of_patches, of_windows, of_tokens] = inputs();
    let x = b.input("patches", DType::F32, (patches, VOCAB)).padding(0.0).role(of_patches.role());
    let taken = b.input("taken", DType::I32, [windows]).padding(0.0).role(of_windows.role());
    let window_of = step.input(&b, "window_of", &of_tokens);
    let x = (x.silu().gather(taken) * 2.0).gather(window_of);
    let logits = x.gather(step.logit_rows);
    b.finish([logits, step.sample(logits)]).unwrap()
}

fn assembly(ops: OpRegistry) -> Assembly {
    let assembly = Assembly::graph(windowed()).ops(ops).set("cache.enabled", false).threads(1);
    assembly.capture_sizes([1, 2, 4, 8]).set("strict", true).set("checks.poison", true)
}

#[test]
fn steps_of_an_engine_bring_rows_of_the_models_own_kind_and_rows_tied_to_them() {
    let mut ops = OpRegistry::builtin();
    ops.declare_inputs("own.windows", inputs());
    let error = assembly(ops.clone()).engine().unwrap_err().to_string();
    assert!(error.contains("symbol W has the role \"rows.windows\""), "{error}");
    let counted = Arc::new(AtomicUsize::new(0));
    let most = Arc::clone(&counted);
    ops.declare_rows(WINDOWS, move |batch| {
        let rows = batch.sequences().map(|sequence| windows(&sequence).count()).sum();
        most.fetch_max(rows, Ordering::Relaxed);
        rows as u64
    });
    for mode in [GraphMode::None, GraphMode::Piecewise, GraphMode::Full] {
        let mut engine = assembly(ops.clone()).graph_mode(mode).engine().unwrap();
        counted.store(0, Ordering::Relaxed);
        let requests =
            PROMPTS.map(|length| engine.add(Request::new(vec![3; length as usize], 9)).unwrap());
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        for (request, length) in requests.into_iter().zip(PROMPTS) {
            let ids = events.iter().filter_map(|event| match *event {
                RequestEvent::Token { request: of, id, .. } if of == request => Some(id),
                _ => None,
            });
            let before = u64::from(length) - 1..u64::from(length) + 8;
            let expected = before.map(|at| id_of(at / 2, picked(at / 2)) as u32);
            assert_eq!(ids.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{}", mode.name());
        }
        assert!(counted.load(Ordering::Relaxed) > 4, "more than a window for each sequence");
        let steps = engine.model().statistics().steps_by_mode;
        assert!(steps[mode.mixed() as usize] > 0, "{steps:?} in mode {}", mode.name());
    }
}
