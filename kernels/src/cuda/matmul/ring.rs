//! Products of few rows on Hopper, alone and with the region after them.

use super::{AfterProduct, MatMulSpec, options};
use crate::cuda::recipe::{GridAxis, LaunchRecipe};
use crate::lower::LowerError;
use std::fmt::Write;

/// The most rows that the kernel takes.
pub const RING_ROWS: u64 = 128;
/// The most that are multiplied by `mma.sync`, in one kernel for nearly all shapes.
const FEW_ROWS: u64 = 32;
/// Those of an H100.
const MULTIPROCESSORS: u64 = 132;
/// Shared memory of a block that has a multiprocessor for itself but for small kernels beside it.
const SHARED_BYTES: u64 = 220 << 10;
/// That of one that leaves room for a block of the next kernel.
const HALF_SHARED_BYTES: u64 = 112 << 10;
/// What aligns the ring.
const ALIGNED: u64 = 1024;

/// How the blocks of a product through a ring share its work and a multiprocessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingForm {
    /// Each has all of k for its columns, and nearly all of a multiprocessor's shared memory: the most
    /// copies on their way. Up to 32 rows, by `mma.sync`.
    Whole,
    /// The same with half of the shared memory, so that the next kernel's weights come in beside it.
    Half,
    /// Those of a cluster share k, by warpgroups.
    Panel,
}

/// How a block shares its work, by rows of x.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    /// Rows of x, in whole fragments.
    rows: u64,
    /// The most columns, in eights, whose sums are in registers at a time.
    eights: u64,
    /// Boxes of 64 elements of a row in a slot of the ring.
    slices: u64,
    /// Warps that share the steps of a slot, and the tiles.
    of_k: u64,
    of_tiles: u64,
}

/// The most depth and columns of a product that is over before a ring of the whole shared memory is full.
const SMALL_DEPTH: u64 = 2048;
const SMALL_COLUMNS: u64 = 4096;

/// The depth from which a slot is filled for a part of it that is short beside the whole.
const DEEP: u64 = 4096;

impl Shape {
    /// The fastest of those that were measured on an H100.
    fn of(rows: u64, depth: u64) -> Self {
        let rows = rows.next_multiple_of(8);
        let (eights, slices, of_k, of_tiles) = match rows {
            ..=8 if depth >= DEEP => (6, 4, 8, 1),
            ..=16 => (6, 8, 8, 1),
            _ => (8, 4, 4, 2),
        };
        Self { rows, eights, slices, of_k, of_tiles }
    }

    /// Bytes of the sums of all warps.
    fn sums_bytes(&self) -> u64 {
        self.of_k * self.rows * (self.eights.next_multiple_of(2) * 8 + 4) * 4
    }

    fn ring_bytes(&self, shared_bytes: u64) -> u64 {
        (shared_bytes - ALIGNED - self.sums_bytes()) / 1024 * 1024
    }
}

impl MatMulSpec {
    /// Whether [`Self::ring_kernel`] takes it: as [`Self::multiplies_in_tiles`] says, for up to
    /// [`RING_ROWS`] rows of a multiple of 128 bytes.
    pub fn multiplies_in_a_ring(&self, rows: u64) -> bool {
        (1..=RING_ROWS).contains(&rows)
            && self.multiplies_in_tiles()
            && self.depth.is_multiple_of(64)
    }

    /// Whether a block of the kernel for few rows, which reads all of x for its share of the columns,
    /// would read more than three times as much of it as of w.
    fn rows_outweigh(&self, rows: u64) -> bool {
        rows > 8 && rows * MULTIPROCESSORS > 3 * self.columns
    }

    /// The forms of [`Self::ring_kernel`] for so many rows, the one first that is expected to be fastest.
    pub fn ring_forms(&self, rows: u64) -> Vec<RingForm> {
        use RingForm::{Half, Panel, Whole};
        let is_small = self.depth <= SMALL_DEPTH && self.columns <= SMALL_COLUMNS;
        match rows {
            ..=8 if is_small => vec![Half, Whole, Panel],
            ..=FEW_ROWS if !self.rows_outweigh(rows) => vec![Whole, Half, Panel],
            ..=FEW_ROWS => vec![Panel, Whole, Half],
            _ => vec![Panel],
        }
    }

    /// The kernel of compute capability 9.0 for up to `rows` rows: one for all sizes up to the next
    /// multiple of 8 and nearly all shapes, or, as a panel and for more than 32 rows, one for each shape
    /// and multiple of 16; with the region after the product in it, if there is one. Sums are of `f32`;
    /// their order follows from `rows`, so rounded up, k, and in a panel from the columns. Arguments:
    /// x; w; y, or the operands of the region other than the product, then its results.
    ///
    /// # Errors
    /// When [`Self::multiplies_in_a_ring`] is false, or the region is no map of the product's
    /// elements or of pairs of them half a row apart.
    pub fn ring_kernel(
        &self,
        rows: u64,
        after: Option<AfterProduct<'_>>,
        form: RingForm,
    ) -> Result<LaunchRecipe, LowerError> {
        if !self.multiplies_in_a_ring(rows) {
            return Err(LowerError(format!(
                "{rows} rows for a product through a ring, which takes up to {RING_ROWS} of one \
                 16-bit dtype, with weights [n, k] and rows of a multiple of 128 bytes; take the \
                 general one"
            )));
        }
        let finish = self.finish(after)?;
        let shared_bytes = match form {
            RingForm::Whole if rows <= FEW_ROWS => SHARED_BYTES,
            RingForm::Half if rows <= FEW_ROWS => HALF_SHARED_BYTES,
            _ => return self.panel_kernel(rows, &finish),
        };
        let shape = Shape::of(rows, self.depth);
        let mut text = self.header();
        let defines = [
            ("M", shape.rows),
            ("PAIRED", u64::from(finish.paired)),
            ("UNITS", if finish.paired { shape.eights / 2 } else { shape.eights }),
            ("SLICES", shape.slices),
            ("K_WARPS", shape.of_k),
            ("TILE_WARPS", shape.of_tiles),
            ("RING_BYTES", shape.ring_bytes(shared_bytes)),
        ];
        for (name, value) in defines {
            let _ = writeln!(text, "#define {name} {value}");
        }
        text.push_str(include_str!("../hopper.cuh"));
        let _ = writeln!(text, "#define RESULTS {}", finish.results);
        text.push_str(&finish.text);
        text.push_str(include_str!("finish.cuh"));
        text.push_str(include_str!("ring.cu"));
        let of_w = [8, 16, 32].map(|rows| self.boxes(1, rows, shape.slices));
        let maps = [self.boxes(0, shape.rows, shape.slices)].into_iter().chain(of_w);
        Ok(LaunchRecipe {
            source: text,
            entry: "matmul".to_owned(),
            options: options(),
            grid: [
                GridAxis::Persistent { per_multiprocessor: 1 },
                GridAxis::one(),
                GridAxis::one(),
            ],
            block: [((shape.of_k * shape.of_tiles + 1) * 32) as u32, 1, 1],
            cluster: [1; 3],
            static_shared: 256,
            dynamic_shared: (shape.ring_bytes(shared_bytes) + ALIGNED + shape.sums_bytes()) as u32,
            params: self.box_params(maps, &finish)?,
            programmatic: true,
            ahead: vec![1],
        })
    }
}
