//! Attention and means within segments on the CPU.

use super::attention::SegmentSpec;
use super::{SegmentAttention, SegmentMean};
use crate::cpu::attention::{self, AttentionShape, attention_scratch_bytes};
use crate::cpu::{FloatSlice, FloatSliceMut, Isa, SCRATCH_ALIGN};
use crate::op::{CpuOp, CpuOpArgs, OpError};
use half::{bf16, f16};
use piecewise_ir::custom::Attrs;
use piecewise_ir::types::TensorType;

/// [`SegmentAttention`] on the CPU; can be captured in every batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuSegmentAttention;

const Q: usize = 0;
const KEYS: usize = 1;
const VALUES: usize = 2;
const QUERY_STARTS: usize = 3;
const QUERY_LENGTHS: usize = 4;
const KEY_STARTS: usize = 5;
const KEY_LENGTHS: usize = 6;
const OUT: usize = 7;

/// Bytes of the cumulative query starts of `segments`, rounded up so that what follows stays
/// aligned.
fn starts_bytes(segments: usize) -> usize {
    ((segments + 1) * size_of::<i32>()).next_multiple_of(SCRATCH_ALIGN)
}

impl CpuOp for CpuSegmentAttention {
    fn name(&self) -> &str {
        SegmentAttention::NAME
    }

    fn scratch_bytes(
        &self,
        operands: &[TensorType],
        _results: &[TensorType],
        _attrs: &Attrs,
        sizes: &[u64],
        threads: usize,
    ) -> u64 {
        let extent = |position: usize, axis: usize| {
            operands[position].shape.get(axis).map_or(0, |dim| dim.eval(sizes) as usize)
        };
        let shape = AttentionShape {
            q_heads: extent(Q, 1),
            kv_heads: extent(KEYS, 1),
            head_dim: extent(Q, 2),
            value_dim: extent(VALUES, 2),
        };
        (starts_bytes(extent(QUERY_STARTS, 0)) + attention_scratch_bytes(shape, threads)) as u64
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let spec = SegmentSpec::of(args.attrs()).map_err(|reason| args.error(reason))?;
        let segments = args.true_dim(QUERY_STARTS, 0);
        let of = |position: usize| Ok(&args.read::<i32>(position)?[..segments]);
        let (starts, lengths) = (of(QUERY_STARTS)?, of(QUERY_LENGTHS)?);
        let (head, scratch) = args.scratch()?.split_at_mut(starts_bytes(args.dim(QUERY_STARTS, 0)));
        let query_start: &mut [i32] =
            bytemuck::cast_slice_mut(&mut head[..(segments + 1) * size_of::<i32>()]);
        query_start[0] = 0;
        for segment in 0..segments {
            if starts[segment] != query_start[segment] {
                return Err(args.error(format!(
                    "query segment {segment} starts at row {}, but the one before ends at {}",
                    starts[segment], query_start[segment]
                )));
            }
            query_start[segment + 1] = starts[segment].saturating_add(lengths[segment]);
        }
        let call = attention::SegmentAttention {
            shape: AttentionShape {
                q_heads: args.dim(Q, 1),
                kv_heads: args.dim(KEYS, 1),
                head_dim: args.dim(Q, 2),
                value_dim: args.dim(VALUES, 2),
            },
            q: args.read_floats(Q)?,
            k: args.read_floats(KEYS)?,
            v: args.read_floats(VALUES)?,
            query_start,
            key_starts: of(KEY_STARTS)?,
            key_lengths: of(KEY_LENGTHS)?,
            scale: spec.scale as f32,
            causal: spec.causal,
            window: spec.window.map(|window| window as usize),
            out: args.write_floats(OUT)?,
            scratch,
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

    fn scratch_bytes(
        &self,
        operands: &[TensorType],
        _results: &[TensorType],
        _attrs: &Attrs,
        sizes: &[u64],
        _threads: usize,
    ) -> u64 {
        operands[0].shape.get(1).map_or(0, |width| width.eval(sizes)) * size_of::<f32>() as u64
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
    match x {
        FloatSlice::F32(x) => sums.iter_mut().zip(&x[at..at + n]).for_each(|(s, x)| *s += x),
        FloatSlice::F16(x) => {
            sums.iter_mut().zip(&x[at..at + n]).for_each(|(s, x)| *s += x.to_f32());
        }
        FloatSlice::Bf16(x) => {
            sums.iter_mut().zip(&x[at..at + n]).for_each(|(s, x)| *s += x.to_f32());
        }
    }
}

fn write_row(out: &mut FloatSliceMut<'_>, at: usize, row: &[f32]) {
    let n = row.len();
    match out {
        FloatSliceMut::F32(out) => out[at..at + n].copy_from_slice(row),
        FloatSliceMut::F16(out) => {
            out[at..at + n].iter_mut().zip(row).for_each(|(to, x)| *to = f16::from_f32(*x));
        }
        FloatSliceMut::Bf16(out) => {
            out[at..at + n].iter_mut().zip(row).for_each(|(to, x)| *to = bf16::from_f32(*x));
        }
    }
}
