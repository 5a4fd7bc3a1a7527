//! Random graphs and arrays for property tests, and how far results may be apart.

mod blocks;
mod draft;
mod graph;
mod mix;
mod row_probe;

pub use graph::RandomGraph;
pub use mix::{MixOp, mix_ops};
pub use piecewise_ir::random::{RandomArrays, Rng, random_arrays, random_weight};
pub use row_probe::{RowProbe, row_probe};

/// `count` times the number in `PIECEWISE_SOAK`, which `tests/soak.sh` sets; `count` without it.
///
/// # Panics
/// When the variable is no positive number.
pub fn soak(count: u32) -> u32 {
    let times = std::env::var("PIECEWISE_SOAK").map_or(1, |text| match text.parse() {
        Ok(times) if times > 0 => times,
        _ => panic!("PIECEWISE_SOAK={text:?} is no positive number"),
    });
    count.saturating_mul(times)
}

/// The norm-wise error `||a - b|| / ||b||` of `a` against the reference `b`, in the Euclidean
/// norm. It is infinite where a NaN, an infinity or a difference in length is met, and `||a||`
/// where `b` is zero.
pub fn norm_error(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let square = |sum: f64, x: f64| sum + x * x;
    let difference = a.iter().zip(b).map(|(x, y)| x - y).fold(0.0, square).sqrt();
    let norm = b.iter().copied().fold(0.0, square).sqrt();
    let error = if norm == 0.0 { difference } else { difference / norm };
    if error.is_nan() { f64::INFINITY } else { error }
}
