//! A layer whose regions are lowered.

use crate::common::{self, Builder};
use piecewise_ir::dtype::DType::{self, F32, I32};
use piecewise_ir::module::Module;

/// What makes regions of a graph.
pub(crate) const PASSES: &str = "canonicalize,fold,merge_matmuls,cse,dce,fuse";

/// The part of a decoder layer between two products, at the shapes of a small model: over
/// up to `longest` positions, with states of `rows` rows.
pub(crate) fn layer(dtype: DType, longest: u64, rows: u64) -> Module {
    const HIDDEN: u64 = 1024;
    const DIM: u64 = 128;
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", dtype, dims![t, HIDDEN]);
    let y = b.input("y", dtype, dims![t, HIDDEN]);
    let positions = b.input("positions", I32, dims![t]);
    let slots = b.input("slots", I32, dims![t]);
    let qkv = b.input("qkv", dtype, dims![t, 4096u64]);
    let gate_up = b.input("gate_up", dtype, dims![t, 6144u64]);
    let norm = b.weight("norm", dtype, &[HIDDEN]);
    let sum = b.add(x, y);
    let normed = b.rms_norm(sum, norm);
    let (cos, sin) =
        (b.weight("cos", F32, &[longest, DIM / 2]), b.weight("sin", F32, &[longest, DIM / 2]));
    let (q, k, v) =
        (b.slice(qkv, 1, 0, 2048), b.slice(qkv, 1, 2048, 1024), b.slice(qkv, 1, 3072, 1024));
    let (q, k) = (b.reshape(q, dims![t, 16u64, DIM]), b.reshape(k, dims![t, 8u64, DIM]));
    let v = b.reshape(v, dims![t, 8u64, DIM]);
    let mut turn = |name: &str, x| {
        let weight = b.weight(name, dtype, &[DIM]);
        let x = b.rms_norm(x, weight);
        let (c, s) = (b.gather(cos, positions), b.gather(sin, positions));
        b.rope(x, c, s)
    };
    let (q, k) = (turn("q_norm", q), turn("k_norm", k));
    let keys = b.state("k", dtype, &[rows, 8, DIM]);
    let values = b.state("v", dtype, &[rows, 8, DIM]);
    b.scatter(keys, slots, k);
    b.scatter(values, slots, v);
    let (gate, up) = (b.slice(gate_up, 1, 0, 3072), b.slice(gate_up, 1, 3072, 3072));
    let gate = b.silu(gate);
    let gated = b.mul(gate, up);
    let mut module = b.finish(&[sum, normed, q, gated]);
    common::run(&mut module, PASSES);
    module
}
