//! Windows of rows on the CPU.

use super::{CausalWindow, LENGTHS, OUT, SLOTS, STARTS, STATE, X};
use crate::op::{CpuOp, CpuOpArgs, OpError, with_elements};
use bytemuck::Pod;

/// A sequence: where its columns lie in the state, its first row and its rows.
struct Sequence {
    slot: usize,
    start: usize,
    length: usize,
}

/// Windows of one sequence, and what its slot holds then.
fn slide<E: Pod>(
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

/// The windows of all sequences; state and result are of x's dtype.
fn windows<E: Pod>(args: &CpuOpArgs<'_>, x: &[E]) -> Result<(), OpError> {
    let (rows, dims) = (args.true_dim(X, 0), [args.dim(X, 1), args.dim(STATE, 2)]);
    let slots = args.read::<i32>(SLOTS)?;
    let (starts, lengths) = (args.read::<i32>(STARTS)?, args.read::<i32>(LENGTHS)?);
    let (state, out) = (args.write(STATE)?, args.write(OUT)?);
    for i in 0..args.true_dim(SLOTS, 0) {
        let [slot, start, length] = [slots, starts, lengths].map(|of| usize::try_from(of[i]).ok());
        let (Some(slot), Some(start), Some(length)) = (slot, start, length) else {
            return Err(args.error(format!("sequence {i} has no slot or no rows")));
        };
        if slot >= args.dim(STATE, 0) || start + length > rows {
            return Err(args.error(format!(
                "sequence {i} has slot {slot} of {} and {length} rows from row {start} on, of {rows}",
                args.dim(STATE, 0)
            )));
        }
        slide(x, state, out, &Sequence { slot, start, length }, dims);
    }
    Ok(())
}

impl CpuOp for CausalWindow {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        with_elements!(FloatSlice, args.read_floats(X)?, x => windows(args, x))
    }
}
