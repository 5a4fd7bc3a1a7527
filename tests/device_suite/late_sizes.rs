//! Sizes that are lowered while the model runs: steps of their tokens alone run at them, from some time on,
//! and no other step notices.

use crate::sequences::{Sequences, Turn, set_states, states, step};
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::compiler::NoStore;
use piecewise_backend::tuning::TuneMode;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::store::LateCompiler;
use piecewise_runtime::words::StepMode;
use piecewise_testing::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZES: [u64; 2] = [7, 30];

/// Each step equals that of a model which has no such sizes, or which has them from its start: by the size
/// that it ran at. Nothing of them is measured while steps wait, whoever would have it so.
pub(crate) fn serve_steps_of_their_tokens<T: Target>() {
    for tune in [TuneMode::Off, TuneMode::Measure] {
        let setup = Setup::default();
        let mut padded = setup.build::<T>();
        let mut own = Setup { specialized: SIZES.to_vec(), ..setup.clone() }.build::<T>();
        let (device, compiler) = T::make(&Arc::new(OpRegistry::builtin()), setup.threads);
        let mut model = setup.build_on::<T>(device, &*compiler);
        let module = Arc::new(setup.module());
        let late = LateCompiler { module, compiler, store: Arc::new(NoStore) };
        model.specialize_late(SIZES, late, tune);
        let captured = model.captured_graphs();
        let mut sequences = Sequences::of(&model);
        let mut rng = Rng::new(23);
        let mut ran: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let (mut number, started) = (0, Instant::now());
        while number < 40 || SIZES.iter().any(|size| ran[size].last() != Some(size)) {
            assert!(started.elapsed() < Duration::from_secs(600), "not specialized: {ran:?}");
            let tokens = [7, 5, 30, 1][number % 4];
            if sequences.list[0].length + tokens > setup.max_length {
                sequences.restart(0);
                std::thread::sleep(Duration::from_millis(1));
            }
            let turn = Turn { sequence: 0, tokens, rows: ChunkRows::Last, feedback: false };
            let view = sequences.fill(&[turn], &mut rng);
            let before = states(&mut model);
            let found = step(&mut model, &view);
            assert_ne!(found.report.mode, StepMode::None);
            let size = found.report.sizes.tokens;
            let is_own = SIZES.contains(&tokens) && size == PieceSize::Exact(tokens);
            let expected = if is_own { &mut own } else { &mut padded };
            set_states(expected, &before);
            let expected = step(expected, &view);
            assert_eq!(found.difference(&expected), None, "step {number} of {tokens} tokens");
            ran.entry(tokens).or_default().push(size.rows());
            number += 1;
        }
        assert_eq!([7, 5, 30, 1].map(|tokens| ran[&tokens][0]), [8, 5, 48, 1], "{tune:?}");
        assert!(ran[&5].iter().all(|&size| size == 5) && ran[&1].iter().all(|&size| size == 1));
        assert!(model.captured_graphs() > captured, "their first steps capture them");
        assert_eq!(model.statistics().tuning.measured, 0, "{tune:?}");
        let [found, expected] = [&model, &own].map(|model| model.memory().ledger);
        assert_eq!(found.graphs, expected.graphs, "the ledger has them too");
    }
}
