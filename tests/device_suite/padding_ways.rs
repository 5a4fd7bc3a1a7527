//! Steps that go another way than a replay of their padded size, as it was measured at start: each is
//! counted with its reason, and computes the same.

use crate::any_graph::elements;
use crate::sequences::{Sequences, Turn, set_states, states, step};
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_ir::dtype::DType;
use piecewise_ir::testing::{Rng, norm_error};
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::dispatch::{FallbackReason, OtherWay};
use piecewise_runtime::mode::{GraphMode, StepMode};

/// What is measured differs from device to device, and so do the ways; what they lead to does not.
pub(crate) fn are_taken_and_counted<T: Target>() {
    for mode in [GraphMode::Piecewise, GraphMode::Full, GraphMode::FullAndPiecewise] {
        let most = T::MOST_TOKENS;
        let setup = Setup {
            mode,
            layers: 1,
            sizes: vec![1, most],
            max_tokens: most,
            max_length: most,
            batches: vec![4],
            ..Setup::default()
        };
        let mut padded = setup.build::<T>();
        let mut model = Setup { measure_padding: true, ..setup.clone() }.build::<T>();
        assert_eq!(model.statistics().steps, 0, "what is measured counts as no step");
        let mut sequences = Sequences::of(&model);
        let mut rng = Rng::new(41);
        let mut counted = [0, 0];
        for tokens in [1, 2, 3, 9, 33, most / 2, most - 1, most] {
            sequences.restart(0);
            let turn = Turn { sequence: 0, tokens, rows: ChunkRows::Last, feedback: false };
            let view = sequences.fill(&[turn], &mut rng);
            let before = states(&mut padded);
            set_states(&mut model, &before);
            let (found, expected) = (step(&mut model, &view), step(&mut padded, &view));
            let (report, replayed) = (found.report, expected.report);
            let way = model.measured_ways().better(replayed.mode, &replayed.sizes, tokens);
            let as_found = match way {
                None => (replayed.mode, None),
                Some(OtherWay::Pieces) => (StepMode::Piecewise, None),
                Some(OtherWay::Launches) => (StepMode::None, Some(FallbackReason::PaddingLoses)),
            };
            assert_eq!((report.mode, report.fallback), as_found, "{mode:?}, {tokens} tokens");
            counted[0] += u64::from(way == Some(OtherWay::Launches));
            counted[1] += u64::from(way == Some(OtherWay::Pieces));
            let [found, expected] =
                [&found, &expected].map(|left| elements(DType::F32, &left.outputs[0]));
            let error = norm_error(&found, &expected);
            assert!(error <= 1e-4, "{mode:?}, {tokens} tokens: {error}");
        }
        let stats = model.statistics();
        assert_eq!([stats.misses["padding_loses"], stats.pieces_for_padding], counted);
        assert_eq!(stats.hits() + stats.misses(), stats.steps);
        println!(
            "{} {mode:?}: {} of 8 steps launched and {} in pieces since padding loses",
            T::NAME,
            counted[0],
            counted[1]
        );
    }
}
