//! What tells levels and graph modes apart: what a step launches, and how.

use crate::sequences::{Left, Sequences, Turn, step};
use crate::small_decoder::Setup;
use crate::target::{Cpu, Target};
use piecewise_backend::device::measure::LaunchCounts;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{CompileLevel, GraphMode, ModelError, StepMode};
use piecewise_testing::Rng;

/// Runs a prompt of five tokens, then a decode step; what each launched.
fn prompt_and_decode(model: &mut CompiledModel) -> [(Left, LaunchCounts); 2] {
    let mut sequences = Sequences::of(model);
    let mut rng = Rng::new(3);
    [(5, false), (1, true)].map(|(tokens, feedback)| {
        let turn = Turn { sequence: 0, tokens, rows: ChunkRows::Last, feedback };
        let view = sequences.fill(&[turn], &mut rng);
        let before = model.device().launch_counts();
        let left = step(model, &view);
        (left, model.device().launch_counts().since(before))
    })
}

fn of_level<T: Target>(level: CompileLevel) -> CompiledModel {
    Setup { level, mode: GraphMode::None, ..Setup::default() }.build::<T>()
}

/// Eager: what was written, op by op, each with launches of its own. Trace: the same. Compile: the kernels
/// of the plan, which compute several ops, and fewer launches.
pub(crate) fn a_level_is_known_by_its_launches<T: Target>() {
    let ops = Setup::default().graph().nodes().count();
    for (level, fused) in
        [(CompileLevel::Eager, false), (CompileLevel::Trace, false), (CompileLevel::Compile, true)]
    {
        let mut model = of_level::<T>(level);
        for (left, counts) in prompt_and_decode(&mut model) {
            assert_eq!((left.report.mode, counts.graph_launches), (StepMode::None, 0), "{level:?}");
            let launches = model.step_launches(left.report.sizes);
            assert_eq!(counts.plain_launches, launches.len() as u64, "{level:?}");
            if fused {
                assert!(2 * launches.len() < ops, "{level:?}: {launches:?} of {ops} ops");
            } else {
                // A GPU takes several launches for some ops of the framework's.
                let several = T::NAME != Cpu::NAME && launches.len() > ops;
                assert!(launches.len() == ops || several, "{level:?}: {launches:?}");
                assert_eq!(model.module().graph().nodes().count(), ops, "{level:?}");
            }
        }
    }
}

/// Graph launches and plain ones of a step that runs so. The head is over other rows than all ahead of it.
fn launches(model: &CompiledModel, left: &Left, mode: StepMode) -> (u64, u64) {
    match mode {
        StepMode::None => (0, model.step_launches(left.report.sizes).len() as u64),
        StepMode::Piecewise => (2, 0),
        StepMode::Full => (1, 0),
    }
}

/// None: launches alone. Piecewise: a graph of all pieces over tokens with the ops between them, and one of
/// the head. Full: one graph. The others by what the batch is.
pub(crate) fn a_mode_is_known_by_its_launches<T: Target>() {
    for mode in GraphMode::ALL {
        let mut model = Setup { mode, ..Setup::default() }.build::<T>();
        let steps = prompt_and_decode(&mut model);
        for ((left, counts), expected) in steps.into_iter().zip([mode.mixed(), mode.decode()]) {
            assert_eq!(left.report.mode, expected, "{}", mode.name());
            let found = (counts.graph_launches, counts.plain_launches);
            assert_eq!(found, launches(&model, &left, expected), "{}", mode.name());
        }
    }
}

/// A layer that is excluded by name is launched, between the graphs of what is ahead of it and behind it: steps are the same to the bit, and the modes that
/// would capture it in a whole step are reduced, with its name.
pub(crate) fn excluded_layers_are_launched<T: Target>() {
    let setup = Setup { mode: GraphMode::Piecewise, ..Setup::default() };
    let expected = prompt_and_decode(&mut setup.build::<T>());
    // The head is no part of any of them.
    for (layer, graphs) in [("model.layers.0", 2), ("model.layers.1.mlp", 2), ("model", 1)] {
        let exclude = vec![layer.to_owned()];
        let setup = Setup { exclude, mode: GraphMode::FullAndPiecewise, ..setup.clone() };
        let mut model = setup.build::<T>();
        assert_eq!(model.dispatcher().mode, GraphMode::Piecewise);
        assert!(model.reduced_mode().unwrap().contains(layer), "{:?}", model.reduced_mode());
        for ((left, counts), (expected, _)) in prompt_and_decode(&mut model).iter().zip(&expected) {
            assert_eq!(left.report.mode, StepMode::Piecewise, "{layer}");
            assert_eq!(left.difference(expected), None, "{layer}");
            assert_eq!(counts.graph_launches, graphs, "{layer}");
            assert!(counts.plain_launches > 0, "{layer}");
        }
    }
    let exclude = vec!["model.layers.7".to_owned()];
    let error = Setup { exclude, ..setup.clone() }.build_module::<T>(setup.module()).unwrap_err();
    assert!(matches!(&error, ModelError::NoLayer { layer, .. } if layer == "model.layers.7"));
    assert!(error.to_string().contains("model.layers.0"), "{error}");
}

/// A live model changes its mode between two steps of a sequence, and only captures what it lacks.
pub(crate) fn the_mode_of_a_live_model_changes<T: Target>() {
    let expected = {
        let mut model = Setup { mode: GraphMode::None, ..Setup::default() }.build::<T>();
        decodes(&mut model, &[GraphMode::None; 5]).0
    };
    let mut model = Setup { mode: GraphMode::Full, ..Setup::default() }.build::<T>();
    let all = model.captured_graphs();
    let modes = [
        GraphMode::Full,
        GraphMode::FullDecodeOnly,
        GraphMode::Piecewise,
        GraphMode::None,
        GraphMode::FullAndPiecewise,
    ];
    let (found, graphs) = decodes(&mut model, &modes);
    for ((found, expected), mode) in found.iter().zip(&expected).zip(modes) {
        assert_eq!(found.report.mode, mode.decode(), "{}", mode.name());
        assert_eq!(found.difference(expected), None, "{}", mode.name());
    }
    assert_eq!(graphs[0], (all, 0), "every graph is there");
    assert_eq!(graphs[1].1, 0, "decode graphs stay");
    assert_eq!(graphs[2].0, graphs[2].1, "pieces alone");
    assert_eq!(graphs[3], (0, 0));
}

/// A decode step in each mode; the graphs that there were, and those that were captured for it.
fn decodes(model: &mut CompiledModel, modes: &[GraphMode]) -> (Vec<Left>, Vec<(usize, usize)>) {
    let mut sequences = Sequences::of(model);
    let mut rng = Rng::new(8);
    let steps = modes.iter().map(|&mode| {
        let captured = model.set_graph_mode(mode, &mut |_| {}).unwrap().len();
        let turn = Turn { sequence: 0, tokens: 1, rows: ChunkRows::Last, feedback: false };
        (step(model, &sequences.fill(&[turn], &mut rng)), (model.captured_graphs(), captured))
    });
    steps.unzip()
}
