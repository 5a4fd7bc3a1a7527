//! Floats of a file as `f32`.

use half::f16;
use piecewise_ir::dtype::DType;

/// Whether [`read`] knows elements of this dtype.
pub(super) fn is_readable(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The little-endian floats of `bytes`, which `to` has room for.
pub(super) fn read(dtype: DType, bytes: &[u8], to: &mut [f32]) {
    match dtype {
        DType::BF16 => {
            for (to, x) in to.iter_mut().zip(bytes.as_chunks().0) {
                *to = f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
            }
        }
        DType::F16 => {
            for (to, x) in to.iter_mut().zip(bytes.as_chunks().0) {
                *to = f16::from_le_bytes(*x).to_f32();
            }
        }
        _ => {
            for (to, x) in to.iter_mut().zip(bytes.as_chunks().0) {
                *to = f32::from_le_bytes(*x);
            }
        }
    }
}

/// The largest magnitude, with NaN above infinity above all numbers.
pub(super) fn largest(values: &[f32]) -> f32 {
    // Without its sign a float is ordered as its bits are.
    f32::from_bits(values.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

/// The sum of squares, which rounds no more than a sum of a 16th of them in `f32`.
pub(super) fn sum_of_squares(values: &[f32]) -> f64 {
    let (chunks, rest) = values.as_chunks::<16>();
    let mut lanes = [0f32; 16];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * x;
        }
    }
    lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>()
        + rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
}
