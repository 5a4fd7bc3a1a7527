//! Row programs as data: what a kernel image of a region holds.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use derive_more::Display;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::op::{BinaryOp, CompareOp, ReduceOp, UnaryOp};
use serde::{Deserialize, Serialize};

/// The most loops of a nest: kept loops and reduced loops together.
pub(crate) const MAX_LOOPS: usize = 8;
/// The most elements of a line: consecutive iterations of a loop that are computed at once.
pub(crate) const LINE: usize = 512;
/// Bytes of a worker's line buffers, a multiple of 64: three operands, three spread out and a
/// result in each type that arithmetic happens in.
pub(crate) const LINES_BYTES: u64 = (7 * LINE * (4 + 8 + 4 + 1)) as u64;

/// The type in which elements of a dtype are computed with.
pub(super) fn lane_of(dtype: DType) -> DType {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
        DType::I32 | DType::I64 | DType::U8 => dtype,
        // No program has them.
        DType::E4M3 | DType::I4 => dtype,
        DType::Bool => DType::U8,
    }
}

/// How a program sees an argument.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ArgKind {
    /// Row by row; one row has [`ArgDecl::elements`] elements.
    Row,
    /// As a whole of [`ArgDecl::elements`] elements.
    Whole,
    /// A table or state whose outermost extent is given at the call; [`ArgDecl::elements`] are
    /// those of one of its rows.
    Table,
}

/// An argument of a row program: operands in order, then results in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ArgDecl {
    /// Whether it is seen row by row, as a whole or as a table.
    pub kind: ArgKind,
    /// The element type in memory.
    pub dtype: DType,
    /// Elements, as the kind counts them.
    pub elements: u64,
    /// Whether the program writes it.
    pub written: bool,
    /// For a [`ArgKind::Table`] of symbolic extent, the symbol that is its extent.
    pub extent: Option<Symbol>,
    /// For a [`ArgKind::Table`] of static extent, that extent.
    pub rows: u64,
    /// Whether it is a state, whose extent is its bound and not a count.
    pub state: bool,
}

/// Where the elements of a value lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum PlaceKind {
    /// The argument at this position.
    Arg(u32),
    /// A temporary of the tile: byte offset for each row of the tile.
    Temp(u64),
    /// Constants: offset in 8-byte words.
    Constant(u64),
}

/// Memory of one dtype that steps read or write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Place {
    /// An argument, a temporary or the constants.
    pub kind: PlaceKind,
    /// Of its elements, as they are stored.
    pub dtype: DType,
    /// Elements from one row to the next; 0 where all rows see the same.
    pub row_stride: u64,
    /// Elements of one row, or of the whole where `row_stride` is 0.
    pub elements: u64,
}

/// The loops of a step inside one row, outermost first. The last is the line.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Display, Serialize, Deserialize)]
#[display("[{}{}]", if *fold_rows { "rows " } else { "" }, joined(extents))]
pub struct Nest {
    /// How often each loop runs; there is at least one.
    pub extents: Vec<u64>,
    /// Whether all rows of a tile make one line: the nest is one loop, and every access goes on
    /// from row to row with the stride of the line.
    pub fold_rows: bool,
}

/// How a step walks over a place: strides for the loops of its nest.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Display, Serialize, Deserialize)]
#[display("p{place}+{offset}[{}]", joined(strides))]
pub struct StridedAccess {
    /// The place, by its index in [`RowProgram::places`].
    pub place: u32,
    /// Elements before the first that is visited.
    pub offset: u64,
    /// Elements from one iteration to the next, for each loop of the nest.
    pub strides: Vec<u64>,
}

