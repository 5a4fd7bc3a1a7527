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

use super::recipe::OpKernels;
use crate::lower::LowerError;
use crate::op::cuda::CudaOpCall;
use decode::Taken;
use shape::Shape;
pub(super) use shape::header;

/// The fewest rows of a step that is given to both kernels on tensor cores: below, the larger
/// tiles are mostly empty.
const PREFILL_ROWS: u64 = 64;
/// The most query rows of a sequence of a uniform batch that the kernel for few tokens takes: with
/// more it reads the keys too often.
const UNIFORM_ROWS: u64 = 64;

/// The launches of `piecewise.paged_attention` at a call's sizes: which kernels run, their grids
/// and how keys are divided are functions of the types, the sizes and the target alone; on
/// tensor cores, in steps of 64 rows or more, each sequence is taken by one of two kernels, by how
/// many tokens it brings, and a uniform batch is launched as the one that takes it alone.
/// Arguments: the op's operands, then its result. Can be captured in every batch.
///
/// # Errors
/// When the operands do not fit the op, a head is wider than 256, or more than 16 heads share a
/// key-value head.
pub fn attention_kernels(call: &CudaOpCall<'_>) -> Result<OpKernels, LowerError> {
    with_ranges(call, USUAL)
}

/// Other ways to launch the same: keys in more ranges, which only longer sequences than those that it is
/// measured with could need more of. In a mixed step those of sequences with few tokens, of the others, or
/// of both.
///
/// # Errors
/// As for [`attention_kernels`].
pub fn other_attention_kernels(call: &CudaOpCall<'_>) -> Result<Vec<OpKernels>, LowerError> {
    let mut made = vec![with_ranges(call, USUAL)?];
    for times in [Times { few: 2, many: 1 }, Times { few: 1, many: 2 }, Times { few: 2, many: 2 }] {
        let more = with_ranges(call, times)?;
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

fn with_ranges(call: &CudaOpCall<'_>, times: Times) -> Result<OpKernels, LowerError> {
    let (shape, sizes) = (Shape::new(call)?, call.sizes);
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
