//! Closing a row program: dead steps go, temporaries get offsets, the tile gets its rows.

use super::row_program::{ArgDecl, ArgKind, Place, PlaceKind, RowProgram, RowStep, Work};
use piecewise_ir::entity::Symbol;

/// Bytes of arguments and temporaries of one tile: about what a core's nearest caches hold.
const TILE_BYTES: u64 = 64 << 10;
/// The most rows of a tile.
const TILE_ROWS: u64 = 1024;

impl RowStep {
    /// The places that it reads.
    pub(super) fn reads(&self) -> Vec<u32> {
        match self {
            Self::Map { inputs, .. } => inputs.iter().map(|a| a.place).collect(),
            Self::Reduce { input, .. } | Self::TopK { input, .. } => vec![input.place],
            Self::Gather { table, indices, .. } => vec![*table, indices.place],
            Self::Scatter { slots, rows, .. } => vec![slots.place, rows.0],
        }
    }

    /// The places that it writes.
    pub(super) fn writes(&self) -> Vec<u32> {
        match self {
            Self::Map { out, .. } | Self::Reduce { out, .. } => vec![out.place],
            Self::TopK { values, indices, best_values, best_indices, .. } => {
                let found = values.iter().chain([indices, best_values, best_indices]);
                found.map(|access| access.place).collect()
            }
            Self::Gather { out, .. } => vec![*out],
            Self::Scatter { table, .. } => vec![*table],
        }
    }

    /// Elements that it visits for one row.
    fn visits(&self) -> u64 {
        let (nest, each) = match self {
            Self::Map { nest, .. } | Self::Reduce { nest, .. } | Self::TopK { nest, .. } => {
                (nest, 1)
            }
            Self::Gather { nest, row, .. } | Self::Scatter { nest, row, .. } => (nest, *row),
        };
        nest.extents.iter().fold(each, |n, e| n.saturating_mul(*e))
    }
}

/// Closes a program whose temporaries have no offsets yet.
pub(super) fn finish(
    over: Option<Symbol>,
    args: Vec<ArgDecl>,
    mut places: Vec<Place>,
    mut steps: Vec<RowStep>,
    constants: Vec<u64>,
) -> RowProgram {
    let mut live: Vec<bool> = places.iter().map(|p| matches!(p.kind, PlaceKind::Arg(_))).collect();
    let mut kept = vec![false; steps.len()];
    for (i, step) in steps.iter().enumerate().rev() {
        kept[i] = step.writes().iter().any(|&p| live[p as usize]);
        if kept[i] {
            step.reads().iter().for_each(|&p| live[p as usize] = true);
        }
    }
    let mut keep = kept.iter();
    steps.retain(|_| keep.next().copied().unwrap_or(true));

    // For each temporary, the steps between which its bytes are in use, both inclusive.
    let mut ranges: Vec<Option<(usize, usize)>> = vec![None; places.len()];
    for (i, step) in steps.iter().enumerate() {
        for place in step.reads().into_iter().chain(step.writes()) {
            let range = ranges[place as usize].get_or_insert((i, i));
            range.1 = i;
        }
    }
    // First fit, in the order of definition.
    let mut placed: Vec<(u64, u64, (usize, usize))> = Vec::new();
    let mut temp_bytes = 0;
    for (place, range) in places.iter_mut().zip(&ranges) {
        let PlaceKind::Temp(offset) = &mut place.kind else { continue };
        let Some(range) = *range else { continue };
        let bytes = (place.elements * place.dtype.size() as u64).next_multiple_of(8);
        let mut busy: Vec<(u64, u64)> = placed
            .iter()
            .filter(|p| p.2.0 <= range.1 && range.0 <= p.2.1)
            .map(|p| (p.0, p.1))
            .collect();
        busy.sort_unstable();
        let mut at = 0;
        for (start, end) in busy {
            if at + bytes <= start {
                break;
            }
            at = at.max(end);
        }
        *offset = at;
        placed.push((at, at + bytes, range));
        temp_bytes = temp_bytes.max(at + bytes);
    }

    let arg_bytes: u64 = args
        .iter()
        .filter(|a| a.kind == ArgKind::Row)
        .map(|a| a.elements * a.dtype.size() as u64)
        .sum();
    let work = Work {
        elements_per_row: steps.iter().map(RowStep::visits).fold(1, u64::saturating_add),
        tile_rows: (TILE_BYTES / (temp_bytes + arg_bytes).max(1)).clamp(1, TILE_ROWS),
        temp_bytes_per_row: temp_bytes,
    };
    RowProgram { over, args, places, steps, constants, work }
}
