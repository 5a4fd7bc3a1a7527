//! Sequences with many tokens, by products of warpgroups: Hopper alone has them.

use super::super::matmul::options;
use super::super::recipe::{Blocks, GridAxis, LaunchRecipe};
use super::super::text::storage;
use super::super::wgmma::{Lhs, multiply_add_tile};
use super::shape::Shape;

/// Keys of a block, which is copied and multiplied at a time.
const KEYS: u64 = 128;
/// Blocks of keys, and as many of values, that a ring holds.
const STAGES: u64 = 2;
/// Blocks that keep the device busy, one for each of its multiprocessors.
const ENOUGH_BLOCKS: u64 = 132;
/// The most ranges of keys, the blocks of a cluster: so large clusters that each fills half a part
/// of the device leave multiprocessors idle.
const MAX_SPLITS: u64 = 4;

/// Whether these widths have a kernel here.
pub(super) fn fits(shape: &Shape) -> bool {
    [shape.dim, shape.value_dim].iter().all(|dim| matches!(dim, 64 | 128))
}

/// The ranges that the keys of a sequence are cut into where full tiles alone leave the device
/// idle.
fn splits(shape: &Shape, tiles: u64) -> u64 {
    let most = ENOUGH_BLOCKS / tiles.saturating_mul(shape.kv_heads).max(1);
    let useful = (shape.pages * 16).div_ceil(KEYS);
    let splits = most.min(useful).clamp(1, MAX_SPLITS);
    1 << splits.ilog2()
}

/// The launch for sequences of more than `few` tokens.
pub(super) fn kernel(shape: &Shape, sizes: &[u64], few: u64) -> LaunchRecipe {
    // Results of 64 columns leave registers for a third warpgroup.
    let (computing, registers) =
        if shape.value_dim == 64 { (3, [32, 160]) } else { (2, [40, 232]) };
    let tile = computing * 64;
    let rows = shape.rows.times(shape.group() as i64);
    let splits = splits(shape, rows.eval(sizes).div_ceil(tile));
    let defines = [
        ("COMPUTING", computing),
        ("KEYS", KEYS),
        ("STAGES", STAGES),
        ("SPLITS", splits),
        ("COPY_REGISTERS", registers[0]),
        ("COMPUTE_REGISTERS", registers[1]),
    ];
    let dtype = storage(shape.dtypes[0]);
    let mut source = shape.header(few, &defines);
    source.push_str(include_str!("../hopper.cuh"));
    source.push_str(&multiply_add_tile(dtype, KEYS, Lhs::Shared));
    source.push_str(&multiply_add_tile(dtype, shape.value_dim, Lhs::Registers));
    source.push_str(include_str!("hopper.cu"));
    let row = 2 * (shape.dim + shape.value_dim);
    // Swizzled rows start at a multiple of 1024 bytes.
    let shared = 1024 + tile * shape.dim * 2 + STAGES * KEYS * row;
    let grid = if splits == 1 {
        [GridAxis::Persistent { per_multiprocessor: 1 }, GridAxis::one(), GridAxis::one()]
    } else {
        let tiles = GridAxis::Blocks(vec![Blocks { units: rows, per_block: tile }]);
        [tiles, GridAxis::of(shape.kv_heads, 1), GridAxis::of(splits, 1)]
    };
    LaunchRecipe {
        source,
        entry: "attention_prefill".to_owned(),
        options: options(),
        grid,
        block: [128 + 128 * computing as u32, 1, 1],
        cluster: [1, 1, splits as u32],
        static_shared: (8 * (4 * STAGES + 2)) as u32,
        dynamic_shared: shared as u32,
        params: shape.params(&[], &[]),
        programmatic: true,
        ahead: Vec::new(),
    }
}
