//! What safe code may ask of the CPU's device, whatever it gives it: small enough for Miri, which
//! `.ci/miri` runs it under.

use crate::harness::{Bench, compile, encode, registry, symbol, unique};
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::compiler::{Compiler, PieceAt};
use piecewise_backend::cpu::CpuCompiler;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::{F32, I32};
use piecewise_ir::entity::Value;
use piecewise_ir::eval::Array;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{BinaryOp, Op};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;

/// Rows of a step, and elements of each: together enough to be worth a second thread.
const ROWS: u64 = 64;
const WIDTH: u64 = 1 << 10;
/// Rows of the state.
const SLOTS: u64 = 5;

fn ty(dtype: piecewise_ir::dtype::DType, shape: &[Dim]) -> TensorType {
    TensorType { dtype, shape: shape.iter().cloned().collect() }
}

struct Sample {
    bench: Bench,
    artifact: Artifact,
    rows: Value,
    slots: Value,
    state: Value,
}

fn bench(graph: Graph, [rows, slots, state]: [Value; 3]) -> Sample {
    let piece = unique(graph, Some(symbol(0)));
    let bench = Bench::new(piece, registry(), 2);
    let mut artifact = compile(&bench.piece, PieceSize::Exact(ROWS), &bench.bounds);
    // An artifact has scratch for one thread until it is admitted.
    let alone = artifact.scratch();
    let at = PieceAt { piece: &bench.piece, size: PieceSize::Exact(ROWS), bounds: &bench.bounds };
    CpuCompiler::new(registry(), 2).admit(at, &mut artifact).unwrap();
    assert_eq!(artifact.scratch(), 2 * alone);
    Sample { bench, artifact, rows, slots, state }
}

/// A graph with rows, their slots and a state, and a symbol for the rows.
fn begun() -> (Graph, Dim, [Value; 3]) {
    let mut g = Graph::new("scatter");
    let t = SymbolDecl { name: "T".into(), min: 1, max: ROWS, role: None };
    let t: Dim = g.add_symbol(t).into();
    let rows = g.add_input("rows", ty(F32, &[t.clone(), WIDTH.into()]), None, None);
    let slots = g.add_input("slots", ty(I32, std::slice::from_ref(&t)), None, None);
    let state = g.add_state("kept", ty(F32, &[SLOTS.into(), WIDTH.into()]), None);
    (g, t, [rows, slots, state])
}

/// A scatter at slots that an input gives.
fn given() -> Sample {
    let (mut g, _, [rows, slots, state]) = begun();
    g.push_node(Op::Scatter, vec![state, slots, rows], vec![], Loc::default());
    bench(g, [rows, slots, state])
}

/// A region that makes its slots of those that an input gives, 1 at most.
fn made() -> Sample {
    let (mut g, _, [rows, slots, state]) = begun();
    let mut body = Graph::new("body");
    let _ = body.add_symbol(SymbolDecl { name: "T".into(), min: 1, max: ROWS, role: None });
    let row = body.add_input("row", ty(F32, &[WIDTH.into()]), None, None);
    let slot = body.add_input("slot", ty(I32, &[]), None, None);
    let whole = body.add_input("kept", ty(F32, &[SLOTS.into(), WIDTH.into()]), None, None);
    let one = Op::Literal(Literal::new(I32, [1.0]));
    let one = body.push(one, vec![], ty(I32, &[]), Loc::default());
    let made = Op::Binary(BinaryOp::Min);
    let made = body.push(made, vec![slot, one], ty(I32, &[]), Loc::default());
    body.push_node(Op::Scatter, vec![whole, made, row], vec![], Loc::default());
    let params = vec![ParamMode::Row, ParamMode::Row, ParamMode::Mut];
    let region = Op::Region(Box::new(Region { over: symbol(0), params, body }));
    g.push_node(region, vec![rows, slots, state], vec![], Loc::default());
    bench(g, [rows, slots, state])
}

