//! Two models on one device: a draft proposes tokens, and the target checks them in uniform batches of
//! several tokens. What comes out is what the target generates alone.

use crate::sequences::roles_of;
use crate::small_decoder::Setup;
use crate::target::Target;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::{
    BatchBuffers, Chunk, ChunkRows, ChunkTokens, SampleControls, Sampling,
};
use piecewise_runtime::memory::{PagePool, PageTable};
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::{GraphMode, StepMode};
use std::sync::Arc;

const PROMPT: [u32; 3] = [5, 17, 42];
const TOKENS: usize = 40;
/// Tokens that the target checks at once: the last known one and what is proposed.
const CHECKED: usize = 4;

/// A model with the one text that it has read.
struct Reader {
    model: CompiledModel,
    batch: BatchBuffers,
    pool: PagePool,
    table: PageTable,
    read: usize,
}

impl Reader {
    fn new(model: CompiledModel) -> Self {
        let roles = roles_of(&model);
        let pool = PagePool::new(roles.kv_rows);
        let batch = BatchBuffers::new(roles);
        Self { model, batch, pool, table: PageTable::default(), read: 0 }
    }

    /// Reads what `text` has beyond what was read; the likeliest ids after its last `wanted` tokens.
    fn read(&mut self, text: &[u32], wanted: usize) -> Vec<u32> {
        let new = &text[self.read..];
        self.table.grow(&mut self.pool, text.len() as u64).unwrap();
        self.batch.clear();
        self.batch.push(&Chunk {
            tokens: ChunkTokens::Ids(new),
            start: self.read as u64,
            table: &self.table,
            slot: None,
            rows: if wanted == new.len() { ChunkRows::All } else { ChunkRows::Last },
            entry: Some(0),
            values: &[],
            sampling: Sampling::default(),
            controls: SampleControls::default(),
        });
        let ticket = self.model.submit(&self.batch.view().unwrap().data()).unwrap();
        let outputs = self.model.read(&ticket).unwrap();
        let ids = outputs.bytes(1).unwrap().chunks_exact(4);
        self.read = text.len();
        ids.map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect()
    }

    fn how(&self) -> (StepMode, Option<u64>) {
        let report = self.model.last_step().unwrap();
        (report.mode, report.sizes.query_length)
    }
}

fn generated(target: &mut Reader) -> Vec<u32> {
    let mut text = PROMPT.to_vec();
    while text.len() < PROMPT.len() + TOKENS {
        text.push(target.read(&text, 1)[0]);
    }
    text
}

pub(crate) fn a_target_checks_what_a_draft_proposes<T: Target>() {
    let setup =
        Setup { mode: GraphMode::Full, query_lengths: vec![1, CHECKED as u64], ..Setup::default() };
    let registry = Arc::new(OpRegistry::builtin());
    let expected = generated(&mut Reader::new(setup.build::<T>()));
    // A draft that knows as much as the target is always right.
    for (layers, is_right) in [(1, false), (setup.layers, true)] {
        let (device, compiler) = T::make(&registry, setup.threads);
        let shared = T::share(&*device, &registry);
        let mut target = Reader::new(setup.build_on::<T>(device, &*compiler));
        let draft = Setup { layers, query_lengths: vec![1], ..setup.clone() };
        let mut draft = Reader::new(draft.build_on::<T>(shared, &*compiler));
        let mut text = PROMPT.to_vec();
        text.push(target.read(&text, 1)[0]);
        let mut checks = 0;
        while text.len() < expected.len() {
            let known = text.len();
            for _ in 1..CHECKED {
                let next = draft.read(&text, 1)[0];
                text.push(next);
            }
            assert_eq!(draft.how(), (StepMode::Full, Some(1)));
            let found = target.read(&text, CHECKED);
            assert_eq!(target.how(), (StepMode::Full, Some(CHECKED as u64)));
            let proposed = text.split_off(known);
            let right = proposed.iter().zip(&found).take_while(|(a, b)| a == b).count();
            assert!(right == proposed.len() || !is_right, "{proposed:?}, and {found:?}");
            text.extend(&found[..=right]);
            // Keys and values of what was not right are written over.
            target.read = text.len() - 1;
            draft.read = draft.read.min(text.len() - 1);
            checks += 1;
        }
        assert_eq!(text[..expected.len()], expected, "{} {layers}", T::NAME);
        assert!(!is_right || checks == (TOKENS - 1).div_ceil(CHECKED), "{checks}");
        println!("{}: {checks} checks for {TOKENS} tokens, a draft of {layers} layers", T::NAME);
    }
}
