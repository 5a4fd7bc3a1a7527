//! The host blocks that steps are staged in, and their mirror.

use super::copies::{GAP, Pieces, copy, spread};
use super::inputs::{SlotInputs, StagedInput};
use crate::device::{Memory, StepEnd};
use crate::words::{InputSource, ModelError, POISON, StepData, SymbolClass, SymbolTable};
use piecewise_backend::device::{Address, ByteRows, Device, DeviceError, HostBlock};
use piecewise_ir::graph::Graph;
use piecewise_ir::types::TensorType;
use smallvec::SmallVec;

/// Host blocks in turn: while one is under way, the other can be filled.
pub(crate) const BLOCKS: usize = 2;

/// Where an output comes back.
#[derive(Debug)]
pub(crate) struct ReadOutput {
    pub ty: TensorType,
    pub from: Address,
    /// Bytes from the start of the host block; `None` for an output that is not read back.
    pub offset: Option<u64>,
    /// Whether the steps to come are to bring it back, where they can.
    pub is_wanted: bool,
}

/// Host blocks, their layout and their events.
pub(crate) struct Staging {
    pub inputs: Vec<StagedInput>,
    pub outputs: Vec<ReadOutput>,
    /// The staged prefix as the host sees it: what split ops may read, where any does.
    pub mirror: Vec<u8>,
    /// Whether the last step was filled into its host block, past the mirror.
    is_direct: bool,
    counts_offset: usize,
    to: Address,
    /// The inputs in the order of their offsets.
    order: Vec<usize>,
    slots: SlotInputs,
    /// What the step uses: counts, inputs of indices up to their padded size, and the true rows of
    /// inputs of floats, whose padding nobody may depend on.
    pieces: Pieces,
    /// What it uses besides, where rows lie so far apart that they are copied without what is
    /// between them.
    apart: Vec<(usize, ByteRows)>,
    in_blocks: [HostBlock; BLOCKS],
    pub out_blocks: [HostBlock; BLOCKS],
    /// The ends of the steps that the blocks were used by.
    pub ends: [StepEnd; BLOCKS],
}

/// How much of a step the mirror is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filling {
    /// All but inputs of floats, which go straight to a host block: what the host may read of a mirror,
    /// and what is filled at once of a block.
    Read,
    /// Everything, so that the mirror as a whole can be written to the device.
    Whole,
    /// Everything, with poison in each float and dead byte that padding leaves.
    Poisoned,
}

impl Staging {
    /// Makes the host blocks. `read` says which outputs come back; `output_bounds` are the
    /// largest counts of the rows that do.
    pub(crate) fn new(
        device: &mut dyn Device,
        graph: &Graph,
        memory: &Memory,
        read: &dyn Fn(usize) -> bool,
        output_bounds: &[u64],
    ) -> Result<Self, ModelError> {
        let layout = memory.layout();
        let mut inputs = Vec::new();
        for decl in graph.inputs() {
            let offset = memory
                .slot_offset(decl.value)
                .ok_or(ModelError::Unplanned { part: "slot for an input" })?;
            inputs.push(StagedInput {
                name: decl.name.clone(),
                ty: graph.ty(decl.value).clone(),
                offset: offset as usize,
                padding: decl.padding.map(|scalar| scalar.to_bytes()),
            });
        }
        let mut host_bytes = 0u64;
        let mut outputs = Vec::new();
        for (i, &value) in graph.outputs().iter().enumerate() {
            let ty = graph.ty(value).clone();
            let from = memory
                .address(graph, value)
                .ok_or(ModelError::Unplanned { part: "slot for an output" })?;
            let offset = read(i).then_some(host_bytes);
            if offset.is_some() {
                host_bytes += ty.bytes(output_bounds).next_multiple_of(64);
            }
            outputs.push(ReadOutput { ty, from, offset, is_wanted: true });
        }
        let mut order: Vec<usize> = (0..inputs.len()).collect();
        order.sort_by_key(|&i| inputs[i].offset);
        let pieces = Pieces::new(inputs.len() + 1, layout.staged as usize);
        let apart = Vec::with_capacity(inputs.len());
        let block = |device: &mut dyn Device, bytes: u64| device.host_block(bytes.max(64));
        let in_blocks = [block(device, layout.staged)?, block(device, layout.staged)?];
        let out_blocks = [block(device, host_bytes)?, block(device, host_bytes)?];
        Ok(Self {
            inputs,
            outputs,
            mirror: vec![0; layout.staged as usize],
            is_direct: false,
            counts_offset: layout.counts as usize,
            to: memory.arena.base,
            order,
            slots: SlotInputs::new(graph, &layout.bounds),
            pieces,
            apart,
            in_blocks,
            out_blocks,
            ends: Default::default(),
        })
    }

