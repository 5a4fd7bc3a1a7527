//! A model from scratch: a norm and a gate that no model family has, written from primitives.
//!
//! Each becomes one region, and so one kernel, without a kernel being written: the passes find
//! regions by what ops do, not by their names.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::ir::op::Op;
use piecewise::prelude::*;
use std::error::Error;

const HIDDEN: u64 = 16;
const INNER: u64 = 32;
const LAYERS: u64 = 3;
const MAX_ROWS: u64 = 64;

/// `x / cbrt(mean(|x|^3) + eps)`, with the divisor kept above a floor.
fn cube_mean_norm<'b>(x: Tensor<'b>, weight: Tensor<'b>) -> Tensor<'b> {
    let magnitude = x.abs();
    let cube_mean = (magnitude * magnitude * magnitude).reduce_mean([1]) + 1e-6;
    let cube_root = (cube_mean.log() * (1.0 / 3.0)).exp();
    x / cube_root.maximum(0.01) * weight
}

/// `relu(gate)^2 * tanh(up)`.
fn squared_relu_gate<'b>(gate: Tensor<'b>, up: Tensor<'b>) -> Tensor<'b> {
    let positive = gate.maximum(0.0);
    positive * positive * up.tanh()
}

fn layer<'b>(b: &'b Builder, x: Tensor<'b>) -> Tensor<'b> {
    let h = cube_mean_norm(x, b.weight("norm", [HIDDEN]));
    let gate = h.linear(b.weight("gate", [INNER, HIDDEN]));
    let up = h.linear(b.weight("up", [INNER, HIDDEN]));
    x + squared_relu_gate(gate, up).linear(b.weight("down", [HIDDEN, INNER]))
}

fn model() -> Result<Graph, BuildErrors> {
    let b = Builder::new("my_model").weight_dtype(DType::F32);
    let rows = b.symbol("T", 1, MAX_ROWS);
    let mut x = b.input("x", DType::F32, (rows, HIDDEN));
    for index in 0..LAYERS {
        let _scope = b.scope(format!("layers.{index}"));
        x = layer(&b, x);
    }
    b.finish([x])
}

fn waves(elements: u64, amplitude: f32) -> Vec<f32> {
    (0..elements).map(|i| amplitude * (i as f32 * 0.7).sin()).collect()
}

fn weights() -> InMemoryWeights {
    (0..LAYERS).fold(InMemoryWeights::new(), |weights, layer| {
        let name = |weight: &str| format!("layers.{layer}.{weight}");
        weights
            .with(&name("norm"), [HIDDEN], vec![1.0f32; HIDDEN as usize])
            .with(&name("gate"), [INNER, HIDDEN], waves(INNER * HIDDEN, 0.2))
            .with(&name("up"), [INNER, HIDDEN], waves(INNER * HIDDEN, 0.3))
            .with(&name("down"), [HIDDEN, INNER], waves(HIDDEN * INNER, 0.1))
    })
}

fn count(session: &Session, wanted: impl Fn(&Op) -> bool) -> usize {
    let graph = session.model().module().graph();
    graph.nodes().filter(|&node| wanted(&graph.node(node).op)).count()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut session =
        Assembly::graph(model()?).weights(weights()).capture_sizes([1, 8, 64]).session()?;

    let regions = count(&session, |op| matches!(op, Op::Region(_)));
    let matmuls = count(&session, |op| matches!(op, Op::MatMul { .. }));
    println!("{LAYERS} layers are {regions} regions and {matmuls} matmuls");
    if let Some(stitch) = session.model().module().stitch() {
        let unique = stitch.unique_pieces().len();
        println!("in {} pieces, {unique} of them unique", stitch.piece_count());
    }

    for rows in [1, 5, 64] {
        let outputs = session.step().input("x", &waves(rows * HIDDEN, 1.0)).run()?;
        let y: Vec<f32> = outputs.get(0)?;
        let step = session.model().last_step().ok_or("no step ran")?;
        let (mode, size) = (step.mode.name(), step.sizes.tokens.rows());
        println!("{rows} rows ran {mode} at size {size}: y[0] begins {:.4?}", &y[..4]);
    }
    Ok(())
}
