//! Attention without tensor cores: the keys cut into ranges, so that a few rows keep a device busy.

use super::ranges::{ENOUGH_BLOCKS, MAX_SPLITS, RangeKernel, launches};
use super::shape::Shape;
use crate::op::cuda::{GridAxis, OpKernels};

/// Query rows of a block: those of one token where sequences bring one each.
fn tile(shape: &Shape, sizes: &[u64]) -> u64 {
    let one_token = shape.rows.eval(sizes) < 4 * shape.sequences.eval(sizes);
    if one_token { shape.group().next_power_of_two().min(4) } else { 4 }
}

/// The launches for all sequences.
pub(super) fn kernels(shape: &Shape, sizes: &[u64]) -> OpKernels {
    let tile = tile(shape, sizes);
    let lanes = shape.dim.max(shape.value_dim).div_ceil(8).next_power_of_two();
    let rows = shape.rows.eval(sizes).saturating_mul(shape.group());
    let blocks = rows.div_ceil(tile).saturating_mul(shape.kv_heads).max(1);
    let splits = (ENOUGH_BLOCKS / blocks).clamp(1, MAX_SPLITS);
    let defines = [("LANES", lanes), ("TILE", tile)];
    let sources = [include_str!("ranges.cuh"), include_str!("split.cu")];
    let kernel = RangeKernel {
        source: shape.header(0, &defines) + &shape.forms().of(&sources.concat()),
        entry: "attention_split",
        tiles: GridAxis::Blocks(shape.tiles(tile)),
        threads: 128,
        static_shared: 4 * 4 * tile * (2 + lanes * 8),
        dynamic_shared: 0,
        places: shape.rows.clone(),
        cluster: false,
        stays: None,
        ahead: Vec::new(),
    };
    launches(shape, kernel, splits)
}
