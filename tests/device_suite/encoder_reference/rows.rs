//! What an encoder computes of rows that has no weights.

use super::Rows;
use std::f64::consts::PI;

fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..400 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    2.0 / PI.sqrt() * sum
}

pub(crate) fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt()))
}

pub(crate) fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn quick_gelu(x: f64) -> f64 {
    x * sigmoid(1.702 * x)
}

pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

pub(super) fn map(x: Rows, f: impl Fn(f64) -> f64) -> Rows {
    x.into_iter().map(|row| row.into_iter().map(&f).collect()).collect()
}

pub(super) fn sum(a: &Rows, b: &Rows) -> Rows {
    let row = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| a + b).collect();
    a.iter().zip(b).map(row).collect()
}

pub(super) fn columns(x: &Rows, range: std::ops::Range<usize>) -> Rows {
    x.iter().map(|row| row[range.clone()].to_vec()).collect()
}

/// Attention of every head; query `i` sees key `j` where `sees(i, j)`.
pub(super) fn attention(
    [q, k, v]: [&Rows; 3],
    heads: usize,
    sees: impl Fn(usize, usize) -> bool,
) -> Rows {
    let dim = q[0].len() / heads;
    let mut out = vec![vec![0.0; q[0].len()]; q.len()];
    for head in 0..heads {
        let of = |row: &Vec<f64>| row[head * dim..(head + 1) * dim].to_vec();
        for (i, query) in q.iter().map(of).enumerate() {
            let seen = Vec::from_iter((0..k.len()).filter(|&j| sees(i, j)));
            let score = |&j: &usize| {
                let dot: f64 = query.iter().zip(of(&k[j])).map(|(a, b)| a * b).sum();
                dot / (dim as f64).sqrt()
            };
            let scores = Vec::from_iter(seen.iter().map(score));
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights = Vec::from_iter(scores.iter().map(|score| (score - most).exp()));
            let total: f64 = weights.iter().sum();
            for (&j, weight) in seen.iter().zip(&weights) {
                for (out, v) in out[i][head * dim..].iter_mut().zip(of(&v[j])) {
                    *out += weight / total * v;
                }
            }
        }
    }
    out
}

/// Turns the halves of each head of each row by that row's angles, one for each pair.
pub(super) fn rope(x: &Rows, heads: usize, angles: impl Fn(usize) -> Vec<f64>) -> Rows {
    let dim = x[0].len() / heads;
    let row = |(i, row): (usize, &Vec<f64>)| {
        let angles = angles(i);
        let mut out = row.clone();
        for head in 0..heads {
            for (pair, angle) in angles.iter().enumerate() {
                let (a, b) = (head * dim + pair, head * dim + pair + dim / 2);
                out[a] = row[a] * angle.cos() - row[b] * angle.sin();
                out[b] = row[b] * angle.cos() + row[a] * angle.sin();
            }
        }
        out
    };
    x.iter().enumerate().map(row).collect()
}

pub(super) fn frequencies(theta: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect()
}

pub(super) fn normalized(row: &[f64]) -> Vec<f64> {
    let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    row.iter().map(|x| x / norm).collect()
}

pub(super) fn normalized_mean(rows: &Rows) -> Vec<f64> {
    let mean = |i: usize| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64;
    normalized(&Vec::from_iter((0..rows[0].len()).map(mean)))
}
