//! What can be wrong with the arguments of a CPU kernel.

use piecewise_ir::dtype::DType;

/// A call whose arguments contradict each other. Nothing was read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum CpuMathError {
    /// A slice holds fewer elements than the shape needs.
    #[error(
        "{call}: operand `{operand}` has {have} elements, its shape and strides need {need}; pass the whole buffer or correct the shape"
    )]
    OperandTooShort {
        call: &'static str,
        operand: &'static str,
        /// Elements needed (`usize::MAX` if the extent overflows).
        need: usize,
        have: usize,
    },
    /// The element type of a slice is not the one the problem states.
    #[error(
        "{call}: operand `{operand}` is {have}, the problem says {want}; build both from one type"
    )]
    TypeMismatch {
        call: &'static str,
        operand: &'static str,
        /// The type the problem states.
        want: DType,
        /// The type of the slice.
        have: DType,
    },
    /// A size or stride that no layout can have.
    #[error("{call}: `{name}` is {value}, but must be {rule}")]
    BadShape { call: &'static str, name: &'static str, value: usize, rule: &'static str },
    /// A segment that reaches beyond the keys.
    #[error(
        "{call}: segment {segment} has {length} keys from row {start} on, but there are {rows} rows; key starts and lengths must lie within k and v"
    )]
    Segment { call: &'static str, segment: usize, start: i32, length: i32, rows: usize },
    /// The scratch buffer is too small for even one thread, or not aligned.
    #[error(
        "{call}: scratch of {have} bytes at alignment {align} is too small or misaligned; give {need} bytes aligned to 64 (see `{size_function}`)"
    )]
    Scratch {
        call: &'static str,
        /// Bytes needed to run on one thread.
        need: usize,
        have: usize,
        /// Largest power of two that divides the buffer's address.
        align: usize,
        /// The function that states the size.
        size_function: &'static str,
    },
    /// `query_start` does not ascend from 0, or ends past the rows of q.
    #[error(
        "{call}: query_start[{index}] is {value}, outside {low}..={high}; it must ascend from 0 and end within the {high} rows of q"
    )]
    QueryStart {
        call: &'static str,
        index: usize,
        value: i32,
        /// The least value allowed there.
        low: i32,
        high: usize,
    },
    /// A sequence's length is negative, shorter than its queries or longer than its block table.
    #[error(
        "{call}: sequence {sequence} has length {length} with {queries} query rows and room for {capacity} positions; the length must be 0 (padding) or in {queries}..={capacity}"
    )]
    SequenceLength {
        call: &'static str,
        sequence: usize,
        length: i32,
        queries: usize,
        /// Positions that its row of the block table can hold.
        capacity: usize,
    },
    /// A block table entry that the sequence's length reaches points outside the pool.
    #[error(
        "{call}: block table entry {entry} of sequence {sequence} is page {page}, but the pool holds {rows} rows of 16 to a page; an unused entry may hold anything, this one is within the sequence's length"
    )]
    PageOutOfPool {
        call: &'static str,
        sequence: usize,
        /// Column of the block table.
        entry: usize,
        /// The page id found there.
        page: i32,
        /// Rows in the smaller of the k and v pools.
        rows: usize,
    },
}

/// Whether an operand has as many elements as are needed of it.
pub(super) fn at_least(
    call: &'static str,
    operand: &'static str,
    have: usize,
    need: usize,
) -> Result<(), CpuMathError> {
    match have < need {
        true => Err(CpuMathError::OperandTooShort { call, operand, need, have }),
        false => Ok(()),
    }
}
