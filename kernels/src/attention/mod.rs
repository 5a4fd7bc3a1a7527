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
/// `query_lengths i32 [S]`, its rows of `q`; and maybe `sinks [heads]` of any float dtype. Result:
/// `[T, heads * vdim]` of q's dtype. Attributes: `scale`, a float, times each score; `causal`, whether
/// row `j` of `n` sees only the first `length - n + j + 1` keys; of a causal call maybe `window`, an
/// integer from 1 on, how many of those a row sees, the last of which is its own; maybe `softcap`, a
/// float above 0: scaled scores become `softcap * tanh(score / softcap)`. A sink joins the softmax of
/// its head as one more score, neither scaled nor capped, of a key without a value. `heads` is a
/// multiple of `kv_heads`; a key-value head serves that many neighbouring heads. Pages that lie before
/// the window of every row of a sequence are not read. A sequence of length 0 has no rows; rows that no sequence has are
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
        let (scale, causal) = match (attrs.get("scale"), attrs.get("causal")) {
            (Some(&Attr::Float(scale)), Some(&Attr::Bool(causal))) if scale.is_finite() => {
                (scale, causal)
            }
            _ => {
                let needs = "needs the attributes scale (a finite float) and causal (bool)";
                return Err(needs.to_owned());
            }
        };
        let window = match attrs.get("window") {
            None => None,
            Some(_) if !causal => return Err("only a causal call has a window".to_owned()),
            Some(&Attr::Int(window @ 1..=0x7fff_ffff)) => Some(window as u32 - 1),
            Some(Attr::Int(window)) => {
                return Err(format!("window = {window} must be from 1 to 2^31 - 1"));
            }
            Some(_) => return Err("window must be an integer".to_owned()),
        };
        let softcap = match attrs.get("softcap") {
            None => None,
            Some(&Attr::Float(cap)) if cap.is_finite() && cap > 0.0 => Some(cap),
            Some(_) => return Err("softcap must be a finite float above 0".to_owned()),
        };
        Ok(ScoreSpec { scale, causal, window, softcap })
    }

    /// What queries are multiplied by, and whether a row sees no later positions.
    pub fn attrs(scale: f64, causal: bool) -> Attrs {
        Attrs::from([
            ("causal".to_owned(), Attr::Bool(causal)),
            ("scale".to_owned(), Attr::Float(scale)),
        ])
    }

    /// The same with what is not left at its default: how many keys a row sees at the most, and the cap
    /// of scores.
    pub fn bounded_attrs(
        scale: f64,
        causal: bool,
        window: Option<u32>,
        softcap: Option<f64>,
    ) -> Attrs {
        let window = window.map(|window| ("window".to_owned(), Attr::Int(i64::from(window))));
        let softcap = softcap.map(|cap| ("softcap".to_owned(), Attr::Float(cap)));
        Self::attrs(scale, causal).into_iter().chain(window).chain(softcap).collect()
    }
}

/// The position of the sinks, where a call has them.
pub(crate) const SINKS: usize = 7;

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
        let [q, k, v, block_table, lengths, starts, query_lengths, sinks @ ..] = operands else {
            return Err(format!(
                "takes q, k, v, block table, lengths, query starts, query lengths and maybe sinks, not \
                 {} operands",
                operands.len()
            ));
        };
        match sinks {
            [] => {}
            [sinks] if sinks.dtype.is_float() && sinks.shape[..] == q.shape[1..2] => {}
            _ => {
                return Err(
                    "sinks must be one operand of floats, one for each head of q".to_owned()
                );
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::dtype::DType::{BF16, F32, I32};
    use piecewise_ir::entity::{Entity, Symbol};

    fn refusal(key: &str, value: Attr, causal: bool) -> String {
        let mut attrs = PagedAttention::attrs(0.5, causal);
        attrs.insert(key.to_owned(), value);
        PagedAttention::spec(&attrs).unwrap_err()
    }

    #[test]
    fn attributes_out_of_range_are_named() {
        let attrs = PagedAttention::bounded_attrs(0.5, true, Some(1), Some(30.0));
        let spec = ScoreSpec { scale: 0.5, causal: true, window: Some(0), softcap: Some(30.0) };
        assert_eq!(PagedAttention::spec(&attrs), Ok(spec));
        assert_eq!(
            PagedAttention::bounded_attrs(0.5, true, None, None),
            PagedAttention::attrs(0.5, true)
        );
        assert!(refusal("window", Attr::Int(0), true).contains("window = 0"));
        assert!(refusal("window", Attr::Float(1.0), true).contains("an integer"));
        assert!(refusal("window", Attr::Int(4), false).contains("causal"));
        for cap in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(refusal("softcap", Attr::Float(cap), true).contains("above 0"));
        }
        assert!(refusal("softcap", Attr::Int(50), true).contains("a finite float"));
    }

    #[test]
    fn sinks_are_one_for_each_head() {
        let [t, s, p] = [0, 1, 2].map(|i| Dim::from(Symbol::new(i)));
        let n = |n: u64| Dim::constant(n);
        let each = TensorType::new(I32, [s.clone()]);
        let kv = TensorType::new(BF16, [p, n(2), n(8)]);
        let table = TensorType::new(I32, [s, n(4)]);
        let seven = [
            TensorType::new(BF16, [t.clone(), n(4), n(8)]),
            kv.clone(),
            kv,
            table,
            each.clone(),
            each.clone(),
            each,
        ];
        let attrs = PagedAttention::attrs(0.5, true);
        let infer = |sinks: &[TensorType]| {
            let operands = [&seven[..], sinks].concat();
            PagedAttention.infer(&operands, &attrs)
        };
        let result = vec![TensorType::new(BF16, [t, n(32)])];
        assert_eq!(infer(&[]), Ok(result.clone()));
        let sinks = |dtype, heads| TensorType::new(dtype, [n(heads)]);
        assert_eq!(infer(&[sinks(F32, 4)]), Ok(result));
        for wrong in [vec![sinks(F32, 2)], vec![sinks(I32, 4)], vec![sinks(F32, 4); 2]] {
            assert!(infer(&wrong).unwrap_err().contains("one for each head"));
        }
    }
}
