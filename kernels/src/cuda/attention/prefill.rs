//! Sequences with many tokens, on tensor cores.

use super::shape::{Shape, WARP, shorter};
use crate::op::Blocks;
use crate::op::cuda::{GridAxis, LaunchRecipe};

/// Blocks of eight warps that keep a large device busy; fewer are cut in two.
pub(in super::super) const ENOUGH_BLOCKS: u64 = 264;
/// The widest head whose queries stay in registers; those of wider ones lie in shared memory, and
/// fewer keys beside them, so that a block fits the 99 KiB of the smallest devices.
const REGISTER_DIM: u64 = 128;

/// How a block of queries goes over keys that lie in shared memory.
pub(in super::super) struct Staging {
    /// Rows of queries of a block, 16 to a warp.
    pub tile: u64,
    pub threads: u64,
    pub dynamic_shared: u32,
    pub defines: [(&'static str, u64); 3],
}

impl Staging {
    /// For heads of so many elements, of `rows` rows in all.
    pub(in super::super) fn of([dim, value_dim]: [u64; 2], rows: u64) -> Self {
        let wide = dim.max(value_dim) > REGISTER_DIM;
        let keys = if wide { 32 } else { 64 };
        let query_staged = dim > REGISTER_DIM;
        // More rows of a block read the keys less often. What a row adds up does not depend on it.
        let warps = if !wide && rows / 128 >= ENOUGH_BLOCKS { 8 } else { 4 };
        let tile = warps * 16;
        // Rows lie an odd number of chunks apart.
        let [key_chunks, value_chunks] = [dim, value_dim].map(|dim| dim.div_ceil(16) * 2 + 1);
        let query_chunks = if query_staged { tile * key_chunks } else { 0 };
        let chunks = query_chunks + 2 * keys * (key_chunks + value_chunks);
        let defines = [("WARPS", warps), ("KEYS", keys), ("QUERY_STAGED", u64::from(query_staged))];
        Self { tile, threads: 32 * warps, dynamic_shared: chunks as u32 * 16, defines }
    }
}

/// The launch for sequences of more than `few` tokens.
pub(super) fn kernel(shape: &Shape, sizes: &[u64], few: u64) -> LaunchRecipe {
    let rows = shape.rows.eval(sizes).saturating_mul(shape.heads);
    let Staging { tile, threads, dynamic_shared, defines } =
        Staging::of([shape.dim, shape.value_dim], rows);
    let sources = [WARP, include_str!("prefill.cu")];
    let source = shape.header(few, &defines) + &shape.forms().of(&sources.concat());
    let full = Blocks { units: shape.rows.times(shape.group() as i64), per_block: tile };
    // Tiles that are not full: one for each sequence that this kernel takes.
    let by_rows = Blocks { units: shape.rows.clone(), per_block: few + 1 };
    let by_sequences = Blocks { units: shape.sequences.clone(), per_block: 1 };
    let tiles = shorter(vec![full.clone(), by_sequences], vec![full, by_rows], sizes);
    let grid = [tiles, GridAxis::of(shape.kv_heads, 1), GridAxis::one()];
    let params = shape.params(&[], &[]);
    let launch = LaunchRecipe::own(source, "attention_prefill", grid, threads, params);
    LaunchRecipe { dynamic_shared, ..launch }
}
