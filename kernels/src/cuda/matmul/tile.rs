//! Products of many rows on Hopper, alone and with the region after them.

use super::finish::Finish;
use super::{AfterProduct, MatMulSpec, storage};
use crate::cuda::text::defines;
use crate::cuda::wgmma::{Lhs, multiply_add_tile};
use crate::lower::LowerError;
use crate::op::cuda::{GridAxis, LaunchRecipe, Param, TensorBoxes};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use std::fmt::Write;

/// Rows of x of a tile; the kernel chooses among them by the true rows.
const HEIGHTS: [u64; 7] = [256, 224, 208, 192, 176, 160, 112];
/// The ring of slices in shared memory, what is finished, and what aligns them.
const SHARED_BYTES: u32 = (224 << 10) + 1024;
/// Rows of a box of a result.
const RESULT_ROWS: u32 = 16;
/// Two warpgroups that multiply, and one of which a warp copies and the others finish.
const THREADS: u32 = 384;
/// Neighbours that copy for each other.
const CLUSTER: u32 = 2;
/// Steps of k of a tile from which three warps finish another meanwhile: with 16 and 18 steps products
/// took 1 and 2% longer so.
const LONG_STEPS: u32 = 32;
/// Rows of w that are copied at a time.
const LINES: u64 = 64;

impl MatMulSpec {
    /// Whether [`Self::tile_kernel`] takes it: x, w and y are of one 16-bit dtype, w is a weight
    /// `[n, k]`, and rows of all three are a multiple of 16 bytes.
    pub fn multiplies_in_tiles(&self) -> bool {
        self.types[2] == self.types[0] && self.is_read_in_boxes()
    }

    /// Whether x and w are of one 16-bit dtype, w is a weight `[n, k]`, and rows of all three are a
    /// multiple of 16 bytes.
    pub(super) fn is_read_in_boxes(&self) -> bool {
        let [x, w, _] = self.types;
        x == w
            && matches!(x, DType::BF16 | DType::F16)
            && self.of_weight
            && self.column_major
            && self.depth > 0
            && self.depth.is_multiple_of(8)
            && self.columns.is_multiple_of(8)
    }

    /// What becomes of the product's elements.
    ///
    /// # Errors
    /// When the region is no map of them or of pairs half a row apart.
    pub(super) fn finish(&self, after: Option<AfterProduct<'_>>) -> Result<Finish, LowerError> {
        let Some(after) = after else { return Ok(Finish::store(self.types[2])) };
        self.check_rows(after.region)?;
        Finish::of(after.region, after.product, self.columns)
    }

    /// A map of x (argument 0) or w (1), of which a box has so many rows and slices.
    pub(super) fn boxes(&self, arg: u32, box_rows: u64, box_slices: u64) -> Param {
        Param::TensorMap(self.boxes_of(arg, box_rows, box_slices))
    }

    /// The same, not as a parameter yet.
    pub(super) fn boxes_of(&self, arg: u32, box_rows: u64, box_slices: u64) -> TensorBoxes {
        let rows = if arg == 0 { self.rows.clone() } else { Dim::constant(self.columns) };
        let (box_rows, box_slices) = (box_rows as u32, box_slices as u32);
        // Boxes of codes are of as many elements of 16 bits as they are long.
        let (dtype, columns) = match self.codes {
            Some(codes) if arg == 1 => (DType::BF16, self.depth * codes.dtype.bits() / 16),
            _ => (self.types[arg as usize], self.depth),
        };
        TensorBoxes { arg, dtype, rows, columns, box_rows, box_slices }
    }

    /// The parameters of a kernel that copies boxes: what it copies or reads x and w by, what the
    /// finish takes, which is its arguments from `first` on, counts and sizes.
    pub(super) fn box_params(
        &self,
        read: impl IntoIterator<Item = Param>,
        first: u32,
        finish: &Finish,
    ) -> Result<Vec<Param>, LowerError> {
        let arguments = (first..).take(finish.arguments()).map(Param::Arg);
        let rest = self.row_params()?.into_iter().filter(|p| !matches!(p, Param::Arg(_)));
        Ok(read.into_iter().chain(arguments).chain(rest).collect())
    }