    /// Goes on where the memory lies now.
    pub(crate) fn follow(&mut self, graph: &Graph, memory: &Memory) {
        self.to = memory.arena.base;
        for (output, &value) in self.outputs.iter_mut().zip(graph.outputs()) {
            output.from = memory.address(graph, value).unwrap_or(output.from);
        }
    }

    /// Fills the mirror with a step that brings nothing, padded to the bounds: counts 0, slots -1,
    /// lengths 0. Returns its counts.
    pub(crate) fn fill_empty(&mut self, symbols: &SymbolTable) -> Result<Vec<u64>, ModelError> {
        let counts: Vec<u64> = (0..symbols.bounds().len())
            .map(|i| match symbols.at(i).class {
                SymbolClass::Fixed => symbols.bounds()[i],
                _ => 0,
            })
            .collect();
        let inputs = self.inputs.iter();
        let empty: Vec<Vec<u8>> =
            inputs.map(|input| vec![0; input.ty.bytes(&counts) as usize]).collect();
        let inputs: Vec<&[u8]> = empty.iter().map(Vec::as_slice).collect();
        let step = StepData { counts: &counts, inputs: &inputs, ..StepData::default() };
        self.fill(&step, &counts, symbols.bounds(), Filling::Whole)?;
        Ok(counts)
    }

    /// The staged bytes of each input at these padded sizes; nothing of inputs of floats, and nothing
    /// at all where the last step was filled past the mirror.
    pub(crate) fn staged(&self, sizes: &[u64]) -> SmallVec<[&[u8]; 32]> {
        if self.is_direct {
            return SmallVec::new();
        }
        let bytes = |input: &StagedInput| {
            let bytes = if input.ty.dtype.is_float() { 0 } else { input.ty.bytes(sizes) as usize };
            &self.mirror[input.offset..input.offset + bytes]
        };
        self.inputs.iter().map(bytes).collect()
    }

    /// Fills the mirror with the true counts, the real bytes of each input of a step, and padding up
    /// to the padded sizes, as far as `filling` asks for them.
    pub(crate) fn fill(
        &mut self,
        step: &StepData<'_>,
        counts: &[u64],
        sizes: &[u64],
        filling: Filling,
    ) -> Result<(), ModelError> {
        self.is_direct = false;
        let mut mirror = std::mem::take(&mut self.mirror);
        let filled = self.fill_prefix(&mut mirror, step, (counts, sizes), filling);
        self.mirror = mirror;
        filled
    }

    /// Fills the staged prefix: of the mirror, or of a block, where rows that are copied without what is
    /// between them follow one another.
    fn fill_prefix(
        &mut self,
        prefix: &mut [u8],
        step: &StepData<'_>,
        (counts, sizes): (&[u64], &[u64]),
        filling: Filling,
    ) -> Result<(), ModelError> {
        let inputs = step.inputs;
        let poison = filling == Filling::Poisoned;
        if poison {
            prefix.fill(POISON);
        }
        if inputs.len() != self.inputs.len() {
            let missing = self.inputs.get(inputs.len()).map_or("", |i| i.name.as_str());
            return Err(ModelError::Input {
                input: missing.to_owned(),
                reason: format!("the step brings {} of {} inputs", inputs.len(), self.inputs.len()),
            });
        }
        self.begin(prefix, counts);
        for &i in &self.order {
            let (input, parts) = (&self.inputs[i], step.parts_of(i));
            let columns = step.columns(i);
            let rows = input.rows(columns, counts)?;
            let expected = rows.bytes() as usize;
            let given: usize = parts.iter().map(|part| part.len()).sum();
            if given != expected {
                return Err(ModelError::Input {
                    input: input.name.clone(),
                    reason: format!("holds {given} bytes, but the counts make {expected}"),
                });
            }
            let about = (i, input.name.as_str(), input.ty.dtype);
            let padded = input.rows(columns, sizes)?;
            if columns.is_none() && filling == Filling::Read && input.ty.dtype.is_float() {
                self.pieces.push(input.offset..input.offset + expected, Some(i));
                continue;
            }
            if columns.is_none() {
                let at = input.offset..input.offset + padded.width.max(rows.width) as usize;
                let target = &mut prefix[at.clone()];
                self.pieces.push(at, None);
                copy(parts, 0, &mut target[..expected]);
                self.slots.check(about, std::iter::once(&target[..expected]))?;
                input.pad(&mut target[expected..], poison);
                continue;
            }
            self.slots.check(about, parts.iter().copied())?;
            let all = ByteRows { count: padded.count.max(rows.count), ..rows };
            let used = input.offset..input.offset + all.span() as usize;
            let is_apart = used.len() > GAP;
            let width = rows.width as usize;
            // One after the other they touch a fraction of the pages that they lie in on the device.
            let (filled, pitch) = match is_apart && self.is_direct {
                true => (input.offset..input.offset + all.bytes() as usize, width),
                false => (used.clone(), rows.pitch as usize),
            };
            let mut reals = parts.iter().flat_map(|part| part.chunks_exact(width.max(1)));
            for target in prefix[filled].chunks_mut(pitch.max(1)) {
                match reals.next() {
                    Some(real) => target[..width].copy_from_slice(real),
                    None => input.pad(&mut target[..width], poison),
                }
            }
            match is_apart {
                true => self.apart.push((input.offset, all)),
                false => self.pieces.push(used, None),
            }
        }
        if poison {
            self.apart.clear();
            self.pieces.clear();
            self.pieces.push(0..prefix.len(), None);
        }
        self.pieces.cut();
        Ok(())
    }