/// Rows of one slot on two threads: what stays is one of them, whole, whoever is faster.
#[test]
fn of_rows_with_one_slot_one_stays_whole() {
    for (sample, most) in [(given(), 9), (made(), 1)] {
        let Sample { mut bench, artifact, rows, slots, state } = sample;
        // Each row has its number in every byte.
        let width = 4 * WIDTH as usize;
        let numbers = Vec::from_iter((0..ROWS).map(|row| vec![row as u8; width])).concat();
        let [at, into] = [rows, state].map(|value| bench.address(value));
        bench.device.write(at, &numbers).unwrap();
        let told = |row: u64| row as i64 % 4 - 1;
        let told_all = Array::from_fn(I32, vec![ROWS as usize], |row| told(row as u64) as f64);
        bench.write(slots, &told_all);
        let program = bench.bind(&artifact).unwrap();
        for _ in 0..if cfg!(miri) { 3 } else { 50 } {
            bench.device.write(into, &vec![0xff; SLOTS as usize * width]).unwrap();
            bench.launch(&program, &[ROWS], &[ROWS]);
            let kept = bench.read_bytes(state, &[ROWS]);
            for (slot, row) in (0..).zip(kept.chunks(width)) {
                let number = row[0];
                assert!(row == vec![number; width], "row {slot} is of several");
                let is_of = |row: u64| told(row).min(most) == slot;
                let came = u64::from(number) < ROWS && is_of(u64::from(number));
                assert_eq!(came, (0..ROWS).any(is_of), "row {slot} is {number}");
            }
        }
    }
}

/// A launch whose result lies on what it reads, on its counts or on its scratch is refused by name,
/// since references to both would be made; operands that are read alone may share.
#[test]
fn what_a_launch_writes_is_bound_apart_from_all_else() {
    let mut g = Graph::new("sum");
    let t = SymbolDecl { name: "T".into(), min: 1, max: ROWS, role: None };
    let t: Dim = g.add_symbol(t).into();
    let row = ty(F32, &[t, 2u64.into()]);
    let a = g.add_input("a", row.clone(), None, None);
    let b = g.add_input("b", row.clone(), None, None);
    let sum = g.push(Op::Binary(BinaryOp::Add), vec![a, b], row, Loc::default());
    g.set_outputs(vec![sum]);
    let mut bench = Bench::new(unique(g, Some(symbol(0))), registry(), 2);
    let artifact = compile(&bench.piece, PieceSize::Exact(ROWS), &bench.bounds);
    let [a, b, sum] = [a, b, sum].map(|value| bench.position(value));
    let apart = bench.operands.clone();
    let refused = |bench: &mut Bench| match bench.bind(&artifact) {
        Err(DeviceError::Bind { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let last = 8 * ROWS - 8;
    bench.operands[sum] = Some(apart[a].unwrap().offset(last));
    let reason = refused(&mut bench);
    assert!(reason.contains("%a at ") && reason.contains("v0 at "), "{reason}");
    assert!(reason.contains("overlap, and one is written"), "{reason}");
    bench.operands[sum] = Some(bench.counts);
    assert!(refused(&mut bench).contains("counts at "));
    bench.operands[sum] = Some(bench.scratch);
    assert!(refused(&mut bench).contains("scratch at "));
    bench.operands[sum] = apart[sum];
    bench.operands[b] = Some(bench.scratch);
    assert!(refused(&mut bench).contains("scratch at "), "it is written while %b is read");

    bench.operands[b] = apart[a];
    let program = bench.bind(&artifact).unwrap();
    let at = apart[a].unwrap();
    let ones = encode(&Array::from_fn(F32, vec![ROWS as usize, 2], |_| 1.0));
    bench.device.write(at, &ones).unwrap();
    bench.launch(&program, &[ROWS], &[ROWS]);
    let sum = bench.piece.operands()[sum];
    assert!(bench.read(sum, &[ROWS]).iter().all(|&x| x == 2.0));
}

#[test]
fn bytes_that_a_host_block_does_not_have_are_an_error() {
    let mut bench = given().bench;
    let device = &mut bench.device;
    let block = device.host_block(8).unwrap();
    device.host_bytes_mut(block, 2..6).unwrap().copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(device.host_bytes(block, block.all()).unwrap(), [0, 0, 1, 2, 3, 4, 0, 0]);
    #[expect(clippy::reversed_empty_ranges, reason = "one of those that are refused")]
    for range in [7..9, 9..9, 5..4, u64::MAX - 1..u64::MAX] {
        assert!(device.host_bytes(block, range.clone()).is_err(), "{range:?}");
        let error = device.host_bytes_mut(block, range).unwrap_err();
        assert!(error.to_string().contains("host block 0 of 8 bytes"), "{error}");
    }
}
