//! Making weights from recipes.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::random::{BLOCK, Normal};
use crate::weight_plan::{Place, StridedCopy, Unpacking, WeightPlan, WeightStep, evaluate, tensor};
use crate::weights::{TensorSource, TensorSpec, WeightError, WeightSource};
use piecewise_ir::dtype::DType;
use piecewise_ir::literal::Scalar;
use piecewise_ir::weight::Recipe;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::borrow::Cow;

/// Bytes that one thread takes at a time.
const CHUNK: usize = 1 << 18;

/// Makes a weight at `out`, which has the bytes of its type.
pub(crate) fn materialize(
    recipe: &Recipe,
    source: &dyn WeightSource,
    out: &mut [u8],
) -> Result<(), WeightError> {
    let plan = WeightPlan::new(recipe)?;
    let mut made = Made { out, bytes: &plan.temporaries, temporaries: Vec::new() };
    made.temporaries.resize(plan.temporaries.len(), Cow::Borrowed(&[]));
    for step in &plan.steps {
        match step {
            WeightStep::Tensor { name, dtype, shape, to, offset } => {
                let spec = TensorSpec { name, dtype: *dtype, shape };
                match (tensor(source, spec)?, to) {
                    // A whole tensor is read where it is.
                    (TensorSource::Bytes(stored), Place::Temporary(i))
                        if stored.len() as u64 == plan.temporaries[*i] =>
                    {
                        made.temporaries[*i] = stored;
                    }
                    (TensorSource::Bytes(stored), _) => copy(&stored, made.at(*to, *offset)?),
                    (TensorSource::Normal { std, seed }, _) => {
                        let n = shape.iter().product::<u64>() as usize;
                        let to = &mut made.at(*to, *offset)?[..n * dtype.size()];
                        fill_normal(Normal::new(name, seed, std), *dtype, to);
                    }
                }
            }
            WeightStep::Graph { graph, dtype, bytes, to, offset } => {
                copy(&evaluate(graph, *dtype, *bytes)?, made.at(*to, *offset)?);
            }
            WeightStep::Cast { from, from_dtype, to, to_dtype, offset, n } => {
                let from = made.take(*from);
                let to = &mut made.at(*to, *offset)?[..*n as usize * to_dtype.size()];
                cast(&from, *from_dtype, *to_dtype, to);
            }
            WeightStep::Unpack { from, unpacking, to, offset } => {
                let from = made.take(*from);
                unpack(unpacking, &from, made.at(*to, *offset)?);
            }
            WeightStep::Copy { from, from_offset, to, to_offset, copy } => {
                let from = made.take(*from);
                strided(copy, &from[*from_offset as usize..], made.at(*to, *to_offset)?);
            }
        }
    }
    Ok(())
}

/// The weight and its intermediates while they are made.
struct Made<'a> {
    out: &'a mut [u8],
    bytes: &'a [u64],
    temporaries: Vec<Cow<'a, [u8]>>,
}

impl<'a> Made<'a> {
    /// The bytes that a step writes from `offset` on; a temporary is made by the first.
    fn at(&mut self, place: Place, offset: u64) -> Result<&mut [u8], WeightError> {
        let Place::Temporary(i) = place else { return Ok(&mut self.out[offset as usize..]) };
        let (bytes, temporary) = (self.bytes[i] as usize, &mut self.temporaries[i]);
        if temporary.is_empty() {
            let mut made = Vec::new();
            made.try_reserve_exact(bytes)
                .map_err(|e| WeightError::Recipe { reason: format!("{bytes} bytes: {e}") })?;
            made.resize(bytes, 0);
            *temporary = Cow::Owned(made);
        }
        Ok(&mut temporary.to_mut()[offset as usize..])
    }

    /// What a step reads: an intermediate, which one step reads.
    fn take(&mut self, place: Place) -> Cow<'a, [u8]> {
        match place {
            Place::Temporary(i) => std::mem::take(&mut self.temporaries[i]),
            Place::Target => Cow::Borrowed(&[]),
        }
    }
}

fn copy(from: &[u8], to: &mut [u8]) {
    to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| {
        to[..from.len()].copy_from_slice(from);
    });
}

