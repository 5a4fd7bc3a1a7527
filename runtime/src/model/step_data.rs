//! What a step brings.

/// What a step brings: true counts and the real bytes of each input.
#[derive(Clone, Copy, Debug)]
pub struct StepData<'a> {
    /// The true size of each symbol, by symbol index; fixed symbols are ignored.
    pub counts: &'a [u64],
    /// For each input of the graph, its row-major little-endian bytes at the true counts.
    pub inputs: &'a [&'a [u8]],
    /// Matrices of which only the first columns are given, by input, with how many those are. The
    /// others hold what earlier steps left there, and no op may read them.
    pub short_rows: &'a [(usize, u64)],
    /// The tokens of every sequence, if they are equal.
    pub query_length: Option<u64>,
}

impl StepData<'_> {
    /// The columns that are given of an input, where those are not all.
    pub(super) fn columns(&self, input: usize) -> Option<u64> {
        self.short_rows.iter().find(|(at, _)| *at == input).map(|(_, columns)| *columns)
    }
}
