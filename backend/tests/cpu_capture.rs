//! The rules of captures, and what a captured graph holds on to.

use crate::harness::{Bench, CANARY, compile_with, encode, pattern, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::cpu::CpuCompiler;
use piecewise_backend::device::{Address, BoundAddress, BoundTo, CaptureRule, Device, DeviceError};
use piecewise_ir::custom::CustomCall;
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType::{F32, I32};
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::module::UniquePiece;
use piecewise_ir::op::{BinaryOp, Op, RowTreatment};
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use piecewise_kernels::step::{CaptureSupport, LaunchContext, StepContext};
use piecewise_testing::{DeviceFault, DeviceFaults, FaultKind, FaultPoint, FaultyDevice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

const ROWS: u64 = 6;

/// Copies its operand, scaled by an attribute; captured where the name says so.
#[derive(Debug)]
struct Copy(CaptureSupport);

impl CpuOp for Copy {
    fn name(&self) -> &str {
        "test.copy"
    }
    fn capture_support(&self) -> CaptureSupport {
        self.0
    }
    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (from, to) = (args.read::<f32>(0)?, args.write::<f32>(1)?);
        if self.0 == CaptureSupport::Always && !matches!(args.context(), LaunchContext::Capture(_))
        {
            return Err(args.error("wants no host values"));
        }
        let rows = args.true_dim(0, 0) * args.dim(0, 1);
        to[..rows].copy_from_slice(&from[..rows]);
        Ok(())
    }
}

fn symbols(graph: &mut Graph) -> [Dim; 2] {
    let t = SymbolDecl { name: "T".into(), min: 1, max: ROWS, role: None };
    let p = SymbolDecl { name: "P".into(), min: 1, max: 8, role: None };
    [graph.add_symbol(t).into(), graph.add_symbol(p).into()]
}

/// x + x, then copied by a custom op if wanted.
pub(crate) fn doubled(custom: bool) -> (UniquePiece, Value) {
    let mut g = Graph::new("doubled");
    let [t, _] = symbols(&mut g);
    let ty = TensorType::new(F32, [t, 3u64.into()]);
    let x = g.add_input("x", ty.clone(), None, None);
    let mut y = g.push(Op::Binary(BinaryOp::Add), vec![x, x], ty.clone(), Loc::default());
    if custom {
        let call = CustomCall {
            name: "test.copy".into(),
            attrs: Default::default(),
            mutates: vec![],
            rows: RowTreatment::Independent,
            splits: false,
            absorbs: vec![],
            scatters: vec![],
        };
        y = g.push(Op::Custom(Box::new(call)), vec![y], ty, Loc::default());
    }
    g.set_outputs(vec![y]);
    let over = g.symbol_named("T");
    (unique(g, over), x)
}

pub(crate) fn bound(
    piece: UniquePiece,
    support: CaptureSupport,
) -> (Bench, piecewise_backend::artifact::Artifact) {
    let mut registry = OpRegistry::new();
    registry.implement_cpu(Arc::new(Copy(support)));
    let registry = Arc::new(registry);
    let bench = Bench::new(piece, registry.clone(), 2);
    let compiler = CpuCompiler::new(registry, 2);
    let artifact = compile_with(&compiler, &bench.piece, PieceSize::Exact(ROWS), &bench.bounds);
    (bench, artifact)
}

fn broken(result: Result<impl Sized, DeviceError>) -> (CaptureRule, String) {
    match result.map(|_| ()) {
        Err(DeviceError::Capture { label, rule }) => (rule, label),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_allocates_or_waits_fails_inside_a_capture_and_works_after() {
    let (mut bench, artifact) = bound(doubled(false).0, CaptureSupport::Always);
    let program = bench.bind(&artifact).unwrap();
    let region = bench.device.reserve("spare", 100).unwrap();
    bench.device.back(region).unwrap();
    let block = bench.device.host_block(64).unwrap();
    let counts = bench.counts;
    let binding = bench.operands.clone();
    let mut scope = bench.device.capture_scope();
    let sizes = [ROWS, 8];
    let step = StepContext { counts: &sizes, sizes: &sizes, inputs: &[] };
    let allocating = [
        broken(scope.reserve("more", 8)).0,
        broken(scope.back(region)).0,
        broken(scope.drop_backing(region)).0,
        broken(scope.host_block(8)).0,
        broken(scope.capture("nested", &[&program], &sizes)).0,
    ];
    assert_eq!(allocating, [CaptureRule::NoAllocation; 5]);
    let waiting = [
        broken(scope.write(counts, &[0; 4])).0,
        broken(scope.read(counts, &mut [0; 4])).0,
        broken(scope.fill(counts, 4, &[0])).0,
        broken(scope.copy_in(block, 0, 4, counts)).0,
        broken(scope.copy_out(counts, 4, block, 0)).0,
        broken(scope.record(None)).0,
        broken(scope.launch(&program, LaunchContext::Step(&step))).0,
    ];
    assert_eq!(waiting, [CaptureRule::NoSynchronization; 7]);
    drop(scope);
    bench.device.write(counts, &[0; 4]).unwrap();
    // The device is itself again even where the capture unwinds.
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _scope = bench.device.capture_scope();
        panic!("in the middle of a capture");
    }));
    assert!(unwound.is_err());
    bench.device.reserve("after", 8).unwrap();
    assert_eq!(binding, bench.operands);
    let faults = DeviceFaults::default();
    let mut device = FaultyDevice::new(bench.device, faults.clone());
    let (point, kind) = (FaultPoint::Capture, FaultKind::OutOfMemory);
    faults.fail(DeviceFault { point, kind, after: 0, times: 1 });
    let failed = device.capture("a", &[&program], &sizes);
    assert!(matches!(failed, Err(DeviceError::OutOfMemory { .. })));
    device.capture("a", &[&program], &sizes).unwrap();
}

