//! A model that gives its memory back and takes it again goes on as if it were new, without a
//! capture.

use crate::sequences::{Left, Sequences, Turn, step, try_step};
use crate::small_decoder::{Setup, WEIGHTS};
use crate::target::Target;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{ModelError, StepMode, SuspendedWeights};
use piecewise_testing::Rng;
use std::time::Instant;

/// What a prompt and two decodes of two sequences leave.
fn three_steps(model: &mut CompiledModel) -> Vec<Left> {
    let mut sequences = Sequences::of(model);
    let mut rng = Rng::new(5);
    let turn = |sequence, tokens| Turn { sequence, tokens, rows: ChunkRows::Last, feedback: false };
    let fed = |sequence| Turn { feedback: true, ..turn(sequence, 1) };
    let steps = [[turn(0, 5), turn(1, 3)], [fed(0), fed(1)], [turn(0, 1), fed(1)]];
    steps.map(|turns| step(model, &sequences.fill(&turns, &mut rng))).into()
}

pub(crate) fn a_suspended_model_goes_on_without_a_capture<T: Target>() {
    for weights in [SuspendedWeights::Keep, SuspendedWeights::Drop] {
        let mut model = Setup::default().build::<T>();
        let first = three_steps(&mut model);
        assert!(first.iter().all(|left| left.report.mode != StepMode::None));
        let graphs = (model.captured_graphs(), model.statistics().captures);
        model.suspend(weights).unwrap();
        let states = model.memory().states;
        assert!(model.device_mut().read(states.base, &mut [0; 4]).is_err(), "still backed");
        let mut sequences = Sequences::of(&model);
        let turn = Turn { sequence: 0, tokens: 1, rows: ChunkRows::Last, feedback: false };
        let view = sequences.fill(&[turn], &mut Rng::new(5));
        let error = try_step(&mut model, &view).unwrap_err();
        assert!(matches!(*error, ModelError::Suspended), "{error}");
        assert!(matches!(model.enable_graphs(), Err(ModelError::Suspended)));
        // Those that were dropped are made again from where they came.
        model.resume(None).unwrap();
        assert_eq!(model.suspended(), None);
        assert_eq!(three_steps(&mut model), first, "{weights:?}");
        assert_eq!((model.captured_graphs(), model.statistics().captures), graphs);
    }
}

/// What a driver's figure says was given back, where there is one; how long it takes to take it again is
/// said.
pub(crate) fn a_suspended_model_gives_its_memory_back<T: Target>() {
    let setup = Setup { kv_rows: Some(1 << 20), ..Setup::default() };
    let mut model = setup.build::<T>();
    let is_counted = model.device().counts_free_bytes();
    let (arena, states) = (model.memory().arena.bytes, model.memory().states.bytes);
    let of_weights = model.memory().ledger.weights;
    for weights in [SuspendedWeights::Keep, SuspendedWeights::Drop] {
        let before = model.device().free_bytes();
        let started = Instant::now();
        model.suspend(weights).unwrap();
        let suspended = started.elapsed();
        let freed = model.device().free_bytes().saturating_sub(before);
        let enough = freed * 100 >= (arena + states) * 95;
        assert!(enough || !is_counted, "{freed} of {arena} and {states} bytes");
        let started = Instant::now();
        model.resume(Some(&WEIGHTS)).unwrap();
        let resumed = started.elapsed();
        let taken = before.abs_diff(model.device().free_bytes());
        assert!(taken < 8 << 20 || !is_counted, "{taken} bytes more or less than before");
        println!(
            "{}: arena and states of {} bytes suspended in {suspended:?} and resumed in {resumed:?}, \
             {of_weights} bytes of weights: {weights:?}",
            T::NAME,
            arena + states,
        );
    }
}
