//! Sequences that bring chunks to steps, and what a step leaves.

use crate::small_decoder::VOCAB;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::{
    BatchBuffers, Chunk, ChunkRows, ChunkTokens, RoleMap, SampleControls, Sampling, StepView,
};
use piecewise_runtime::memory::{PagePool, PageTable};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{Dispatch, ModelError};
use piecewise_testing::Rng;

/// A sequence with its pages.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    pub table: PageTable,
    pub length: u64,
    has_sampled: bool,
}

/// The sequences of a model and the batch that they fill.
pub(crate) struct Sequences {
    pub list: Vec<Sequence>,
    pub pool: PagePool,
    is_paged: bool,
    batch: BatchBuffers,
    /// How every turn samples; at random, greedy or not, if unset.
    pub sampling: Option<Sampling>,
}

/// What fills the inputs of a model.
pub(crate) fn roles_of(model: &CompiledModel) -> RoleMap {
    let ops = OpRegistry::builtin();
    RoleMap::resolve(model.module().graph(), model.symbols(), &ops).unwrap()
}

/// What one sequence brings to a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub sequence: usize,
    pub tokens: u64,
    pub rows: ChunkRows,
    pub feedback: bool,
}

impl Sequences {
    pub(crate) fn of(model: &CompiledModel) -> Self {
        let roles = roles_of(model);
        Self {
            list: (0..roles.sampled_entries).map(|_| Sequence::default()).collect(),
            pool: PagePool::new(roles.kv_rows),
            is_paged: roles.kv_rows > 0,
            batch: BatchBuffers::new(roles),
            sampling: None,
        }
    }

    /// Forgets a sequence.
    pub(crate) fn restart(&mut self, sequence: usize) {
        self.list[sequence].table.release(&mut self.pool);
        self.list[sequence] = Sequence::default();
    }

    /// Whether a sequence has a sampled id on the device.
    pub(crate) fn can_feed_back(&self, sequence: usize) -> bool {
        self.list[sequence].has_sampled
    }

    /// Fills the batch with these turns, with random ids.
    pub(crate) fn fill(&mut self, turns: &[Turn], rng: &mut Rng) -> StepView<'_> {
        self.batch.clear();
        for turn in turns {
            let sequence = &mut self.list[turn.sequence];
            let end = sequence.length + turn.tokens;
            if self.is_paged {
                sequence.table.grow(&mut self.pool, end).unwrap();
            }
            let ids: Vec<u32> =
                (0..turn.tokens).map(|_| rng.below(VOCAB as usize) as u32).collect();
            let entry = turn.sequence as u32;
            let drawn = match rng.one_in(2) {
                true => Sampling::default(),
                false => Sampling {
                    temperature: 0.8,
                    top_k: 20,
                    top_p: 0.9,
                    seed: 11,
                    ..Sampling::default()
                },
            };
            let sampling = self.sampling.unwrap_or(drawn);
            self.batch.push(&Chunk {
                tokens: match turn.feedback {
                    true => ChunkTokens::Feedback(entry),
                    false => ChunkTokens::Ids(&ids),
                },
                start: sequence.length,
                table: &sequence.table,
                slot: None,
                rows: turn.rows,
                entry: Some(entry),
                values: &[],
                sampling,
                controls: SampleControls::default(),
            });
            sequence.length = end;
            sequence.has_sampled |= turn.rows != ChunkRows::None;
        }
        self.batch.view().unwrap()
    }
}

/// What a step leaves: how it ran, its outputs, and every state.
#[derive(PartialEq, Debug)]
pub(crate) struct Left {
    pub report: Dispatch,
    pub outputs: [Vec<u8>; 2],
    pub states: Vec<u8>,
}

impl Left {
    /// The first thing that differs but for how the step ran.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let parts = [
            ("logits", &self.outputs[0], &other.outputs[0]),
            ("sampled ids", &self.outputs[1], &other.outputs[1]),
            ("states", &self.states, &other.states),
        ];
        if self.report.sizes != other.report.sizes {
            return Some(format!("{:?} and {:?}", self.report, other.report));
        }
        parts.into_iter().find(|(_, a, b)| a != b).map(|(what, a, b)| {
            let at = a.iter().zip(b).position(|(a, b)| a != b);
            format!(
                "{what} differ at byte {at:?} of {} and {}: {:?}",
                a.len(),
                b.len(),
                self.report
            )
        })
    }
}

/// Runs one step.
pub(crate) fn step(model: &mut CompiledModel, view: &StepView<'_>) -> Left {
    try_step(model, view).unwrap()
}

/// Runs one step, which may be refused.
pub(crate) fn try_step(
    model: &mut CompiledModel,
    view: &StepView<'_>,
) -> Result<Left, Box<ModelError>> {
    let ticket = model.submit(&view.data())?;
    let outputs = model.read(&ticket)?;
    let outputs = [0, 1].map(|i| outputs.bytes(i).unwrap().to_vec());
    Ok(Left { report: model.last_step().unwrap(), outputs, states: states(model) })
}

/// The bytes of every state.
pub(crate) fn states(model: &mut CompiledModel) -> Vec<u8> {
    let region = model.memory().states;
    let mut bytes = vec![0; region.bytes as usize];
    model.device_mut().read(region.base, &mut bytes).unwrap();
    bytes
}

/// Overwrites every state.
pub(crate) fn set_states(model: &mut CompiledModel, bytes: &[u8]) {
    let region = model.memory().states;
    model.device_mut().write(region.base, bytes).unwrap();
}
