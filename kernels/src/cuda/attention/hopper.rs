//! Tiles of many query rows, by products of warpgroups: Hopper alone has them.

use super::super::text::{defines, storage};
use super::super::wgmma::{Lhs, multiply_add_tile};
use super::shape::{Forms, Shape};
use crate::op::Blocks;
use crate::op::cuda::CudaTarget;
use crate::op::cuda::{GridAxis, LaunchRecipe, Param};
use piecewise_ir::dtype::DType;

/// Keys of a block, which is copied and multiplied at a time.
const KEYS: u64 = 128;
/// Blocks of keys, and as many of values, that a ring holds.
const STAGES: u64 = 2;
/// Blocks that keep the device busy, one for each of its multiprocessors.
pub(in super::super) const ENOUGH_BLOCKS: u64 = 132;
/// The most ranges of keys, the blocks of a cluster: so large clusters that each fills half a part
/// of the device leave multiprocessors idle.
const MAX_SPLITS: u64 = 4;
/// Shared memory of a multiprocessor that its blocks share, less what each is taken for itself.
const SHARED_BYTES: u64 = 225 << 10;

/// Whether heads of these widths have a kernel here on this device.
pub(in super::super) fn fits(target: CudaTarget, dims: [u64; 2]) -> bool {
    target.capability == (9, 0)
        && dims.iter().all(|dim| (64..=128).contains(dim) && dim.is_multiple_of(8))
}

/// The most warpgroups of a block that multiply, each 64 rows: results of up to 72 columns leave
/// registers for a third one.
pub(in super::super) fn most_computing(value_dim: u64) -> u64 {
    if value_dim <= 72 { 3 } else { 2 }
}

/// Bytes of shared memory of a block in which so many warpgroups multiply.
fn shared_bytes(dims: [u64; 2], computing: u64) -> u64 {
    let [row, value_row] = dims.map(|dim| dim.div_ceil(64) * 128);
    // Swizzled rows start at a multiple of 1024 bytes.
    1024 + computing * 64 * row + STAGES * KEYS * (row + value_row)
}

/// How many such blocks a multiprocessor has registers for, whatever the widths.
fn by_registers(computing: u64) -> u64 {
    if computing == 1 { 2 } else { 1 }
}

/// How many such blocks a multiprocessor holds.
pub(in super::super) fn beside_each_other(dims: [u64; 2], computing: u64) -> u64 {
    by_registers(computing).min(SHARED_BYTES / shared_bytes(dims, computing))
}

/// A kernel of `hopper.cu`.
pub(in super::super) struct Tiles {
    /// What comes before it, up to where keys lie.
    pub header: String,
    pub entry: &'static str,
    pub forms: Forms,
    pub dtype: DType,
    /// Of keys and of values.
    pub dims: [u64; 2],
    /// Warpgroups that multiply.
    pub computing: u64,
    /// Where the keys of a tile are cut into ranges: tiles, key-value heads and ranges. Else blocks
    /// stay and take tiles in turn.
    pub ranges: Option<[GridAxis; 3]>,
    pub params: Vec<Param>,
}

impl Tiles {
    /// Its launch, `splits` ranges being the blocks of a cluster.
    pub(in super::super) fn launch(self, splits: u64) -> LaunchRecipe {
        let Self { header: mut source, entry, computing, .. } = self;
        let registers = match computing {
            1 => [40, 216],
            2 => [40, 232],
            _ => [32, 160],
        };
        source.push_str(&defines([
            ("COMPUTING", computing),
            ("KEYS", KEYS),
            ("STAGES", STAGES),
            ("SPLITS", splits),
            ("BLOCKS", by_registers(computing)),
            ("COPY_REGISTERS", registers[0]),
            ("COMPUTE_REGISTERS", registers[1]),
        ]));
        source.push_str(&defines([("ENTRY", entry)]));
        let dtype = storage(self.dtype);
        source.push_str(include_str!("../hopper.cuh"));
        source.push_str(&multiply_add_tile(dtype, KEYS, Lhs::Shared));
        source.push_str(&multiply_add_tile(dtype, self.dims[1], Lhs::Registers));
        source.push_str(&self.forms.of(include_str!("hopper.cu")));
        let per_multiprocessor = beside_each_other(self.dims, computing) as u32;
        let stay = || GridAxis::Persistent { per_multiprocessor }.alone();
        let (grid, threads) = (self.ranges.unwrap_or_else(stay), 128 + 128 * computing);
        LaunchRecipe {
            cluster: [1, 1, splits as u32],
            static_shared: (8 * (4 * STAGES + 2)) as u32,
            dynamic_shared: shared_bytes(self.dims, computing) as u32,
            ..LaunchRecipe::own(source, entry, grid, threads, self.params)
        }
    }
}

/// The ranges that the keys of a sequence are cut into where full tiles alone leave the device
/// idle. So many `times` as many blocks are wanted as usual.
fn splits(shape: &Shape, tiles: u64, times: u64) -> u64 {
    let most = times * ENOUGH_BLOCKS / tiles.saturating_mul(shape.kv_heads).max(1);
    let useful = (shape.seen_pages() * 16).div_ceil(KEYS);
    let splits = most.min(useful).clamp(1, MAX_SPLITS);
    1 << splits.ilog2()
}

/// The launch for sequences of more than `few` tokens, with so many `times` as many ranges as usual
/// where their tiles are few enough.
pub(super) fn kernel(shape: &Shape, sizes: &[u64], few: u64, times: u64) -> LaunchRecipe {
    let computing = most_computing(shape.value_dim);
    let tile = computing * 64;
    let rows = shape.rows.times(shape.group() as i64);
    let splits = splits(shape, rows.eval(sizes).div_ceil(tile), times);
    let ranges = || {
        let tiles = GridAxis::Blocks(vec![Blocks { units: rows, per_block: tile }]);
        [tiles, GridAxis::of(shape.kv_heads, 1), GridAxis::of(splits, 1)]
    };
    let tiles = Tiles {
        header: shape.header(few, &[]) + &shape.forms().of(include_str!("pages.cuh")),
        entry: "attention_prefill",
        forms: shape.forms(),
        dtype: shape.dtypes[0],
        dims: [shape.dim, shape.value_dim],
        computing,
        ranges: (splits > 1).then(ranges),
        params: shape.params(&[], &[]),
    };
    tiles.launch(splits)
}
