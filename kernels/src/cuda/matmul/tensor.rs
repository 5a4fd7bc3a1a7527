//! The weight-streaming kernel on tensor cores: how clusters share columns and k.

use super::stream::Params;
use super::{AfterProduct, MatMulSpec, options, storage};
use crate::cuda::recipe::{GridAxis, LaunchRecipe, Param, Scalar};
use crate::cuda::region::{AbsorbedAfter, Tile};
use crate::lower::LowerError;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use std::fmt::Write;

/// The most rows that the kernel on tensor cores takes.
pub const TENSOR_ROWS: u64 = 32;
/// Warps that fill the registers of a multiprocessor.
const WARPS: u64 = 16;
/// Rows up to which they are one block, as measured on an H100; above, two blocks.
const ONE_BLOCK_ROWS: u64 = 8;
/// Those of the device that tiles are dealt evenly on; on others some get one more.
const MULTIPROCESSORS: u64 = 132;
/// The depth that a lane's 16 bytes of each row make.
const STEP: u64 = 32;
/// Steps of weights in flight, best first; each is two loads of 16 bytes a lane.
const AHEAD: [u64; 3] = [8, 6, 4];
/// Steps that are unrolled.
const MAX_STEPS: u64 = 128;
/// Registers of a lane.
const REGISTERS: u64 = 128;
/// Those for addresses, counters, and the fragments at work, which the tensor cores take from
/// aligned quadruples of registers and so as copies.
const WORKING_REGISTERS: u64 = 44;
/// Bytes of a fragment of x, of 8 rows and a step, of all lanes.
const FRAGMENT_BYTES: u64 = 32 * 16;
/// Bytes of the barriers of a block.
const BARRIERS: u64 = 16;
/// Bytes of x that a block copies before its products start: with more, a cluster shares k.
const COPIED_BYTES: u64 = 32 << 10;
/// Terms of a tile for each sum that its warps give each other, at least: 4 bytes of w for one.
const TERMS: u64 = 8;

/// What blocks of a device have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorDevice {
    /// Bytes of shared memory that a block may have.
    pub shared_bytes: u64,
    /// Whether blocks of a cluster send each other what they count.
    pub clusters: bool,
}

/// How clusters, blocks and warps share a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placement {
    /// Rows of x, in whole fragments.
    rows: u64,
    /// Warps of a block.
    warps: u64,
    /// Blocks that share k.
    cluster: u64,
    /// Warps of a block that share a tile.
    slices: u64,
    /// Steps of a warp in a tile.
    steps: u64,
    /// Whether every warp has that many.
    whole: bool,
    /// Steps of a tile, or of a piece, and empty ones, so that `ahead` divides those of `tiles`.
    round: u64,
    /// Tiles that are unrolled.
    tiles: u64,
    /// Steps of weights in flight.
    ahead: u64,
    /// Pieces that a block's x comes in.
    pieces: u64,
}

impl Placement {
    fn new(rows: u64, out: u64, paired: bool, depth: u64, device: TensorDevice) -> Option<Self> {
        let rows = rows.next_multiple_of(8);
        let warps = if rows > ONE_BLOCK_ROWS { WARPS / 2 } else { WARPS };
        let blocks = WARPS / warps;
        // Each block of a multiprocessor keeps 1 KiB to itself.
        let room = (device.shared_bytes + 1024) / blocks;
        let room = room.checked_sub(1024 + sums_bytes(rows, warps) + BARRIERS)?;
        let all = out.div_ceil(if paired { 8 } else { 16 });
        let clusters = |cluster: u64| blocks * MULTIPROCESSORS / cluster;
        // One block has all of k where x is small and there are tiles for all blocks.
        let alone = rows * depth * 2 <= COPIED_BYTES && all >= clusters(1);
        let cluster = if device.clusters && !alone { 2 } else { 1 };
        let tiles = all.div_ceil(clusters(cluster));
        let steps_of = |slices: u64| depth.div_ceil(STEP).div_ceil(cluster * slices);
        let fits = |slices: u64, steps: u64| steps * slices * rows / 8 * FRAGMENT_BYTES <= room;
        let most =
            AHEAD.into_iter().find(|most| WORKING_REGISTERS + 8 * most + rows / 2 <= REGISTERS)?;
        let parts = (depth / (TERMS * rows)).max(cluster);
        let at_once = [1, 2, 4].into_iter().find(|n| cluster * warps / n <= parts).unwrap_or(8);
        let slices = warps / at_once.min(1 << tiles.ilog2());
        let placed = |slices: u64, steps: u64| {
            let whole = steps * STEP * slices * cluster == depth;
            let pieces = 1;
            Self {
                rows,
                warps,
                cluster,
                slices,
                steps,
                whole,
                round: steps,
                tiles: 1,
                ahead: steps,
                pieces,
            }
        };
        if fits(slices, steps_of(slices)) {
            let steps = steps_of(slices);
            let rounds = tiles.div_ceil(warps / slices);
            let (tiles, ahead) = match (most / steps).min(rounds) {
                ..2 => (1, steps.div_ceil(steps.div_ceil(most))),
                tiles => (tiles, tiles * steps),
            };
            let round = if tiles > 1 { steps } else { steps.next_multiple_of(ahead) };
            let placed = Self { round, tiles, ahead, ..placed(slices, steps) };
            return (steps <= MAX_STEPS).then_some(placed);
        }
        // Pieces of x come again in each round of tiles, of which there are to be few.
        let slices = warps / tiles.next_power_of_two().min(warps / 2);
        let piece = AHEAD.into_iter().find(|&n| n <= most && fits(slices, 2 * n))?;
        let pieces = steps_of(slices).div_ceil(piece);
        Some(Self { round: piece, ahead: piece, pieces, ..placed(slices, pieces * piece) })
    }