    /// Fills block `turn` in place of the mirror, which nobody is to read: with all that is staged of the
    /// step but the later pieces of what is large.
    pub(crate) fn fill_direct(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
        step: &StepData<'_>,
        (counts, sizes): (&[u64], &[u64]),
    ) -> Result<(), ModelError> {
        self.ends[turn].wait(device)?;
        self.is_direct = true;
        let block = self.in_blocks[turn];
        let bytes = device.host_bytes_mut(block, block.all())?;
        match step.source {
            Some(source) => self.fill_from(bytes, source, (counts, sizes))?,
            None => self.fill_prefix(bytes, step, (counts, sizes), Filling::Read)?,
        }
        self.pieces.fill_first(bytes, None, step);
        Ok(())
    }

    /// Has a source fill a block, and pads it.
    fn fill_from(
        &mut self,
        prefix: &mut [u8],
        source: &dyn InputSource,
        (counts, sizes): (&[u64], &[u64]),
    ) -> Result<(), ModelError> {
        self.begin(prefix, counts);
        for &i in &self.order {
            let input = &self.inputs[i];
            let start = input.offset;
            let columns =
                source.fill(i, &mut prefix[start..][..input.ty.bytes(counts) as usize])?;
            let (rows, padded) = (input.rows(columns, counts)?, input.rows(columns, sizes)?);
            let real = rows.bytes() as usize;
            let about = (i, input.name.as_str(), input.ty.dtype);
            self.slots.check(about, std::iter::once(&prefix[start..][..real]))?;
            if columns.is_none() {
                // The padding of floats nobody may depend on.
                let all = if input.ty.dtype.is_float() { real } else { padded.width as usize };
                let at = start..start + all.max(real);
                input.pad(&mut prefix[at.clone()][real..], false);
                self.pieces.push(at, None);
                continue;
            }
            let all = ByteRows { count: padded.count.max(rows.count), ..rows };
            let used = start..start + all.span() as usize;
            if used.len() > GAP {
                // They follow one another, as they are copied.
                input.pad(&mut prefix[start..][real..all.bytes() as usize], false);
                self.apart.push((start, all));
                continue;
            }
            let target = &mut prefix[used.clone()];
            spread(target, rows);
            let padding = target.chunks_mut(rows.pitch.max(1) as usize).skip(rows.count as usize);
            padding.for_each(|row| input.pad(&mut row[..rows.width as usize], false));
            self.pieces.push(used, None);
        }
        self.pieces.cut();
        Ok(())
    }

    /// Refuses a step that names a row of a state twice, as every way of filling does of what it fills.
    pub(crate) fn check_slots(&mut self, step: &StepData<'_>) -> Result<(), ModelError> {
        let mut inputs = self.inputs.iter().zip(step.inputs).enumerate();
        inputs.try_for_each(|(i, (input, bytes))| {
            self.slots.check((i, &input.name, input.ty.dtype), std::iter::once(*bytes))
        })
    }

    /// Begins a step with its counts.
    fn begin(&mut self, prefix: &mut [u8], counts: &[u64]) {
        let at = self.counts_offset..self.counts_offset + 4 * counts.len();
        for (to, &count) in prefix[at.clone()].chunks_exact_mut(4).zip(counts) {
            to.copy_from_slice(&i32::try_from(count).unwrap_or(i32::MAX).to_le_bytes());
        }
        self.pieces.clear();
        self.apart.clear();
        self.pieces.push(at, None);
    }

    /// Fills block `turn` with what the step that the mirror was filled with uses, but for the later
    /// pieces of what is large.
    pub(crate) fn fill_block(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
        step: &StepData<'_>,
    ) -> Result<(), DeviceError> {
        self.ends[turn].wait(device)?;
        let block = self.in_blocks[turn];
        let bytes = device.host_bytes_mut(block, block.all())?;
        for &(start, rows) in &self.apart {
            let (width, pitch) = (rows.width as usize, rows.pitch as usize);
            let to = bytes[start..start + rows.bytes() as usize].chunks_exact_mut(width.max(1));
            for (to, from) in to.zip(self.mirror[start..].chunks(pitch.max(1))) {
                to.copy_from_slice(&from[..width]);
            }
        }
        self.pieces.fill_first(bytes, Some(&self.mirror), step);
        Ok(())
    }

