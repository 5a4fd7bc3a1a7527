//! Steps of made-up tokens that fill the sizes of steps, to measure on.

use super::buffers::ChunkRows;
use super::probe::{Plan, ProbeStep, step};
use super::role_map::RoleMap;
use crate::dispatch::Dispatcher;
use crate::words::StepSizes;
use piecewise_kernels::attention::PAGE_ROWS;

/// The positions before what a decode brings, where the model and its pool have room for so many.
const CONTEXT: u64 = 512;
/// The tokens of a mixed step for each decode in it.
const TOKENS_PER_DECODE: u64 = 4;
/// The most decodes of a mixed step.
const MIXED_DECODES: u64 = 32;
/// The tokens of prompts from which on there are two of them: of fewer a server cuts none.
const TWO_PROMPTS: u64 = 16;
/// The position at which the second prompt goes on, where there is room before it.
const PROMPT_BEFORE: u64 = CONTEXT / 2;

/// A step that fills its sizes.
#[derive(Clone, Debug)]
pub struct SyntheticStep {
    /// The sizes that it fills.
    pub sizes: StepSizes,
    /// The counts and inputs of a step that fills them.
    pub step: ProbeStep,
}

/// For each size that steps are measured at, one that fills it: decodes of some
/// context for a uniform batch; for any other some decodes beside the start of a prompt and the middle of
/// another, which cost attention otherwise than one prompt from its start. Those that the model or its
/// pool have no room for are left out.
pub fn full_steps(roles: &RoleMap, dispatcher: &Dispatcher) -> Vec<SyntheticStep> {
    let steps = dispatcher.measured_steps().into_iter();
    let steps = steps.filter_map(|(sizes, _)| {
        let step = match sizes.query_length {
            Some(length) => decodes(roles, &sizes, length),
            None => mixed(roles, &sizes),
        };
        step.map(|step| SyntheticStep { sizes, step })
    });
    steps.collect()
}

/// The most rows that a sequence may have beside so many others.
fn longest(roles: &RoleMap, sequences: u64) -> u64 {
    let Some(columns) = roles.table_pages else { return u64::MAX };
    let pages = roles.kv_rows / PAGE_ROWS / sequences.max(1);
    pages.min(columns as u64) * PAGE_ROWS
}

fn decodes(roles: &RoleMap, sizes: &StepSizes, length: u64) -> Option<ProbeStep> {
    let sequences = sizes.sequences;
    let context = longest(roles, sequences).checked_sub(length)?.min(CONTEXT);
    let plan: Plan = (0..sequences).map(|_| (context, length)).collect();
    let wants_all = sizes.rows.rows() >= sequences * length;
    step(roles, &plan, if wants_all { ChunkRows::All } else { ChunkRows::Last })
}

/// Half of the pool is for the contexts of decodes, the rest for prompts.
fn mixed(roles: &RoleMap, sizes: &StepSizes) -> Option<ProbeStep> {
    let plan = mixed_plan(sizes, |sequences| longest(roles, sequences))?;
    step(roles, &plan, ChunkRows::Last)
}

/// The sequences of a mixed step, where `longest` tells the most rows of each of so many.
fn mixed_plan(sizes: &StepSizes, longest: impl Fn(u64) -> u64) -> Option<Plan> {
    let tokens = sizes.tokens.rows();
    let most = sizes.sequences.min(sizes.rows.rows());
    let decodes = (tokens / TOKENS_PER_DECODE).min(MIXED_DECODES).min(most.saturating_sub(2));
    let context = longest(2 * decodes).checked_sub(1)?.min(CONTEXT);
    let of_prompts = tokens - decodes;
    let mut prompts = if of_prompts >= TWO_PROMPTS && most >= 2 { 2 } else { 1 };
    while longest(2 * prompts) < share(of_prompts, prompts, 0) {
        prompts += 1;
        if decodes + prompts > most {
            return None;
        }
    }
    let room = longest(2 * prompts);
    let prompt = |i: u64| {
        let tokens = share(of_prompts, prompts, i);
        let before = if i == 1 { PROMPT_BEFORE.min(room - tokens) } else { 0 };
        (before, tokens)
    };
    Some((0..decodes).map(|_| (context, 1)).chain((0..prompts).map(prompt)).collect())
}

/// Of so many tokens the share of one of the prompts, of which the first has the most: two are unequal,
/// so that they are no uniform batch.
fn share(tokens: u64, prompts: u64, i: u64) -> u64 {
    match (prompts, i) {
        (2, 0) => (tokens * 7).div_ceil(12),
        (2, _) => tokens - share(tokens, prompts, 0),
        _ => tokens / prompts + u64::from(i < tokens % prompts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Setup;

    fn plan(tokens: u64, sequences: u64, room: u64) -> Option<Plan> {
        let mut setup = Setup::default();
        (setup.bounds.tokens, setup.bounds.rows) = (4096, 128);
        setup.bounds.sequences = sequences;
        setup.token_sizes = vec![tokens];
        let sizes = setup.dispatcher().full_mixed(tokens);
        assert_eq!(sizes.tokens.rows(), tokens);
        mixed_plan(&sizes, |_| room)
    }

    /// As what `bench` calls mixed: a quarter decodes, the start of a prompt and the middle of one.
    #[test]
    fn a_mixed_step_has_decodes_and_two_prompts_of_which_one_goes_on() {
        let mut expected = vec![(512, 1); 16];
        expected.extend([(0, 28), (256, 20)]);
        assert_eq!(plan(64, 128, 4096), Some(expected));
        assert_eq!(plan(64, 2, 4096), Some(vec![(0, 38), (256, 26)]));
        assert_eq!(plan(64, 1, 4096), Some(vec![(0, 64)]));
        assert_eq!(plan(8, 2, 4096), Some(vec![(0, 8)]), "too few for two prompts");
        assert_eq!(plan(64, 2, 40), Some(vec![(0, 38), (14, 26)]), "what there is room for");
        assert_eq!(plan(64, 3, 30), None);
    }

    #[test]
    fn the_made_up_tokens_of_a_step_are_all_of_its_size_and_fit() {
        for tokens in [2, 5, 17, 64, 300, 2048] {
            for sequences in [1, 2, 3, 40, 128] {
                for room in [16, 48, 600, 4096] {
                    let Some(plan) = plan(tokens, sequences, room) else { continue };
                    assert_eq!(plan.iter().map(|(_, n)| n).sum::<u64>(), tokens);
                    assert!(plan.len() as u64 <= sequences, "{tokens} {sequences} {room}");
                    assert!(plan.iter().all(|(at, n)| *n > 0 && at + n <= room), "{plan:?}");
                }
            }
        }
    }
}
