//! Windows of rows on the CPU.

use super::{CausalWindow, LENGTHS, OUT, SLOTS, STARTS, STATE, X};
use crate::op::{CpuOp, CpuOpArgs, FloatSlice, FloatSliceMut, OpError};

/// A sequence: where its columns lie in the state, its first row and its rows.
struct Sequence {
    slot: usize,
    start: usize,
    length: usize,
}

/// Windows of one sequence, and what its slot holds then.
fn slide<E: Copy>(
    x: &[E],
    state: &mut [E],
    out: &mut [E],
    of: &Sequence,
    [width, kept]: [usize; 2],
) {
    let Sequence { slot, start, length } = *of;
    for column in 0..width {
        let before = &mut state[(slot * width + column) * kept..][..kept];
        // Rows count from the first that the slot holds.
        let row = |before: &[E], i: usize| match i.checked_sub(kept) {
            None => before[i],
            Some(i) => x[(start + i) * width + column],
        };
        for i in 0..length {
            let window = &mut out[((start + i) * width + column) * (kept + 1)..][..kept + 1];
            window.iter_mut().enumerate().for_each(|(j, to)| *to = row(before, i + j));
        }
        for j in 0..kept {
            before[j] = row(before, length + j);
        }
    }
}

impl CpuOp for CausalWindow {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (rows, dims) = (args.true_dim(X, 0), [args.dim(X, 1), args.dim(STATE, 2)]);
        let slots = args.read::<i32>(SLOTS)?;
        let (starts, lengths) = (args.read::<i32>(STARTS)?, args.read::<i32>(LENGTHS)?);
        let x = args.read_floats(X)?;
        let (mut state, mut out) = (args.write_floats(STATE)?, args.write_floats(OUT)?);
        for i in 0..args.true_dim(SLOTS, 0) {
            let [slot, start, length] =
                [slots, starts, lengths].map(|of| usize::try_from(of[i]).ok());
            let (Some(slot), Some(start), Some(length)) = (slot, start, length) else {
                return Err(args.error(format!("sequence {i} has no slot or no rows")));
            };
            if slot >= args.dim(STATE, 0) || start + length > rows {
                return Err(args.error(format!(
                    "sequence {i} has slot {slot} of {} and {length} rows from row {start} on, of {rows}",
                    args.dim(STATE, 0)
                )));
            }
            let of = Sequence { slot, start, length };
            match (&x, &mut state, &mut out) {
                (FloatSlice::F32(x), FloatSliceMut::F32(state), FloatSliceMut::F32(out)) => {
                    slide(x, state, out, &of, dims);
                }
                (FloatSlice::F16(x), FloatSliceMut::F16(state), FloatSliceMut::F16(out)) => {
                    slide(x, state, out, &of, dims);
                }
                (FloatSlice::Bf16(x), FloatSliceMut::Bf16(state), FloatSliceMut::Bf16(out)) => {
                    slide(x, state, out, &of, dims);
                }
                _ => return Err(args.error("x, state and result are of several dtypes".to_owned())),
            }
        }
        Ok(())
    }
}
