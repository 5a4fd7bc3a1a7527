//! What attention of packed queries brings to the CPU, wherever its keys lie: operands 0 to 2 are
//! q, k and v, four more say where sequences lie, and sequences of queries follow one another from
//! row 0.

use crate::cpu::attention::{Attention, AttentionShape, Keys, attention, attention_scratch_bytes};
use crate::cpu::{Isa, SCRATCH_ALIGN};
use crate::op::{CpuOpArgs, CpuOpCall, OpError, ScoreSpec};

const Q: usize = 0;
const KEYS: usize = 1;
const VALUES: usize = 2;
/// The last operand that every call has.
const LAST: usize = 6;

/// Heads and widths by the extents of operands.
fn shape(extent: impl Fn(usize, usize) -> usize) -> AttentionShape {
    AttentionShape {
        q_heads: extent(Q, 1),
        kv_heads: extent(KEYS, 1),
        head_dim: extent(Q, 2),
        value_dim: extent(VALUES, 2),
    }
}

/// Bytes of the cumulative query starts of `sequences`, rounded up so that what follows stays
/// aligned.
fn starts_bytes(sequences: usize) -> usize {
    ((sequences + 1) * size_of::<i32>()).next_multiple_of(SCRATCH_ALIGN)
}

/// Scratch of a call whose operand `starts` has the first row of each sequence.
pub(crate) fn scratch_bytes(call: &CpuOpCall<'_>, starts: usize) -> u64 {
    let shape = shape(|operand, axis| call.extent(operand, axis));
    let starts = starts_bytes(call.extent(starts, 0));
    (starts + attention_scratch_bytes(shape, call.threads)) as u64
}

/// Attends to `keys` for a launch whose operands `starts` and `lengths` are `i32 [S]`, the rows of
/// each `sequence`, as errors call one of the S; behind the seven operands may be one of `sinks`.
pub(crate) fn attend<'a>(
    args: &CpuOpArgs<'a>,
    [starts, lengths]: [usize; 2],
    sequence: &str,
    keys: Keys<'a>,
    sinks: Option<usize>,
    spec: ScoreSpec,
) -> Result<(), OpError> {
    let sequences = args.true_dim(starts, 0);
    let (head, scratch) = args.scratch()?.split_at_mut(starts_bytes(args.dim(starts, 0)));
    let starts = &args.read::<i32>(starts)?[..sequences];
    let lengths = &args.read::<i32>(lengths)?[..sequences];
    // The first row of each sequence, then the row past the last.
    let query_start: &mut [i32] =
        bytemuck::cast_slice_mut(&mut head[..(sequences + 1) * size_of::<i32>()]);
    query_start[0] = 0;
    for (i, (&start, &length)) in starts.iter().zip(lengths).enumerate() {
        if start != query_start[i] && length > 0 {
            return Err(args.error(format!(
                "{sequence} {i} starts at row {start}, but the one before ends at {}",
                query_start[i]
            )));
        }
        query_start[i + 1] = query_start[i].saturating_add(length);
    }
    let call = Attention {
        shape: shape(|position, axis| args.dim(position, axis)),
        q: args.read_floats(Q)?,
        k: args.read_floats(KEYS)?,
        v: args.read_floats(VALUES)?,
        query_start,
        keys,
        scale: spec.scale as f32,
        causal: spec.causal,
        window: spec.window.map(|window| window as usize),
        softcap: spec.softcap.map(|cap| cap as f32),
        sinks: sinks.map(|sinks| args.read_floats(sinks)).transpose()?,
    };
    let out = sinks.unwrap_or(LAST) + 1;
    attention(Isa::detected(), &call, args.write_floats(out)?, scratch)
        .map_err(|e| args.error(e.to_string()))
}
