//! Products of rows with narrow codes and their scales.

use super::stream::AfterProduct;
use super::{Codes, MatMulSpec};
use crate::cuda::text::{defines, storage};
use crate::lower::LowerError;
use crate::op::cuda::{GridAxis, LaunchRecipe, OpKernels, Param};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::op::{Op, check_types};
use piecewise_ir::types::TensorType;

impl Codes {
    /// Operands beside the codes.
    pub(super) fn operands(self) -> u32 {
        1 + u32::from(self.zeros)
    }

    /// What goes before a text that reads them one by one.
    fn text(self) -> String {
        let Self { dtype, scales, zeros, .. } = self;
        let values = [("CODE_BITS", dtype.bits()), ("HAS_ZEROS", u64::from(zeros))];
        let [scales, values] = [format!("typedef {} S;\n", storage(scales)), defines(values)];
        scales + &values + "\n" + include_str!("codes.cuh")
    }
}

impl MatMulSpec {
    /// The product of rows with codes: operands are rows, codes, scales, and zeros if there are any.
    ///
    /// # Errors
    /// When the types do not make a product, or an axis other than the outermost of x is symbolic.
    pub fn scaled(
        block: [u64; 2],
        operands: &[TensorType],
        out: &TensorType,
    ) -> Result<Self, LowerError> {
        check_types(&Op::ScaledMatMul { block }, operands, std::slice::from_ref(out))
            .map_err(|e| LowerError(e.to_string()))?;
        let [x, w, scales, ..] = operands else {
            return Err(LowerError("a product with scales has rows, codes and scales".to_owned()));
        };
        let floats = Self::new(false, true, x, &w.with_dtype(DType::F32), out)?;
        let (dtype, scales, zeros) = (w.dtype, scales.dtype, operands.len() > 3);
        let codes = Some(Codes { dtype, scales, block, zeros });
        Ok(Self { types: [x.dtype, dtype, out.dtype], codes, ..floats })
    }

    /// Whether w is of codes.
    pub fn has_codes(&self) -> bool {
        self.codes.is_some()
    }

    /// Whether w is of codes that copies of boxes bring in whole, with scales for as many of them as a
    /// lane widens at a time, or for all of a row.
    pub(super) fn has_codes_in_boxes(&self) -> bool {
        self.codes.is_some_and(|Codes { dtype, block: [_, group], zeros, .. }| {
            let of_box = 128 * 8 / dtype.bits();
            matches!(self.types[0], DType::BF16 | DType::F16)
                && self.of_weight
                && self.column_major
                && self.depth > 0
                && self.depth.is_multiple_of(of_box)
                && self.columns.is_multiple_of(8)
                && !(zeros && dtype == DType::E4M3)
                && (group >= self.depth || group.is_multiple_of(of_box / 8))
        })
    }

    /// What a kernel that has boxes of codes, by parameters `maps`, is told of them: a block of all rows
    /// is longer than any.
    pub(super) fn codes_text(&self, codes: Codes, maps: &str) -> String {
        let Codes { scales, block: [rows, group], zeros, .. } = codes;
        let rows = if rows >= self.columns { 1 << 31 } else { rows };
        let group = if group >= self.depth { 0 } else { group };
        let zeros_at = if zeros { [", const u8* zeros_at", "zeros_at"] } else { ["", "nullptr"] };
        format!(
            "typedef {} S;\n{}#define W_PARAMS {maps}, const S* scales_at{}\n\
             #define W_ARGS , scales_at, {}\n",
            storage(scales),
            defines([
                ("BLOCK_ROWS", format!("{rows}u")),
                ("GROUP", group.to_string()),
                ("HAS_ZEROS", u8::from(zeros).to_string()),
            ]),
            zeros_at[0],
            zeros_at[1],
        )
    }

    /// Kernels of compute capability 9.0 for many rows: one widens the codes, the other multiplies by
    /// what is made as [`Self::tile_kernel`] does, in scratch that is argument `arguments`.
    ///
    /// # Errors
    /// When w is of no codes, or [`Self::tile_kernel`] does not take what is made of them.
    pub fn widened_kernels(
        &self,
        after: Option<AfterProduct<'_>>,
        arguments: u32,
    ) -> Result<OpKernels, LowerError> {
        let floats = self.widened(arguments)?;
        let launches = vec![self.widening_kernel()?, floats.tile_kernel(after)?];
        let scratch = Dim::constant(self.columns * self.depth * 2);
        Ok(OpKernels { launches, scratch })
    }

    /// The product by what is made of the codes, which is argument `at`.
    fn widened(&self, at: u32) -> Result<Self, LowerError> {
        let [x, _, y] = self.types;
        let places = [at, 2 + self.codes()?.operands()];
        Ok(Self { types: [x, x, y], codes: None, places, ..self.clone() })
    }

    /// Whether [`Self::widened_kernels`] takes it.
    pub fn widens_into_tiles(&self) -> bool {
        self.widened(u32::MAX).is_ok_and(|floats| floats.multiplies_in_tiles())
    }

    fn codes(&self) -> Result<Codes, LowerError> {
        self.codes.ok_or_else(|| LowerError("a product by floats where codes are due".to_owned()))
    }

    fn widening_kernel(&self) -> Result<LaunchRecipe, LowerError> {
        let codes = self.codes()?;
        let arguments = (1..2 + codes.operands()).map(Param::Arg).chain([Param::Scratch(0)]);
        let sizes = [self.columns, self.depth].into_iter().chain(codes.block).map(Param::size);
        let source = self.header() + &codes.text() + include_str!("widen.cu");
        let grid = GridAxis::of(self.columns * self.depth / 8, 256).alone();
        Ok(LaunchRecipe::own(source, "widen_codes", grid, 256, arguments.chain(sizes).collect()))
    }

    /// The kernel of a product with scales for any rows and blocks: right, and far from the rate that
    /// memory gives.
    pub(super) fn general_kernel_of_codes(&self, codes: Codes) -> Result<LaunchRecipe, LowerError> {
        let arguments = (0..codes.operands() + 3).map(Param::Arg).chain([Param::Counts]);
        let sizes = [self.columns, self.depth].into_iter().chain(self.real()?);
        let sizes = sizes.chain(codes.block);
        let rows = Param::size(self.rows.clone());
        let params = arguments.chain([rows]).chain(sizes.map(Param::size)).collect();
        let source = self.header() + &codes.text() + include_str!("scaled.cu");
        let grid =
            [GridAxis::of(self.columns, 64), GridAxis::of(self.rows.clone(), 64), GridAxis::one()];
        let launch = LaunchRecipe::own(source, "scaled_matmul", grid, 256, params);
        Ok(LaunchRecipe { static_shared: 2 * 16 * 68 * 4, ..launch })
    }
}