    /// Enqueues the copies of what block `turn` was filled with, and fills and copies the rest.
    pub(crate) fn copy_in(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
        step: &StepData<'_>,
    ) -> Result<(), DeviceError> {
        let block = self.in_blocks[turn];
        // From here on the block is in use, whether or not the step gets to its end.
        self.ends[turn].enqueued();
        let mirror = (!self.is_direct).then_some(self.mirror.as_slice());
        self.pieces.copy_in(device, (block, self.to), mirror, step)?;
        for &(start, rows) in &self.apart {
            let offset = start as u64;
            device.copy_in_rows(block, offset, rows, self.to.offset(offset))?;
        }
        Ok(())
    }

    /// Enqueues the copies of the outputs that are read back into block `turn`: `counts` rows,
    /// at `first_row` of outputs whose rows `symbols` counts as `Rows`.
    pub(crate) fn copy_out(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
        counts: &[u64],
        first_row: u64,
        rows_only: Option<&SymbolTable>,
    ) -> Result<(), DeviceError> {
        for output in &self.outputs {
            let Some(offset) = output.offset.filter(|_| output.is_wanted) else { continue };
            let mut first_row = first_row;
            if let Some(table) = rows_only {
                let over = output.ty.outer_symbol().map(|s| table.over(s));
                let Some(over) = over.filter(|o| o.class == SymbolClass::Rows) else { continue };
                first_row *= over.times;
            }
            let bytes = output.ty.bytes(counts);
            if bytes == 0 {
                continue;
            }
            let at = offset + first_row * output.ty.row().bytes(counts);
            device.copy_out(output.from, bytes, self.out_blocks[turn], at)?;
        }
        Ok(())
    }

    /// Writes over what a step of so many rows is to bring back into block `turn`, once nothing is copied
    /// there any more.
    pub(crate) fn forget_out(
        &mut self,
        device: &mut dyn Device,
        turn: usize,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        self.ends[turn].wait(device)?;
        let block = self.out_blocks[turn];
        let bytes = device.host_bytes_mut(block, block.all())?;
        bytes.fill(0);
        for output in self.outputs.iter().filter(|output| output.is_wanted) {
            let Some(offset) = output.offset else { continue };
            bytes[offset as usize..][..output.ty.bytes(counts) as usize].fill(UNREAD);
        }
        Ok(())
    }

    /// The first output of block `turn` whose last bytes nothing was copied to since they were written over:
    /// copies end with what was enqueued last.
    pub(crate) fn missing(
        &self,
        device: &dyn Device,
        turn: usize,
        counts: &[u64],
    ) -> Result<Option<usize>, DeviceError> {
        let block = self.out_blocks[turn];
        let bytes = device.host_bytes(block, block.all())?;
        Ok(self.outputs.iter().position(|output| {
            let Some(offset) = output.offset else { return false };
            let all = &bytes[offset as usize..][..output.ty.bytes(counts) as usize];
            let last = &all[all.len().saturating_sub(4 * size_of::<f32>())..];
            last.len() >= size_of::<f32>() && last.iter().all(|&byte| byte == UNREAD)
        }))
    }
}

/// The byte that is where outputs are yet to come: four of them are no number that a model gives.
const UNREAD: u8 = 0xa5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::tests::submit;
    use crate::testing::Setup;

    /// Padded to 8 rows, a step of 3 brings its 3 rows of each input of floats, and 8 of the others.
    #[test]
    fn inputs_of_floats_are_copied_by_their_true_rows() {
        for poison in [false, true] {
            let mut setup = Setup { token_sizes: vec![8], ..Setup::default() };
            setup.batch_sizes = vec![8];
            setup.checks.poison = poison;
            let mut model = setup.build().unwrap();
            submit(&mut model, &[5, 6, 7]).unwrap();
            let staging = &model.staging;
            let floats = |(i, input): (usize, &StagedInput)| input.ty.dtype.is_float().then_some(i);
            let floats = Vec::from_iter(staging.inputs.iter().enumerate().filter_map(floats));
            assert!(!floats.is_empty());
            let mut direct = Vec::from_iter(staging.pieces.direct());
            direct.sort_unstable();
            let expected = floats.iter().map(|&i| (i, 3 * 4)).filter(|_| !poison);
            assert!(direct.iter().copied().eq(expected), "{direct:?} of {floats:?}");
        }
    }
}
