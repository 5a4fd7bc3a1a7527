//! Products of few rows on Hopper, alone and with the regions beside them.

use super::{AfterProduct, BeforeProduct, MatMulSpec};
use crate::cuda::region::{AbsorbedBefore, RowsOfBlock};
use crate::cuda::text::defines;
use crate::lower::LowerError;
use crate::op::cuda::{GridAxis, LaunchRecipe, Param, TensorBoxes};
use piecewise_ir::dtype::DType;

/// The most rows that the kernel takes.
pub const RING_ROWS: u64 = 128;
/// The most that are multiplied by `mma.sync`, in one kernel for nearly all shapes.
const FEW_ROWS: u64 = 32;
/// The same of weights that are codes, of which there is no panel.
const ROWS_OF_CODES: u64 = 64;
/// Those of an H100.
const MULTIPROCESSORS: u64 = 132;
/// Shared memory of a block that has a multiprocessor for itself but for small kernels beside it.
const SHARED_BYTES: u64 = 220 << 10;
/// Those of one that leaves room for a block of the next product: less than half, and more. With what
/// the system takes for each block they fill the 228 KiB.
const HALF_SHARED_BYTES: u64 = 110 << 10;
const LONGER_SHARED_BYTES: u64 = 115 << 10;
/// Slots that a ring should have at the least.
const SLOTS: u64 = 3;
/// Registers of a thread for the rows of x that a block makes before it multiplies.
const ROWS_BEFORE: RowsOfBlock =
    RowsOfBlock { block: 256, rows: 8, padding: 8, kept: 64, registers: 96 };
/// The maps of a weight, by the columns of a box.
const WEIGHT_MAPS: &str = "const __grid_constant__ TensorMap w8, const __grid_constant__ TensorMap \
                           w16, const __grid_constant__ TensorMap w32";
/// What aligns the ring.
const ALIGNED: u64 = 1024;

/// How the blocks of a product through a ring share its work and a multiprocessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingForm {
    /// Each has all of k for its columns, and nearly all of a multiprocessor's shared memory: the most
    /// copies on their way. Up to 32 rows, by `mma.sync`.
    Whole,
    /// The same with about half of the shared memory, so that the next product's weights come in beside
    /// it.
    Half {
        /// Whether it is more than half, as that of every other of products one after the other should
        /// be: no two blocks of such a one share a multiprocessor, so each has one of its own, and
        /// those of the next product find room beside each. Where all take less than half, two blocks
        /// of one go to a multiprocessor where one would do, and others are empty.
        longer: bool,
    },
    /// Those of a cluster share k, by warpgroups.
    Panel,
}

/// How a block shares its work, by rows of x.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    /// Rows of x, in whole fragments.
    rows: u64,
    /// Rows of x in memory: as many, or one that all rows of a fragment are.
    x_rows: u64,
    /// Bits of an element of w.
    bits: u64,
    /// The most columns, in eights, whose sums are in registers at a time.
    eights: u64,
    /// Boxes of 64 elements of a row in a slot of the ring.
    slices: u64,
    /// Warps that share the steps of a slot, and the tiles.
    of_k: u64,
    of_tiles: u64,
}

/// Bytes of w that about fill the halves of all multiprocessors, and the most rows for which a product of
/// no more is fastest so.
const SMALL_BYTES: u64 = 13 << 20;
const SMALL_ROWS: u64 = 8;

/// The depth from which a slot is filled for a part of it that is short beside the whole.
const DEEP: u64 = 4096;

impl Shape {
    /// The fastest of those that were measured on an H100.
    fn of(spec: &MatMulSpec, rows: u64) -> Self {
        if let Some(codes) = spec.codes {
            return Self::of_codes(rows, codes.dtype.bits());
        }
        let rows = rows.next_multiple_of(8);
        let (eights, slices, of_k, of_tiles) = match rows {
            ..=8 if spec.depth >= DEEP => (6, 4, 8, 1),
            ..=16 => (6, 8, 8, 1),
            _ => (8, 4, 4, 2),
        };
        Self { rows, x_rows: rows, bits: 16, eights, slices, of_k, of_tiles }
    }

