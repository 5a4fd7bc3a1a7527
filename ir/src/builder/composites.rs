//! Composites: written by authors, expanded to primitives at once. They insert the casts: norms,
//! softmax, gates and rope compute in f32 and round once to the dtype of their input.

use super::{Builder, Tensor};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::literal::Literal;

impl<'b> Tensor<'b> {
    /// Root mean square norm over the innermost axis: `x * rsqrt(mean(x^2) + eps)` rounded to the
    /// input's dtype, times `weight` (Zhang and Sennrich 2019).
    #[track_caller]
    pub fn rms_norm(self, weight: Tensor<'b>, eps: f64) -> Self {
        let Some(axis) = self.last_axis() else { return self };
        let x = self.cast(DType::F32);
        let scale = ((x * x).reduce_mean([axis]) + eps).rsqrt();
        (x * scale).cast(self.dtype()) * weight.cast(self.dtype())
    }

    /// As [`Self::rms_norm`] with a weight in f32, by which rows are multiplied before they are rounded.
    #[track_caller]
    pub fn rms_norm_wide(self, weight: Tensor<'b>, eps: f64) -> Self {
        let Some(axis) = self.last_axis() else { return self };
        let x = self.cast(DType::F32);
        let scale = ((x * x).reduce_mean([axis]) + eps).rsqrt();
        (x * scale * weight).cast(self.dtype())
    }

    /// Layer norm over the innermost axis: `(x - mean) * rsqrt(var + eps)` rounded to the input's
    /// dtype, times `weight`, plus `bias` (Ba et al. 2016).
    #[track_caller]
    pub fn layer_norm(self, weight: Tensor<'b>, bias: Tensor<'b>, eps: f64) -> Self {
        let Some(axis) = self.last_axis() else { return self };
        let x = self.cast(DType::F32);
        let centered = x - x.reduce_mean([axis]);
        let scale = ((centered * centered).reduce_mean([axis]) + eps).rsqrt();
        let dtype = self.dtype();
        (centered * scale).cast(dtype) * weight.cast(dtype) + bias.cast(dtype)
    }

    /// `exp(x - max) / sum(exp(x - max))` along `axis`.
    #[track_caller]
    pub fn softmax(self, axis: usize) -> Self {
        let x = self.cast(DType::F32);
        let e = (x - x.reduce_max([axis])).exp();
        (e / e.reduce_sum([axis])).cast(self.dtype())
    }

    /// `x / (1 + exp(-x))` (Elfwing et al. 2017).
    #[track_caller]
    pub fn silu(self) -> Self {
        let x = self.cast(DType::F32);
        (x / ((-x).exp() + 1.0)).cast(self.dtype())
    }

