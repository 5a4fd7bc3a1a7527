//! Products on Hopper of more rows than `mma.sync` is fast for and fewer than fill tiles: alone and
//! with the region after them.

use super::finish::Finish;
use super::{MatMulSpec, options, storage};
use crate::cuda::recipe::{GridAxis, LaunchRecipe};
use crate::cuda::wgmma::{Lhs, multiply_add_tile};
use crate::lower::LowerError;
use std::fmt::Write;

/// Shared memory of a block, of which a multiprocessor has two.
const SHARED_BYTES: u64 = 112 << 10;
/// What aligns the ring.
const ALIGNED: u64 = 1024;
/// Blocks that tiles are shared by where they are fewer: one for each multiprocessor of an H100. With
/// more, what blocks of a tile tell each other costs more than they save.
const BLOCKS: u64 = 132;
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
        // Each has two steps of 64 at the least.
        let most = (BLOCKS / tiles).min(depth / 128).clamp(1, 8);
        let cluster = 1 << most.ilog2();
        let mut shape = Self { rows, groups, tiles, cluster, slots: 0 };
        shape.slots = ((SHARED_BYTES - ALIGNED) / shape.slot_bytes()).min(8);
        shape
    }

    fn slot_bytes(&self) -> u64 {
        (self.groups * 64 + self.rows) * 128
    }

    /// Bytes of a block's sums, which lie where the ring was.
    fn sums_bytes(&self) -> u64 {
        self.rows * (self.groups * 64 + 4) * 4
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
        let defines = [
            ("M", shape.rows),
            ("PAIRED", u64::from(finish.paired)),
            ("GROUPS", shape.groups),
            ("CLUSTER", shape.cluster),
            ("SLOTS", shape.slots),
            ("RESULTS", finish.results as u64),
        ];
        for (name, value) in defines {
            let _ = writeln!(text, "#define {name} {value}");
        }
        text.push_str(include_str!("../hopper.cuh"));
        text.push_str(&multiply_add_tile(storage(self.types[0]), shape.rows, Lhs::Shared));
        text.push_str(&finish.text);
        text.push_str(include_str!("finish.cuh"));
        text.push_str(include_str!("panel.cu"));
        let ring = shape.slot_bytes() * shape.slots;
        let maps = [self.boxes(0, shape.rows, 1), self.boxes(1, 64, 1)];
        let blocks = GridAxis::of(shape.tiles * shape.cluster, 1);
        Ok(LaunchRecipe {
            source: text,
            entry: "matmul".to_owned(),
            options: options(),
            grid: [blocks, GridAxis::one(), GridAxis::one()],
            block: [(shape.groups * 128 + 32) as u32, 1, 1],
            cluster: [shape.cluster as u32, 1, 1],
            static_shared: (2 * 8 * shape.slots) as u32,
            dynamic_shared: (ring.max(shape.sums_bytes()) + ALIGNED) as u32,
            params: self.box_params(maps, finish)?,
            programmatic: true,
            ahead: vec![1],
        })
    }
}