    /// The same of weights that are codes, on an H200: four bits want twice the warps to widen them.
    fn of_codes(rows: u64, bits: u64) -> Self {
        let x_rows = if rows == 1 { 1 } else { rows.next_multiple_of(8) };
        let (eights, slices, of_k, of_tiles) = match (rows, bits) {
            (..=1, 4) => (6, 16, 16, 1),
            (..=16, 4) => (8, 8, 8, 2),
            (..=16, _) => (6, 8, 8, 1),
            (..=32, 4) => (8, 8, 8, 1),
            (..=32, _) => (8, 4, 8, 1),
            (_, 4) => (8, 4, 4, 2),
            _ => (12, 4, 4, 2),
        };
        Self { rows: rows.next_multiple_of(8), x_rows, bits, eights, slices, of_k, of_tiles }
    }

    /// Warps that multiply.
    fn warps(&self) -> u64 {
        self.of_k * self.of_tiles
    }

    /// Steps of k of a slot: 32 elements, or as many codes as 32 bytes are.
    fn steps(&self) -> u64 {
        self.slices * 64 / if self.bits < 16 { 256 / self.bits } else { 32 }
    }

    /// Bytes of the sums of all warps.
    fn sums_bytes(&self) -> u64 {
        self.of_k * self.rows * (self.eights.next_multiple_of(2) * 8 + 4) * 4
    }

    /// Elements after each row of x that a block makes, so that the rows that lanes read at once do not
    /// share banks.
    fn padding(&self) -> u64 {
        128 / self.bits
    }

    /// Bytes of the rows of x that a block makes.
    fn made_bytes(&self, depth: u64) -> u64 {
        self.x_rows * (depth + self.padding()) * 2
    }

    /// Bytes of the ring where `made` others hold what a block makes of x.
    fn ring_bytes(&self, shared_bytes: u64, made: u64) -> u64 {
        shared_bytes.saturating_sub(ALIGNED + self.sums_bytes() + made) / 1024 * 1024
    }

    /// The same with slots so short that there are some, where a block has so much shared memory and,
    /// maybe, makes its rows of x.
    fn in_slots_of(mut self, spec: &MatMulSpec, (shared_bytes, makes): (u64, bool)) -> Self {
        let made = if makes { self.made_bytes(spec.depth) } else { 0 };
        let of_x = if makes { 0 } else { self.x_rows * 128 };
        let slot = |shape: &Self| shape.slot_bytes(spec.columns)[0] + shape.slices * of_x;
        let ring = self.ring_bytes(shared_bytes, made);
        // The steps of a slot are shared evenly by its warps. It has whole boxes of each row of w, and is
        // as long as what aligns it.
        let is_even = |shape: &Self| {
            let boxes = shape.slices * shape.bits / 16;
            boxes.is_multiple_of(2) && (shape.slices * shape.x_rows).is_multiple_of(16)
        };
        while is_even(&self) && self.steps() > self.of_k && ring / slot(&self) < SLOTS {
            self.slices /= 2;
        }
        self
    }

    /// Bytes of weights that a slot has where a block of an H100 takes its share of these columns, and
    /// where its share is as long as it can be.
    fn slot_bytes(&self, columns: u64) -> [u64; 2] {
        let share = columns.div_ceil(8 * MULTIPROCESSORS);
        let at_once = share.div_ceil(share.div_ceil(self.eights));
        [at_once, self.eights].map(|eights| eights * self.slices * self.bits * 64)
    }
}

/// The left operand of a product through a ring.
struct Left {
    /// What declares it in the kernel's text.
    text: String,
    /// By what the kernel reads it.
    params: Vec<Param>,
    /// Those of its arguments that no kernel of a step writes.
    ahead: Vec<u32>,
    /// Bytes of shared memory that its rows take where a block makes them, and what it makes them in.
    made: [u64; 2],
}

impl MatMulSpec {
    /// Whether [`Self::ring_kernel`] takes it: as [`Self::multiplies_in_tiles`] says, or with sums of
    /// `f32` as they are, for up to [`RING_ROWS`] rows of a multiple of 128 bytes.
    pub fn multiplies_in_a_ring(&self, rows: u64) -> bool {
        (1..=RING_ROWS).contains(&rows)
            && (self.is_read_in_boxes() || (rows <= ROWS_OF_CODES && self.has_codes_in_boxes()))
            && [self.types[0], DType::F32].contains(&self.types[2])
            && self.depth.is_multiple_of(64)
    }

    /// Whether a block of the kernel for few rows, which reads all of x for its share of the columns,
    /// would read more than three times as much of it as of w.
    fn rows_outweigh(&self, rows: u64) -> bool {
        rows > 8 && rows * MULTIPROCESSORS > 3 * self.columns
    }

