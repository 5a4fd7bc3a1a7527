//! What an encoder needs of each step: packed rows, and the segments that they make.

use super::super::op_builders::Segments;
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Symbol;
use piecewise_runtime::words::roles;

/// The inputs of the rows of a text, `i32 [T]` each.
pub(super) const IDS: &str = "ids";
pub(super) const POSITIONS: &str = "positions";
pub(super) const TOKEN_TYPES: &str = "token_types";

/// How large the steps of an encoder may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncoderBounds {
    /// The most rows of a step: of all its items together.
    pub max_rows: u64,
    /// The most items of a step.
    pub max_items: u64,
    /// The most frames of a step that replays a graph, an image being one; an item of more is
    /// launched. 0 launches every video, and counts no image.
    pub max_frames: u64,
}

/// The values of an input of a step.
#[derive(Clone, PartialEq, Debug)]
pub enum Values<'a> {
    /// Of an `i32` input.
    I32(Vec<i32>),
    /// Of an `f32` input.
    F32(Vec<f32>),
    /// Of an `f32` input, in parts that follow one another, as where they lie in the items: they are
    /// copied once, to where the device takes them from.
    Parts(Vec<&'a [f32]>),
}

impl Values<'_> {
    /// The number of elements, whatever their dtype, over all parts.
    pub fn len(&self) -> usize {
        match self {
            Self::I32(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rows of an output, of any float dtype, and which of them are an item's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputRows {
    /// One for each item, of so many elements.
    PerItem(usize),
    /// As many as the item has tokens on the path, of so many elements each.
    PerRow(usize),
}

/// The rows of a step and its items.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedRows<'b> {
    builder: &'b Builder,
    /// The rows of a step.
    pub(super) rows: Symbol,
    /// Counts the items that share a step.
    pub(super) items_symbol: Symbol,
    /// First row and length of each item.
    pub(super) items: Segments<'b>,
}

/// The names of the inputs that all encoders take.
pub(super) const STARTS: &str = "starts";
pub(super) const LENGTHS: &str = "lengths";

impl<'b> PackedRows<'b> {
    pub(super) fn declare(b: &'b Builder, bounds: &EncoderBounds) -> Self {
        let rows = b.symbol_with_role("T", 1, bounds.max_rows, roles::TOKENS);
        let items_symbol = b.symbol_with_role("S", 1, bounds.max_items, "rows.items");
        let input = |name| b.input(name, DType::I32, [items_symbol]).padding(0.0);
        let items = Segments { starts: input(STARTS), lengths: input(LENGTHS) };
        Self { builder: b, rows, items_symbol, items }
    }

    /// An input `i32 [T]`; padding rows hold 0.
    pub(super) fn row_input(&self, name: &str) -> Tensor<'b> {
        self.builder.input(name, DType::I32, [self.rows]).padding(0.0)
    }
}
