//! The device on a real GPU. Skipped without one, unless PIECEWISE_REQUIRE_GPU=1.

use crate::support::gpu;
use half::{bf16, f16};
use piecewise_backend::artifact::{
    Access, Alternative, Arg, ArgRef, Artifact, Choice, Launch, PieceSize,
};
use piecewise_backend::cuda::{
    Arch, Code, CudaCaptured, CudaDevice, CudaImage, CudaOptions, KernelImage, Matmul, Nvrtc,
    Source, library_dirs,
};
use piecewise_backend::device::measure::{LaunchCounts, MeasuredDevice};
use piecewise_backend::device::{Address, Binding, Device, DeviceError, Program, Reservation};
use piecewise_backend::weights::{
    TensorSource, TensorSpec, WeightError, WeightLayout, WeightSource,
};
use piecewise_ir::builder::Builder;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::module::UniquePiece;
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::op::cuda::{GridAxis, LaunchRecipe, Param};
use piecewise_kernels::step::{CaptureSupport, LaunchContext, StepContext};
use piecewise_testing::cuda::open_faulty;
use piecewise_testing::{CallFault, Faults};
use std::borrow::Cow;
use std::io::BufRead;

const WIDTH: u64 = 4;

/// Adds 1 to the true rows; the second kernel may start early and waits by itself.
const KERNELS: &str = r#"
extern "C" __global__ void add_one(const float *x, float *y, const int *counts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < counts[0] * 4) y[i] = x[i] + 1.0f;
}
extern "C" __global__ void double_it(const float *x, float *y, const int *counts) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < counts[0] * 4) y[i] = x[i] * 2.0f;
}
extern "C" __global__ void out_of_bounds(const float *x, float *y, const int *counts) {
    ((volatile float *)0x10)[threadIdx.x] = 1.0f;
}
"#;

struct Fixture {
    device: CudaDevice,
    arena: Reservation,
    piece: UniquePiece,
}

/// A piece over `T` whose operands are an input and two results.
fn piece() -> UniquePiece {
    let b = Builder::new("chain");
    let rows = b.symbol("T", 1, 64);
    let x = b.input("x", DType::F32, (rows, WIDTH));
    let graph = b.finish([-(-x)]).unwrap();
    UniquePiece { over: Some(rows), graph, hash: [7; 32] }
}

fn fixture(options: CudaOptions) -> Option<Fixture> {
    Some(fixture_on(gpu(options)?))
}

fn fixture_on(mut device: CudaDevice) -> Fixture {
    let arena = device.reserve("arena", 1 << 20).unwrap();
    device.back(arena).unwrap();
    Fixture { device, arena, piece: piece() }
}

fn compile(arch: Arch) -> Vec<u8> {
    let nvrtc = Nvrtc::open(&library_dirs(&[]), None).unwrap();
    let source = Source { name: "chain.cu", text: KERNELS, headers: &[], options: &[] };
    nvrtc.compile(&source, arch).unwrap()
}

fn artifact(images: &[(&str, CudaImage, [u32; 2])], size: u64, scratch: u64) -> Artifact {
    let mut made = Artifact {
        piece: [7; 32],
        size: PieceSize::Exact(size),
        alternatives: Vec::new(),
        images: Vec::new(),
    };
    let mut launches = Vec::new();
    for (name, image, [from, to]) in images {
        let (digest, bytes) = image.to_bytes().unwrap();
        made.images.push((digest, bytes));
        let arg = |position, access| Arg { at: ArgRef::Operand(position), access };
        let mut args = vec![arg(*from, Access::Read), arg(*to, Access::Write)];
        if matches!(image, CudaImage::Matmul(_)) {
            args.insert(1, arg(*from, Access::Read));
            args.push(Arg {
                at: ArgRef::Scratch { offset: 0, bytes: scratch },
                access: Access::Write,
            });
        }
        launches.push(Launch {
            name: (*name).to_owned(),
            nodes: vec![],
            args,
            image: digest,
            grid: [1; 3],
            params: vec![],
            capture: CaptureSupport::Always,
            follows_sizes: matches!(image, CudaImage::Kernel(_)),
        });
    }
    made.alternatives.push(Alternative::single(launches, scratch));
    made
}