    /// The forms of [`Self::ring_kernel`] for so many rows, the one first that is expected to be fastest;
    /// `longer` is that of the half one.
    pub fn ring_forms(&self, rows: u64, longer: bool) -> Vec<RingForm> {
        use RingForm::{Panel, Whole};
        let half = RingForm::Half { longer };
        let is_small = self.columns * self.depth * 2 <= SMALL_BYTES;
        match rows {
            ..=16 if self.codes.is_some() => vec![half, Whole],
            _ if self.codes.is_some() => vec![Whole],
            ..=SMALL_ROWS if is_small => vec![half, Whole, Panel],
            ..=FEW_ROWS if !self.rows_outweigh(rows) => vec![Whole, half, Panel],
            ..=FEW_ROWS => vec![Panel, Whole, half],
            _ => vec![Panel],
        }
    }

    /// The kernel of compute capability 9.0 for up to `rows` rows: one for all sizes up to the next
    /// multiple of 8 and nearly all shapes, or, as a panel and for more than 32 rows, one for each shape
    /// and multiple of 16; with the regions beside the product in it, if there are any. Sums are of
    /// `f32`; their order follows from `rows`, so rounded up, k, and in a panel from the columns.
    /// Arguments: x, or the operands of the region before; w, with its scales and zeros if it is of codes;
    /// y, or the operands of the region after other than the product, then its results.
    ///
    /// # Errors
    /// When [`Self::multiplies_in_a_ring`] is false, the region after is no map of the product's
    /// elements or of pairs of them half a row apart, or there is one before in a panel, or whose rows
    /// leave the ring too little of a block's shared memory.
    pub fn ring_kernel(
        &self,
        rows: u64,
        before: Option<BeforeProduct<'_>>,
        after: Option<AfterProduct<'_>>,
        form: RingForm,
    ) -> Result<LaunchRecipe, LowerError> {
        if !self.multiplies_in_a_ring(rows) {
            return Err(LowerError(format!(
                "{rows} rows for a product through a ring, which takes up to {RING_ROWS} of one \
                 16-bit dtype, or {ROWS_OF_CODES} over codes, with weights [n, k] and rows of a \
                 multiple of 128 bytes; take the general one"
            )));
        }
        let finish = self.finish(after)?;
        let most = if self.codes.is_some() { ROWS_OF_CODES } else { FEW_ROWS };
        let shared_bytes = match form {
            RingForm::Whole if rows <= most => SHARED_BYTES,
            RingForm::Half { longer: false } if rows <= FEW_ROWS => HALF_SHARED_BYTES,
            RingForm::Half { longer: true } if rows <= FEW_ROWS => LONGER_SHARED_BYTES,
            _ if self.codes.is_some() => {
                return Err(LowerError(format!(
                    "a product of {rows} rows over codes whose blocks share k; take a whole ring"
                )));
            }
            _ if before.is_some() => {
                return Err(LowerError(format!(
                    "a region before a product of {rows} rows whose blocks share k; launch it on \
                     its own"
                )));
            }
            _ => return self.panel_kernel(rows, &finish),
        };
        let of_block = (shared_bytes, before.is_some());
        let shape = match form {
            RingForm::Half { .. } => Shape::of(self, rows).in_slots_of(self, of_block),
            _ => Shape::of(self, rows),
        };
        let left = match before {
            None => Left {
                text: "#define X_PARAMS const __grid_constant__ TensorMap x\n".to_owned(),
                params: vec![self.boxes(0, shape.x_rows, shape.slices)],
                ahead: Vec::new(),
                made: [0; 2],
            },
            Some(before) => self.made_before(&shape, before)?,
        };
        let ring_bytes = shape.ring_bytes(shared_bytes, left.made.iter().sum());
        let [slot_bytes, most] = shape.slot_bytes(self.columns);
        let of_x = if before.is_some() { 0 } else { shape.slices * shape.x_rows * 128 };
        if ring_bytes < most.max(2 * slot_bytes) + 2 * of_x {
            let (what, then) = match before {
                Some(_) => ("a region before a product", "launch it on its own"),
                None => ("a product", "take a whole ring"),
            };
            return Err(LowerError(format!(
                "{what} of {rows} rows of {} elements, which leave a block {} KiB for weights on \
                 their way; {then}",
                self.depth,
                ring_bytes >> 10
            )));
        }
        let mut text = self.header();
        text.push_str(&defines([
            ("M", shape.rows),
            ("X_ROWS", shape.x_rows),
            ("W_BITS", shape.bits),
            ("PAIRED", u64::from(finish.paired)),
            ("UNITS", if finish.paired { shape.eights / 2 } else { shape.eights }),
            ("SLICES", shape.slices),
            ("K_WARPS", shape.of_k),
            ("TILE_WARPS", shape.of_tiles),
            ("RING_BYTES", ring_bytes),
            ("SUMS_BYTES", shape.sums_bytes()),
            ("MADE_BYTES", left.made[0]),
            ("BLOCKS", if matches!(form, RingForm::Half { .. }) { 2 } else { 1 }),
        ]));
        text.push_str(include_str!("../hopper.cuh"));
        text.push_str(&defines([("RESULTS", finish.results)]));
        text.push_str(&finish.text);
        text.push_str(include_str!("finish.cuh"));
        text.push_str(&left.text);
        let weight = before.map_or(1, |before| before.roles.len() as u32);
        text.push_str(include_str!("ring_copies.cuh"));
        let of_codes = match self.codes {
            Some(codes) => {
                text.push_str(&self.codes_text(codes, WEIGHT_MAPS));
                text.push_str(include_str!("ring_codes.cuh"));
                codes.operands()
            }
            None => {
                text.push_str(&defines([("W_PARAMS", WEIGHT_MAPS), ("W_ARGS", "")]));
                text.push_str(include_str!("ring_floats.cuh"));
                0
            }
        };
        text.push_str(include_str!("ring.cu"));
        let of_w = [8, 16, 32].map(|rows| {
            let boxes = self.boxes_of(1, rows, shape.slices * shape.bits / 16);
            Param::TensorMap(TensorBoxes { arg: weight, ..boxes })
        });
        let of_codes = weight + 1..weight + 1 + of_codes;
        let read = left.params.into_iter().chain(of_w);
        let read = read.chain(of_codes.clone().map(Param::Arg));
        let made_bytes = left.made.iter().sum::<u64>();
        let grid = GridAxis::Persistent { per_multiprocessor: 1 }.alone();
        let threads = (shape.warps() + 1) * 32;
        let params = self.box_params(read, of_codes.end, &finish)?;
        Ok(LaunchRecipe {
            static_shared: 256,
            dynamic_shared: (ring_bytes + ALIGNED + shape.sums_bytes() + made_bytes) as u32,
            ahead: left.ahead.into_iter().chain(weight..of_codes.end).collect(),
            ..LaunchRecipe::own(text, "matmul", grid, threads, params)
        })
    }

