//! Pillow's resampling, bit by bit (that of the versions before 13): the models were trained on what
//! it makes, and no crate rounds as it does. First along rows, then along columns, each rounded to
//! eight bits, by weights in 22 bits that widen with the step so that nothing is left out.

use std::f64::consts::PI;

/// A way to weigh the pixels around a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Filter {
    /// Straight lines between neighbours, over more of them where it gets smaller.
    Bilinear,
    /// Cubic pieces, with a = -0.5.
    Bicubic,
    /// A sinc in a window of three lobes.
    Lanczos,
}

impl Filter {
    /// How far from the place it reaches.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
        let far = x.abs();
        match self {
            Self::Bilinear if far < 1.0 => 1.0 - far,
            Self::Bicubic if far < 1.0 => ((A + 2.0) * far - (A + 3.0)) * far * far + 1.0,
            Self::Bicubic if far < 2.0 => (((far - 5.0) * far + 8.0) * far - 4.0) * A,
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

const PRECISION: u32 = 22;

/// Of each place along an axis, the first element that it takes and their weights.
fn weights(from: usize, to: usize, filter: Filter) -> Vec<(usize, Vec<i32>)> {
    let scale = from as f64 / to as f64;
    let widened = scale.max(1.0);
    let support = filter.support() * widened;
    let of_place = |place: usize| {
        let center = (place as f64 + 0.5) * scale;
        // Casts round towards zero, and negative numbers become 0.
        let first = (center - support + 0.5) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weight = |i: usize| filter.weight((i as f64 - center + 0.5) * (1.0 / widened));
        let weights = Vec::from_iter((first..end).map(weight));
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: &f64| {
            let weight = if sum == 0.0 { *weight } else { weight / sum };
            let scaled = weight * f64::from(1u32 << PRECISION);
            (scaled + if weight < 0.0 { -0.5 } else { 0.5 }) as i32
        };
        (first, weights.iter().map(fixed).collect())
    };
    (0..to).map(of_place).collect()
}

fn rounded(sum: i32) -> u8 {
    ((sum + (1 << (PRECISION - 1))) >> PRECISION).clamp(0, 255) as u8
}

/// An image of three channels, `[width, height]` pixels, in another size.
pub(super) fn resample(
    mut bytes: Vec<u8>,
    [width, height]: [usize; 2],
    [new_width, new_height]: [usize; 2],
    filter: Filter,
) -> Vec<u8> {
    if new_width != width {
        let weights = weights(width, new_width, filter);
        let mut across = Vec::with_capacity(3 * new_width * height);
        for row in bytes.chunks_exact(3 * width) {
            for (first, weights) in &weights {
                let mut sums = [0i32; 3];
                for (pixel, weight) in row[3 * first..].chunks_exact(3).zip(weights) {
                    for (sum, &value) in sums.iter_mut().zip(pixel) {
                        *sum += i32::from(value) * weight;
                    }
                }
                across.extend(sums.map(rounded));
            }
        }
        bytes = across;
    }
    if new_height != height {
        let line = 3 * new_width;
        let mut down = Vec::with_capacity(line * new_height);
        let mut sums = vec![0i32; line];
        for (first, weights) in weights(height, new_height, filter) {
            sums.fill(0);
            for (row, weight) in bytes[first * line..].chunks_exact(line).zip(weights) {
                for (sum, &value) in sums.iter_mut().zip(row) {
                    *sum += i32::from(value) * weight;
                }
            }
            down.extend(sums.iter().map(|&sum| rounded(sum)));
        }
        bytes = down;
    }
    bytes
}
