//! Sequences with few tokens, on tensor cores: their keys cut into ranges where the sequences alone
//! do not keep a device busy.

use super::ranges::{CLUSTER, ENOUGH_BLOCKS, MAX_SPLITS, RangeKernel, launches, partial_bytes};
use super::shape::{Shape, WARP, blocks_at, shorter};
use crate::op::Blocks;
use crate::op::cuda::OpKernels;

/// Query rows of a tile.
const ROWS: u64 = 16;
/// Keys of a page, which a warp takes at a time.
const PAGE: u64 = 16;
/// Blocks that keep the memory of a large device busy, each with what it has on the way: about one
/// for each multiprocessor. From here on a second launch costs more than more blocks gain.
const SATURATING_BLOCKS: u64 = 120;
/// The ranges where other sequences, which may be many, keep the device busy beside one.
const MIXED_SPLITS: u64 = 4;
/// Keys from which a sequence in the company of many is cut into ranges: a shorter one is a block's own,
/// which takes less than what blocks of a cluster tell each other.
const LONG: u64 = 1024;
/// Bytes that the partial results of such steps stay below.
const MIXED_SCRATCH: u64 = 64 << 20;
/// Bytes of a block's pages on the way: so many that three blocks fit the 227 KiB of the devices
/// with the most bandwidth.
const STAGED: u64 = 68 << 10;
/// Pages of a warp on the way where its block has all keys of a tile, on devices whose multiprocessors
/// have room for two such blocks.
const WHOLE_STAGES: u64 = 3;
/// What a block may have in all: less than the 99 KiB of the smallest devices.
const MAX_SHARED: u64 = 96 << 10;
/// Of the devices that have clusters: multiprocessors, and bytes of shared memory of each, of which a block
/// takes some besides its own.
const MULTIPROCESSORS: u64 = 132;
const SHARED_OF_ALL: u64 = 228 << 10;
const SHARED_OF_SYSTEM: u64 = 1 << 10;
/// How many times as many blocks stay as there is room for at once: what starts when others end evens out
/// what long sequences take, and each round without work costs some 0.4 us.
const ROUNDS: u64 = 2;
/// The widest head whose queries stay in registers.
const REGISTER_DIM: u64 = 128;

/// How a block is laid out: a function of the widths of heads alone.
struct Layout {
    warps: u64,
    /// Pages that a warp has on the way.
    stages: u64,
    query_staged: bool,
    /// Bytes of a warp's stages.
    of_warp: u64,
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
        let stages = (STAGED / (warps * page)).clamp(2, 4);
        let of_warp = stages * page;
        Self { warps, stages, query_staged, of_warp, shared: warps * of_warp + queries }
    }

    /// The same with at least so many pages on the way.
    fn with_stages(self, stages: u64) -> Self {
        let (page, stages) = (self.of_warp / self.stages, stages.max(self.stages));
        let of_warp = stages * page;
        Self {
            stages,
            of_warp,
            shared: self.shared + self.warps * (of_warp - self.of_warp),
            ..self
        }
    }
}

/// The most ranges that help: sequences as long as the block table holds have no use for more than a
/// page for each warp.
fn useful(shape: &Shape, layout: &Layout) -> u64 {
    let most = if shape.clusters { CLUSTER } else { MAX_SPLITS };
    shape.seen_pages().div_ceil(layout.warps).clamp(1, most)
}

/// The ranges where decodes alone fill the device, `tiles` being blocks of one range each. So many
/// `times` as many blocks are wanted as usual.
fn splits(shape: &Shape, layout: &Layout, tiles: u64, times: u64) -> u64 {
    if tiles >= times * SATURATING_BLOCKS {
        return 1;
    }
    (times * ENOUGH_BLOCKS / tiles.max(1)).clamp(1, useful(shape, layout))
}

/// Whether what the blocks of a cluster give each other finds room beside a warp's result where its
/// stages were.
fn ranges_fit(shape: &Shape, layout: &Layout, cluster: u64) -> bool {
    let result = ROWS * (shape.value_dim + 8) * 4;
    result + cluster * (ROWS * shape.value_dim / 2).div_ceil(cluster) * 8 <= layout.of_warp
}

/// The sequences that the kernel takes.
#[derive(Clone, Copy)]
pub(super) enum Taken {
    /// Every one, whatever it brings.
    All,
    /// Every one, and each brings so many tokens.
    Uniform(u64),
    /// Those of up to so many tokens; another kernel takes the others.
    Few(u64),
}

