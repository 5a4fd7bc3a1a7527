//! Elements that a thread loads or stores one by one.

use super::argument::{Argument, columns, names};
use super::{BesideOp, Place};
use crate::cuda::region::OfThread;
use crate::cuda::text::{lane, storage};
use crate::lower::LowerError;
use piecewise_ir::types::TensorType;

impl Argument {
    /// `PW_ELEMENTS_N` of an operand, which has `load`, or of a result, which has `store`.
    ///
    /// # Errors
    /// When it has no rows, or a thread does not compute the elements of the region in its place by
    /// itself.
    pub(super) fn elements(place: &Place<'_>) -> Result<Self, LowerError> {
        match (place.region, place.is_operand) {
            (Some(region), _) => Self::made(region, place.ty),
            (None, true) => Self::loaded(place.position, place.ty),
            (None, false) => Self::stored(place.position, place.ty),
        }
    }

    /// Those of an operand in memory.
    fn loaded(position: usize, ty: &TensorType) -> Result<Self, LowerError> {
        let (columns, lane) = (columns(position, ty)?, lane(ty.dtype));
        let (stored, piece) = (storage(ty.dtype), piece(ty, columns));
        let members = format!(
            "  DEVICE {lane} load(u32 row, u32 column) const {{ return widen(a0[(u64)row * {columns}ull + column]); }}\n  \
             template <int W> DEVICE void load(u32 row, u32 column, {lane} (&to)[W]) const {{\n    \
             Pack<{stored}, W> from;\n    \
             ::load<{piece}>(from, a0 + (u64)row * {columns}ull + column);\n    \
             for (int v = 0; v < W; ++v) to[v] = widen(from.at[v]);\n  }}\n"
        );
        let pointer = format!("const {stored}*");
        Ok(Self::of(position, "ELEMENTS", "", vec![pointer], false, &members))
    }

    /// Those of a result in memory.
    fn stored(position: usize, ty: &TensorType) -> Result<Self, LowerError> {
        let (columns, lane) = (columns(position, ty)?, lane(ty.dtype));
        let (stored, piece) = (storage(ty.dtype), piece(ty, columns));
        let members = format!(
            "  DEVICE void store(u32 row, u32 column, {lane} value) const {{ narrow(a0[(u64)row * {columns}ull + column], value); }}\n  \
             template <int W> DEVICE void store(u32 row, u32 column, const {lane} (&from)[W]) const {{\n    \
             Pack<{stored}, W> to;\n    \
             for (int v = 0; v < W; ++v) narrow(to.at[v], from[v]);\n    \
             ::store<{piece}>(a0 + (u64)row * {columns}ull + column, to);\n  }}\n"
        );
        let pointer = format!("{stored}*");
        Ok(Self::of(position, "ELEMENTS", "", vec![pointer], false, &members))
    }

    /// Those of an argument whose place a region takes.
    fn made(beside: &BesideOp<'_>, ty: &TensorType) -> Result<Self, LowerError> {
        let BesideOp { position, region, roles, result } = *beside;
        let columns = columns(position, ty)?;
        let (stored, lane) = (storage(ty.dtype), lane(ty.dtype));
        match result {
            None => {
                let OfThread { text, arguments } = OfThread::before(region, roles)?;
                let members = format!(
                    "  DEVICE {lane} load(u32 row, u32 column) const {{\n    Before before;\n    \
                     return before.load({}counts, row, column);\n  }}\n  \
                     template <int W> DEVICE void load(u32 row, u32 column, {lane} (&to)[W]) const {{\n    \
                     for (int v = 0; v < W; ++v) to[v] = load(row, column + v);\n  }}\n",
                    names(&arguments)
                );
                Ok(Self::of(position, "ELEMENTS", &text, arguments, true, &members))
            }
            Some(product) => {
                let OfThread { text, arguments } =
                    OfThread::after(region, roles, product, [columns, 1])?;
                let list = names(&arguments);
                let members = format!(
                    "  DEVICE void store(u32 row, u32 column, {lane} value) const {{\n    After after;\n    \
                     after.ahead({list}row, column);\n    {stored} rounded;\n    \
                     narrow(rounded, value);\n    \
                     after.store({list}counts, row, column, widen(rounded));\n  }}\n  \
                     template <int W> DEVICE void store(u32 row, u32 column, const {lane} (&from)[W]) const {{\n    \
                     for (int v = 0; v < W; ++v) store(row, column + v, from[v]);\n  }}\n"
                );
                Ok(Self::of(position, "ELEMENTS", &text, arguments, true, &members))
            }
        }
    }
}

/// Bytes that move at once of `W` neighbours, a power of two, from a column on that is a multiple of
/// it: an expression of `W`.
fn piece(ty: &TensorType, columns: u64) -> String {
    let size = ty.dtype.size();
    format!("({columns} % W != 0 ? {size} : W * {size} < 16 ? W * {size} : 16)")
}
