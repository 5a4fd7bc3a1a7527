//! The inputs of a step: where each is staged and what pads it, what a source gives where they are not
//! filled in their place, and that none names a row of a state twice, since nobody can say which of the
//! two would stay.

use crate::words::{InputSource, ModelError, POISON, StepData};
use piecewise_backend::device::ByteRows;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::types::TensorType;
use rustc_hash::{FxBuildHasher, FxHashSet};
use smallvec::SmallVec;

/// An input's place in the pinned block and on the device, with what pads it.
#[derive(Debug)]
pub(crate) struct StagedInput {
    pub name: String,
    pub ty: TensorType,
    /// Bytes from the start of the staged prefix.
    pub offset: usize,
    /// The bytes of a padding element, if the graph declares one.
    pub(super) padding: Option<Vec<u8>>,
}

impl StagedInput {
    /// The rows that are given at these counts: all as one, or of each only so many columns.
    pub(crate) fn rows(
        &self,
        columns: Option<u64>,
        counts: &[u64],
    ) -> Result<ByteRows, ModelError> {
        let bytes = self.ty.bytes(counts);
        let Some(columns) = columns else {
            return Ok(ByteRows { width: bytes, pitch: bytes, count: 1 });
        };
        let last = self.ty.shape.last().and_then(|dim| dim.as_constant());
        let Some(all) = last.filter(|&all| self.ty.rank() == 2 && columns <= all) else {
            let reason = format!("is given by {columns} columns, and is no matrix of so many");
            return Err(ModelError::Input { input: self.name.clone(), reason });
        };
        let pitch = all * self.ty.dtype.size() as u64;
        let width = columns * self.ty.dtype.size() as u64;
        Ok(ByteRows { width, pitch, count: bytes / pitch.max(1) })
    }

    /// With the element that the input declares, or with NaNs under `checks.poison`.
    pub(super) fn pad(&self, padding: &mut [u8], poison: bool) {
        match &self.padding {
            Some(element) if !(poison && self.ty.dtype.is_float()) => repeat(element, padding),
            _ => padding.fill(if poison { POISON } else { 0 }),
        }
    }
}

/// Writes the element again and again. Large inputs have millions, and a copy for each would take
/// longer than the step.
fn repeat(element: &[u8], to: &mut [u8]) {
    let Some((first, _)) = to.split_at_mut_checked(element.len()) else { return };
    first.copy_from_slice(element);
    let mut written = element.len();
    while written < to.len() {
        let more = written.min(to.len() - written);
        to.copy_within(..more, written);
        written += more;
    }
}

/// The inputs of a step, filled by their source; memory stays from step to step.
#[derive(Default, Debug)]
pub(crate) struct GivenInputs {
    inputs: Vec<Vec<u8>>,
    /// How many bytes of each are given.
    given: Vec<usize>,
    short_rows: Vec<(usize, u64)>,
}

impl GivenInputs {
    /// Fills all inputs at the true counts.
    pub(crate) fn fill(
        &mut self,
        source: &dyn InputSource,
        inputs: &[StagedInput],
        counts: &[u64],
    ) -> Result<(), ModelError> {
        self.inputs.resize_with(inputs.len(), Vec::new);
        self.given.clear();
        self.short_rows.clear();
        for (i, (input, bytes)) in inputs.iter().zip(&mut self.inputs).enumerate() {
            let all = input.ty.bytes(counts) as usize;
            if bytes.len() < all {
                bytes.resize(all, 0);
            }
            let columns = source.fill(i, &mut bytes[..all])?;
            self.given.push(input.rows(columns, counts)?.bytes() as usize);
            self.short_rows.extend(columns.map(|columns| (i, columns)));
        }
        Ok(())
    }

    /// Calls `run` with the step that has them.
    pub(crate) fn with<R>(&self, step: &StepData<'_>, run: impl FnOnce(&StepData<'_>) -> R) -> R {
        let inputs = self.inputs.iter().zip(&self.given).map(|(bytes, &given)| &bytes[..given]);
        let inputs: SmallVec<[&[u8]; 32]> = inputs.collect();
        let short_rows = &self.short_rows;
        run(&StepData { inputs: &inputs, parts: &[], short_rows, source: None, ..*step })
    }
}

/// A state that an input has the slots of.
#[derive(Debug)]
struct Target {
    state: String,
    rows: u64,
}

/// Which inputs of a graph have slots.
#[derive(Debug)]
pub(super) struct SlotInputs {
    /// For each input of the graph, the largest state that is scattered into at its slots.
    targets: Vec<Option<Target>>,
    seen: FxHashSet<u64>,
}

impl SlotInputs {
    /// Has room for the slots of a step at the bounds.
    pub(super) fn new(graph: &Graph, bounds: &[u64]) -> Self {
        let mut targets = Vec::new();
        targets.resize_with(graph.inputs().len(), || None);
        let mut most = 0;
        for (state, slots) in graph.nodes().flat_map(|node| graph.scatters(node)) {
            let (Some(slots), ValueDef::State(at)) = (slots, graph.def(state)) else { continue };
            let ValueDef::Input(input) = graph.def(slots) else { continue };
            let rows = graph.ty(state).dims(bounds).first().copied().unwrap_or(0);
            let target: &mut Option<Target> = &mut targets[input];
            if target.as_ref().is_none_or(|known| known.rows < rows) {
                *target = Some(Target { state: graph.states()[at].name.clone(), rows });
            }
            let elements = graph.ty(slots).dims(bounds).iter().product::<u64>();
            most = elements.min(rows).max(most);
        }
        Self { targets, seen: FxHashSet::with_capacity_and_hasher(most as usize, FxBuildHasher) }
    }

