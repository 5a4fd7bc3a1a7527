//! Sequences with few tokens, on tensor cores: their keys cut into ranges where the sequences alone
//! do not keep a device busy.

use super::super::recipe::{Blocks, OpKernels, Param};
use super::ranges::{CLUSTER, ENOUGH_BLOCKS, MAX_SPLITS, RangeKernel, launches, partial_bytes};
use super::taken::Taken;
use super::{Shape, blocks_at, shorter};
use crate::op::cuda::CudaRegionBefore;

/// Query rows of a tile.
const ROWS: u64 = 16;
/// Keys of a page, which a warp takes at a time.
const PAGE: u64 = 16;
/// Blocks that keep the memory of a large device busy, each with what it has on the way: about one
/// for each multiprocessor. From here on a second launch costs more than more blocks gain.
const SATURATING_BLOCKS: u64 = 120;
/// The most ranges where longer sequences keep the device busy beside them.
const MIXED_SPLITS: u64 = 4;
/// Bytes that the partial results of such steps stay below.
const MIXED_SCRATCH: u64 = 64 << 20;
/// Bytes of a block's pages on the way: so many that three blocks fit the 227 KiB of the devices
/// with the most bandwidth.
const STAGED: u64 = 68 << 10;
/// What a block may have in all: less than the 99 KiB of the smallest devices.
const MAX_SHARED: u64 = 96 << 10;
/// The arguments without the queries: operands, then the result.
const ARGUMENTS: usize = 7;
/// The widest head whose queries stay in registers.
const REGISTER_DIM: u64 = 128;

/// How a block is laid out: a function of the widths of heads alone.
struct Layout {
    warps: u64,
    /// Pages that a warp has on the way.
    stages: u64,
    query_staged: bool,
    /// Bytes of dynamic shared memory.
    shared: u64,
}

impl Layout {
    fn new(shape: &Shape) -> Self {
        // Rows lie an odd number of chunks apart.
        let [key_row, value_row] = [shape.dim, shape.value_dim].map(|dim| (dim / 8 + 1) * 16);
        let page = PAGE * (key_row + value_row);
        let query_staged = shape.dim > REGISTER_DIM;
        let queries = if query_staged { ROWS * key_row } else { 0 };
        let warps = if 4 * 2 * page + queries <= MAX_SHARED { 4 } else { 2 };
        let mut stages = (STAGED / (warps * page)).clamp(2, 4);
        if let Some(n) = std::env::var("PW_STAGES").ok().and_then(|v| v.parse().ok()) {
            stages = n;
        }
        Self { warps, stages, query_staged, shared: warps * stages * page + queries }
    }
}

/// The ranges where decodes alone fill the device, `tiles` being blocks of one range each. Sequences
/// as long as the block table holds have no use for more than a page for each warp.
fn splits(shape: &Shape, layout: &Layout, tiles: u64) -> u64 {
    if tiles >= SATURATING_BLOCKS {
        return 1;
    }
    let most = if shape.clusters { CLUSTER } else { MAX_SPLITS };
    let useful = shape.pages.div_ceil(layout.warps).clamp(1, most);
    (ENOUGH_BLOCKS / tiles.max(1)).clamp(1, useful)
}

/// Bytes of what the blocks of a cluster give each other.
fn shared_ranges(shape: &Shape, cluster: u64) -> u64 {
    match cluster {
        1 => 0,
        _ => cluster * ((ROWS * shape.value_dim / 2).div_ceil(cluster) + ROWS) * 8,
    }
}

/// The launches for sequences of up to `few` tokens, or for all.
pub(super) fn kernels(shape: &Shape, sizes: &[u64], few: Option<u64>) -> OpKernels {
    let layout = Layout::new(shape);
    let (kernel, splits) = range_kernel(shape, &layout, sizes, few, None);
    launches(shape, kernel, splits)
}

