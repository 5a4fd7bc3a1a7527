//! Normal random numbers by a counter-based generator: element `i` of a tensor is a function of
//! seed, name and `i` alone.

use crate::weights::normal_key;
use piecewise_kernels::cpu::philox::philox4x32;

/// The elements of one counter.
pub(super) const BLOCK: usize = 4;

/// The numbers of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Normal {
    key: [u32; 2],
    std: f32,
}

impl Normal {
    pub(super) fn new(name: &str, seed: u64, std: f32) -> Self {
        Self { key: normal_key(name, seed), std }
    }

    /// Elements `4 * block ..`: two pairs by Box and Muller's transform.
    pub(super) fn block(self, block: u64) -> [f32; BLOCK] {
        let bits = philox4x32([block as u32, (block >> 32) as u32, 0, 0], self.key);
        let (a, b) = pair(bits[0], bits[1]);
        let (c, d) = pair(bits[2], bits[3]);
        [a, b, c, d].map(|x| x * self.std)
    }
}

/// The first `count` numbers of [`TensorSource::Normal`](crate::weights::TensorSource::Normal) for a
/// tensor, before they are rounded to its dtype: the same as on every device.
pub fn normal_numbers(name: &str, seed: u64, std: f32, count: usize) -> Vec<f32> {
    let normal = Normal::new(name, seed, std);
    let blocks = (0..count.div_ceil(BLOCK) as u64).flat_map(|block| normal.block(block));
    blocks.take(count).collect()
}

fn pair(a: u32, b: u32) -> (f32, f32) {
    const SCALE: f32 = 1.0 / 16_777_216.0;
    // In (0, 1], so that the logarithm is finite.
    let u = ((a >> 8) + 1) as f32 * SCALE;
    let angle = (b >> 8) as f32 * SCALE * std::f32::consts::TAU;
    let radius = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = angle.sin_cos();
    (radius * cos, radius * sin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_normal_and_differ_by_name_and_seed() {
        let normal = Normal::new("a", 1, 0.5);
        let values: Vec<f32> = (0..50_000).flat_map(|i| normal.block(i)).collect();
        let n = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
        let within = values.iter().filter(|x| x.abs() < 0.5).count() as f64 / n;
        assert!(mean.abs() < 5e-3, "{mean}");
        assert!((variance - 0.25).abs() < 3e-3, "{variance}");
        assert!((within - 0.6827).abs() < 5e-3, "{within}");
        assert_ne!(normal.block(0), Normal::new("b", 1, 0.5).block(0));
        assert_ne!(normal.block(0), Normal::new("a", 2, 0.5).block(0));
        assert_eq!(normal.block(7), Normal::new("a", 1, 0.5).block(7));
    }
}
