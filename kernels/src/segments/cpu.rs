//! Attention and means within segments on the CPU.

use super::{SegmentAttention, SegmentMean};
use crate::attention::packed;
use crate::cpu::attention::Keys;
use crate::cpu::element::Element;
use crate::cpu::{FloatSlice, FloatSliceMut};
use crate::op::with_elements;
use crate::op::{CpuOp, CpuOpArgs, CpuOpCall, OpError};

const QUERY_STARTS: usize = 3;
const QUERY_LENGTHS: usize = 4;
const KEY_STARTS: usize = 5;
const KEY_LENGTHS: usize = 6;

impl CpuOp for SegmentAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        packed::scratch_bytes(call, QUERY_STARTS)
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let spec = Self::spec(args.attrs()).map_err(|reason| args.error(reason))?;
        let segments = args.true_dim(KEY_STARTS, 0);
        let keys = Keys::Segments {
            starts: &args.read(KEY_STARTS)?[..segments],
            lengths: &args.read(KEY_LENGTHS)?[..segments],
        };
        packed::attend(args, [QUERY_STARTS, QUERY_LENGTHS], "query segment", keys, None, spec)
    }
}

impl CpuOp for SegmentMean {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        (call.extent(0, 1) * size_of::<f32>()) as u64
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (rows, width) = (args.true_dim(0, 0), args.dim(0, 1));
        let segments = args.true_dim(1, 0);
        let starts = &args.read::<i32>(1)?[..segments];
        let lengths = &args.read::<i32>(2)?[..segments];
        let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut args.scratch()?[..width * 4]);
        let (x, mut out) = (args.read_floats(0)?, args.write_floats(3)?);
        for (segment, (&start, &length)) in starts.iter().zip(lengths).enumerate() {
            if start < 0 || length < 0 || start as usize + length as usize > rows {
                return Err(args.error(format!(
                    "segment {segment} has {length} rows from row {start} on, but there are {rows}"
                )));
            }
            sums.fill(0.0);
            for row in start as usize..start as usize + length as usize {
                add_row(&x, row * width, sums);
            }
            let factor = if length == 0 { 0.0 } else { 1.0 / length as f32 };
            sums.iter_mut().for_each(|sum| *sum *= factor);
            write_row(&mut out, segment * width, sums);
        }
        Ok(())
    }
}

fn add_row(x: &FloatSlice<'_>, at: usize, sums: &mut [f32]) {
    let n = sums.len();
    with_elements!(FloatSlice, x, x => {
        sums.iter_mut().zip(&x[at..at + n]).for_each(|(s, x)| *s += x.to_f32());
    });
}

fn write_row(out: &mut FloatSliceMut<'_>, at: usize, row: &[f32]) {
    let n = row.len();
    with_elements!(FloatSliceMut, out, out => {
        out[at..at + n].iter_mut().zip(row).for_each(|(to, x)| *to = Element::from_f32(*x));
    });
}