fn joined(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// What a [`RowStep::Map`] computes for each element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Display, Serialize, Deserialize)]
pub enum MapOp {
    /// Of one operand, rounded to its dtype.
    #[display("{}", _0.mnemonic())]
    Unary(UnaryOp),
    /// Two operands of one dtype.
    #[display("{}", _0.mnemonic())]
    Binary(BinaryOp),
    /// Two operands of one dtype; the result is bool.
    #[display("{}", _0.mnemonic())]
    Compare(CompareOp),
    /// Condition, if true, if false.
    #[display("select")]
    Select,
    /// Rounding to the result's dtype; a copy where the dtype is the same.
    #[display("cast")]
    Cast,
    /// The index along the line; no operand.
    #[display("index")]
    Index,
    /// The number of the row; no operand.
    #[display("row_number")]
    RowNumber,
}

/// One step of a row program.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RowStep {
    /// Computes an op for each element of a nest of loops.
    Map {
        /// What is computed of an element of each input.
        op: MapOp,
        /// The loops around the op, over one row.
        nest: Nest,
        /// What is read.
        inputs: Vec<StridedAccess>,
        /// What is written.
        out: StridedAccess,
    },
    /// A reduction in f32 (or in the integer type): element `i` of the reduced loops in order
    /// goes to partial `i % 32`, and the partials are added in a tree.
    Reduce {
        /// How the elements become one.
        op: ReduceOp,
        /// The loops that stay, then the loops that are reduced.
        nest: Nest,
        /// How many of the outer loops stay, whose every index has a result.
        kept: u32,
        /// What is read; strides for all loops.
        input: StridedAccess,
        /// What is written; strides for the loops that stay.
        out: StridedAccess,
    },
    /// The largest elements along the last loop, in descending order.
    TopK {
        /// The loops that stay, then the one searched.
        nest: Nest,
        /// How many of the largest are found.
        k: u64,
        /// What is read; strides for all loops.
        input: StridedAccess,
        /// Where values go, if anywhere: strides for the loops that stay, then along k.
        values: Option<StridedAccess>,
        /// Where i32 indices go: strides for the loops that stay, then along k.
        indices: StridedAccess,
        /// An f32 or integer temporary of k elements for the values found so far.
        best_values: StridedAccess,
        /// An i32 temporary of k elements for their indices.
        best_indices: StridedAccess,
    },
    /// Rows of a table, each of contiguous elements, at indices clamped to the table.
    Gather {
        /// The place of the table.
        table: u32,
        /// The first element of the table.
        offset: u64,
        /// Its static extent; `None` where the argument's extent is given at the call.
        extent: Option<u64>,
        /// Elements from one of its rows to the next, and of one row.
        row: u64,
        /// The loops over the indices of one row.
        nest: Nest,
        /// Row numbers of the table to read, `i32` or `i64`.
        indices: StridedAccess,
        /// Place of the result, filled from its first element on.
        out: u32,
    },
    /// Rows written into a table at slots; a slot outside it writes nowhere. Of rows with one slot
    /// one stays, whole.
    Scatter {
        /// The place of the table.
        table: u32,
        /// Its static extent; `None` where the argument's extent is given at the call.
        extent: Option<u64>,
        /// Elements of one of its rows.
        row: u64,
        /// The loops over the slots of one row.
        nest: Nest,
        /// Row numbers of the table to write, `i32` or `i64`.
        slots: StridedAccess,
        /// The rows: place and first element, contiguous in the order of the slots.
        rows: (u32, u64),
    },
}

/// What a call of a program costs, for choosing tiles and threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Work {
    /// Element visits of all steps for one row.
    pub elements_per_row: u64,
    /// A worker runs all steps for so many before it takes the next ones.
    pub tile_rows: u64,
    /// Bytes of temporaries for one row of a tile.
    pub temp_bytes_per_row: u64,
}

impl Work {
    /// Bytes of line buffers and temporaries that one worker needs, a multiple of 64.
    pub fn tile_bytes(&self) -> u64 {
        let temps = self.temp_bytes_per_row.saturating_mul(self.tile_rows).min(1 << 62);
        LINES_BYTES + temps.next_multiple_of(64)
    }
}

/// A row program: for each row, the steps in order. It contains no address, no size of its
/// symbol, and no name.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RowProgram {
    /// The symbol whose rows it iterates over; `None` for a single row.
    pub over: Option<Symbol>,
    /// What the operands are, then what the results are, by position.
    pub args: Vec<ArgDecl>,
    /// Memory that the steps read and write.
    pub places: Vec<Place>,
    /// What is computed for each row, one step after the other.
    pub steps: Vec<RowStep>,
    /// Constants, in 8-byte words.
    pub constants: Vec<u64>,
    /// What a row costs, and how many rows make a tile.
    pub work: Work,
}

impl ArgDecl {
    /// Bytes of the argument where symbols have these sizes and the program iterates over
    /// `rows` rows; saturating.
    pub fn bytes(&self, rows: u64, sizes: &[u64]) -> u64 {
        let times = match self.kind {
            ArgKind::Row => rows,
            ArgKind::Whole => 1,
            ArgKind::Table => self.table_rows(sizes),
        };
        times.saturating_mul(self.elements).saturating_mul(self.dtype.size() as u64)
    }

    /// The rows of a table where symbols have these sizes.
    pub fn table_rows(&self, sizes: &[u64]) -> u64 {
        match self.extent {
            Some(symbol) => sizes.get(symbol.index()).copied().unwrap_or(0),
            None => self.rows,
        }
    }
}

impl RowProgram {
    /// The rows it iterates over where symbols have these sizes.
    pub fn rows(&self, sizes: &[u64]) -> u64 {
        self.over.map_or(1, |symbol| sizes.get(symbol.index()).copied().unwrap_or(0))
    }

    /// How many tiles `rows` rows make, the last of which may be short.
    pub fn tiles(&self, rows: u64) -> u64 {
        rows.div_ceil(self.work.tile_rows.max(1))
    }

    /// Scratch bytes for up to `workers` workers and any number of rows up to `rows`.
    pub fn scratch_bytes(&self, rows: u64, workers: u64) -> u64 {
        self.work.tile_bytes().saturating_mul(self.tiles(rows).clamp(1, workers.max(1)))
    }
}