    fn shared_bytes(&self) -> u64 {
        let held = if self.pieces > 1 { 2 * self.steps / self.pieces } else { self.steps };
        let x = held * self.slices * self.rows / 8 * FRAGMENT_BYTES;
        x + sums_bytes(self.rows, self.warps) + BARRIERS
    }

    fn defines(&self) -> String {
        [
            ("M", self.rows),
            ("WARPS", self.warps),
            ("BLOCKS", WARPS / self.warps),
            ("CLUSTER", self.cluster),
            ("SLICES", self.slices),
            ("STEPS", self.steps),
            ("WHOLE", u64::from(self.whole)),
            ("PIECES", self.pieces),
            ("ROUND", self.round),
            ("TILES", self.tiles),
            ("AHEAD", self.ahead),
        ]
        .map(|(name, value)| format!("#define {name} {value}\n"))
        .concat()
    }
}

/// Bytes of the sums of two rounds of tiles that come to a block.
fn sums_bytes(rows: u64, warps: u64) -> u64 {
    2 * warps * 16 * rows * 4
}

impl MatMulSpec {
    fn placement(&self, rows: u64, paired: bool, device: TensorDevice) -> Option<Placement> {
        let [x, w, _] = self.types;
        let multiplied = x == w && matches!(x, DType::BF16 | DType::F16);
        let taken = multiplied
            && (1..=TENSOR_ROWS).contains(&rows)
            && self.of_weight
            && self.column_major
            && self.depth > 0
            && self.depth.is_multiple_of(STEP)
            && (!paired || self.columns.is_multiple_of(2));
        let out = if paired { self.columns / 2 } else { self.columns };
        taken.then(|| Placement::new(rows, out, paired, self.depth, device)).flatten()
    }

    /// Whether [`Self::tensor_kernel`] takes it: x and w are of the same 16-bit dtype, w is a
    /// weight `[n, k]` with k a multiple of 32, and `rows` rows of x, up to [`TENSOR_ROWS`], fit.
    pub fn multiplies_on_tensor_cores(&self, rows: u64, device: TensorDevice) -> bool {
        self.placement(rows, false, device).is_some()
    }

