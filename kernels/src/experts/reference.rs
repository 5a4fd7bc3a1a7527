//! Experts in f64, one row at a time.

use crate::op::{LEAST_SUM, RouterScores, Routing};
use piecewise_ir::eval::Array;
use std::cmp::Ordering;

/// The indices of the `top_k` largest, the largest first; a sort that keeps the order of equals.
fn chosen(logits: &[f64], top_k: usize) -> Vec<usize> {
    let mut order = Vec::from_iter(0..logits.len());
    order.sort_by(|&a, &b| {
        let (a, b) = (logits[a], logits[b]);
        a.is_nan().cmp(&b.is_nan()).then(b.partial_cmp(&a).unwrap_or(Ordering::Equal))
    });
    order.truncate(top_k);
    order
}

/// What each of the chosen counts by.
fn weights(logits: &[f64], chosen: &[usize], routing: Routing) -> Vec<f64> {
    let top = logits[chosen[0]];
    let softmax = routing.scores == RouterScores::Softmax;
    let score = |x: f64| if softmax { (x - top).exp() } else { 1.0 / (1.0 + (-x).exp()) };
    let scores = Vec::from_iter(chosen.iter().map(|&expert| score(logits[expert])));
    let sum = match (routing.renormalize, softmax) {
        (true, true) => scores.iter().sum(),
        (true, false) => scores.iter().sum::<f64>() + LEAST_SUM,
        (false, true) => logits.iter().map(|&x| score(x)).sum(),
        (false, false) => 1.0,
    };
    scores.into_iter().map(|score| score / sum * routing.scale).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn experts(operands: &[Array], routing: Routing) -> Result<Vec<Array>, String> {
    let [x, logits, gate_up, down] = operands else {
        return Err(format!("takes 4 operands, not {}", operands.len()));
    };
    let (width, experts, inner) = (x.shape[1], logits.shape[1], down.shape[2]);
    let mut out = Array::zeros(x.dtype, x.shape.clone());
    let rows = x.data.chunks_exact(width).zip(out.data.chunks_exact_mut(width));
    for ((row, out), logits) in rows.zip(logits.data.chunks_exact(experts)) {
        let chosen = chosen(logits, routing.top_k as usize);
        for (&expert, weight) in chosen.iter().zip(weights(logits, &chosen, routing)) {
            let mut halves = gate_up.data[expert * 2 * inner * width..].chunks_exact(inner * width);
            let mut half = || halves.next().unwrap_or_default().chunks_exact(width);
            let gated = half().zip(half()).map(|(gate, up)| {
                let gate = dot(gate, row);
                gate / (1.0 + (-gate).exp()) * dot(up, row)
            });
            let gated = Vec::from_iter(gated);
            let columns = down.data[expert * width * inner..].chunks_exact(inner);
            for (sum, column) in out.iter_mut().zip(columns) {
                *sum += weight * dot(column, &gated);
            }
        }
    }
    Ok(vec![out])
}
