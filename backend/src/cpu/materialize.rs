//! Making weights from recipes.

use super::random::{BLOCK, Normal};
use crate::weights::{TensorSource, WeightError, WeightSource};
use piecewise_ir::dtype::DType;
use piecewise_ir::literal::Scalar;
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::borrow::Cow;

/// Bytes that one task works on.
const CHUNK: usize = 1 << 18;

fn bad(reason: impl Into<String>) -> WeightError {
    WeightError::Recipe { reason: reason.into() }
}

fn type_of(recipe: &Recipe) -> Result<(TensorType, Vec<usize>, usize), WeightError> {
    let ty = recipe.ty().map_err(bad)?;
    let shape = ty.static_shape().ok_or_else(|| bad("a weight of symbolic shape"))?;
    let elements = ty.static_elements().and_then(|n| n.checked_mul(ty.dtype.size() as u64));
    let bytes = elements.and_then(|bytes| usize::try_from(bytes).ok()).filter(|b| *b < 1 << 48);
    let bytes = bytes.ok_or_else(|| bad("a weight larger than the address space"))?;
    Ok((ty, shape.into_iter().map(|d| d as usize).collect(), bytes))
}

/// The bytes of the weight that a recipe makes.
pub(super) fn recipe_bytes(recipe: &Recipe) -> Result<u64, WeightError> {
    Ok(type_of(recipe)?.2 as u64)
}

/// Writes the row-major bytes that `recipe` makes into `out`, which has exactly as many.
pub(super) fn materialize(
    recipe: &Recipe,
    source: &dyn WeightSource,
    out: &mut [u8],
) -> Result<(), WeightError> {
    let (ty, shape, bytes) = type_of(recipe)?;
    if bytes != out.len() {
        return Err(bad(format!("{bytes} bytes for a place of {}", out.len())));
    }
    match recipe {
        Recipe::Checkpoint { name, .. } => {
            let dims: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
            match source.tensor(name, ty.dtype, &dims)? {
                TensorSource::Bytes(stored) => {
                    check_stored(name, &ty, bytes, &stored)?;
                    copy(&stored, out);
                }
                TensorSource::Normal { std, seed } => {
                    fill_normal(Normal::new(name, seed, std), ty.dtype, out);
                }
            }
            Ok(())
        }
        Recipe::Concat { axis, parts } => concat(*axis, parts, &shape, ty.dtype, source, out),
        Recipe::Slice { axis, start, of, .. } => {
            let (_, whole, _) = type_of(of)?;
            let stored = bytes_of(of, source)?;
            let inner: usize = whole[axis + 1..].iter().product::<usize>() * ty.dtype.size();
            let (row, kept) = (whole[*axis] * inner, shape[*axis] * inner);
            if kept == 0 {
                return Ok(());
            }
            let from = *start as usize * inner;
            out.par_chunks_mut(kept).zip(stored.par_chunks(row)).for_each(|(to, row)| {
                to.copy_from_slice(&row[from..from + kept]);
            });
            Ok(())
        }
        Recipe::Transpose { perm, of } => {
            let (_, whole, _) = type_of(of)?;
            let stored = bytes_of(of, source)?;
            transpose(&stored, &whole, perm, ty.dtype.size(), out);
            Ok(())
        }
        Recipe::Cast { to, of } => {
            let from = type_of(of)?.0.dtype;
            let stored = bytes_of(of, source)?;
            cast(&stored, from, *to, out);
            Ok(())
        }
        Recipe::Graph(graph) => {
            let array =
                piecewise_ir::eval::evaluate_constant(graph).map_err(|e| bad(e.to_string()))?;
            let size = ty.dtype.size();
            if array.data.len() * size != out.len() {
                return Err(bad("a graph whose value has another size than its type"));
            }
            for (to, &x) in out.chunks_exact_mut(size).zip(&array.data) {
                to.copy_from_slice(&Scalar::new(ty.dtype, x).bits().to_le_bytes()[..size]);
            }
            Ok(())
        }
    }
}

fn check_stored(
    name: &str,
    ty: &TensorType,
    bytes: usize,
    stored: &[u8],
) -> Result<(), WeightError> {
    if stored.len() == bytes {
        return Ok(());
    }
    Err(WeightError::Mismatch {
        name: name.to_owned(),
        found: format!("{} bytes", stored.len()),
        expected: format!(
            "{:?} of {}, {bytes} bytes",
            ty.static_shape().unwrap_or_default(),
            ty.dtype
        ),
    })
}

/// The bytes that a recipe makes: those of the checkpoint as they lie there, where it can be.
fn bytes_of<'a>(
    recipe: &Recipe,
    source: &'a dyn WeightSource,
) -> Result<Cow<'a, [u8]>, WeightError> {
    let (ty, shape, bytes) = type_of(recipe)?;
    if let Recipe::Checkpoint { name, .. } = recipe {
        let dims: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
        if let TensorSource::Bytes(stored) = source.tensor(name, ty.dtype, &dims)? {
            check_stored(name, &ty, bytes, &stored)?;
            return Ok(stored);
        }
    }
    let mut made = Vec::new();
    made.try_reserve_exact(bytes).map_err(|e| bad(format!("{bytes} bytes: {e}")))?;
    made.resize(bytes, 0);
    materialize(recipe, source, &mut made)?;
    Ok(Cow::Owned(made))
}

fn copy(from: &[u8], to: &mut [u8]) {
    to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| {
        to.copy_from_slice(from);
    });
}

fn concat(
    axis: usize,
    parts: &[Recipe],
    shape: &[usize],
    dtype: DType,
    source: &dyn WeightSource,
    out: &mut [u8],
) -> Result<(), WeightError> {
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product::<usize>() * dtype.size();
    let row = shape[axis] * inner;
    let mut start = 0;
    for part in parts {
        let extent = type_of(part)?.1[axis] * inner;
        if outer == 1 {
            materialize(part, source, &mut out[start..start + extent])?;
        } else if extent > 0 {
            let made = bytes_of(part, source)?;
            out.par_chunks_mut(row).zip(made.par_chunks(extent)).for_each(|(to, from)| {
                to[start..start + extent].copy_from_slice(from);
            });
        }
        start += extent;
    }
    Ok(())
}

fn transpose(from: &[u8], shape: &[usize], perm: &[usize], size: usize, out: &mut [u8]) {
    let mut strides = vec![size; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    let dims: Vec<usize> = perm.iter().map(|&a| shape[a]).collect();
    let steps: Vec<usize> = perm.iter().map(|&a| strides[a]).collect();
    let Some((&last, outer)) = dims.split_last() else {
        out.copy_from_slice(from);
        return;
    };
    if last == 0 {
        return;
    }
    let step = steps[outer.len()];
    out.par_chunks_mut(last * size).enumerate().for_each(|(line, to)| {
        let (mut rest, mut at) = (line, 0);
        for axis in (0..outer.len()).rev() {
            at += rest % outer[axis] * steps[axis];
            rest /= outer[axis];
        }
        for (i, to) in to.chunks_exact_mut(size).enumerate() {
            let start = at + i * step;
            to.copy_from_slice(&from[start..start + size]);
        }
    });
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
                _ => put(to, target, x.to_f64()),
            }
        }
    });
}