/// Copies a box, along the axes of the result, so that threads write apart from each other.
fn strided(copy_of: &StridedCopy, from: &[u8], to: &mut [u8]) {
    let size = copy_of.element as usize;
    let axes = copy_of.axes.iter().map(|axis| axis.map(|n| n as usize));
    let mut axes: Vec<_> = axes.map(|[n, from, to]| [n, from * size, to * size]).collect();
    axes.sort_by_key(|&[_, _, to]| std::cmp::Reverse(to));
    // Elements that are neighbours on both sides are copied at once.
    let run = match axes.pop_if(|&mut [_, from, to]| (from, to) == (size, size)) {
        Some([n, ..]) => n * size,
        None => size,
    };
    match axes.split_first() {
        None => copy(&from[..run], to),
        Some((&[n, from_step, to_step], inner)) => {
            to.par_chunks_mut(to_step).take(n).enumerate().for_each(|(i, to)| {
                lines(inner, &from[i * from_step..], to, run);
            });
        }
    }
}

/// Writes lines of two integers a byte, the first in the lower half; each thread some lines.
fn unpack(how: &Unpacking, words: &[u8], to: &mut [u8]) {
    let [lines, line] = how.shape.map(|extent| extent as usize);
    let across = how.words_across() as usize;
    let word = |at: usize| {
        let bytes = words.get(4 * at..4 * at + 4).and_then(|bytes| bytes.as_array());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    to.par_chunks_mut(line.div_ceil(2)).take(lines).enumerate().for_each(|(i, to)| {
        let integer = |j: usize| {
            let (word, shift) = match how.axis {
                0 => (word(i / 8 * across + j), how.shifts[i % 8]),
                _ => (word(i * across + j / 8), how.shifts[j % 8]),
            };
            ((word >> shift) as u8).wrapping_sub(how.less) & 15
        };
        for (pair, to) in to.iter_mut().enumerate() {
            let second = if 2 * pair + 1 < line { integer(2 * pair + 1) } else { 0 };
            *to = integer(2 * pair) | second << 4;
        }
    });
}

fn lines(axes: &[[usize; 3]], from: &[u8], to: &mut [u8], run: usize) {
    match axes.split_first() {
        None => to[..run].copy_from_slice(&from[..run]),
        Some((&[n, from_step, to_step], inner)) => {
            for i in 0..n {
                lines(inner, &from[i * from_step..], &mut to[i * to_step..], run);
            }
        }
    }
}

fn fill_normal(normal: Normal, dtype: DType, out: &mut [u8]) {
    let size = dtype.size();
    let chunk = CHUNK / (BLOCK * size) * (BLOCK * size);
    out.par_chunks_mut(chunk).enumerate().for_each(|(c, chunk_out)| {
        let first = (c * chunk / (BLOCK * size)) as u64;
        for (i, to) in chunk_out.chunks_mut(BLOCK * size).enumerate() {
            let values = normal.block(first + i as u64);
            for (to, x) in to.chunks_exact_mut(size).zip(values) {
                put(to, dtype, f64::from(x));
            }
        }
    });
}

/// Writes one element, rounded.
fn put(to: &mut [u8], dtype: DType, x: f64) {
    to.copy_from_slice(&Scalar::new(dtype, x).bits().to_le_bytes()[..to.len()]);
}

fn cast(from: &[u8], source: DType, target: DType, out: &mut [u8]) {
    let (from_size, to_size) = (source.size(), target.size());
    let elements = CHUNK / 8;
    let chunks = from.par_chunks(elements * from_size);
    out.par_chunks_mut(elements * to_size).zip(chunks).for_each(|(out, from)| {
        for (to, x) in out.chunks_exact_mut(to_size).zip(from.chunks_exact(from_size)) {
            let mut bits = [0u8; 8];
            bits[..from_size].copy_from_slice(x);
            let x = Scalar::from_bits(source, u64::from_le_bytes(bits));
            match source {
                // Integers beyond 2^53 would not survive f64.
                DType::I64 if target == DType::I64 => to.copy_from_slice(&bits[..to_size]),
                DType::F32 | DType::F16 | DType::BF16 | DType::E4M3 | DType::I4 => {
                    put(to, target, x.to_f64());
                }
                DType::I32 | DType::I64 | DType::U8 | DType::Bool => put(to, target, x.to_f64()),
            }
        }
    });
}
