//! Rows that a block reads whole.

use super::argument::{Argument, columns, names};
use super::{BesideOp, Place};
use crate::cuda::region::AbsorbedBefore;
use crate::cuda::text::storage;
use crate::lower::{LowerError, fail};
use crate::op::cuda::LaunchRecipe;

/// Shared memory of a launch with rows in it: what every architecture gives to one block of two.
const SHARED_BYTES: u64 = 96 << 10;

impl Argument {
    /// `PW_ROWS_N` of an operand: `row` gives the address of a row. Where a block computes it, it
    /// lies behind `shared` bytes of the launch's shared memory.
    ///
    /// # Errors
    /// When it is a result or has no rows, or the region in its place makes no rows of operands alone,
    /// of so many bytes that they fit.
    pub(super) fn rows(
        place: &Place<'_>,
        launch: &LaunchRecipe,
        shared: u32,
    ) -> Result<Self, LowerError> {
        let Place { position, ty, .. } = *place;
        if !place.is_operand {
            return fail(format!(
                "`{}` has argument {position} row by row, which is a result; store its elements",
                launch.entry
            ));
        }
        let (columns, stored) = (columns(position, ty)?, storage(ty.dtype));
        let Some(BesideOp { region, roles, .. }) = place.region else {
            let members = format!(
                "  DEVICE const {stored}* row(u32 row) const {{ return a0 + (u64)row * {columns}ull; }}\n"
            );
            let pointer = format!("const {stored}*");
            return Ok(Self::of(position, "ROWS", "", vec![pointer], false, &members));
        };
        let [x, y, z] = launch.block;
        if (y, z) != (1, 1) {
            return fail(format!(
                "`{}` has blocks of {x} x {y} x {z} threads; those that make rows lie along x alone",
                launch.entry
            ));
        }
        let made = AbsorbedBefore::row_of(region, roles, u64::from(x))?;
        let begin = u64::from(shared).next_multiple_of(16);
        let row = (made.elements * made.dtype.size() as u64).next_multiple_of(16);
        let end = begin + row + made.shared;
        if end > SHARED_BYTES {
            return fail(format!(
                "`{}` needs {end} bytes of shared memory with the rows of argument {position}, of \
                 {SHARED_BYTES}; a region can't take its place",
                launch.entry
            ));
        }
        let list = names(&made.operands);
        let members = format!(
            "  DEVICE const {stored}* row(u32 row) const {{\n    \
             extern __shared__ Bytes16 staged[];\n    \
             u8* const made = (u8*)staged + {begin};\n    \
             Before before;\n    \
             before.ahead({list}({stored}*)made);\n    \
             // What the block read of the row before is read, and what it worked in.\n    \
             __syncthreads();\n    \
             before.row({list}({stored}*)made, counts, row, made + {row});\n    \
             __syncthreads();\n    \
             return (const {stored}*)made;\n  }}\n"
        );
        let argument = Self::of(position, "ROWS", &made.text, made.operands, true, &members);
        Ok(Self { shared: (end - u64::from(shared)) as u32, ..argument })
    }
}
