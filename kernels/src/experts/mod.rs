//! Mixtures of experts: rows through the few of many feed-forwards that a router chooses.

mod cpu;
mod cuda;
mod reference;

pub use crate::op::{RouterScores, Routing};
pub use cuda::experts_kernels;

use piecewise_ir::custom::{Attr, Attrs, CustomOpDef};
use piecewise_ir::eval::Array;
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;

/// Each row through the experts that its logits choose.
///
/// Operands: `x [T, width]`; the router's `logits [T, experts]`; `gate_up [experts, 2 * inner, width]`,
/// of each expert the rows of its gate, then those of what is gated; `down [experts, width, inner]`. All
/// are floats, and the two weights have one dtype. Result: `[T, width]` of x's dtype: of each row the sum
/// over its experts of their weight times `down * (silu(gate * x) * (up * x))`. What goes into `down` and
/// what comes out of it may be rounded to x's dtype; the sum is of f32, in an order that the row alone
/// decides, and rounded once.
///
/// Attributes, as a [`Routing`] says: `top_k`, an integer from 1 to the number of experts; `scores`,
/// `"softmax"` or `"sigmoid"`; `renormalize`; `scale`, a finite float that is not 0, by default 1.
///
/// Which rows an expert has is known to its kernels alone. Padding rows go to none, and the weights of
/// an expert that no row goes to are not read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Experts;

/// The positions of operands, and of the result.
const X: usize = 0;
const LOGITS: usize = 1;
const GATE_UP: usize = 2;
const DOWN: usize = 3;
const OUT: usize = 4;

impl Experts {
    /// What graphs call the op.
    pub const NAME: &'static str = "piecewise.experts";

    pub(crate) fn routing(attrs: &Attrs) -> Result<Routing, String> {
        let needs = "needs the attributes top_k (an integer), scores (\"softmax\" or \"sigmoid\") and \
                     renormalize (bool)";
        let (Some(&Attr::Int(top_k)), Some(Attr::Str(scores)), Some(&Attr::Bool(renormalize))) =
            (attrs.get("top_k"), attrs.get("scores"), attrs.get("renormalize"))
        else {
            return Err(needs.to_owned());
        };
        let Some(scores) = RouterScores::named(scores) else {
            return Err(format!("scores = \"{scores}\" must be \"softmax\" or \"sigmoid\""));
        };
        let top_k = u32::try_from(top_k)
            .ok()
            .filter(|k| *k > 0)
            .ok_or_else(|| format!("top_k = {top_k} must be from 1 to the number of experts"))?;
        let scale = match attrs.get("scale") {
            None => 1.0,
            Some(&Attr::Float(scale)) if scale.is_finite() && scale != 0.0 => scale,
            Some(_) => return Err("scale must be a finite float that is not 0".to_owned()),
        };
        Ok(Routing { top_k, scores, renormalize, scale })
    }

    /// The attributes of a call; a `scale` of 1 is left out.
    pub fn attrs(routing: &Routing) -> Attrs {
        let Routing { top_k, scores, renormalize, scale } = *routing;
        let stated = [
            ("top_k", Attr::Int(i64::from(top_k))),
            ("scores", Attr::Str(scores.name().to_owned())),
            ("renormalize", Attr::Bool(renormalize)),
        ];
        let scale = (scale != 1.0).then_some(("scale", Attr::Float(scale)));
        stated.into_iter().chain(scale).map(|(name, attr)| (name.to_owned(), attr)).collect()
    }
}

impl CustomOpDef for Experts {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], attrs: &Attrs) -> Result<Vec<TensorType>, String> {
        let [x, logits, gate_up, down] = operands else {
            return Err(format!(
                "takes x, the logits of a router, and the weights gate_up and down, not {} operands",
                operands.len()
            ));
        };
        if operands.iter().any(|ty| !ty.dtype.is_float() || ty.dtype.is_narrow()) {
            return Err("x, logits, gate_up and down must be floats".to_owned());
        }
        if x.rank() != 2 || logits.rank() != 2 || x.shape[0] != logits.shape[0] {
            return Err(
                "x [rows, width] and logits [rows, experts] must be of the same rows".to_owned()
            );
        }
        if gate_up.dtype != down.dtype {
            return Err(format!("gate_up is {}, but down {}", gate_up.dtype, down.dtype));
        }
        let fixed = |ty: &TensorType| ty.static_shape().filter(|shape| !shape.contains(&0));
        let (Some([experts, twice, width]), Some([of_down, across, inner])) = (
            fixed(gate_up).and_then(|shape| <[u64; 3]>::try_from(shape).ok()),
            fixed(down).and_then(|shape| <[u64; 3]>::try_from(shape).ok()),
        ) else {
            return Err(
                "gate_up [experts, 2 * inner, width] and down [experts, width, inner] must be of \
                 constants above 0"
                    .to_owned(),
            );
        };
        if experts != of_down || width != across || inner.checked_mul(2) != Some(twice) {
            return Err(format!(
                "gate_up [{experts}, {twice}, {width}] and down [{of_down}, {across}, {inner}] must be \
                 [experts, 2 * inner, width] and [experts, width, inner] of one number of experts, one \
                 width and one inner width"
            ));
        }
        if x.shape[1].as_constant() != Some(width) {
            return Err(format!("x must have rows of {width} elements, as gate_up has"));
        }
        if logits.shape[1].as_constant() != Some(experts) {
            return Err(format!("logits must have a column for each of the {experts} experts"));
        }
        let top_k = Self::routing(attrs)?.top_k;
        if u64::from(top_k) > experts {
            return Err(format!("top_k = {top_k} experts of a row, but there are {experts}"));
        }
        Ok(vec![x.clone()])
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Independent
    }

    fn evaluate(&self, operands: &[Array], attrs: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
        reference::experts(operands, Self::routing(attrs)?)
    }
}

#[cfg(test)]
mod tests;
