//! Attention and means within segments on the CPU.

use super::attention::SegmentSpec;
use super::{SegmentAttention, SegmentMean};
use crate::attention::packed::{self, Packed};
use crate::cpu::attention;
use crate::cpu::element::{Element, with_elements};
use crate::cpu::{FloatSlice, FloatSliceMut, Isa};
use crate::op::{CpuOp, CpuOpArgs, CpuOpCall, OpError};

/// [`SegmentAttention`] on the CPU; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuSegmentAttention;

const QUERY_STARTS: usize = 3;
const QUERY_LENGTHS: usize = 4;
const KEY_STARTS: usize = 5;
const KEY_LENGTHS: usize = 6;
const OUT: usize = 7;

impl CpuOp for CpuSegmentAttention {
    fn name(&self) -> &str {
        SegmentAttention::NAME
    }

    fn scratch_bytes(&self, call: &CpuOpCall<'_>) -> u64 {
        packed::scratch_bytes(call, QUERY_STARTS)
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let spec = SegmentSpec::of(args.attrs()).map_err(|reason| args.error(reason))?;
        let packed = Packed::take(args, [QUERY_STARTS, QUERY_LENGTHS], "query segment")?;
        let segments = args.true_dim(KEY_STARTS, 0);
        let call = attention::SegmentAttention {
            shape: packed.shape,
            q: packed.q,
            k: packed.k,
            v: packed.v,
            query_start: packed.query_start,
            key_starts: &args.read::<i32>(KEY_STARTS)?[..segments],
            key_lengths: &args.read::<i32>(KEY_LENGTHS)?[..segments],
            scale: spec.scale as f32,
            causal: spec.causal,
            window: spec.window.map(|window| window as usize),
            out: args.write_floats(OUT)?,
            scratch: packed.scratch,
        };
        attention::segment_attention(Isa::detected(), call).map_err(|e| args.error(e.to_string()))
    }
}

/// [`SegmentMean`] on the CPU; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuSegmentMean;

impl CpuOp for CpuSegmentMean {
    fn name(&self) -> &str {
        SegmentMean::NAME
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