/// The launches of one row with the region before in them, whose operands follow the arguments
/// without the queries, if it makes what the row brings.
pub(super) fn with_region(
    shape: &Shape,
    sizes: &[u64],
    before: &CudaRegionBefore<'_>,
) -> Option<OpKernels> {
    let layout = Layout::new(shape);
    if shape.rows.eval(sizes) != 1 || !shape.ahead || layout.query_staged {
        return None;
    }
    let taken = Taken::of(shape, before, 32 * layout.warps, layout.shared)?;
    if layout.shared + taken.shared > MAX_SHARED {
        return None;
    }
    let (kernel, splits) = range_kernel(shape, &layout, sizes, None, Some(&taken));
    let mut kernels = launches(shape, kernel, splits);
    for (i, launch) in kernels.launches.iter_mut().enumerate() {
        // The queries are no argument.
        launch.params.retain(|param| *param != Param::Arg(0));
        for param in &mut launch.params {
            if let Param::Arg(at) = param {
                *at -= 1;
            }
        }
        if i == 0 {
            let operands = taken.operands.iter().map(|&at| Param::Arg((ARGUMENTS + at) as u32));
            launch.params.splice(ARGUMENTS..ARGUMENTS, operands);
            let of_region = taken.ahead.iter().map(|&at| (ARGUMENTS + at) as u32);
            launch.ahead = (0..6).chain(of_region).collect();
        }
    }
    Some(kernels)
}

fn range_kernel(
    shape: &Shape,
    layout: &Layout,
    sizes: &[u64],
    few: Option<u64>,
    taken: Option<&Taken>,
) -> (RangeKernel, u64) {
    let one_each = |units| vec![Blocks { units, per_block: 1 }];
    let (tiles, places) = match few {
        // No token has more rows than a tile.
        None => (one_each(shape.rows.clone()), shape.rows.clone()),
        Some(few) => {
            let of_each = (few * shape.group()).div_ceil(ROWS);
            let tiles = one_each(shape.sequences.times(of_each as i64));
            (tiles, shape.sequences.times(few as i64))
        }
    };
    let blocks = blocks_at(&tiles, sizes).min(blocks_at(&shape.tiles(ROWS), sizes));
    let decodes = splits(shape, layout, blocks.saturating_mul(shape.kv_heads));
    let splits = match few {
        None => decodes,
        Some(_) => {
            let [rows, sequences] = [&shape.rows, &shape.sequences].map(|dim| dim.eval(sizes));
            // As many sequences as rows: decodes, that keep the device busy if they are many.
            let most = if rows < 2 * sequences { decodes } else { MIXED_SPLITS };
            let bytes = places.eval(sizes).saturating_mul(partial_bytes(shape)).max(1);
            most.min(MIXED_SCRATCH / bytes).clamp(1, MIXED_SPLITS)
        }
    };
    let clustered = shape.clusters && splits > 1;
    let cluster = if clustered { splits } else { 1 };
    let defines = [
        ("CLUSTER", cluster),
        ("EARLY", u64::from(shape.ahead)),
        ("WARPS", layout.warps),
        ("STAGES", layout.stages),
        ("QUERY_STAGED", u64::from(layout.query_staged)),
    ];
    let header = shape.header(few.unwrap_or(0), &defines) + taken.map_or("", |taken| &taken.text);
    let kernel = RangeKernel {
        source: header + include_str!("ranges.cuh") + include_str!("decode.cu"),
        entry: "attention_decode",
        tiles: shorter(shape.tiles(ROWS), tiles, sizes),
        threads: 32 * layout.warps,
        static_shared: 2 * 4 * layout.warps * ROWS + shared_ranges(shape, cluster),
        dynamic_shared: layout.shared + taken.map_or(0, |taken| taken.shared),
        places,
        cluster: clustered,
        // Keys and values, then all that says where they lie.
        ahead: if shape.ahead { (1..=6).collect() } else { Vec::new() },
    };
    (kernel, splits)
}