    /// The kernel of compute capability 9.0 whose work follows from the true rows: the same for
    /// all sizes and shapes, with the region after the product in it, if there is one. Sums are of
    /// `f32` in the order of k. Arguments: x; w; y, or the operands of the region other than the
    /// product, then its results.
    ///
    /// # Errors
    /// When [`Self::multiplies_in_tiles`] is false, or the region is no map of the product's
    /// elements or of pairs of them half a row apart.
    pub fn tile_kernel(&self, after: Option<AfterProduct<'_>>) -> Result<LaunchRecipe, LowerError> {
        if !self.multiplies_in_tiles() {
            return Err(LowerError(
                "a product in tiles is of one 16-bit dtype, with weights [n, k] and rows of a \
                 multiple of 16 bytes; take the general one"
                    .to_owned(),
            ));
        }
        let finish = self.finish(after)?;
        let mut text = self.header();
        // Side by side the last block would be idle.
        let stacks = !self.columns.div_ceil(2 * LINES).is_multiple_of(u64::from(CLUSTER));
        let [stacks, paired] = [stacks, finish.paired].map(u32::from);
        text.push_str(&defines([
            ("CLUSTER", CLUSTER),
            ("STACKS", stacks),
            ("PAIRED", paired),
            ("LONG_STEPS", LONG_STEPS),
            ("W_MADE", u32::from(self.w_is_made())),
        ]));
        // Boxes are of elements of 16 bits.
        let boxes = if finish.dtype.size() == 2 { finish.results as u32 } else { 0 };
        let each = |text: &dyn Fn(u32) -> String| (0..boxes).map(text).collect::<String>();
        text.push_str(&defines([
            ("RESULTS", finish.results.to_string()),
            ("STORES", u8::from(finish.stores).to_string()),
            ("BOXED", u8::from(boxes > 0).to_string()),
            ("BOX_ROWS", RESULT_ROWS.to_string()),
            ("EACH_RESULT(DO)", each(&|i| format!("DO({i}) "))),
            ("RESULT_MAPS", each(&|i| format!("const TensorMap& y{i}, "))),
            ("RESULT_ARGS", each(&|i| format!("y{i}, "))),
        ]));
        let heights = HEIGHTS.map(|height| format!("DO({height})"));
        let of_x = HEIGHTS.map(|height| format!("x{height}"));
        let names = of_x.into_iter().chain(["w".to_owned()]);
        let names = names.chain((0..boxes).map(|i| format!("y{i}")));
        let maps: Vec<String> =
            names.map(|name| format!("const __grid_constant__ TensorMap {name}")).collect();
        let _ = writeln!(text, "#define EACH_HEIGHT(DO) {}", heights.join(" "));
        let _ = writeln!(text, "#define MAPS {}\n", maps.join(", "));
        text.push_str(include_str!("../hopper.cuh"));
        for height in HEIGHTS {
            text.push_str(&multiply_add_tile(storage(self.types[0]), height, Lhs::Shared));
        }
        text.push_str(&finish.text);
        text.push_str(include_str!("finish.cuh"));
        text.push_str(include_str!("tile.cu"));
        let of_x = HEIGHTS.map(|height| self.boxes(0, height / u64::from(CLUSTER), 1));
        let results = (0..boxes).map(|i| {
            Param::TensorMap(TensorBoxes {
                arg: self.places[1] + finish.operands as u32 + i,
                dtype: finish.dtype,
                rows: self.rows.clone(),
                columns: self.columns / finish.results as u64 / (1 + u64::from(finish.paired)),
                box_rows: RESULT_ROWS,
                box_slices: 1,
            })
        });
        let [w, _] = self.places;
        let of_w = Param::TensorMap(TensorBoxes { arg: w, ..self.boxes_of(1, LINES, 1) });
        let maps = of_x.into_iter().chain([of_w]).chain(results);
        let grid = GridAxis::Persistent { per_multiprocessor: 1 }.alone();
        let params = self.box_params(maps, self.places[1], &finish)?;
        Ok(LaunchRecipe {
            cluster: [CLUSTER, 1, 1],
            static_shared: 160,
            dynamic_shared: SHARED_BYTES,
            ahead: if self.w_is_made() { Vec::new() } else { vec![1] },
            ..LaunchRecipe::own(text, "matmul", grid, u64::from(THREADS), params)
        })
    }
}
