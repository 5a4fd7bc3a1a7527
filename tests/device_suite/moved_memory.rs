//! Memory of a model that lies elsewhere from one step to the next: programs are bound to it anew, and
//! every graph is stale until a step wants it.

use crate::random_steps::turns;
use crate::sequences::{Sequences, set_states, states, step};
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_backend::device::Reservation;
use piecewise_runtime::device::Memory;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{CaptureWhen, Checks, GraphState, StepMode};
use piecewise_testing::Rng;

/// Parts of a model's memory.
const PARTS: [fn(&mut Memory) -> &mut Reservation; 3] =
    [|memory| &mut memory.arena, |memory| &mut memory.states, |memory| &mut memory.weights];

/// Puts another reservation in the place of a part, which keeps what it held.
fn move_part(model: &mut CompiledModel, part: usize) {
    let before = *PARTS[part](model.memory_mut());
    let mut held = vec![0; before.bytes as usize];
    let device = model.device_mut();
    device.read(before.base, &mut held).unwrap();
    let after = device.reserve("elsewhere", before.bytes).unwrap();
    device.back(after).unwrap();
    device.write(after.base, &held).unwrap();
    // Whoever still used the old place would read this.
    device.fill(before.base, before.bytes, &[0xff]).unwrap();
    *PARTS[part](model.memory_mut()) = after;
}

/// Steps before and after each part moves are those of a model that stays.
pub(crate) fn is_followed<T: Target>() {
    for capture in [CaptureWhen::Startup, CaptureWhen::Lazy, CaptureWhen::Background] {
        let checks = Checks { addresses: true, ..Checks::default() };
        let setup = Setup { checks, capture, ..Setup::default() };
        let (mut model, mut stays) = (setup.build::<T>(), Setup::default().build::<T>());
        let mut sequences = Sequences::of(&model);
        let mut rng = Rng::new(31);
        let mut step_of_both = |model: &mut CompiledModel| {
            let turns = turns(&mut sequences, &setup, &mut rng);
            let before = states(model);
            set_states(&mut stays, &before);
            let view = sequences.fill(&turns, &mut rng);
            let found = step(model, &view);
            assert_eq!(found.difference(&step(&mut stays, &view)), None, "{capture:?} {turns:?}");
            found.report.mode
        };
        for moves in 1..=2 * PARTS.len() {
            for _ in 0..20 {
                step_of_both(&mut model);
            }
            while capture == CaptureWhen::Background && model.capture_next().unwrap() {}
            move_part(&mut model, moves % PARTS.len());
            let mode = step_of_both(&mut model);
            assert_eq!(model.statistics().address_changes, moves as u64);
            let states: Vec<_> = model.graphs().iter().map(|graph| graph.state).collect();
            if capture != CaptureWhen::Background {
                assert_ne!(mode, StepMode::None, "what it wanted was captured again");
                assert!(states.contains(&GraphState::Ready), "{states:?}");
                assert!(states.contains(&GraphState::Stale), "the others: {states:?}");
            }
        }
        while model.capture_next().unwrap() {}
        assert!(model.statistics().recaptures > 0);
    }
}