    /// Refuses slots of an input, in parts that follow one another, of which two are the same row of
    /// a state.
    pub(super) fn check<'b>(
        &mut self,
        (input, name, dtype): (usize, &str, DType),
        parts: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> Result<(), ModelError> {
        let Self { targets, seen } = self;
        let Some(target) = &targets[input] else { return Ok(()) };
        let slots = parts.flat_map(|part| slots_of(dtype, part)).filter(|slot| *slot < target.rows);
        // So they are of a prompt, or of one sequence.
        if slots.clone().is_sorted_by(|a, b| a < b) {
            return Ok(());
        }
        seen.clear();
        for slot in slots {
            if !seen.insert(slot) {
                let reason = format!(
                    "names row {slot} of state `{}` twice, and which of the two rows would stay \
                     nobody can say; give each row a slot of its own, or -1 to write it nowhere",
                    target.state
                );
                return Err(ModelError::Input { input: name.to_owned(), reason });
            }
        }
        Ok(())
    }
}

/// Slots by their bytes; one below 0 is beyond every state.
fn slots_of(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = u64> + Clone + use<'_> {
    bytes.chunks_exact(dtype.size()).map(move |slot| {
        let slot = match *slot {
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
            // No slots have another size.
            _ => -1,
        };
        u64::try_from(slot).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::builder::Builder;
    use piecewise_ir::dtype::DType::{F32, I32, I64};

    /// Rows of two states, the larger of 8 rows, at slots of one input; a third input has slots of
    /// neither, and a fourth those of a state that an op makes more of.
    fn graph() -> Graph {
        let b = Builder::new("slots");
        let t = b.symbol("T", 0, 64);
        let x = b.input("x", F32, (t, 2));
        let (at, wide) = (b.input("at", I32, [t]), b.input("wide", I64, [t]));
        let made = b.input("made", I32, [t]);
        let states = [4, 8].map(|rows: u64| b.state(&format!("s{rows}"), F32, (rows, 2)));
        for state in states {
            state.scatter(at, x);
        }
        b.state("other", F32, (4, 2)).scatter(wide, x);
        b.state("third", F32, (4, 2)).scatter(made + made, x);
        b.finish([x]).unwrap()
    }

    fn bytes(slots: &[i64], size: usize) -> Vec<u8> {
        slots.iter().flat_map(|slot| slot.to_le_bytes()[..size].to_vec()).collect()
    }

    #[test]
    fn a_row_that_is_named_twice_is_refused_by_name() {
        let graph = graph();
        let mut inputs = SlotInputs::new(&graph, &[64]);
        let mut check = |input: usize, slots: &[i64]| {
            let decl = &graph.inputs()[input];
            let dtype = graph.ty(decl.value).dtype;
            let bytes = bytes(slots, dtype.size());
            let (first, second) = bytes.split_at(bytes.len() / 2 / dtype.size() * dtype.size());
            let checked = inputs.check((input, &decl.name, dtype), [first, second].into_iter());
            checked.map_err(|error| error.to_string())
        };
        for slots in [&[][..], &[5], &[0, 1, 2, 7], &[7, 3, 0, 5], &[-1, 2, -1, 1, -1]] {
            assert_eq!(check(1, slots), Ok(()), "{slots:?}");
        }
        // What lies outside of the state is written nowhere.
        assert_eq!(check(1, &[8, 3, 8, -7, -7, 1 << 20, 1 << 20]), Ok(()));
        for slots in [&[5, 5][..], &[0, 5, -1, 3, 5], &[6, 5, 4, 5]] {
            let expected = "input %at: names row 5 of state `s8` twice, and which of the two rows \
                would stay nobody can say; give each row a slot of its own, or -1 to write it nowhere";
            assert_eq!(check(1, slots), Err(expected.to_owned()), "{slots:?}");
        }
        let error = check(2, &[3, 0, 3]).unwrap_err();
        assert!(error.starts_with("input %wide: names row 3 of state `other` twice"), "{error}");
        assert_eq!(check(2, &[3 + (1 << 32), 3, 2 + (1 << 32)]), Ok(()));
        // Those that an op makes of an input are the device's to settle, and those of none nobody's.
        assert_eq!((check(3, &[1, 1]), check(0, &[1, 1])), (Ok(()), Ok(())));
    }

    #[test]
    fn every_element_of_padding_is_written() {
        for count in [0, 1, 2, 3, 8, 13, 100] {
            let mut to = vec![0xee; 4 * count];
            repeat(&[1, 2, 3, 4], &mut to);
            assert!(to.chunks(4).all(|element| element == [1, 2, 3, 4]), "{count}");
        }
    }
}
