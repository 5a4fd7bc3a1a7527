//! Attention within segments on a real GPU: every kernel of it against the f64 reference, with NaN
//! in every row that no segment has, and against each other at the shapes of real encoders. Skipped
//! without one, unless PIECEWISE_REQUIRE_GPU=1.

use crate::harness::target::{Cuda, Target};
use crate::harness::{BenchOn, CANARY, decode, encode, norm_error, pattern, unique};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::compiler::{CompilerOptions, PieceAt};
use piecewise_backend::cuda::Arch;
use piecewise_backend::device::Device;
use piecewise_backend::store::MemoryStore;
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32, I32};
use piecewise_ir::eval::Array;
use piecewise_ir::module::UniquePiece;
use piecewise_kernels::op::OpError;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOp, CudaOpCall, CudaTarget};
use piecewise_kernels::segments::SegmentAttention;
use piecewise_kernels::segments::segment_attention_kernels;
use std::sync::Arc;
use std::time::Duration;

/// The kernels that there are: those for any device in blocks of few and of many rows, and those of
/// Hopper's warpgroups in blocks of one to three.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Warps,
    ManyWarps,
    Warpgroups(u64),
}

/// The op lowered in one way, whatever the device and the sizes.
#[derive(Debug)]
struct Lowered(Way);

impl CudaOp for Lowered {
    fn name(&self) -> &str {
        SegmentAttention::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let heads = call.operands[0].shape[1].as_constant().unwrap_or(1);
        let (capability, elements) = match self.0 {
            Way::Warps => ((8, 0), 64),
            Way::ManyWarps => ((8, 0), 40_000),
            Way::Warpgroups(1) => ((9, 0), 64),
            Way::Warpgroups(2) => ((9, 0), 40_000),
            Way::Warpgroups(_) => ((9, 0), 120_000),
        };
        let target = CudaTarget { capability };
        let sizes = vec![elements / heads; call.sizes.len()];
        let kernels = segment_attention_kernels(&CudaOpCall { target, sizes: &sizes, ..*call });
        let kernels = kernels.map_err(|e| OpError { op: self.name().into(), message: e.0 })?;
        if let Way::Warpgroups(computing) = self.0 {
            assert_eq!(u64::from(kernels.launches[0].block[0]), 128 + 128 * computing);
        }
        Ok(CudaImplementation::Source(kernels))
    }
}

#[derive(Clone)]
struct Case {
    dtype: DType,
    heads: [u64; 2],
    dims: [u64; 2],
    causal: bool,
    window: Option<u32>,
    queries: Vec<i32>,
    keys: Vec<i32>,
    /// Rows and keys that come before the first and are left out.
    skipped: [u64; 2],
}

/// What is compiled, for all runs.
static KERNELS: MemoryStore = MemoryStore::new();
/// Rows and segments past those that there are.
const PADDING: u64 = 37;
const PAST: u64 = 3;

fn sum(lengths: &[i32]) -> u64 {
    lengths.iter().map(|&n| n as u64).sum()
}

fn starts(lengths: &[i32]) -> Vec<i32> {
    (0..lengths.len()).map(|i| lengths[..i].iter().sum()).collect()
}

fn ints(values: &[i32]) -> Array {
    let data = values.iter().map(|&x| f64::from(x)).collect();
    Array { dtype: I32, shape: vec![values.len()], data }
}

impl Case {
    /// Of queries that are also the keys.
    fn own(dtype: DType, heads: [u64; 2], dim: u64, lengths: &[i32]) -> Self {
        let (queries, keys) = (lengths.to_vec(), lengths.to_vec());
        let (dims, skipped) = ([dim; 2], [0; 2]);
        Self { dtype, heads, dims, causal: false, window: None, queries, keys, skipped }
    }

    /// A segment by itself.
    fn alone(&self, at: usize) -> Self {
        let [queries, keys] = [&self.queries, &self.keys].map(|lengths| vec![lengths[at]]);
        let skipped = [&self.queries, &self.keys].map(|lengths| sum(&lengths[..at]));
        Self { queries, keys, skipped, ..self.clone() }
    }

