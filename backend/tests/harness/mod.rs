//! A piece with memory for every operand, bound and run.
#![allow(
    dead_code,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "each test crate uses a part of it, and what fails here fails a test"
)]

pub mod layer;
pub mod nodes;
pub mod products;
pub mod random;
pub mod regions;
pub mod target;

use piecewise_backend::artifact::{Artifact, Choice, Digest, PieceSize};
use piecewise_backend::compiler::{Compiler, NoStore, PieceAt};
use piecewise_backend::device::{Address, Binding, Device, DeviceError, Program};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol, Value};
use piecewise_ir::eval::Array;
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::literal::Scalar;
use piecewise_ir::module::UniquePiece;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::{LaunchContext, StepContext};
use std::sync::Arc;
use target::{Cpu, Target};

/// A byte that results must not keep by accident, and that canaries are made of.
pub const CANARY: u8 = 0xa5;

pub fn unique(graph: Graph, over: Option<Symbol>) -> UniquePiece {
    let hash = Digest::of(format!("{graph:?} {over:?}").as_bytes()).0;
    UniquePiece { over, graph, hash }
}

pub fn registry() -> Arc<OpRegistry> {
    Arc::new(OpRegistry::new())
}

/// The bytes of elements given as f64.
pub fn encode(array: &Array) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(array.data.len() * array.dtype.size());
    for &x in &array.data {
        let bits = Scalar::new(array.dtype, x).bits().to_le_bytes();
        bytes.extend_from_slice(&bits[..array.dtype.size()]);
    }
    bytes
}

pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(dtype.size())
        .map(|chunk| {
            let mut bits = [0u8; 8];
            bits[..chunk.len()].copy_from_slice(chunk);
            Scalar::from_bits(dtype, u64::from_le_bytes(bits)).to_f64()
        })
        .collect()
}

/// The norm of the difference by that of what is due.
pub fn norm_error(found: &[f64], due: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(due).map(|(a, b)| a - b));
    difference / norm(&mut due.iter().copied())
}

/// A bench on the CPU.
pub type Bench = BenchOn<Cpu>;

/// What is taken unmeasured.
static FIRST: Choice = Choice { alternative: 0, ways: Vec::new() };

/// A device with an operand's worth of memory at the bounds for each operand of a piece.
pub struct BenchOn<T: Target> {
    pub device: T::Device,
    pub piece: UniquePiece,
    pub bounds: Vec<u64>,
    pub operands: Vec<Option<Address>>,
    pub counts: Address,
    pub scratch: Address,
    pub scratch_bytes: u64,
}

impl<T: Target> BenchOn<T> {
    pub fn new(piece: UniquePiece, registry: Arc<OpRegistry>, threads: usize) -> Self {
        let mut device = T::device(registry, threads);
        let bounds: Vec<u64> = piece.graph.symbols().iter().map(|(_, decl)| decl.max).collect();
        let mut take = |what: &str, bytes: u64| {
            let region = device.reserve(what, bytes).unwrap();
            device.back(region).unwrap();
            device.fill(region.base, bytes, &[CANARY]).unwrap();
            region.base
        };
        let operands = piece
            .operands()
            .iter()
            .map(|&v| Some(take("operand", piece.graph.ty(v).bytes(&bounds).max(1))))
            .collect();
        let counts = take("counts", 64);
        let scratch_bytes = T::SCRATCH_BYTES;
        let scratch = take("scratch", scratch_bytes);
        Self { device, piece, bounds, operands, counts, scratch, scratch_bytes }
    }