#[test]
fn rules_on_what_is_captured_name_the_launch_and_operand() {
    let sizes = [ROWS, 8];
    let (mut bench, artifact) = bound(doubled(true).0, CaptureSupport::Never);
    let program = bench.bind(&artifact).unwrap();
    assert_eq!(program.capture_support(), CaptureSupport::Never);
    let (rule, label) = broken(bench.device.capture("never", &[&program], &sizes));
    assert_eq!(rule, CaptureRule::UnsupportedOp);
    assert!(label.contains("test.copy"), "{label}");
    assert_eq!(broken(bench.device.capture("empty", &[], &sizes)).0, CaptureRule::NoEmpty);

    let (piece, x) = doubled(false);
    let (mut bench, artifact) = bound(piece, CaptureSupport::Always);
    let good = bench.operands.clone();
    let outside = vec![0f32; 64];
    bench.operands[0] = Some(Address(outside.as_ptr().expose_provenance() as u64));
    let program = bench.bind(&artifact).unwrap();
    let (rule, label) = broken(bench.device.capture("outside", &[&program], &sizes));
    assert_eq!(rule, CaptureRule::NoUnretained);
    assert!(label.contains("%x"), "{label}");
    bench.set_counts(&sizes);
    let step = StepContext { counts: &sizes, sizes: &sizes, inputs: &[] };
    let launched = bench.device.launch(&program, LaunchContext::Step(&step));
    assert!(matches!(launched, Err(DeviceError::BadAddress { .. })), "{launched:?}");

    // Backing that is dropped after the capture is missed by name, and works when it is back.
    bench.operands = good;
    let region = bench.device.reserve("x", ROWS * 12).unwrap();
    let at = bench.position(x);
    bench.operands[at] = Some(region.base);
    let program = bench.bind(&artifact).unwrap();
    let (rule, _) = broken(bench.device.capture("unbacked", &[&program], &sizes));
    assert_eq!(rule, CaptureRule::NoUnretained);
    bench.device.back(region).unwrap();
    let graph = bench.device.capture("backed", &[&program], &sizes).unwrap();
    bench.device.drop_backing(region).unwrap();
    let replayed = bench.device.replay(&graph);
    assert!(
        matches!(replayed, Err(DeviceError::BadAddress { ref what, .. }) if what.contains("%x"))
    );
    bench.device.back(region).unwrap();
    bench.device.replay(&graph).unwrap();
    let too_large = bench.device.capture("large", &[&program], &[ROWS + 1, 8]);
    assert!(matches!(too_large, Err(DeviceError::Launch { .. })));
}

#[test]
fn a_replay_reads_the_buffers_it_was_captured_with() {
    let (piece, x) = doubled(true);
    let (mut bench, artifact) = bound(piece, CaptureSupport::Always);
    let sizes = [ROWS, 8];
    let old = pattern(F32, &[ROWS, 3], 1);
    bench.write(x, &old);
    bench.set_counts(&[4, 8]);
    let program = bench.bind(&artifact).unwrap();
    let graph = bench.device.capture("old", &[&program], &sizes).unwrap();
    let addresses = graph.addresses();
    let names: Vec<(String, String)> =
        addresses.iter().map(|a| (a.launch.to_owned(), a.name.to_owned())).collect();
    assert!(names.iter().any(|(_, operand)| operand == "%x"), "{names:?}");
    assert!(names.iter().any(|(_, operand)| operand == "counts"), "{names:?}");
    assert!(names.iter().any(|(launch, _)| launch.contains("test.copy")), "{names:?}");
    for found in &addresses {
        let BoundAddress { program, what, name, address, .. } = *found;
        let fixed = match what {
            BoundTo::Counts => address == bench.counts,
            BoundTo::Scratch => address == bench.scratch,
            BoundTo::Operand(i) => bench.operands[i as usize] == Some(address),
        };
        assert!(fixed && program == 0, "{name} at {address}");
    }
    // Another buffer takes the operand's place after the capture.
    let region = bench.device.reserve("new x", ROWS * 12).unwrap();
    bench.device.back(region).unwrap();
    let new = pattern(F32, &[ROWS, 3], 2);
    bench.device.write(region.base, &encode(&new)).unwrap();
    let at = bench.position(x);
    bench.operands[at] = Some(region.base);
    let program = bench.bind(&artifact).unwrap();
    let swapped = bench.device.capture("new", &[&program], &sizes).unwrap();
    drop((artifact, program));
    let out = bench.piece.graph.outputs()[0];
    for (graph, source) in [(&graph, &old), (&swapped, &new)] {
        bench.clear_results();
        bench.device.replay(graph).unwrap();
        let got = bench.read(out, &sizes);
        let want: Vec<f64> = source.data.iter().map(|x| 2.0 * x).collect();
        assert_eq!(got[..12], want[..12]);
        let bytes = bench.read_bytes(out, &sizes);
        assert!(bytes[48..].iter().all(|&b| b == CANARY));
    }
}

