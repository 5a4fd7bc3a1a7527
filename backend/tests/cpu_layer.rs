//! A small layer on the CPU, where fused and unfused have the same bits.

use crate::harness::layer::{Layer, M, bench, layer, run};
use crate::harness::target::Cpu;
use crate::harness::{CANARY, compile, compile_with, registry, sizes_of};
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::device::Device;
use piecewise_ir::dtype::DType::{BF16, F16, F32};
use piecewise_ir::entity::Value;
use piecewise_testing::AbsorbingCompiler;

#[test]
fn unfused_fused_padded_and_parallel_layers_have_the_same_bits() {
    for dtype in [F32, BF16, F16] {
        let (reference, state) = run::<Cpu>(&layer(dtype, false), 1, PieceSize::Exact(40), 37);
        let row = (M as usize) * dtype.size();
        assert!(reference[0][..37 * row].chunks(row).any(|r| r.iter().any(|&b| b != CANARY)));
        assert!(reference[0][37 * row..].iter().all(|&b| b == CANARY), "rows past the count");
        // Slot -1 writes nowhere; row 0 goes to slot 63.
        assert_eq!(state[63 * row..64 * row], reference[0][..row]);
        assert!(state[62 * row..63 * row].iter().all(|&b| b == CANARY));
        for fused in [false, true] {
            for threads in [1, 4] {
                for size in [PieceSize::Exact(40), PieceSize::Exact(37), PieceSize::General(40)] {
                    let got = run::<Cpu>(&layer(dtype, fused), threads, size, 37);
                    assert_eq!(got.0, reference, "{dtype} fused {fused} {threads} {size:?}");
                    assert_eq!(got.1, state, "{dtype} fused {fused} {threads} {size:?}");
                }
            }
        }
        let (few, _) = run::<Cpu>(&layer(dtype, true), 4, PieceSize::Exact(5), 3);
        assert_eq!(few[0][..3 * row], reference[0][..3 * row], "a prefix at another size");
    }
}

#[test]
fn replay_equals_launch_after_everything_else_is_gone() {
    let layer = layer(BF16, true);
    let (reference, state) = run::<Cpu>(&layer, 4, PieceSize::Exact(40), 37);
    let mut bench = bench::<Cpu>(&layer, 4);
    let bounds = bench.bounds.clone();
    let sizes = sizes_of(&layer.piece, 40);
    let artifact = compile(&layer.piece, PieceSize::Exact(40), &bounds);
    let program = bench.bind(&artifact).unwrap();
    let graph = bench.device.capture("all", &[&program], &sizes).unwrap();
    drop((artifact, program));
    bench.set_counts(&sizes_of(&layer.piece, 37));
    let before = bench.outputs(&bounds);
    assert!(before[0].iter().all(|&b| b == CANARY), "a capture runs no kernel");
    bench.device.replay(&graph).unwrap();
    assert_eq!(bench.outputs(&bounds), reference);
    assert_eq!(bench.read_bytes(layer.state, &bounds), state);
}

/// The fused layer by the absorbing lowering.
fn absorbed(layer: &Layer, bounds: &[u64]) -> Artifact {
    let compiler = AbsorbingCompiler::new(&registry(), 4);
    let artifact = compile_with(&compiler, &layer.piece, PieceSize::Exact(40), bounds);
    let nodes: Vec<&[u32]> = artifact.first_launches().map(|launch| &launch.nodes[..]).collect();
    assert_eq!(nodes, [&[0, 1, 2][..], &[0], &[1], &[2]], "one moment of three nodes");
    artifact
}

#[test]
fn an_absorbing_lowering_has_the_same_bits_and_writes_no_locals() {
    for dtype in [F32, BF16, F16] {
        let layer = layer(dtype, true);
        let (reference, state) = run::<Cpu>(&layer, 1, PieceSize::Exact(40), 37);
        let mut bench = bench::<Cpu>(&layer, 4);
        let bounds = bench.bounds.clone();
        let program = bench.bind(&absorbed(&layer, &bounds)).unwrap();
        bench.launch(&program, &sizes_of(&layer.piece, 40), &sizes_of(&layer.piece, 37));
        let real = 37 * M as usize * dtype.size();
        assert_eq!(bench.outputs(&bounds)[0][..real], reference[0][..real]);
        assert_eq!(bench.read_bytes(layer.state, &bounds), state);
        let graph = &layer.piece.graph;
        let locals: Vec<Value> = graph.nodes().take(2).map(|n| graph.result(n)).collect();
        for local in locals {
            assert!(bench.read_bytes(local, &bounds).iter().all(|&b| b == CANARY), "{local}");
        }
    }
}

#[test]
fn node_granular_lifetimes_are_refused_under_absorption_and_only_there() {
    let layer = layer(F32, true);
    let (reference, _) = run::<Cpu>(&layer, 1, PieceSize::Exact(40), 37);
    let real = 37 * M as usize * 4;
    // By nodes, the input is dead once the norm has run, so the output could take its bytes.
    let input = layer.inputs[0];
    let mut plain = bench::<Cpu>(&layer, 1);
    let bounds = plain.bounds.clone();
    let out = plain.position(layer.piece.graph.outputs()[0]);
    plain.operands[out] = Some(plain.address(input));
    let error = plain.bind(&absorbed(&layer, &bounds)).unwrap_err().to_string();
    assert!(error.contains("%x at ") && error.contains("overlap, and one is written"), "{error}");
    let artifact = compile(&layer.piece, PieceSize::Exact(40), &bounds);
    let program = plain.bind(&artifact).unwrap();
    plain.launch(&program, &sizes_of(&layer.piece, 40), &sizes_of(&layer.piece, 37));
    assert_eq!(plain.outputs(&bounds)[0][..real], reference[0][..real]);
}