    /// `x / 2 * (1 + erf(x / sqrt(2)))` (Hendrycks and Gimpel 2016).
    #[track_caller]
    pub fn gelu(self) -> Self {
        let x = self.cast(DType::F32);
        let gate = (x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0;
        (x * 0.5 * gate).cast(self.dtype())
    }

    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` (Hendrycks and Gimpel 2016).
    #[track_caller]
    pub fn gelu_tanh(self) -> Self {
        let x = self.cast(DType::F32);
        let inner = (x * x * 0.044_715 + 1.0) * x * (2.0 / std::f64::consts::PI).sqrt();
        (x * 0.5 * (inner.tanh() + 1.0)).cast(self.dtype())
    }

    /// `x / (1 + exp(-1.702 x))` (Hendrycks and Gimpel 2016).
    #[track_caller]
    pub fn quick_gelu(self) -> Self {
        let x = self.cast(DType::F32);
        (x / ((x * -1.702).exp() + 1.0)).cast(self.dtype())
    }

    /// `log(1 + e^x)` (Dugas et al. 2001), as `max(x, 0) + log1p(exp(-|x|))`: no x overflows, and what
    /// is near 0 keeps its digits.
    #[track_caller]
    pub fn softplus(self) -> Self {
        let x = self.cast(DType::F32);
        (x.maximum(0.0) + (-x.abs()).exp().log1p()).cast(self.dtype())
    }

    /// `silu(self) * up`: the gate of a SwiGLU block (Shazeer 2020).
    #[track_caller]
    pub fn swiglu(self, up: Tensor<'b>) -> Self {
        self.silu() * up
    }

    /// `self [.., in]` times a checkpoint linear `weight [out, in]`, in the input's dtype.
    #[track_caller]
    pub fn linear(self, weight: Tensor<'b>) -> Self {
        self.matmul_transposed(weight, self.dtype())
    }

    /// The innermost axis `[n * head_dim]` as `[n, head_dim]`.
    #[track_caller]
    pub fn heads(self, head_dim: u64) -> Self {
        let mut shape = self.shape();
        let Some(width) = shape.pop() else { return self };
        match width.as_constant() {
            Some(width) if head_dim > 0 && width % head_dim == 0 => {
                shape.extend([Dim::constant(width / head_dim), Dim::constant(head_dim)]);
                self.reshape(shape)
            }
            _ => {
                self.builder().fail(format!("heads of {head_dim} don't divide the innermost axis"))
            }
        }
    }

    /// The two innermost axes `[n, head_dim]` as `[n * head_dim]`.
    #[track_caller]
    pub fn merge_heads(self) -> Self {
        let mut shape = self.shape();
        match (shape.pop(), shape.pop()) {
            (Some(dim), Some(heads)) => match (dim.as_constant(), heads.as_constant()) {
                (Some(dim), Some(heads)) => {
                    shape.push(Dim::constant(dim.saturating_mul(heads)));
                    self.reshape(shape)
                }
                _ => self.builder().fail("heads to merge must have static extents".to_owned()),
            },
            _ if self.value().is_none() => self,
            _ => self.builder().fail("merging heads needs two axes".to_owned()),
        }
    }

    /// Rotary position embedding of `self [T, heads, dim]` at `positions [T]` by a table of
    /// [`Builder::rope_table`]: the first half of each head is the real part, the second half the
    /// imaginary part (Su et al. 2021; halves instead of neighbours, as checkpoints store them).
    #[track_caller]
    pub fn rope(self, positions: Tensor<'b>, table: Tensor<'b>) -> Self {
        let shape = self.shape();
        let dim = shape.last().and_then(Dim::as_constant);
        let (Some(dim), 3) = (dim, shape.len()) else {
            if self.value().is_none() {
                return self;
            }
            return self.builder().fail("rope needs [T, heads, dim] of static dim".to_owned());
        };
        let half = dim / 2;
        let angles = table.gather(positions);
        let of_tokens = || [shape[0].clone(), Dim::constant(1), Dim::constant(half)];
        // Not by a closure, which would be the line of these ops.
        let cos = angles.slice(1, 0..half).reshape(of_tokens());
        let sin = angles.slice(1, half..2 * half).reshape(of_tokens());
        self.rotate(cos, sin)
    }

    /// The rotation of [`Self::rope`] by angles of one's own: `self [T, heads, dim]` by their
    /// cosines and sines, `[T, 1, dim / 2]` each.
    #[track_caller]
    pub fn rotate(self, cos: Tensor<'b>, sin: Tensor<'b>) -> Self {
        let Some(dim) = self.shape().last().and_then(Dim::as_constant) else {
            if self.value().is_none() {
                return self;
            }
            return self.builder().fail("what rotates needs a static dim".to_owned());
        };
        let half = dim / 2;
        let x = self.cast(DType::F32);
        let (re, im) = (x.slice(2, 0..half), x.slice(2, half..dim));
        let rotated = [re * cos - im * sin, im * cos + re * sin];
        self.builder().concat(&rotated, 2).cast(self.dtype())
    }

    fn last_axis(self) -> Option<usize> {
        self.rank().checked_sub(1)
    }
}

impl Builder {
    /// A derived weight `f32[positions, 2 * n]`: row `p` holds the cosines, then the sines, of
    /// `p * frequencies[i]`, for the `n` frequencies in radians per position.
    #[track_caller]
    pub fn rope_table(&self, frequencies: &[f64], positions: u64) -> Tensor<'_> {
        self.scaled_rope_table(frequencies, positions, 1.0)
    }

    /// [`Self::rope_table`] with cosines and sines multiplied by `factor`.
    #[track_caller]
    pub fn scaled_rope_table(
        &self,
        frequencies: &[f64],
        positions: u64,
        factor: f64,
    ) -> Tensor<'_> {
        let n = frequencies.len();
        if n == 0 || n > Literal::MAX_ELEMENTS || positions == 0 {
            return self.fail(format!("a rope table of {positions} positions and {n} frequencies"));
        }
        self.derived_weight("rope_table", |b| {
            let p = b.iota(DType::F32, [positions, n as u64], 0);
            let angles = p * b.literal(DType::F32, [n], frequencies.iter().copied());
            let table = b.concat(&[angles.cos(), angles.sin()], 1);
            b.finish([if factor == 1.0 { table } else { table * factor }])
        })
    }
}
