//! Paged attention: its definition as a custom op.

mod cpu;
mod cuda;
mod inputs;
pub(crate) mod packed;
pub(crate) mod reference;

pub use crate::inputs::PAGE_ROWS;
pub use cuda::{attention_kernels, other_attention_kernels};

use crate::inputs::StepInput;
use crate::op::ScoreSpec;
use piecewise_ir::custom::{Attr, Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;

/// Attention of the step's rows over each sequence's keys and values in a paged pool.
///
/// Operands: `q [T, heads, dim]`; the states `k [P, kv_heads, dim]` and `v [P, kv_heads, vdim]`
/// of any float dtype, a row a token; `block_table i32 [S, B]`, the pages of each sequence in
/// order; `kv_lengths i32 [S]`, its keys, this step's among them; `query_starts i32 [S]` and
/// `query_lengths i32 [S]`, its rows of `q`. Result: `[T, heads * vdim]` of q's dtype. Attributes:
/// `scale`, a float, times each score; `causal`, whether row `j` of `n` sees only the first
/// `length - n + j + 1` keys. `heads` is a multiple of `kv_heads`; a key-value head serves that
/// many neighbouring heads. A sequence of length 0 has no rows; rows that no sequence has are
/// padding and stay unwritten. Of the states a step writes the keys and values of its own tokens
/// alone, the last `query_lengths` of each sequence, at slots among its inputs: those before them
/// may be read before the kernels ahead are done.
#[derive(Clone, Copy, Debug, Default)]
pub struct PagedAttention;

impl PagedAttention {
    /// What graphs call it.
    pub const NAME: &'static str = "piecewise.paged_attention";

    /// What it is told of each step: rows to write and to read, and lengths.
    pub fn inputs() -> [StepInput; 5] {
        inputs::inputs()
    }

    pub(crate) fn spec(attrs: &Attrs) -> Result<ScoreSpec, String> {
        match (attrs.get("scale"), attrs.get("causal")) {
            (Some(&Attr::Float(scale)), Some(&Attr::Bool(causal))) if scale.is_finite() => {
                Ok(ScoreSpec { scale, causal, window: None })
            }
            _ => Err("needs the attributes scale (a finite float) and causal (bool)".to_owned()),
        }
    }

    /// What queries are multiplied by, and whether a row sees no later positions.
    pub fn attrs(scale: f64, causal: bool) -> Attrs {
        Attrs::from([
            ("causal".to_owned(), Attr::Bool(causal)),
            ("scale".to_owned(), Attr::Float(scale)),
        ])
    }
}

fn metadata(ty: &TensorType, rank: usize, sequences: Option<&Dim>) -> bool {
    ty.dtype == DType::I32
        && ty.rank() == rank
        && sequences.is_none_or(|dim| ty.shape.first() == Some(dim))
}

impl CustomOpDef for PagedAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], attrs: &Attrs) -> Result<Vec<TensorType>, String> {
        let [q, k, v, block_table, lengths, starts, query_lengths] = operands else {
            return Err(format!(
                "takes q, k, v, block table, lengths, query starts and query lengths, not {} operands",
                operands.len()
            ));
        };
        if q.rank() != 3 || k.rank() != 3 || v.rank() != 3 {
            return Err("q, k and v need three axes: rows, heads, dim".to_owned());
        }
        if ![q, k, v].iter().all(|ty| ty.dtype.is_float()) {
            return Err("q, k and v must be floats".to_owned());
        }
        if q.shape[2] != k.shape[2] {
            return Err("q and k differ in their head dim".to_owned());
        }
        if k.shape[..2] != v.shape[..2] || k.dtype != v.dtype {
            return Err("k and v differ in rows, heads or dtype".to_owned());
        }
        match (q.shape[1].as_constant(), k.shape[1].as_constant()) {
            (Some(heads), Some(kv)) if kv > 0 && heads % kv == 0 => {}
            _ => return Err("the heads of q must be a multiple of those of k".to_owned()),
        }
        let sequences = lengths.shape.first();
        if !metadata(block_table, 2, sequences)
            || ![lengths, starts, query_lengths].iter().all(|ty| metadata(ty, 1, sequences))
        {
            return Err(
                "block table [S, B], lengths, query starts and query lengths [S] must be i32 of one S"
                    .to_owned(),
            );
        }
        Self::spec(attrs)?;
        let (Some(heads), Some(width)) = (q.shape[1].as_constant(), v.shape[2].as_constant())
        else {
            return Err("the heads of q and the width of v must be static".to_owned());
        };
        let width = heads.saturating_mul(width);
        Ok(vec![TensorType::new(q.dtype, [q.shape[0].clone(), Dim::constant(width)])])
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }

    fn splits(&self) -> bool {
        true
    }

    fn evaluate(
        &self,
        operands: &[piecewise_ir::eval::Array],
        attrs: &Attrs,
        _counts: &[u64],
    ) -> Result<Vec<piecewise_ir::eval::Array>, String> {
        reference::paged_attention(operands, Self::spec(attrs)?)
    }
}
