//! Keys cut into ranges: a kernel attends to each, and another makes one result of them.

use super::shape::Shape;
use crate::op::cuda::{GridAxis, LaunchRecipe, OpKernels, Param};
use piecewise_ir::dim::Dim;
use piecewise_ir::entity::Entity;

/// The most ranges that the keys of a sequence are cut into; a lane of a warp has one.
pub(super) const MAX_SPLITS: u64 = 16;
/// The most where they are a cluster.
pub(super) const CLUSTER: u64 = 8;
/// Blocks of four warps that keep a large device busy: two for each of its multiprocessors.
pub(super) const ENOUGH_BLOCKS: u64 = 264;

/// A kernel that attends to ranges of keys, but for how many there are.
pub(super) struct RangeKernel {
    /// Ends with `ranges.cuh` and the kernel.
    pub source: String,
    pub entry: &'static str,
    /// Tiles of query rows.
    pub tiles: GridAxis,
    pub threads: u64,
    pub static_shared: u64,
    pub dynamic_shared: u64,
    /// Rows that have room for partial results.
    pub places: Dim,
    /// Whether the blocks of a tile are a cluster, and make one result among themselves.
    pub cluster: bool,
    /// Blocks for each multiprocessor that stay, and take one tile after the other; otherwise each tile
    /// has blocks of its own.
    pub stays: Option<u64>,
    /// Operands that it reads before it waits for the kernels ahead.
    pub ahead: Vec<u32>,
}

/// Bytes of the partial results of a row, of one range: for each head what is weighed, a largest
/// score and a sum, in f32, in whole 16 bytes.
pub(super) fn partial_bytes(shape: &Shape) -> u64 {
    shape.heads * (shape.value_dim + 2).next_multiple_of(4) * 4
}

/// The launches where the keys of each sequence are cut into `splits` ranges: one range needs one
/// launch.
pub(super) fn launches(shape: &Shape, kernel: RangeKernel, splits: u64) -> OpKernels {
    let RangeKernel { source, entry, tiles, threads, .. } = kernel;
    let RangeKernel { static_shared, dynamic_shared, places, cluster, stays, ahead, .. } = kernel;
    // One range writes the result at once and no partial sum: any valid address does.
    let partial = if splits > 1 && !cluster { Param::Scratch(0) } else { shape.result() };
    let params = shape.params(&[partial], &[Param::size(splits)]);
    let blocks = if cluster { splits as u32 } else { 1 };
    let (grid, cluster_of) = match stays {
        Some(each) => {
            let grid = GridAxis::Persistent { per_multiprocessor: each as u32 };
            (grid.alone(), [blocks, 1, 1])
        }
        None => {
            let grid = [tiles, GridAxis::of(shape.kv_heads, 1), GridAxis::of(splits, 1)];
            (grid, [1, 1, blocks])
        }
    };
    let mut launches = vec![LaunchRecipe {
        cluster: cluster_of,
        static_shared: static_shared as u32,
        dynamic_shared: dynamic_shared as u32,
        ahead,
        ..LaunchRecipe::own(source.as_str(), entry, grid, threads, params)
    }];
    if splits == 1 || cluster {
        return OpKernels::new(launches);
    }
    let columns = if shape.value_dim.is_multiple_of(4) { 4 } else { 1 };
    let parts = shape.value_dim.div_ceil(8 * columns);
    let grid = GridAxis::of(places.times((shape.heads * parts) as i64), 4).alone();
    let params = vec![
        Param::Scratch(0),
        Param::Arg(5),
        Param::Arg(6),
        shape.result(),
        Param::Counts,
        Param::size(shape.rows.clone()),
        Param::size(shape.sequences.clone()),
        Param::size(shape.row_symbol.index()),
        Param::size(shape.sequence_symbol.index()),
        Param::size(splits),
    ];
    launches.push(LaunchRecipe::own(source, "attention_combine", grid, 128, params));
    let scratch = places.times((partial_bytes(shape) * splits) as i64);
    OpKernels { launches, scratch }
}
