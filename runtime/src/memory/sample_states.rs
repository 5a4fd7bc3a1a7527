//! States that sampling goes by, which the host writes between steps: which ids may come, and what
//! penalties and biases are made from.

use crate::device::{Memory, StepEnd};
use crate::words::roles;
use piecewise_backend::device::{Address, Device, DeviceError, HostBlock};
use piecewise_ir::entity::Value;
use piecewise_ir::graph::Graph;

use piecewise_kernels::sampling::{fill_token_row, mask_words, token_words};

/// Blocks that the masks of a step are written through in turn: while a step waits for its own, those
/// of the next can be written.
const MASK_BLOCKS: u64 = 2;
/// Blocks of one row of tokens each; more in one step wait for each other.
const TOKEN_BLOCKS: u64 = 4;

/// The states of roles `sample.masks` and `sample.tokens`.
pub(crate) struct SampleStates {
    pub(crate) vocabulary: u64,
    masks: Ring,
    tokens: Ring,
    /// A row of tokens that is being filled.
    row: Vec<i32>,
}

/// Bytes of pinned blocks that [`SampleStates`] will take; 0 where the graph has no such states.
pub(crate) fn sample_blocks(graph: &Graph, bounds: &[u64]) -> u64 {
    let state = |role| state(graph, role, bounds);
    let masks = state(roles::SAMPLE_MASKS).map_or(0, |(_, rows, bytes)| MASK_BLOCKS * rows * bytes);
    masks + state(roles::SAMPLE_TOKENS).map_or(0, |(.., bytes)| TOKEN_BLOCKS * bytes)
}

/// The state of a role, its rows, and bytes of each.
fn state(graph: &Graph, role: &str, bounds: &[u64]) -> Option<(Value, u64, u64)> {
    let value = graph.states().iter().find(|s| s.role.as_deref() == Some(role))?.value;
    let ty = graph.ty(value);
    Some((value, *ty.dims(bounds).first()?, ty.row().bytes(bounds)))
}

impl SampleStates {
    /// The states that sampling goes by, where the graph is told what rows ask for and of how many ids;
    /// `None` where it lacks one of them, or they are of another width than its logits.
    ///
    /// # Errors
    /// When memory for the blocks is short.
    pub(crate) fn new(
        device: &mut dyn Device,
        (graph, memory): (&Graph, &Memory),
        vocabulary: Option<u64>,
    ) -> Result<Option<Self>, DeviceError> {
        let Some(vocabulary) = vocabulary else { return Ok(None) };
        let bounds = &memory.layout().bounds;
        let place = |role, words: u64| {
            let found = state(graph, role, bounds).filter(|(.., bytes)| *bytes == 4 * words);
            let (value, rows, bytes) = found?;
            Some((memory.address(graph, value)?, rows, bytes))
        };
        let words = token_words(vocabulary);
        let found = place(roles::SAMPLE_MASKS, mask_words(vocabulary))
            .zip(place(roles::SAMPLE_TOKENS, words));
        let Some(((masks, rows, mask_bytes), (tokens, _, token_bytes))) = found else {
            return Ok(None);
        };
        Ok(Some(Self {
            vocabulary,
            masks: Ring::new(device, masks, MASK_BLOCKS, rows * mask_bytes)?,
            tokens: Ring::new(device, tokens, TOKEN_BLOCKS, token_bytes)?,
            row: vec![0; words as usize],
        }))
    }

    /// Enqueues writing the masks of the next step into the first rows.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn write_masks<'m>(
        &mut self,
        device: &mut dyn Device,
        masks: impl Iterator<Item = &'m [u32]>,
    ) -> Result<(), DeviceError> {
        let words = mask_words(self.vocabulary) as usize;
        self.masks.write(device, 0, |bytes| {
            let mut written = 0;
            for (mask, row) in masks.zip(bytes.chunks_exact_mut(4 * words)) {
                put_words(row, mask.iter().map(|word| word.to_le_bytes()));
                written += row.len();
            }
            written
        })
    }

    /// Enqueues writing what is known of a sequence into the row of its entry.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn write_tokens(
        &mut self,
        device: &mut dyn Device,
        entry: u32,
        [prompt, generated]: [&[u32]; 2],
        biases: &[(u32, f32)],
    ) -> Result<(), DeviceError> {
        fill_token_row(&mut self.row, self.vocabulary, prompt, generated, biases);
        let row = &self.row;
        let at = u64::from(entry) * 4 * row.len() as u64;
        self.tokens.write(device, at, |bytes| {
            put_words(bytes, row.iter().map(|word| word.to_le_bytes()));
            bytes.len()
        })
    }
}

fn put_words(to: &mut [u8], words: impl Iterator<Item = [u8; 4]>) {
    to.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word);
}

/// Host blocks that are written and copied to a state in turn.
struct Ring {
    to: Address,
    /// Each with the end of its last copy.
    blocks: Vec<(HostBlock, StepEnd)>,
    next: usize,
}

impl Ring {
    fn new(
        device: &mut dyn Device,
        to: Address,
        blocks: u64,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        let block = |_| Ok((device.host_block(bytes)?, StepEnd::default()));
        Ok(Self {
            to,
            blocks: (0..blocks).map(block).collect::<Result<_, DeviceError>>()?,
            next: 0,
        })
    }

    /// Enqueues copying what `fill` writes, so many bytes as it returns, to `at` bytes from the
    /// start. Waits where the block is still being copied.
    fn write(
        &mut self,
        device: &mut dyn Device,
        at: u64,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), DeviceError> {
        let blocks = self.blocks.len();
        let (block, copied) = &mut self.blocks[self.next];
        self.next = (self.next + 1) % blocks;
        copied.wait(device)?;
        let written = fill(device.host_bytes_mut(*block, block.all())?) as u64;
        if written > 0 {
            copied.enqueued();
            device.copy_in(*block, 0, written, self.to.offset(at))?;
            copied.record(device)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeDevice;
    use std::sync::atomic::Ordering;

    /// Where the copy of a block could not be marked, the block is not written again before the copy is
    /// done, which the device holds against what the block has then.
    #[test]
    fn a_block_whose_copy_could_not_be_marked_is_waited_for() {
        let mut device = FakeDevice::default();
        let state = device.reserve("masks", 8).unwrap();
        device.back(state).unwrap();
        let mut ring = Ring::new(&mut device, state.base, 1, 4).unwrap();
        let mut write = |device: &mut FakeDevice, at: u64, byte: u8| {
            ring.write(device, at, |bytes| {
                bytes.fill(byte);
                bytes.len()
            })
        };
        write(&mut device, 0, 1).unwrap();
        device.faults.failing_record.store(1, Ordering::Relaxed);
        write(&mut device, 0, 2).unwrap_err();
        write(&mut device, 4, 3).unwrap();
        let mut found = [0; 8];
        device.read(state.base, &mut found).unwrap();
        assert_eq!(found, [2, 2, 2, 2, 3, 3, 3, 3]);
    }
}