#[test]
fn a_state_may_lack_backing_while_nothing_is_written_to_it() {
    let mut g = Graph::new("scatter");
    let [t, p] = symbols(&mut g);
    let rows = g.add_input("rows", TensorType::new(F32, [t.clone(), 3u64.into()]), None, None);
    let slots = g.add_input("slots", TensorType::new(I32, [t.clone()]), None, None);
    let kv = g.add_state("kv", TensorType::new(F32, [p, 3u64.into()]), None);
    g.push_node(Op::Scatter, vec![kv, slots, rows], vec![], Loc::default());
    let back = TensorType::new(F32, [t, 3u64.into()]);
    let read = g.push(Op::Gather, vec![kv, slots], back, Loc::default());
    g.set_outputs(vec![read]);
    let over = g.symbol_named("T");
    let (mut bench, artifact) = bound(unique(g, over), CaptureSupport::Always);
    let region = bench.device.reserve("kv", 8 * 12).unwrap();
    let at = bench.position(kv);
    bench.operands[at] = Some(region.base);
    bench.write(rows, &pattern(F32, &[ROWS, 3], 3));
    bench.write(slots, &pattern(I32, &[ROWS], 0).rounded());
    let program = bench.bind(&artifact).unwrap();
    let sizes = [ROWS, 8];
    let graph = bench.device.capture("kv", &[&program], &sizes).unwrap();
    bench.set_counts(&sizes);
    bench.device.replay(&graph).unwrap();
    assert!(bench.read(read, &sizes).iter().all(|&x| x == 0.0));
    bench.device.back(region).unwrap();
    let ids: Vec<u8> = (0..ROWS as i32).flat_map(|i| (7 - i).to_le_bytes()).collect();
    let at = bench.address(slots);
    bench.device.write(at, &ids).unwrap();
    bench.device.replay(&graph).unwrap();
    assert_eq!(bench.read(read, &sizes), bench.read(rows, &sizes));
    bench.device.drop_backing(region).unwrap();
    bench.device.back(region).unwrap();
    assert!(bench.read(kv, &sizes).iter().all(|&x| x == 0.0), "fresh backing is zeroed");
}

/// What follows has the sizes of the replay, what does not those of the capture; both read true counts.
#[test]
fn what_follows_has_the_sizes_of_each_replay() {
    let (piece, x) = doubled(true);
    let mut registry = OpRegistry::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    registry.implement_cpu(Arc::new(Sizes(seen.clone())));
    let registry = Arc::new(registry);
    let mut bench = Bench::new(piece, registry.clone(), 2);
    let compiler = CpuCompiler::new(registry, 2);
    let artifact = compile_with(&compiler, &bench.piece, PieceSize::Exact(ROWS), &bench.bounds);
    assert!(artifact.follows_sizes());
    let program = bench.bind(&artifact).unwrap();
    bench.write(x, &pattern(F32, &[ROWS, 3], 1));
    bench.set_counts(&[2, 1]);
    let programs = [&program, &program];
    let graph = bench.device.capture_following("two", &programs, &[1], &[ROWS, 8]).unwrap();
    let mut replayed = |sizes: &[u64]| {
        bench.device.replay_at(&graph, sizes).map(|()| std::mem::take(&mut *seen.lock().unwrap()))
    };
    assert_eq!(replayed(&[3, 2]).unwrap(), [vec![ROWS, 8], vec![3, 2]]);
    assert_eq!(replayed(&[2, 8]).unwrap(), [vec![ROWS, 8], vec![2, 8]]);
    let refused = replayed(&[ROWS + 1, 8]).unwrap_err();
    assert!(matches!(&refused, DeviceError::Refused { label, .. } if label == "two"), "{refused}");
    assert!(seen.lock().unwrap().is_empty(), "nothing of it ran");
    bench.device.replay(&graph).unwrap();
    assert_eq!(*seen.lock().unwrap(), [[ROWS, 8]; 2]);
}

/// Notes the sizes that it is run with.
#[derive(Debug)]
struct Sizes(Arc<Mutex<Vec<Vec<u64>>>>);

impl CpuOp for Sizes {
    fn name(&self) -> &str {
        "test.copy"
    }
    fn capture_support(&self) -> CaptureSupport {
        CaptureSupport::Always
    }
    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        self.0.lock().unwrap().push(args.context().sizes().to_vec());
        Ok(())
    }
}
