//! Row treatment: what an op does with the rows of a symbol's dimension.
//!
//! Padding rows may hold anything. Whether they can reach a real row depends on this alone.

use super::{Op, OpClass};
use crate::entity::Symbol;
use crate::treatment::RowTreatment;
use crate::types::TensorType;

impl Op {
    /// The op on one row of operands and results whose axis 0 are rows, with the same result: its
    /// axes move in by one. `None` if it works along the rows, or has no rows that stand alone
    /// (matmuls, literals, regions, custom ops).
    pub fn on_row(&self) -> Option<Self> {
        let inner = |axis: &usize| axis.checked_sub(1);
        Some(match self {
            Self::Reduce { op, axes } => {
                Self::Reduce { op: *op, axes: axes.iter().map(inner).collect::<Option<_>>()? }
            }
            Self::ArgMax { axis } => Self::ArgMax { axis: inner(axis)? },
            Self::TopK { axis } => Self::TopK { axis: inner(axis)? },
            Self::Slice { axis, start } => Self::Slice { axis: inner(axis)?, start: *start },
            Self::Concat { axis } => Self::Concat { axis: inner(axis)? },
            Self::Iota { axis } => Self::Iota { axis: inner(axis)? },
            Self::Permute { perm } => {
                let (0, rest) = perm.split_first()? else { return None };
                Self::Permute { perm: rest.iter().map(inner).collect::<Option<_>>()? }
            }
            Self::Unary(_)
            | Self::Binary(_)
            | Self::Compare(_)
            | Self::Select
            | Self::Cast
            | Self::Broadcast
            | Self::Reshape
            | Self::Gather
            | Self::Scatter => self.clone(),
            Self::MatMul { .. } | Self::ScaledMatMul { .. } => return None,
            Self::Literal(_) | Self::Region(_) | Self::Custom(_) => return None,
        })
    }
}

/// What `op` does with the rows of `symbol`, given its types.
///
/// A value is indexed by rows where its outermost dimension is `symbol`; a dimension further in,
/// or an expression of it, makes rows mix.
pub fn row_treatment(
    op: &Op,
    operands: &[TensorType],
    results: &[TensorType],
    symbol: Symbol,
) -> RowTreatment {
    use RowTreatment::{Independent, Mixed, SlotMapped};
    let mentioned = operands.iter().chain(results).any(|ty| ty.mentions(symbol));
    if !mentioned {
        return Independent;
    }
    let aligned = |ty: &TensorType| {
        !ty.mentions(symbol)
            || (ty.outer_symbol() == Some(symbol)
                && ty.shape.iter().skip(1).all(|d| !d.mentions(symbol)))
    };
    match op.class() {
        OpClass::Custom(call) => call.rows,
        OpClass::Scatter => {
            let whole = operands[1..].iter().all(|ty| ty.outer_symbol() == Some(symbol));
            if whole && aligned(&operands[1]) && aligned(&operands[2]) { SlotMapped } else { Mixed }
        }
        OpClass::Region(region) => {
            if region.over != symbol || region.params.len() != operands.len() {
                return Mixed;
            }
            let rows_only = region.params.iter().zip(operands).all(|(mode, ty)| match mode {
                crate::region::ParamMode::Row => ty.outer_symbol() == Some(symbol),
                _ => !ty.mentions(symbol),
            });
            match rows_only && results.iter().all(|ty| ty.outer_symbol() == Some(symbol)) {
                false => Mixed,
                true if op.has_effect() => SlotMapped,
                true => Independent,
            }
        }
        OpClass::Gather => {
            // Indices choose rows; a table indexed by the symbol lets any row reach any other.
            let table_is_free = !operands[0].mentions(symbol);
            if table_is_free && aligned(&operands[1]) { Independent } else { Mixed }
        }
        _ if !operands.iter().chain(results).all(aligned) => Mixed,
        OpClass::Product { transpose_lhs } => {
            let (lhs, rhs) = (&operands[0], &operands[1]);
            let batched = lhs.rank() > 2;
            let lhs_rows = lhs.outer_symbol() == Some(symbol) && (batched || !transpose_lhs);
            let rhs_rows = rhs.mentions(symbol);
            if lhs_rows && (!rhs_rows || (batched && rhs.rank() == lhs.rank())) {
                Independent
            } else {
                Mixed
            }
        }
        OpClass::Remap | OpClass::Reduction | OpClass::Search if op.on_row().is_none() => Mixed,
        OpClass::Remap if matches!(op, Op::Reshape) => {
            let both = operands[0].outer_symbol() == Some(symbol)
                && results[0].outer_symbol() == Some(symbol);
            if both { Independent } else { Mixed }
        }
        OpClass::Elementwise | OpClass::Remap | OpClass::Reduction => Independent,
        OpClass::Search | OpClass::Constant => Independent,
    }
}
