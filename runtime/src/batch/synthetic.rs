//! Steps of made-up tokens that fill the sizes of captured steps, to measure on.

use super::buffers::ChunkRows;
use super::probe::{Plan, ProbeStep, step};
use super::role_map::RoleMap;
use crate::dispatch::{Dispatcher, StepSizes};
use piecewise_kernels::attention::PAGE_ROWS;

/// The positions before what a decode brings, where the model and its pool have room for so many.
const CONTEXT: u64 = 512;
/// The tokens of a mixed step for each decode in it.
const TOKENS_PER_DECODE: u64 = 16;
/// The most decodes of a mixed step.
const MIXED_DECODES: u64 = 32;

/// A step that fills the sizes of a captured one.
#[derive(Clone, Debug)]
pub struct SyntheticStep {
    /// The sizes that it fills.
    pub sizes: StepSizes,
    /// The counts and inputs of a step that fills them.
    pub step: ProbeStep,
}

/// For each size that steps or their pieces are captured at, one that fills it: decodes of some
/// context for a uniform batch, a prompt beside some decodes for any other. Those that the model or
/// its pool have no room for are left out.
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
    let tokens = sizes.tokens.rows();
    let most = sizes.sequences.min(sizes.rows.rows());
    let decodes = (tokens / TOKENS_PER_DECODE).min(MIXED_DECODES).min(most.saturating_sub(1));
    let context = longest(roles, 2 * decodes).checked_sub(1)?.min(CONTEXT);
    let of_prompts = tokens - decodes;
    let mut prompts = 1;
    while longest(roles, 2 * prompts) < of_prompts.div_ceil(prompts) {
        prompts += 1;
        if decodes + prompts > most {
            return None;
        }
    }
    let share = |i: u64| of_prompts / prompts + u64::from(i < of_prompts % prompts);
    let plan = (0..decodes).map(|_| (context, 1)).chain((0..prompts).map(|i| (0, share(i))));
    step(roles, &plan.collect(), ChunkRows::Last)
}