    /// Products and sums over all pairs of a query and a key that it sees, as they are counted.
    fn operations(&self) -> f64 {
        let pairs = |(&queries, &keys): (&i32, &i32)| f64::from(queries) * f64::from(keys);
        let pairs = self.queries.iter().zip(&self.keys).map(pairs).sum::<f64>();
        let seen = if self.causal { 0.5 } else { 1.0 };
        2.0 * seen * pairs * (self.heads[0] * (self.dims[0] + self.dims[1])) as f64
    }

    fn attrs(&self) -> Attrs {
        SegmentAttention::attrs(0.2, self.causal, self.window)
    }

    /// True rows, keys and segments.
    fn counts(&self) -> [u64; 3] {
        [sum(&self.queries), sum(&self.keys), self.queries.len() as u64]
    }

    fn sizes(&self) -> [u64; 3] {
        let [rows, keys, segments] = self.counts();
        [rows + PADDING, keys + PADDING, segments + PAST]
    }

    fn piece(&self) -> UniquePiece {
        let b = Builder::new("segments");
        let [rows, keys, segments] = self.sizes();
        let t = b.symbol("T", 1, rows);
        let [k, s] = [("K", keys), ("S", segments)].map(|(name, most)| b.symbol(name, 1, most));
        let shape = |rows, heads: u64, dim: u64| -> [Dim; 3] {
            [Dim::from(rows), heads.into(), dim.into()]
        };
        let ([heads, kv_heads], [dim, value_dim]) = (self.heads, self.dims);
        let operands = [
            b.input("q", self.dtype, shape(t, heads, dim)),
            b.input("k", self.dtype, shape(k, kv_heads, dim)),
            b.input("v", self.dtype, shape(k, kv_heads, value_dim)),
            b.input("query_starts", I32, [s]),
            b.input("query_lengths", I32, [s]),
            b.input("key_starts", I32, [s]),
            b.input("key_lengths", I32, [s]),
        ];
        let out = b.custom_one(&SegmentAttention, &operands, self.attrs());
        unique(b.finish([out]).unwrap(), Some(t))
    }

    /// The op's operands, without padding.
    fn operands(&self) -> Vec<Array> {
        let [rows, keys, _] = self.counts();
        let ([heads, kv_heads], [dim, value_dim], [q, k]) = (self.heads, self.dims, self.skipped);
        let floats =
            [(q, rows, heads * dim), (k, keys, kv_heads * dim), (k, keys, kv_heads * value_dim)];
        let dims = [[heads, dim], [kv_heads, dim], [kv_heads, value_dim]];
        let floats = (1..).zip(floats.into_iter().zip(dims)).map(
            |(seed, ((skipped, rows, width), dims))| {
                let mut all = pattern(self.dtype, &[skipped + rows, dims[0], dims[1]], seed);
                all.data.drain(..(skipped * width) as usize);
                all.shape[0] = rows as usize;
                all
            },
        );
        let lengths = [&self.queries, &self.keys];
        let segments = lengths.into_iter().flat_map(|n| [ints(&starts(n)), ints(n)]);
        floats.chain(segments).collect()
    }

    fn reference(&self) -> Vec<f64> {
        SegmentAttention.evaluate(&self.operands(), &self.attrs(), &[]).unwrap().remove(0).data
    }

