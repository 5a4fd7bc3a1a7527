//! Weight-streaming products of few rows, alone and with the regions beside them.

use super::{MatMulSpec, STREAM_ROWS, storage};
use crate::cuda::region::{AbsorbedBefore, OfThread, RowsOfBlock};
use crate::cuda::text::defines;
use crate::lower::LowerError;
use crate::op::cuda::{GridAxis, LaunchRecipe, OperandRole, Param};
use piecewise_ir::dim::Dim;
use piecewise_ir::region::Region;
use std::fmt::Write;

/// Shared memory for the left operand: what every architecture gives to one block of two.
const STAGED_BYTES: u64 = 96 << 10;
/// 16-byte loads of a lane in flight.
const LOADS: u64 = 16;
/// Registers of a lane for x.
const KEPT_REGISTERS: u64 = 24;
/// What weights leave to the rows that a block makes.
const ROWS_BESIDE_WEIGHTS: RowsOfBlock =
    RowsOfBlock { block: 256, rows: 1, padding: 0, kept: 16, registers: 32 };
/// They share rows of w, and sum through shared memory.
const WARPS_OF_BLOCK: u64 = 8;
/// Those of the device that one row is measured on; on others blocks get uneven shares.
const MULTIPROCESSORS: u64 = 132;
/// Bytes of w from which on blocks come in two waves, so that all end at about the same time.
const LONG_BYTES: u64 = 128 << 20;
/// Warps that run at once on a device of 108 multiprocessors: few columns are spread over so many.
const WARPS: u64 = 108 * 16;

/// A region whose one result is the left operand of a product.
#[derive(Clone, Copy, Debug)]
pub struct BeforeProduct<'a> {
    /// Computes x, a row at a time.
    pub region: &'a Region,
    /// What each of its operands is.
    pub roles: &'a [OperandRole],
}

/// A region whose results are elements computed from the same element of a product.
#[derive(Clone, Copy, Debug)]
pub struct AfterProduct<'a> {
    /// Maps what the product gives, element by element.
    pub region: &'a Region,
    /// What each of its operands is.
    pub roles: &'a [OperandRole],
    /// The position of the product among them.
    pub product: usize,
}

/// The sizes that the text of a kernel is made for.
#[derive(Default)]
struct Shape {
    /// Rows of x.
    at_once: u64,
    /// Rows of w that a warp takes together.
    weight_rows: u64,
    /// 16-byte loads of a lane in each of them.
    in_row: u64,
    /// Warps that share a row of w.
    split: u64,
    /// Whether a lane keeps its part of x in registers.
    kept: bool,
    /// Blocks for each multiprocessor, of which two at a time fit.
    per_multiprocessor: u64,
    /// Bytes of the rows in shared memory.
    staged: u64,
}

impl MatMulSpec {
    /// Whether [`Self::stream_kernel`] takes it, for up to [`STREAM_ROWS`] rows: w is a weight
    /// `[n, k]`, and its rows and those of x are a multiple of 16 bytes.
    pub fn streams(&self) -> bool {
        let aligned = |dtype: piecewise_ir::dtype::DType| {
            (self.depth * dtype.size() as u64).is_multiple_of(16)
        };
        self.codes.is_none()
            && self.of_weight
            && self.column_major
            && self.depth > 0
            && aligned(self.types[0])
            && aligned(self.types[1])
            && self.depth.is_multiple_of(8)
    }

    /// The kernel that reads each weight once, for sizes of up to `rows` rows. Arguments: x, w, y.
    ///
    /// # Errors
    /// When it does not stream, or `rows` is 0 or above [`STREAM_ROWS`].
    pub fn stream_kernel(&self, rows: u64) -> Result<LaunchRecipe, LowerError> {
        self.absorbing_kernel(rows, None, None)
    }

