//! Layers that encoders share.

use super::super::config::ConfigError;
use super::super::config::fields::Fields;
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;

/// What a feed-forward applies between its two products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x / 2 * (1 + erf(x / sqrt(2)))`
    Gelu,
    /// The same with tanh for erf.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
    /// `x * sigmoid(x)`
    Silu,
    /// `max(x, 0)`
    Relu,
}

impl Activation {
    /// The one that field `key` names as transformers does; `default` where it is absent.
    pub(super) fn read(root: &Fields<'_>, key: &str, default: Self) -> Result<Self, ConfigError> {
        Ok(match root.string(key)? {
            None => default,
            Some("gelu" | "gelu_python") => Self::Gelu,
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Self::GeluTanh,
            Some("quick_gelu") => Self::QuickGelu,
            Some("silu" | "swish") => Self::Silu,
            Some("relu") => Self::Relu,
            Some(_) => {
                return Err(root.unsupported(
                    key,
                    "gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, silu and relu are",
                ));
            }
        })
    }

    pub(super) fn of(self, x: Tensor<'_>) -> Tensor<'_> {
        match self {
            Self::Gelu => x.gelu(),
            Self::GeluTanh => x.gelu_tanh(),
            Self::QuickGelu => x.quick_gelu(),
            Self::Silu => x.silu(),
            Self::Relu => x.maximum(0.0),
        }
    }
}

/// A checkpoint linear with a bias, `weight [out, in]` and `bias [out]` under `name`.
pub(super) fn linear<'b>(b: &'b Builder, name: &str, x: Tensor<'b>, shape: [u64; 2]) -> Tensor<'b> {
    super::super::layers::linear(b, name, x, shape, true)
}

/// Elements in 16 bytes of a 16-bit dtype: rows of a multiple can be multiplied on tensor cores.
pub(super) const ROW_ELEMENTS: u64 = 8;

/// The weight with `more` zeros after it along an axis.
pub(super) fn with_zeros<'b>(
    b: &'b Builder,
    weight: Tensor<'b>,
    axis: usize,
    more: u64,
) -> Tensor<'b> {
    if more == 0 {
        return weight;
    }
    let mut shape = weight.shape();
    shape[axis] = more.into();
    let zeros = b
        .derived_weight("zeros", |b| b.finish([b.scalar(weight.dtype(), 0.0).broadcast_to(shape)]));
    b.concat(&[weight, zeros], axis)
}

/// What a convolution whose windows do not overlap makes of its windows, `patches` `[T, width]`:
/// `[T, hidden]`. Its weight is `[hidden, ..]`, `width` elements each, as the checkpoint has it
/// under `name`.
pub(super) fn patch_rows<'b, const RANK: usize>(
    b: &'b Builder,
    name: &str,
    patches: Tensor<'b>,
    kernel: [u64; RANK],
) -> Tensor<'b> {
    let width = kernel[1..].iter().product::<u64>();
    let more = width.next_multiple_of(ROW_ELEMENTS) - width;
    let weight = b.weight(name, kernel).reshape([kernel[0], width]);
    let patches = match (more, patches.shape().first()) {
        (1.., Some(rows)) => {
            let zeros = b.scalar(patches.dtype(), 0.0).broadcast_to((rows.clone(), more));
            b.concat(&[patches, zeros], 1)
        }
        _ => patches,
    };
    patches.linear(with_zeros(b, weight, 1, more))
}

/// A layer norm over the innermost axis of `width`, with the tensors `weight` and `bias` under
/// `name`, or, where a checkpoint is old enough to say so, `gamma` and `beta`.
pub(super) fn layer_norm<'b>(
    b: &'b Builder,
    name: &str,
    x: Tensor<'b>,
    width: u64,
    eps: f64,
    names: NormNames,
) -> Tensor<'b> {
    let _scope = b.scope(name);
    let [weight, bias] = match names {
        NormNames::WeightAndBias => ["weight", "bias"],
        NormNames::GammaAndBeta => ["gamma", "beta"],
        NormNames::WeightAlone => {
            return x.layer_norm(b.weight("weight", [width]), b.scalar(DType::F32, 0.0), eps);
        }
    };
    x.layer_norm(b.weight(weight, [width]), b.weight(bias, [width]), eps)
}

/// The tensors of a layer norm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NormNames {
    WeightAndBias,
    GammaAndBeta,
    WeightAlone,
}