/// The launches for the sequences that are `taken`, with so many `times` as many ranges as usual where
/// the keys are long enough.
pub(super) fn kernels(shape: &Shape, sizes: &[u64], taken: Taken, times: u64) -> OpKernels {
    let layout = Layout::new(shape);
    let one_each = |units| vec![Blocks { units, per_block: 1 }];
    let of_sequences = |tokens: u64| {
        let of_each = (tokens * shape.group()).div_ceil(ROWS);
        one_each(shape.sequences.times(of_each as i64))
    };
    let (tiles, places) = match taken {
        // No token has more rows than a tile.
        Taken::All => (one_each(shape.rows.clone()), shape.rows.clone()),
        Taken::Uniform(tokens) => (of_sequences(tokens), shape.rows.clone()),
        Taken::Few(few) => (of_sequences(few), shape.sequences.times(few as i64)),
    };
    let blocks = blocks_at(&tiles, sizes).min(blocks_at(&shape.tiles(ROWS), sizes));
    let decodes = splits(shape, &layout, blocks.saturating_mul(shape.kv_heads), times);
    let more = (times * MIXED_SPLITS).min(useful(shape, &layout)).max(MIXED_SPLITS);
    let splits = match taken {
        Taken::Uniform(_) => decodes,
        // Where there are no clusters, ranges lie in scratch, and decodes that may be many have one.
        Taken::All if decodes > 1 || !shape.clusters => decodes,
        Taken::Few(_) if !shape.clusters => {
            let [rows, sequences] = [&shape.rows, &shape.sequences].map(|dim| dim.eval(sizes));
            let most = if rows < 2 * sequences { decodes } else { decodes.max(more) };
            let bytes = places.eval(sizes).saturating_mul(partial_bytes(shape)).max(1);
            most.min(MIXED_SCRATCH / bytes).max(1)
        }
        _ if decodes == 1 && shape.seen_pages() * PAGE < LONG => 1,
        // Beside others there may be few, which have at least the ranges that they would have alone.
        Taken::All | Taken::Few(_) => decodes.max(more),
    };
    let layout = match splits {
        1 if shape.clusters => layout.with_stages(WHOLE_STAGES),
        _ => layout,
    };
    let clustered = shape.clusters && splits > 1 && ranges_fit(shape, &layout, splits);
    let cluster = if clustered { splits } else { 1 };
    let static_shared =
        2 * 4 * layout.warps * ROWS + if clustered { cluster * ROWS * 8 } else { 0 };
    let room = SHARED_OF_ALL / (layout.shared + static_shared + SHARED_OF_SYSTEM);
    // Most sequences that there may be in company are not there: a block for each of their tiles would
    // only find that out.
    let is_sparse =
        !matches!(taken, Taken::Uniform(_)) && shape.clusters && (clustered || splits == 1);
    let long = if is_sparse && clustered && decodes == 1 { LONG } else { 0 };
    let each = blocks.saturating_mul(shape.kv_heads * splits).div_ceil(MULTIPROCESSORS);
    let staying = each.min(ROUNDS * room);
    let stays = (is_sparse && (long > 0 || each > staying)).then_some(staying);
    let defines = [
        ("STAYS", u64::from(stays.is_some())),
        ("CLUSTER", cluster),
        ("LONG", long),
        ("EARLY", u64::from(shape.ahead)),
        ("UNIFORM", if let Taken::Uniform(tokens) = taken { tokens } else { 0 }),
        ("WARPS", layout.warps),
        ("STAGES", layout.stages),
        ("QUERY_STAGED", u64::from(layout.query_staged)),
    ];
    let few = if let Taken::Few(few) = taken { few } else { 0 };
    let header = shape.header(few, &defines);
    let sources = [include_str!("ranges.cuh"), WARP, include_str!("decode.cu")];
    let kernel = RangeKernel {
        source: header + &shape.forms().of(&sources.concat()),
        entry: "attention_decode",
        tiles: shorter(shape.tiles(ROWS), tiles, sizes),
        threads: 32 * layout.warps,
        static_shared,
        dynamic_shared: layout.shared,
        places,
        cluster: clustered,
        stays,
        // Keys and values, then all that says where they lie.
        ahead: if shape.ahead { (1..=6).collect() } else { Vec::new() },
    };
    launches(shape, kernel, splits)
}