impl Fixture {
    fn image(&self, entry: &str, programmatic: bool) -> CudaImage {
        let rows = Dim::from(self.piece.over.unwrap());
        let grid = GridAxis::of(rows.times(WIDTH as i64), 128);
        let params = vec![Param::Arg(0), Param::Arg(1), Param::Counts];
        let mut recipe = LaunchRecipe::new(KERNELS, entry, grid, 128, params);
        recipe.programmatic = programmatic;
        let arch = self.device.arch();
        let code = Code { nvrtc: (12, 4), cubin: compile(arch) };
        CudaImage::Kernel(KernelImage { arch, code, recipe })
    }

    fn at(&self, operand: u64) -> Address {
        self.arena.base.offset(4096 * (operand + 1))
    }

    fn bind(&mut self, artifact: &Artifact) -> Program {
        let operands: Vec<_> =
            (0..self.piece.operands().len() as u64).map(|i| Some(self.at(i))).collect();
        let binding = Binding {
            piece: &self.piece,
            choice: &Choice::default(),
            operands: &operands,
            scratch: self.arena.base.offset(1 << 16),
            scratch_bytes: 1 << 19,
            counts: self.arena.base,
            bounds: &[64],
            label: "p0",
        };
        self.device.bind(artifact, &binding).unwrap()
    }

    fn chain(&mut self, size: u64) -> Program {
        let programmatic = self.device.arch().has_programmatic_launch();
        let first = self.image("add_one", false);
        let second = self.image("double_it", programmatic);
        self.bind(&artifact(&[("add", first, [0, 1]), ("double", second, [1, 2])], size, 0))
    }

    fn write_f32(&mut self, operand: u64, values: &[f32]) {
        let at = self.at(operand);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.device.write(at, &bytes).unwrap();
    }