    /// The streaming kernel with the regions beside the product in it. Arguments: x, or the
    /// operands of the region before; w; y, or the operands of the region after other than the
    /// product, then its results. Neither x nor y is in memory where a region takes its place.
    ///
    /// # Errors
    /// When it does not stream, `rows` is 0 or above [`STREAM_ROWS`], the rows of x do not fit
    /// shared memory, or a region is none that a block computes beside the product: its rows are
    /// not those of the product, or it is no map of the product's elements.
    pub fn absorbing_kernel(
        &self,
        rows: u64,
        before: Option<BeforeProduct<'_>>,
        after: Option<AfterProduct<'_>>,
    ) -> Result<LaunchRecipe, LowerError> {
        if !self.streams() || !(1..=STREAM_ROWS).contains(&rows) {
            return Err(LowerError(format!(
                "{rows} rows for the streaming matmul, which takes up to {STREAM_ROWS} and weights \
                 [n, k] of 16-byte rows; take the general one"
            )));
        }
        let parts = after.map_or(1, |after| self.parts(after.region));
        let shape = self.shape(rows, before.is_some(), parts)?;
        let mut text = self.header();
        text += &defines([
            ("M", shape.at_once),
            ("R", shape.weight_rows),
            ("J", shape.in_row),
            ("SPLIT", shape.split),
            ("KEEP", u64::from(shape.kept)),
            ("STAGED", u64::from(shape.staged > 0)),
            ("COLUMNS", self.columns),
            ("PARTS", parts),
            ("DEPTH", self.depth),
        ]);
        let mut params = Params::default();
        let mut ahead = Vec::new();
        let mut shared = shape.staged;
        match before {
            None => params.push(format!("const {}*", storage(self.types[0])), "x"),
            Some(before) => {
                self.check_rows(before.region)?;
                let rows = RowsOfBlock { rows: shape.at_once, ..ROWS_BESIDE_WEIGHTS };
                let made = AbsorbedBefore::of(before.region, before.roles, rows)?;
                let fits = made.elements == self.depth && made.dtype == self.types[0];
                shared = shape.staged.next_multiple_of(16) + made.shared;
                if !fits || shape.staged == 0 || shared > STAGED_BYTES {
                    return Err(LowerError(format!(
                        "a region before a product that makes rows of {} {}, of {} bytes with what \
                         it works in, where {} {} and {STAGED_BYTES} bytes are needed",
                        made.elements, made.dtype, shared, self.depth, self.types[0]
                    )));
                }
                params.list("BEFORE", "b", made.operands, &mut text);
                ahead.extend(made.ahead);
                text += &defines([("POOL", shape.staged.next_multiple_of(16))]);
                let _ = write!(text, "\n{}", made.text);
            }
        }
        ahead.push(params.0.len() as u32);
        params.push(format!("const {}*", storage(self.types[1])), "w");
        match after {
            None => params.push(format!("{}*", storage(self.types[2])), "y"),
            Some(after) => {
                self.check_rows(after.region)?;
                let AfterProduct { region, roles, product } = after;
                let made = OfThread::after(region, roles, product, [self.columns, parts])?;
                params.list("AFTER", "a", made.arguments, &mut text);
                let _ = write!(text, "\n{}", made.text);
            }
        }
        let _ =
            write!(text, "\n#define PARAMETERS {}\n{}", params.text(), include_str!("stream.cu"));
        let arguments = params.0.len() as u32;
        let rows = Param::size(self.rows.clone());
        let rest = [Param::Counts, rows].into_iter().chain(self.real()?.map(Param::size));
        let per_multiprocessor = shape.per_multiprocessor as u32;
        let grid = GridAxis::Persistent { per_multiprocessor }.alone();
        let params = (0..arguments).map(Param::Arg).chain(rest).collect();
        let launch = LaunchRecipe::own(text, "matmul", grid, 256, params);
        Ok(LaunchRecipe { dynamic_shared: shared as u32, ahead, ..launch })
    }

    /// Equal ranges of the product's columns of each of which the results of a region have an
    /// element; 1 where that is no whole number.
    fn parts(&self, region: &Region) -> u64 {
        let results = region.body.outputs().first();
        let elements = results.and_then(|&result| region.body.ty(result).static_elements());
        let elements = elements.filter(|&n| n > 0 && self.columns.is_multiple_of(n));
        elements.map_or(1, |elements| self.columns / elements)
    }

    /// The shape whose units have rows of w in each of so many ranges of them.
    fn shape(&self, rows: u64, before: bool, parts: u64) -> Result<Shape, LowerError> {
        let shape = self.shape_of_rows(rows, before);
        if parts <= shape.weight_rows && parts.is_power_of_two() {
            return Ok(shape);
        }
        if !parts.is_power_of_two() || parts * shape.at_once > 32 || parts > LOADS {
            return Err(LowerError(format!(
                "a region after a product of {rows} rows that takes {parts} parts of its columns \
                 together; launch it on its own"
            )));
        }
        let in_row = shape.in_row.min(LOADS / parts);
        let kept = shape.kept && in_row == shape.in_row;
        Ok(Shape { weight_rows: parts, in_row, kept, ..shape })
    }