    /// The bytes of the true rows, launched and replayed, and how long one of some replays took.
    fn run(&self, way: Way, launches: usize) -> (Vec<u8>, Duration) {
        let piece = self.piece();
        let mut registry = OpRegistry::new();
        registry.define(Arc::new(SegmentAttention)).implement_cuda(Arc::new(Lowered(way)));
        let registry = Arc::new(registry);
        let mut bench = BenchOn::<Cuda>::new(piece, Arc::clone(&registry), 1);
        let (sizes, counts) = (self.sizes(), self.counts());
        let compiler = bench.device.compiler(registry, CompilerOptions::default());
        let exact = PieceSize::Exact(sizes[0]);
        let artifact = compiler
            .compile(PieceAt { piece: &bench.piece, size: exact, bounds: &sizes }, &[], &KERNELS)
            .unwrap();
        let inputs = bench.piece.graph.inputs().iter().map(|input| input.value);
        for (value, array) in Vec::from_iter(inputs).into_iter().zip(self.operands()) {
            let (address, size) = (bench.address(value), bench.piece.graph.ty(value).bytes(&sizes));
            let mut bytes = encode(&array);
            // NaN, or a number that no segment has.
            let past = if array.dtype == I32 { 7 } else { 0xff };
            bytes.resize(size as usize, past);
            bench.device.write(address, &bytes).unwrap();
        }
        let program = bench.bind(&artifact).unwrap();
        bench.launch(&program, &sizes, &counts);
        let launched = bench.outputs(&sizes).remove(0);
        bench.clear_results();
        let programs = vec![&program; launches];
        let graph = bench.device.capture("attention", &programs, &sizes).unwrap();
        let mut times = Vec::new();
        for _ in 0..5 {
            let start = bench.device.mark(None).unwrap();
            bench.device.replay(&graph).unwrap();
            let end = bench.device.mark(None).unwrap();
            times.push(bench.device.elapsed(&start, &end).unwrap() / launches as u32);
        }
        times.sort_unstable();
        assert!(bench.outputs(&sizes).remove(0) == launched, "{way:?} replayed");
        let row = launched.len() / sizes[0] as usize;
        let (real, padding) = launched.split_at(row * counts[0] as usize);
        assert!(padding.iter().all(|&byte| byte == CANARY), "{way:?} wrote padding");
        (real.to_vec(), times[2])
    }

    /// The ways that take it on this device, those of equal bits together.
    fn ways(&self) -> Vec<Vec<Way>> {
        let narrow = self.dims.iter().all(|dim| (64..=128).contains(dim));
        let most = if self.dims[1] <= 72 { 3 } else { 2 };
        let mut ways = vec![vec![Way::Warps, Way::ManyWarps]];
        if narrow && is_hopper() {
            ways.push((1..=most).map(Way::Warpgroups).collect());
        }
        ways
    }
}

fn is_hopper() -> bool {
    Cuda::device(Arc::new(OpRegistry::new()), 1).arch() == Arch::HOPPER
}

/// Every kind of segment: short and of several blocks of keys, without queries, without keys, and of
/// fewer keys than queries.
const QUERIES: [i32; 7] = [70, 0, 9, 300, 1, 33, 130];
const KEYS: [i32; 7] = [400, 4, 2, 300, 129, 0, 140];

#[test]
fn every_kernel_equals_the_reference() {
    if !Cuda::is_there() {
        return;
    }
    let apart = |case: Case| Case { queries: QUERIES.to_vec(), keys: KEYS.to_vec(), ..case };
    let own = [128, 17, 80, 1, 33, 257];
    let mut compared = 0;
    for case in [
        Case::own(BF16, [12, 12], 64, &own),
        Case { causal: true, ..Case::own(BF16, [8, 4], 128, &own) },
        Case { window: Some(64), ..Case::own(F16, [4, 2], 64, &own) },
        Case { causal: true, window: Some(200), ..apart(Case::own(F16, [6, 2], 128, &[])) },
        Case { dims: [128, 64], window: Some(0), ..apart(Case::own(F16, [6, 2], 64, &[])) },
        Case { dims: [64, 128], ..apart(Case::own(BF16, [3, 1], 64, &[])) },
        Case { causal: true, ..apart(Case::own(BF16, [2, 2], 64, &[])) },
        Case::own(BF16, [3, 3], 72, &own),
        Case { window: Some(40), ..apart(Case::own(F16, [4, 2], 80, &[])) },
        Case { causal: true, ..apart(Case::own(BF16, [4, 2], 72, &[])) },
        Case { dims: [120, 88], ..apart(Case::own(BF16, [2, 2], 64, &[])) },
        Case { dims: [72, 104], ..apart(Case::own(F16, [3, 1], 64, &[])) },
        Case::own(F16, [2, 2], 56, &own),
        Case { dims: [256, 136], window: Some(20), ..Case::own(BF16, [2, 1], 64, &own) },
        Case { window: Some(20), ..Case::own(F32, [3, 3], 20, &own) },
    ] {
        let expected = case.reference();
        let row = (case.heads[0] * case.dims[1]) as usize * case.dtype.size();
        for ways in case.ways() {
            let all = Vec::from_iter(ways.iter().map(|&way| case.run(way, 1).0));
            let what = format!("{ways:?}, {}, {:?} of {:?}", case.dtype, case.heads, case.dims);
            assert!(all.iter().all(|bits| *bits == all[0]), "{what}: other bits");
            let found = decode(case.dtype, &all[0]);
            let error = norm_error(&found, &expected);
            let tolerance = match case.dtype {
                F32 => 1e-5,
                F16 => 1e-3,
                _ => 8e-3,
            };
            assert!(error < tolerance, "{what}: off by {error}");
            let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let furthest = furthest.fold(0.0, f64::max);
            assert!(furthest < 4.0 * tolerance, "{what}: an element is off by {furthest}");
            // The longest segment alone has the bits that it has in company.
            let at = (0..case.queries.len()).max_by_key(|&i| case.queries[i]).unwrap();
            let alone = case.alone(at).run(ways[0], 1).0;
            let first = starts(&case.queries)[at] as usize * row;
            assert!(alone == all[0][first..][..alone.len()], "{what}: segment {at} alone");
            compared += all.len();
        }
    }
    println!("cuda: {compared} ways of attention within segments compared");
}

