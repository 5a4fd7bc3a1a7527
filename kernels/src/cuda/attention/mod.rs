//! [`crate::attention::PagedAttention`] on CUDA. On tensor cores, a kernel that cuts the keys into
//! ranges, for sequences with few tokens, and one for sequences with many, which on Hopper
//! multiplies by warpgroups; for types and widths
//! that these do not take, a kernel without tensor cores that cuts the keys into ranges too.

mod decode;
pub(super) mod hopper;
pub(super) mod prefill;
mod ranges;
mod shape;
mod split;

use crate::lower::LowerError;
use crate::op::ScoreSpec;
use crate::op::cuda::CudaOpCall;
use crate::op::cuda::OpKernels;
use decode::Taken;
use shape::Shape;
pub(super) use shape::{Forms, WARP, header};

/// The fewest rows of a step that is given to both kernels on tensor cores: below, the larger
/// tiles are mostly empty.
const PREFILL_ROWS: u64 = 64;
/// The most query rows of a sequence of a uniform batch that the kernel for few tokens takes: with
/// more it reads the keys too often.
const UNIFORM_ROWS: u64 = 64;

/// As [`attention_kernels`](crate::attention::attention_kernels) says, of a call whose operands fit
/// the op.
pub(crate) fn kernels(call: &CudaOpCall<'_>, spec: ScoreSpec) -> Result<OpKernels, LowerError> {
    with_ranges(call, spec, USUAL)
}

/// As [`other_attention_kernels`](crate::attention::other_attention_kernels) says.
pub(crate) fn others(call: &CudaOpCall<'_>, spec: ScoreSpec) -> Result<Vec<OpKernels>, LowerError> {
    let mut made = vec![with_ranges(call, spec, USUAL)?];
    for times in [Times { few: 2, many: 1 }, Times { few: 1, many: 2 }, Times { few: 2, many: 2 }] {
        let more = with_ranges(call, spec, times)?;
        if !made.contains(&more) {
            made.push(more);
        }
    }
    made.remove(0);
    Ok(made)
}

/// How many times as many ranges of keys are wanted as usual.
#[derive(Clone, Copy)]
struct Times {
    /// Of sequences with few tokens.
    few: u64,
    /// Of those that bring many.
    many: u64,
}

const USUAL: Times = Times { few: 1, many: 1 };

fn with_ranges(
    call: &CudaOpCall<'_>,
    spec: ScoreSpec,
    times: Times,
) -> Result<OpKernels, LowerError> {
    let (shape, sizes) = (Shape::new(call, spec)?, call.sizes);
    if !shape.on_tensor_cores() {
        return Ok(split::kernels(&shape, sizes));
    }
    let is_small = shape.rows.eval(sizes) < PREFILL_ROWS;
    let few_rows = |tokens: &u64| is_small || tokens.saturating_mul(shape.group()) <= UNIFORM_ROWS;
    if let Some(tokens) = call.query_length.filter(few_rows) {
        return Ok(decode::kernels(&shape, sizes, Taken::Uniform(tokens), times.few));
    }
    if is_small {
        return Ok(decode::kernels(&shape, sizes, Taken::All, times.few));
    }
    let mut kernels = match call.query_length {
        Some(_) => OpKernels::new([]),
        None => decode::kernels(&shape, sizes, Taken::Few(shape.few()), times.few),
    };
    kernels.launches.push(match hopper::fits(call.target, [shape.dim, shape.value_dim]) {
        true => hopper::kernel(&shape, sizes, shape.few(), times.many),
        false => prefill::kernel(&shape, sizes, shape.few()),
    });
    Ok(kernels)
}
