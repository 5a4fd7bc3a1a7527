//! Building holds the launches of every artifact against the plan.

use crate::sequences::{Sequences, Turn, step};
use crate::small_decoder::Setup;
use crate::target::{AbsorbingCpu, Cpu, Target};
use piecewise_ir::module::Module;
use piecewise_passes::destination::assign_slots;
use piecewise_passes::manager::PassError;
use piecewise_passes::plan::{PlanOptions, plan_arena};
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::words::ModelError;
use piecewise_testing::Rng;
use piecewise_testing::lifetimes::assign_node_granular_slots;

fn planned_by(assign: fn(&mut Module) -> Result<(), PassError>) -> Module {
    let mut module = Setup::default().module();
    assign(&mut module).unwrap();
    plan_arena(&mut module, &PlanOptions::default()).unwrap();
    module
}

#[test]
fn node_granular_lifetimes_are_refused_where_launches_absorb() {
    let setup = Setup::default();
    let module = planned_by(assign_node_granular_slots);
    let error = setup.build_module::<AbsorbingCpu>(module.clone()).unwrap_err();
    let ModelError::Launches(found) = &error else { panic!("{error}") };
    let planted = |code| code == "B0502" || code == "B0503";
    assert!(found.items.iter().any(|item| planted(item.code)), "{error}");
    // Op by op the same plan holds.
    setup.build_module::<Cpu>(module).unwrap();
}

#[test]
fn the_rule_of_moments_holds_with_and_without_absorbing_in_the_same_bits() {
    fn run<T: Target>() -> Vec<Vec<u8>> {
        let setup = Setup::default();
        let module = planned_by(|module| assign_slots(module).map(drop));
        let mut model = setup.build_module::<T>(module).unwrap();
        let mut sequences = Sequences::of(&model);
        let mut rng = Rng::new(2);
        let turns = [(9, false), (1, true), (1, true)].map(|(tokens, feedback)| Turn {
            sequence: 0,
            tokens,
            rows: ChunkRows::Last,
            feedback,
        });
        let steps = turns.map(|turn| step(&mut model, &sequences.fill(&[turn], &mut rng)));
        steps.into_iter().flat_map(|left| left.outputs).collect()
    }
    assert_eq!(run::<AbsorbingCpu>(), run::<Cpu>());
}