/// One segment of a large step, and steps of many.
#[test]
fn kernels_agree_at_the_shapes_of_encoders() {
    if !Cuda::is_there() {
        return;
    }
    let texts = [128, 32, 64, 96, 128, 17, 80, 51, 110, 25, 128, 73, 40, 99, 60, 12];
    let causal = |case: Case| Case { causal: true, ..case };
    for (what, case) in [
        ("BERT-base, 1 text of 128", Case::own(BF16, [12, 12], 64, &texts[..1])),
        ("BERT-base, 16 texts", Case::own(BF16, [12, 12], 64, &texts)),
        ("BERT-base, 64 texts of 512", Case::own(BF16, [12, 12], 64, &[512; 64])),
        ("ViT-B, 1 image of 577", Case::own(BF16, [12, 12], 64, &[577])),
        ("ViT-B, 16 images", Case::own(BF16, [12, 12], 64, &[577; 16])),
        ("ModernBERT, 1 text of 8192", Case::own(BF16, [12, 12], 64, &[8192])),
        (
            "ModernBERT, a window of 64",
            Case { window: Some(64), ..Case::own(BF16, [12, 12], 64, &[8192]) },
        ),
        ("Qwen3-Embedding, 1 text of 128", causal(Case::own(BF16, [16, 8], 128, &[128]))),
        ("Qwen3-Embedding, 16 texts of 512", causal(Case::own(BF16, [16, 8], 128, &[512; 16]))),
        ("Qwen3-Embedding, 1 text of 8192", causal(Case::own(BF16, [16, 8], 128, &[8192]))),
        ("16 heads of 128, 4096 rows", Case::own(BF16, [16, 16], 128, &[4096])),
        ("SigLIP, 1 image of 729", Case::own(BF16, [16, 16], 72, &[729])),
        ("SigLIP, 16 images of 729", Case::own(BF16, [16, 16], 72, &[729; 16])),
        ("16 heads of 72, 4096 rows", Case::own(BF16, [16, 16], 72, &[4096])),
        ("16 heads of 80, 4096 rows", Case::own(BF16, [16, 16], 80, &[4096])),
    ] {
        let mut first: Option<Vec<f64>> = None;
        for way in case.ways().concat() {
            let (bytes, time) = case.run(way, 20);
            let found = decode(case.dtype, &bytes);
            let expected = first.get_or_insert_with(|| found.clone());
            let error = norm_error(&found, expected);
            assert!(error < 8e-3, "{what}, {way:?}: off by {error}");
            let rate = case.operations() / time.as_secs_f64() / 1e12;
            println!("cuda: {what}: {way:?} {time:.1?}, {rate:.0} TFLOP/s");
        }
    }
}