    pub fn binding(&self) -> Binding<'_> {
        Binding {
            piece: &self.piece,
            choice: &FIRST,
            operands: &self.operands,
            scratch: self.scratch,
            scratch_bytes: self.scratch_bytes,
            counts: self.counts,
            bounds: &self.bounds,
            label: "test piece",
        }
    }

    pub fn bind(&mut self, artifact: &Artifact) -> Result<Program, DeviceError> {
        let binding = Binding {
            piece: &self.piece,
            choice: &FIRST,
            operands: &self.operands,
            scratch: self.scratch,
            scratch_bytes: self.scratch_bytes,
            counts: self.counts,
            bounds: &self.bounds,
            label: "test piece",
        };
        self.device.bind(artifact, &binding)
    }

    pub fn position(&self, value: Value) -> usize {
        self.piece.operands().iter().position(|&v| v == value).unwrap()
    }

    pub fn address(&self, value: Value) -> Address {
        self.operands[self.position(value)].unwrap()
    }

    /// Writes the elements of an operand from its start.
    pub fn write(&mut self, value: Value, array: &Array) {
        let address = self.address(value);
        self.device.write(address, &encode(array)).unwrap();
    }

    pub fn read_bytes(&mut self, value: Value, sizes: &[u64]) -> Vec<u8> {
        let ty = self.piece.graph.ty(value).clone();
        let mut bytes = vec![0; ty.bytes(sizes) as usize];
        let address = self.address(value);
        self.device.read(address, &mut bytes).unwrap();
        bytes
    }

    pub fn read(&mut self, value: Value, sizes: &[u64]) -> Vec<f64> {
        let dtype = self.piece.graph.ty(value).dtype;
        decode(dtype, &self.read_bytes(value, sizes))
    }

    pub fn set_counts(&mut self, counts: &[u64]) {
        let bytes: Vec<u8> = counts.iter().flat_map(|&c| (c as i32).to_le_bytes()).collect();
        let at = self.counts;
        self.device.write(at, &bytes).unwrap();
    }

    /// Launches for padded `sizes` and true `counts`.
    pub fn launch(&mut self, program: &Program, sizes: &[u64], counts: &[u64]) {
        self.set_counts(counts);
        let step = StepContext { counts, sizes, inputs: &[] };
        self.device.launch(program, LaunchContext::Step(&step)).unwrap();
    }

    /// Fills every result with the canary.
    pub fn clear_results(&mut self) {
        for (i, value) in self.piece.operands().into_iter().enumerate() {
            if matches!(self.piece.graph.def(value), ValueDef::Result { .. }) {
                let bytes = self.piece.graph.ty(value).bytes(&self.bounds);
                let address = self.operands[i].unwrap();
                self.device.fill(address, bytes, &[CANARY]).unwrap();
            }
        }
    }

    /// The bytes of every output at `sizes`.
    pub fn outputs(&mut self, sizes: &[u64]) -> Vec<Vec<u8>> {
        let outputs = self.piece.graph.outputs().to_vec();
        outputs.into_iter().map(|v| self.read_bytes(v, sizes)).collect()
    }
}

pub fn compile(piece: &UniquePiece, size: PieceSize, bounds: &[u64]) -> Artifact {
    compile_on::<Cpu>(piece, size, bounds)
}

pub fn compile_on<T: Target>(piece: &UniquePiece, size: PieceSize, bounds: &[u64]) -> Artifact {
    T::with_compiler(|compiler| compile_with(compiler, piece, size, bounds))
}

pub fn compile_with(
    compiler: &dyn Compiler,
    piece: &UniquePiece,
    size: PieceSize,
    bounds: &[u64],
) -> Artifact {
    let layouts = vec![Default::default(); piece.graph.weights().len()];
    compiler.compile(PieceAt { piece, size, bounds }, &layouts, &NoStore).unwrap()
}

/// Numbers in [-2, 2) for floats, small integers for the others; a function of seed and index.
pub fn pattern(dtype: DType, shape: &[u64], seed: u64) -> Array {
    let shape: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
    Array::from_fn(dtype, shape, |i| {
        let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd1b5);
        x ^= x >> 31;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 29;
        let unit = (x >> 11) as f64 / (1u64 << 53) as f64;
        match dtype {
            dtype if dtype.is_float() => dtype.round(unit * 4.0 - 2.0),
            DType::Bool => f64::from(u8::from(unit < 0.5)),
            DType::U8 => (unit * 200.0).floor(),
            _ => (unit * 100.0 - 50.0).floor(),
        }
    })
}

pub fn sizes_of(piece: &UniquePiece, over: u64) -> Vec<u64> {
    piece
        .graph
        .symbols()
        .iter()
        .map(|(s, decl)| if Some(s) == piece.over { over } else { decl.max })
        .collect()
}

pub fn symbol(index: usize) -> Symbol {
    Symbol::new(index)
}