    fn read_f32(&mut self, operand: u64, n: usize) -> Vec<f32> {
        let mut bytes = vec![0u8; 4 * n];
        let at = self.at(operand);
        self.device.read(at, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn set_count(&mut self, rows: u32) {
        self.device.write(self.arena.base, &rows.to_le_bytes()).unwrap();
    }
}

fn step<'a>(counts: &'a [u64], sizes: &'a [u64]) -> StepContext<'a> {
    StepContext { counts, sizes, inputs: &[] }
}

#[test]
fn replay_equals_launch_and_honours_the_count() {
    let Some(mut f) = fixture(CudaOptions::default()) else { return };
    let program = f.chain(8);
    let graph = f.device.capture("T=8", &[&program], &[8]).unwrap();
    assert_eq!(graph.of::<CudaCaptured>().unwrap().summary().kernels, ["add_one", "double_it"]);
    assert_eq!(graph.of::<CudaCaptured>().unwrap().summary().edges, 1);
    let programmatic = u64::from(f.device.arch().has_programmatic_launch());
    assert_eq!(graph.shape().programmatic_edges, programmatic);
    let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
    for rows in [8u32, 3, 1, 8] {
        f.write_f32(0, &x);
        f.set_count(rows);
        let run = |f: &mut Fixture, replay: bool| {
            f.device.fill(f.at(2), 128, &[0xff]).unwrap();
            match replay {
                true => f.device.replay(&graph).unwrap(),
                false => {
                    let (counts, sizes) = ([u64::from(rows)], [8]);
                    let step = step(&counts, &sizes);
                    f.device.launch(&program, LaunchContext::Step(&step)).unwrap();
                }
            }
            f.read_f32(2, 32).into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let (launched, replayed) = (run(&mut f, false), run(&mut f, true));
        assert_eq!(launched, replayed);
        for (i, &bits) in replayed.iter().enumerate() {
            let real = (i as u32) < 4 * rows;
            let want = if real { ((x[i] + 1.0) * 2.0).to_bits() } else { u32::MAX };
            assert_eq!(bits, want, "element {i} of {rows} rows");
        }
    }
}

#[test]
fn backing_comes_back_at_the_same_addresses_under_a_captured_graph() {
    let Some(mut f) = fixture(CudaOptions::default()) else { return };
    let program = f.chain(8);
    let graph = f.device.capture("T=8", &[&program], &[8]).unwrap();
    let free = f.device.free_bytes();
    f.device.drop_backing(f.arena).unwrap();
    assert!(f.device.free_bytes() > free);
    assert!(f.device.replay(&graph).is_err());
    f.device.back(f.arena).unwrap();
    assert_eq!(f.read_f32(2, 4), [0.0; 4]);
    f.set_count(8);
    f.device.replay(&graph).unwrap();
    assert_eq!(f.read_f32(2, 32), [2.0; 32]);

    let huge = f.device.reserve("too much", 1 << 42).unwrap();
    let error = f.device.back(huge).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
}

#[test]
fn a_failed_capture_leaves_the_stream_usable() {
    let faults = Faults::default();
    if gpu(CudaOptions::default()).is_none() {
        return;
    }
    let device = open_faulty(CudaOptions::default(), OpRegistry::new(), &faults).unwrap();
    let mut f = fixture_on(device);
    let program = f.chain(8);
    for call in ["cuLaunchKernelEx", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"] {
        faults.fail(CallFault::always(call, 900).sized(&[8]));
        let error = f.device.capture("T=8", &[&program], &[8]).unwrap_err();
        assert!(matches!(error, DeviceError::CaptureFailed { .. }), "{error}");
        faults.clear();
        f.set_count(8);
        let graph = f.device.capture("T=8", &[&program], &[8]).unwrap();
        f.device.replay(&graph).unwrap();
        assert_eq!(f.read_f32(2, 32).len(), 32);
    }
}

#[test]
fn library_matmuls_are_exact_on_small_integers_by_every_algorithm_captured_and_replayed() {
    let Some(mut f) = fixture(CudaOptions::default()) else { return };
    // x [T, 4] times its own first rows as a [4, 4] weight, transposed.
    let rows = Dim::from(f.piece.over.unwrap());
    let ty = |outer: Dim| TensorType::new(DType::F32, [outer, WIDTH.into()]);
    let matmul = Matmul {
        transpose_lhs: false,
        transpose_rhs: true,
        lhs: ty(rows.clone()),
        rhs: ty(WIDTH.into()),
        out: ty(rows),
    };
    let made = artifact(&[("matmul", CudaImage::Matmul(Box::new(matmul)), [0, 1])], 8, 1 << 18);
    let program = f.bind(&made);
    let products = f.device.library_products(&program, &[8]).unwrap();
    assert_eq!((products.len(), f.device.library().is_some()), (1, true));
    let x: Vec<f32> = (0..32).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
    f.write_f32(0, &x);
    let want: Vec<f32> =
        (0..32).map(|i| (0..4).map(|k| x[i / 4 * 4 + k] * x[i % 4 * 4 + k]).sum()).collect();
    let product = &products[0];
    for &algorithm in product.algorithms.iter().rev() {
        assert!(f.device.prefer(&product.product, algorithm).unwrap());
        let now = f.device.library_products(&program, &[8]).unwrap();
        assert_eq!(now[0].algorithms[0], algorithm);
        let graph = f.device.capture("T=8", &[&program], &[8]).unwrap();
        f.write_f32(1, &[0.0; 32]);
        f.device.replay(&graph).unwrap();
        assert_eq!(f.read_f32(1, 32), want);
    }
}

#[derive(Debug)]
struct Tensors;

impl WeightSource for Tensors {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        let TensorSpec { name, shape, .. } = spec;
        let n: u64 = shape.iter().product();
        if name == "normal" {
            return Ok(TensorSource::Normal { std: 0.5, seed: 3 });
        }
        let bytes = (0..n).flat_map(|i| value(i).to_le_bytes()).collect();
        Ok(TensorSource::Bytes(Cow::Owned(bytes)))
    }
}

/// Values that round in every way: ties, subnormals, infinities.
fn value(i: u64) -> f32 {
    let special = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 65_520.0, 1e-7, f32::INFINITY, -0.0];
    match special.get(i as usize) {
        Some(x) => *x,
        None => (i as f32 - 40.0) * 1.000_1,
    }
}

#[test]
fn weights_are_cast_transposed_joined_and_cut_as_the_recipe_says() {
    let Some(mut f) = fixture(CudaOptions::default()) else { return };
    let leaf = |name: &str| Recipe::Checkpoint {
        name: name.to_owned(),
        ty: TensorType::new(DType::F32, [6u64, 10]),
    };
    let joined = Recipe::Concat { axis: 1, parts: vec![leaf("a"), leaf("b")] };
    let cut = Recipe::Slice { axis: 1, start: 3, len: 12, of: Box::new(joined) };
    let turned = Recipe::Transpose { perm: vec![1, 0], of: Box::new(cut) };
    for dtype in [DType::BF16, DType::F16, DType::I32, DType::U8, DType::Bool] {
        let recipe = Recipe::Cast { to: dtype, of: Box::new(turned.clone()) };
        let to = f.at(0);
        f.device.materialize(&recipe, WeightLayout::RowMajor, &Tensors, to).unwrap();
        let mut bytes = vec![0u8; 72 * dtype.size()];
        f.device.read(to, &mut bytes).unwrap();
        for column in 0..12u64 {
            for row in 0..6u64 {
                let x = value(row * 10 + (column + 3) % 10);
                let want = match dtype {
                    DType::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
                    DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
                    DType::I32 => (x as i32).to_le_bytes().to_vec(),
                    DType::U8 => vec![x as u8],
                    _ => vec![u8::from(x != 0.0)],
                };
                let at = (column * 6 + row) as usize * dtype.size();
                assert_eq!(bytes[at..at + dtype.size()], want, "{dtype} of {x}");
            }
        }
    }
}

#[test]
fn normal_weights_are_normal_and_the_same_every_time() {
    let Some(mut f) = fixture(CudaOptions::default()) else { return };
    let ty = TensorType::new(DType::F32, [50_000u64]);
    let recipe = Recipe::Checkpoint { name: "normal".to_owned(), ty };
    let mut made = || {
        let to = f.at(0);
        f.device.materialize(&recipe, WeightLayout::RowMajor, &Tensors, to).unwrap();
        f.read_f32(0, 50_000)
    };
    let values = made();
    assert_eq!(values, made());
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
    assert!(mean.abs() < 0.01 && (variance - 0.25).abs() < 0.01, "{mean} {variance}");
}

/// A kernel that faults ends the context; it is tried in a process of its own, which must say
/// what failed and end.
#[test]
fn an_out_of_bounds_kernel_is_named() {
    const CHILD: &str = "PIECEWISE_TEST_FAULTING_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let Some(mut f) = fixture(CudaOptions { synchronous: true, ..CudaOptions::default() })
        else {
            return;
        };
        let image = f.image("out_of_bounds", false);
        let program = f.bind(&artifact(&[("wild", image, [0, 1])], 8, 0));
        let (counts, sizes) = ([8], [8]);
        let step = step(&counts, &sizes);
        println!("\nchild: launching");
        let error = f.device.launch(&program, LaunchContext::Step(&step)).unwrap_err();
        println!("child: {error}");
        return;
    }
    if gpu(CudaOptions::default()).is_none() {
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "cuda_device::an_out_of_bounds_kernel_is_named", "--nocapture"])
        .env(CHILD, "1");
    let mut child = child.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let mut text = String::new();
    let faulting = lines.by_ref().map(Result::unwrap).find(|line| line == "child: launching");
    assert!(faulting.is_some(), "the child ended before its launch");
    let launched = std::time::Instant::now();
    text.extend(lines.map(|line| line.unwrap() + "\n"));
    assert!(child.wait().unwrap().success(), "{text}");
    let ended = launched.elapsed();
    println!("the child took {ended:?} to end");
    assert!(text.contains("finish the work up to `wild` of p0"), "{text}");
    assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
}

/// Filling memory takes time by the device's clock, and reading it has a rate.
#[test]
fn the_device_tells_time_and_how_fast_it_reads() {
    let Some(Fixture { mut device, .. }) = fixture(CudaOptions::default()) else { return };
    let bytes = 256 << 20;
    let region = device.reserve("what is filled", bytes).unwrap();
    device.back(region).unwrap();
    let start = device.mark(None).unwrap();
    device.fill(region.base, bytes, &[1, 2, 3, 4]).unwrap();
    let end = device.mark(None).unwrap();
    assert!(!device.elapsed(&start, &end).unwrap().is_zero());
    let found = device.read_bandwidth().unwrap();
    assert!(found.best >= found.median && found.median > 0.0, "{found:?}");
    assert!(found.bytes > 4 * device.cache_bytes() && found.passes > 0, "{found:?}");
    assert_eq!(device.launch_counts(), LaunchCounts::default(), "no launch of a program");
    let versions = device.versions();
    let lacking = ["cublas_lt", "cuda", "nvrtc"].map(|name| !versions.contains_key(name));
    assert_eq!(lacking, [false; 3], "{versions:?}");
    println!("{}: {:.0} GB/s, {versions:?}", device.model(), found.best / 1e9);
}