    /// The kernel that reads each weight once and multiplies on tensor cores, for sizes of up to
    /// `rows` rows, with the region after the product in it if there is one: a map of the
    /// product's elements, or of pairs of them that lie half of its columns apart. Sums are of
    /// `f32`; their order follows from `rows`, rounded up to 8, and the shape of w. Arguments: x,
    /// w, then y, or the operands of the region other than the product and its results.
    ///
    /// # Errors
    /// When [`Self::multiplies_on_tensor_cores`] is false, or the region is no such map.
    pub fn tensor_kernel(
        &self,
        rows: u64,
        device: TensorDevice,
        after: Option<AfterProduct<'_>>,
    ) -> Result<LaunchRecipe, LowerError> {
        let made = after.map(|after| self.pairs_or_elements(after)).transpose()?;
        let paired = matches!(made, Some((2, _)));
        let placement = self.placement(rows, paired, device).ok_or_else(|| {
            LowerError(format!(
                "{rows} rows of depth {} for the matmul on tensor cores, which takes up to \
                 {TENSOR_ROWS} that fit on a multiprocessor with {} bytes of shared memory, of \
                 the 16-bit dtype of weights [n, k], k a multiple of {STEP}; take the general one",
                self.depth, device.shared_bytes
            ))
        })?;
        let mut text = self.header() + &placement.defines();
        let _ = write!(
            text,
            "#define PAIRED {}\n#define COLUMNS {}\n#define DEPTH {}\n",
            u8::from(paired),
            self.columns,
            self.depth
        );
        let mut params = Params::default();
        params.push(format!("const {}*", storage(self.types[0])), "x");
        params.push(format!("const {}*", storage(self.types[1])), "w");
        match made {
            None => params.push(format!("{}*", storage(self.types[2])), "y"),
            Some((_, made)) => {
                params.list("AFTER", "a", made.arguments, &mut text);
                let _ = write!(text, "\n{}", made.text);
            }
        }
        let _ =
            write!(text, "\n#define PARAMETERS {}\n{}", params.text(), include_str!("tensor.cu"));
        let number = |n: u64| Param::Scalar(Scalar::U32(Dim::constant(n)));
        let all = Param::Scalar(Scalar::U32(self.rows.clone()));
        let rest = [Param::Counts, all].into_iter().chain(self.real()?.map(number));
        Ok(LaunchRecipe {
            source: text,
            entry: "matmul".to_owned(),
            options: options(),
            grid: [
                GridAxis::Persistent { per_multiprocessor: (WARPS / placement.warps) as u32 },
                GridAxis::one(),
                GridAxis::one(),
            ],
            block: [placement.warps as u32 * 32, 1, 1],
            cluster: [placement.cluster as u32, 1, 1],
            static_shared: 0,
            dynamic_shared: placement.shared_bytes() as u32,
            params: (0..params.count()).map(Param::Arg).chain(rest).collect(),
            programmatic: true,
            ahead: vec![1],
        })
    }

    /// The region after the product, by elements or by pairs: how many, and its text.
    fn pairs_or_elements(
        &self,
        after: AfterProduct<'_>,
    ) -> Result<(u64, AbsorbedAfter), LowerError> {
        self.check_rows(after.region)?;
        let of = |parts| {
            let tile = Tile { columns: self.columns, parts, width: 1 };
            Ok((parts, AbsorbedAfter::of(after.region, after.roles, after.product, tile)?))
        };
        of(1).or_else(|_: LowerError| of(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOPPER: TensorDevice = TensorDevice { shared_bytes: 227 << 10, clusters: true };

    #[test]
    fn deep_products_are_shared_and_wide_rows_of_x_come_in_pieces() {
        let shown = |rows, out, depth| {
            let placed = Placement::new(rows, out, false, depth, HOPPER);
            placed.map(|p| [p.warps, p.cluster, p.slices, p.steps, p.tiles, p.ahead, p.pieces])
        };
        assert_eq!(shown(8, 4096, 1024), Some([16, 1, 16, 2, 2, 4, 1]));
        assert_eq!(shown(8, 6144, 4096), Some([16, 2, 16, 4, 2, 8, 1]));
        assert_eq!(shown(8, 4096, 12288), Some([16, 2, 16, 12, 1, 6, 1]));
        assert_eq!(shown(32, 16384, 2048), Some([8, 2, 4, 8, 1, 8, 1]));
        assert_eq!(shown(32, 4096, 12288), Some([8, 2, 4, 48, 1, 4, 12]));
    }

    proptest! {
        #[test]
        fn every_placement_is_whole(
            rows in 1u64..=32,
            eights in 1u64..20_000,
            steps in 1u64..600,
            kib in 0u64..256,
            paired: bool,
            clusters: bool,
        ) {
            let device = TensorDevice { shared_bytes: kib << 10, clusters };
            if let Some(p) = Placement::new(rows, eights * 8, paired, steps * STEP, device) {
                prop_assert!(WARPS / p.warps * (p.shared_bytes() + 1024) <= (kib + 1) << 10);
                prop_assert!(p.rows >= rows && p.steps * p.slices * p.cluster >= steps);
                prop_assert_eq!(p.whole, p.steps * p.slices * p.cluster == steps);
                prop_assert!(p.tiles >= 1 && p.ahead <= p.tiles * p.steps && p.steps <= p.round * p.pieces);
                prop_assert_eq!(p.tiles * p.round % p.ahead, 0);
                prop_assert!(p.pieces == 1 || p.tiles == 1 && p.ahead * p.pieces == p.steps);
                prop_assert!(clusters || p.cluster == 1);
            }
        }
    }
}
