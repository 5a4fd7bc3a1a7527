//! Products on Hopper of more rows than `mma.sync` is fast for and fewer than fill tiles: alone and
//! with the region after them.

use super::finish::Finish;
use super::{MatMulSpec, storage};
use crate::cuda::text::defines;
use crate::cuda::wgmma::{Lhs, multiply_add_tile};
use crate::lower::LowerError;
use crate::op::cuda::{GridAxis, LaunchRecipe};

/// Shared memory of a block that has a multiprocessor for itself, and of one of two.
const SHARED_BYTES: [u64; 2] = [208 << 10, 112 << 10];
/// What aligns the ring.
const ALIGNED: u64 = 1024;
/// Blocks that tiles are shared by where they are fewer: what follows has its first weights on the way
/// on the other multiprocessors of an H100. As many blocks as there are multiprocessors, or two on
/// one, take up to a tenth of a step longer.
const BLOCKS: u64 = 96;
/// The most blocks that have a multiprocessor for themselves.
const ALONE: u64 = 132;
/// Steps of k that a block has at the least: what blocks of a tile tell each other takes as long as
/// several.
const STEPS: u64 = 6;
/// Tiles of 128 columns up to which there are two of 64 instead.
const NARROW_TILES: u64 = 16;

/// How blocks share the work.
struct Shape {
    /// Rows of x, in whole sixteens.
    rows: u64,
    /// Warpgroups that multiply 64 rows of w each.
    groups: u64,
    tiles: u64,
    /// Blocks that share k.
    cluster: u64,
    slots: u64,
}

impl Shape {
    fn of(rows: u64, columns: u64, depth: u64, paired: bool) -> Self {
        let rows = rows.next_multiple_of(16);
        let tiles_of = |groups: u64| columns.div_ceil(64 * groups);
        let groups = if !paired && tiles_of(2) <= NARROW_TILES { 1 } else { 2 };
        let tiles = tiles_of(groups);
        let cluster = (BLOCKS / tiles).min(depth / (64 * STEPS)).clamp(1, 8);
        let mut shape = Self { rows, groups, tiles, cluster, slots: 0 };
        shape.slots = ((shape.shared_bytes() - ALIGNED) / shape.slot_bytes()).min(8);
        shape
    }

    /// Blocks that a multiprocessor has room for.
    fn at_once(&self) -> usize {
        1 + usize::from(self.tiles * self.cluster > ALONE)
    }

    /// All that it may have, so that no two blocks lie on one multiprocessor while others are empty.
    fn shared_bytes(&self) -> u64 {
        SHARED_BYTES[self.at_once() - 1]
    }

    fn slot_bytes(&self) -> u64 {
        (self.groups * 64 + self.rows) * 128
    }
}

impl MatMulSpec {
    /// The kernel for up to `rows` rows, in sixteens, of a shape, with what becomes of its sums.
    pub(super) fn panel_kernel(
        &self,
        rows: u64,
        finish: &Finish,
    ) -> Result<LaunchRecipe, LowerError> {
        let shape = Shape::of(rows, self.columns, self.depth, finish.paired);
        let mut text = self.header();
        text.push_str(&defines([
            ("M", shape.rows),
            ("PAIRED", u64::from(finish.paired)),
            ("GROUPS", shape.groups),
            ("CLUSTER", shape.cluster),
            ("SLOTS", shape.slots),
            ("AT_ONCE", shape.at_once() as u64),
            ("RESULTS", finish.results as u64),
        ]));
        text.push_str(include_str!("../hopper.cuh"));
        text.push_str(&multiply_add_tile(storage(self.types[0]), shape.rows, Lhs::Shared));
        text.push_str(&finish.text);
        text.push_str(include_str!("finish.cuh"));
        text.push_str(include_str!("panel.cu"));
        let maps = [self.boxes(0, shape.rows, 1), self.boxes(1, 64, 1)];
        let blocks = GridAxis::of(shape.tiles * shape.cluster, 1);
        let (threads, params) = (shape.groups * 128 + 32, self.box_params(maps, 2, finish)?);
        Ok(LaunchRecipe {
            cluster: [shape.cluster as u32, 1, 1],
            static_shared: (2 * 8 * shape.slots) as u32,
            dynamic_shared: shape.shared_bytes() as u32,
            ahead: vec![1],
            ..LaunchRecipe::own(text, "matmul", blocks.alone(), threads, params)
        })
    }
}