    /// The left operand that each block makes for itself.
    fn made_before(&self, shape: &Shape, before: BeforeProduct<'_>) -> Result<Left, LowerError> {
        let BeforeProduct { region, roles } = before;
        self.check_rows(region)?;
        let rows = RowsOfBlock {
            block: shape.warps() * 32,
            rows: shape.x_rows,
            padding: shape.padding(),
            ..ROWS_BEFORE
        };
        let made = AbsorbedBefore::of(region, roles, rows)?;
        let whole = self.depth.is_multiple_of(shape.slices * 64);
        if made.elements != self.depth || made.dtype != self.types[0] || !whole {
            return Err(LowerError(format!(
                "a region before a product that makes rows of {} {}, where whole slots of the {} {} \
                 of its rows are needed; launch it on its own",
                made.elements, made.dtype, self.depth, self.types[0]
            )));
        }
        let names: Vec<String> = (0..made.operands.len()).map(|i| format!("b{i}")).collect();
        let typed = made.operands.iter().zip(&names).map(|(ty, name)| format!("{ty} {name}"));
        let typed = typed.collect::<Vec<_>>().join(", ");
        let text =
            format!("#define X_PARAMS {typed}\n#define X_ARGS {}\n{}", names.join(", "), made.text);
        let weights = (0..).zip(roles).filter(|(_, role)| role.weight);
        Ok(Left {
            text,
            params: (0..roles.len() as u32).map(Param::Arg).collect(),
            ahead: weights.map(|(arg, _)| arg).collect(),
            made: [shape.made_bytes(self.depth), made.shared.next_multiple_of(16)],
        })
    }
}