    fn shape_of_rows(&self, rows: u64, before: bool) -> Shape {
        let at_once = rows.next_power_of_two();
        // 16-byte pieces of a row of w for each lane of a warp.
        let per_lane = (self.depth * self.types[1].size() as u64 / 16).div_ceil(32);
        let bytes = at_once * self.depth * self.types[0].size() as u64;
        let staged = if bytes <= STAGED_BYTES { bytes } else { 0 };
        if at_once == 1 {
            let shape = self.one_row(per_lane);
            return if shape.kept && !before { shape } else { Shape { staged, ..shape } };
        }
        // More than one row of w must share what is read of x.
        let in_row = per_lane.next_power_of_two().min(8);
        let mut weight_rows = (LOADS / in_row).min(if at_once > 2 { 2 } else { 4 });
        while weight_rows > 1 && self.columns.div_ceil(weight_rows / 2) <= WARPS {
            weight_rows /= 2;
        }
        let plain = Shape { split: 1, kept: false, per_multiprocessor: 2, ..Shape::default() };
        Shape { at_once, weight_rows, in_row, staged, ..plain }
    }

    /// For one row of x: warps share a row of w, so that each has few pieces of many rows on the
    /// way and keeps its pieces of x in registers. As measured in the steps of three models on an
    /// H100.
    fn one_row(&self, per_lane: u64) -> Shape {
        let split = if per_lane > 8 { WARPS_OF_BLOCK } else { per_lane.next_power_of_two().min(4) };
        let in_row = per_lane.div_ceil(split).min(LOADS);
        let weight_rows = (LOADS / in_row).min(8);
        let weight_rows = 1 << weight_rows.ilog2();
        let units = self.columns.div_ceil(weight_rows);
        let at_once = MULTIPROCESSORS * (WARPS_OF_BLOCK / split);
        let registers = in_row * 4 * self.types[0].size() as u64 / self.types[1].size() as u64;
        let shape = Shape {
            at_once: 1,
            weight_rows,
            in_row,
            split,
            kept: in_row * split >= per_lane && registers <= KEPT_REGISTERS,
            per_multiprocessor: 2,
            staged: 0,
        };
        let weight_bytes = self.columns * self.depth * self.types[1].size() as u64;
        if units <= at_once {
            // All of w is under way at once: another kernel has the other half of a multiprocessor.
            Shape { per_multiprocessor: 1, ..shape }
        } else if per_lane <= 4 && units > 2 * at_once {
            // Rows so short that to share them costs more than a warp of their own.
            let weight_rows = (LOADS / 2 / per_lane).min(8);
            Shape { weight_rows: 1 << weight_rows.ilog2(), in_row: per_lane, split: 1, ..shape }
        } else if weight_bytes >= LONG_BYTES {
            Shape { per_multiprocessor: 4, ..shape }
        } else {
            shape
        }
    }

    /// That a region iterates over the product's rows.
    pub(super) fn check_rows(&self, region: &Region) -> Result<(), LowerError> {
        match self.rows == Dim::from(region.over) {
            true => Ok(()),
            false => Err(LowerError(
                "a region beside a product of other rows; launch it on its own".to_owned(),
            )),
        }
    }
}

/// Parameters of the kernel's arguments: type and name.
#[derive(Default)]
struct Params(Vec<(String, String)>);

impl Params {
    fn push(&mut self, ty: String, name: &str) {
        self.0.push((ty, name.to_owned()));
    }

    /// Parameters of a region, which the kernel's text gives to it by the name `macro_name`.
    fn list(&mut self, macro_name: &str, prefix: &str, types: Vec<String>, text: &mut String) {
        let names: Vec<String> = (0..types.len()).map(|i| format!("{prefix}{i}")).collect();
        let _ = writeln!(text, "#define {macro_name} {}", names.join(", "));
        self.0.extend(types.into_iter().zip(names));
    }

    fn text(&self) -> String {
        let params: Vec<String> = self.0.iter().map(|(ty, name)| format!("{ty} {name}")).collect();
        params.join(", ")
    }
}
