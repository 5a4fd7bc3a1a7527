//! What a step brings.

use super::error::FillError;

/// What a step brings: true counts and the real bytes of each input.
#[derive(Clone, Copy, Default, Debug)]
pub struct StepData<'a> {
    /// The true size of each symbol, by symbol index; fixed symbols are ignored.
    pub counts: &'a [u64],
    /// For each input of the graph, its row-major little-endian bytes at the true counts.
    pub inputs: &'a [&'a [u8]],
    /// Inputs that are given in parts, which follow one another, by input; what `inputs` has in their
    /// place is not looked at.
    pub parts: &'a [(usize, &'a [&'a [u8]])],
    /// Matrices of which only the first columns are given, by input, with how many those are. The
    /// others hold what earlier steps left there, and no op may read them.
    pub short_rows: &'a [(usize, u64)],
    /// What fills all inputs: what `inputs`, `parts` and `short_rows` have is not looked at then.
    pub source: Option<&'a dyn InputSource>,
    /// The tokens of every sequence, if they are equal.
    pub query_length: Option<u64>,
}

impl<'a> StepData<'a> {
    /// The parts of an input, which are one where it is given whole.
    pub(crate) fn parts_of(&self, input: usize) -> &'a [&'a [u8]] {
        let parts = self.parts.iter().find(|(at, _)| *at == input).map(|(_, parts)| *parts);
        parts.unwrap_or_else(|| std::slice::from_ref(&self.inputs[input]))
    }

    /// The columns that are given of an input, where those are not all.
    pub(crate) fn columns(&self, input: usize) -> Option<u64> {
        self.short_rows.iter().find(|(at, _)| *at == input).map(|(_, columns)| *columns)
    }
}

/// Fills the inputs of a step where they are to lie.
pub trait InputSource: std::fmt::Debug {
    /// Fills an input with its elements at the true counts of the step, row-major, from the start of
    /// `place`, which has as many bytes as they. Returns the columns of each row, where only the first
    /// are given: those rows follow one another.
    ///
    /// # Errors
    /// When the input can't be filled.
    fn fill(&self, input: usize, place: &mut [u8]) -> Result<Option<u64>, FillError>;
}
