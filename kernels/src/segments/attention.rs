//! Attention within segments: its definition.

use super::check::check_segments;
use super::reference;
use crate::op::ScoreSpec;
use piecewise_ir::custom::{Attr, Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::eval::Array;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;

/// Attention of the queries of each segment over the keys of the same segment.
///
/// Operands: `q [T, heads, dim]`, `k [K, kv_heads, dim]` and `v [K, kv_heads, vdim]`, floats;
/// `query_starts`, `query_lengths`, `key_starts` and `key_lengths`, each `i32 [S]`: the rows of q
/// and those of k and v that make up each segment. Query segments follow one another from row 0.
/// Result: `[T, heads * vdim]` of q's dtype; rows that no segment has are padding and stay
/// unwritten. Attributes: `scale`, a finite float above 0, times each score; `causal`; `window`, an
/// integer from 0 on, optional.
///
/// The last query of a segment stands at the position of its last key. A query sees the keys of
/// its segment: with `causal` up to its own position, with `window` those at most so far from it on
/// either side. One that sees none gives zeros. `heads` is a multiple of `kv_heads`; a key-value
/// head serves that many neighbouring heads.
#[derive(Clone, Copy, Debug, Default)]
pub struct SegmentAttention;

impl SegmentAttention {
    /// What graphs call the op.
    pub const NAME: &'static str = "piecewise.segment_attention";

    pub(crate) fn spec(attrs: &Attrs) -> Result<ScoreSpec, String> {
        let (Some(&Attr::Float(scale)), Some(&Attr::Bool(causal))) =
            (attrs.get("scale"), attrs.get("causal"))
        else {
            return Err("needs the attributes scale (a float) and causal (bool)".to_owned());
        };
        if !(scale.is_finite() && scale > 0.0) {
            return Err(format!("scale = {scale} must be finite and above 0"));
        }
        let window = match attrs.get("window") {
            None => None,
            Some(&Attr::Int(window @ 0..=0x7fff_ffff)) => Some(window as u32),
            Some(Attr::Int(window)) => {
                return Err(format!("window = {window} must be from 0 to 2^31 - 1"));
            }
            Some(_) => return Err("window must be an integer".to_owned()),
        };
        Ok(ScoreSpec { scale, causal, window, softcap: None })
    }

    /// The attributes of a call; `window` is left out where it is `None`.
    pub fn attrs(scale: f64, causal: bool, window: Option<u32>) -> Attrs {
        let window = window.map(|window| ("window".to_owned(), Attr::Int(i64::from(window))));
        let common =
            [("causal".to_owned(), Attr::Bool(causal)), ("scale".to_owned(), Attr::Float(scale))];
        common.into_iter().chain(window).collect()
    }
}

impl CustomOpDef for SegmentAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], attrs: &Attrs) -> Result<Vec<TensorType>, String> {
        let [q, k, v, query_starts, query_lengths, key_starts, key_lengths] = operands else {
            return Err(format!(
                "takes q, k, v, and the starts and lengths of query and of key segments, not {} \
                 operands",
                operands.len()
            ));
        };
        if [q, k, v].iter().any(|ty| ty.rank() != 3 || !ty.dtype.is_float()) {
            return Err("q, k and v must be floats over rows, heads and dim".to_owned());
        }
        if q.shape[2] != k.shape[2] {
            return Err("q and k differ in their head dim".to_owned());
        }
        if k.shape[..2] != v.shape[..2] || k.dtype != v.dtype {
            return Err("k and v differ in rows, heads or dtype".to_owned());
        }
        let fixed = |dim: &Dim| dim.as_constant().filter(|&n| n > 0);
        let (Some(heads), Some(kv_heads), Some(width), Some(_)) =
            (fixed(&q.shape[1]), fixed(&k.shape[1]), fixed(&v.shape[2]), fixed(&q.shape[2]))
        else {
            return Err("heads and head dims must be constants above 0".to_owned());
        };
        if heads % kv_heads != 0 {
            return Err(format!("{heads} heads of q are no multiple of {kv_heads} of k"));
        }
        check_segments("query", [query_starts, query_lengths])?;
        check_segments("key", [key_starts, key_lengths])?;
        if query_starts.shape != key_starts.shape {
            return Err("there must be as many query segments as key segments".to_owned());
        }
        Self::spec(attrs)?;
        let width = Dim::constant(heads.saturating_mul(width));
        Ok(vec![TensorType::new(q.dtype, [q.shape[0].clone(), width])])
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }

    fn splits(&self) -> bool {
        true
    }

    fn evaluate(&self, operands: &[Array], attrs: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
        reference::attention(operands, Self::spec(attrs)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(causal: bool, window: Option<u32>) -> ScoreSpec {
        ScoreSpec { scale: 1.0, causal, window, softcap: None }
    }

    #[test]
    fn the_last_query_stands_at_the_last_key() {
        assert_eq!(spec(true, None).seen(0, 2, 5), 0..4);
        assert_eq!(spec(true, Some(1)).seen(1, 2, 5), 3..5);
        assert_eq!(spec(false, Some(1)).seen(0, 5, 5), 0..2);
        assert_eq!(spec(false, Some(1)).seen(2, 5, 5), 1..4);
        assert_eq!(spec(false, None).seen(0, 7, 2), 0..2);
        // Queries before the first key see nothing of the past.
        assert!(spec(true, None).seen(1, 4, 2).is_empty());
        assert!(spec(false, Some(0)).seen(0, 4, 2).is_empty());
    }

    #[test]
    fn attributes_out_of_range_are_named() {
        let mut attrs = SegmentAttention::attrs(0.5, false, Some(3));
        assert_eq!(
            SegmentAttention::spec(&attrs),
            Ok(ScoreSpec { scale: 0.5, ..spec(false, Some(3)) })
        );
        attrs.insert("window".to_owned(), Attr::Int(-1));
        assert!(SegmentAttention::spec(&attrs).unwrap_err().contains("window = -1"));
        let attrs = SegmentAttention::attrs(0.0, false, None);
        assert!(SegmentAttention::spec(&attrs).unwrap_err().contains("scale = 0"));
    }
}
