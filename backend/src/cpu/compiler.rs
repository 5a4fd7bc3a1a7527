//! The CPU compiler: one launch for each node of a piece.

use super::image::{CustomKernel, IMAGE_VERSION, Kernel, MatMul};
use crate::artifact::{Access, Arg, ArgRef, Artifact, Digest, Launch, Lowered, PieceSize};
use crate::compiler::{CompileError, Compiler, Store};
use crate::weights::WeightLayout;
use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::op::Op;
use piecewise_kernels::cpu::matmul::matmul_scratch_bytes;
use piecewise_kernels::lower::{lower_node, lower_region};
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;

/// Compiles pieces for the CPU. A pure function of piece, size, bounds and number of workers;
/// the instruction set is chosen where the artifact runs.
#[derive(Clone, Debug)]
pub struct CpuCompiler {
    registry: Arc<OpRegistry>,
    workers: u64,
}

/// A node's kernel and what it works on.
pub(super) struct NodeLaunch {
    pub(super) name: String,
    pub(super) kernel: Kernel,
    pub(super) args: Vec<Arg>,
    pub(super) scratch: u64,
    pub(super) grid: u64,
    pub(super) capture: CaptureSupport,
}

impl CpuCompiler {
    /// A compiler whose artifacts have scratch for `threads` threads; they run on any number.
    pub fn new(registry: Arc<OpRegistry>, threads: usize) -> Self {
        Self { registry, workers: threads.max(1) as u64 }
    }

    /// The sizes that an artifact is made for, by symbol index.
    pub(super) fn limits(piece: &UniquePiece, size: PieceSize, bounds: &[u64]) -> Vec<u64> {
        let declared = piece.graph.symbols().iter();
        let mut limits: Vec<u64> = declared
            .map(|(symbol, decl)| bounds.get(symbol.index()).copied().unwrap_or(decl.max))
            .collect();
        if let Some(over) = piece.over
            && let Some(limit) = limits.get_mut(over.index())
        {
            *limit = size.rows();
        }
        limits
    }

    /// Lowers one node of a piece.
    pub(super) fn node(
        &self,
        piece: &UniquePiece,
        operands: &Positions,
        position: usize,
        node: Node,
        limits: &[u64],
    ) -> Result<NodeLaunch, CompileError> {
        let graph = &piece.graph;
        let data = graph.node(node);
        let unsupported = |reason: String| CompileError::Unsupported {
            node: position,
            op: op_name(&data.op).to_owned(),
            loc: location(graph, node),
            target: self.identity(),
            reason,
        };
        let states: Vec<bool> =
            data.operands.iter().map(|&v| matches!(graph.def(v), ValueDef::State(_))).collect();
        let (operand_types, result_types) = (graph.operand_types(node), graph.result_types(node));
        let mut capture = CaptureSupport::Always;
        let (kernel, scratch, grid) = match &data.op {
            Op::MatMul { transpose_lhs, transpose_rhs } => {
                let [lhs, rhs] = &operand_types[..] else {
                    return Err(unsupported("a matmul takes two operands".to_owned()));
                };
                let [out] = &result_types[..] else {
                    return Err(unsupported("a matmul has one result".to_owned()));
                };
                let matmul = MatMul {
                    transpose_lhs: *transpose_lhs,
                    transpose_rhs: *transpose_rhs,
                    lhs: lhs.clone(),
                    rhs: rhs.clone(),
                    out: out.clone(),
                };
                matmul.check().map_err(unsupported)?;
                let scratch = matmul_scratch(&matmul, limits, self.workers as usize);
                (Kernel::MatMul(Box::new(matmul)), scratch, 1)
            }
            Op::Custom(call) => {
                let Some(op) = self.registry.cpu(&call.name) else {
                    return Err(CompileError::Unregistered {
                        op: call.name.clone(),
                        loc: location(graph, node),
                        target: self.identity(),
                    });
                };
                capture = op.capture_support();
                let threads = self.workers as usize;
                let (operands, results) = (operand_types, result_types);
                let scratch = op.scratch_bytes(&operands, &results, &call.attrs, limits, threads);
                let kernel = CustomKernel {
                    name: call.name.clone(),
                    attrs: call.attrs.clone(),
                    operands,
                    results,
                    mutates: call.mutates.clone(),
                    scratch,
                };
                if kernel.operands.len() + kernel.results.len() > 64 {
                    return Err(unsupported("more than 64 operands and results".to_owned()));
                }
                (Kernel::Custom(kernel), scratch, 1)
            }
            op => {
                let program = match op {
                    Op::Region(region) => lower_region(region, &states),
                    op => lower_node(op, &operand_types, &states, &result_types),
                };
                let program = program.map_err(|e| unsupported(e.to_string()))?;
                let rows = program.rows(limits);
                let scratch = program.scratch_bytes(rows, self.workers);
                let tiles = program.tiles(rows);
                (Kernel::Rows(program), scratch, tiles)
            }
        };
        let mutated = data.op.mutated_operands();
        let read = data.operands.iter().enumerate().map(|(i, &value)| {
            let access = if mutated.contains(&i) { Access::ReadWrite } else { Access::Read };
            (value, access)
        });
        let written = data.results.iter().map(|&value| (value, Access::Write));
        let args = read
            .chain(written)
            .map(|(value, access)| {
                let position = operands
                    .of(value)
                    .ok_or_else(|| unsupported(format!("{value} is no operand of the piece")))?;
                Ok(Arg { at: ArgRef::Operand(position), access })
            })
            .collect::<Result<_, CompileError>>()?;
        let scratch = scratch.checked_next_multiple_of(64).unwrap_or(u64::MAX);
        let name = launch_name(graph, node);
        Ok(NodeLaunch { name, kernel, args, scratch, grid, capture })
    }
}

/// Operand positions of a piece's values.
pub(super) struct Positions(Vec<Option<u32>>);

impl Positions {
    pub(super) fn new(piece: &UniquePiece) -> Self {
        let mut positions = vec![None; piece.graph.value_count()];
        for (position, value) in piece.operands().into_iter().enumerate() {
            positions[value.index()] = Some(position as u32);
        }
        Self(positions)
    }

    pub(super) fn of(&self, value: Value) -> Option<u32> {
        self.0.get(value.index()).copied().flatten()
    }
}

fn op_name(op: &Op) -> &str {
    match op {
        Op::Custom(call) => &call.name,
        op => op.mnemonic(),
    }
}

fn location(graph: &Graph, node: Node) -> String {
    let loc = &graph.node(node).loc;
    match (loc.scope.as_str(), loc.source.as_str()) {
        ("", "") => "no source line".to_owned(),
        (scope, "") => scope.to_owned(),
        ("", source) => source.to_owned(),
        (scope, source) => format!("{scope}, {source}"),
    }
}

/// What a launch is called: its op and the first thing it defines.
fn launch_name(graph: &Graph, node: Node) -> String {
    let data = graph.node(node);
    match data.results.first() {
        Some(result) => format!("{} {result}", op_name(&data.op)),
        None => op_name(&data.op).to_owned(),
    }
}

/// Scratch bytes of a matmul for `threads` threads at sizes up to these.
pub(super) fn matmul_scratch(matmul: &MatMul, limits: &[u64], threads: usize) -> u64 {
    match matmul.problem(limits, limits) {
        Some((problem, _)) => matmul_scratch_bytes(&problem, threads) as u64,
        None => u64::MAX,
    }
}

/// Collects launches and images into an artifact.
pub(super) struct Assembly {
    launches: Vec<Launch>,
    scratch: u64,
    images: Vec<(Digest, Vec<u8>)>,
}

impl Assembly {
    pub(super) fn new() -> Self {
        Self { launches: Vec::new(), scratch: 0, images: Vec::new() }
    }

    pub(super) fn push(
        &mut self,
        nodes: Vec<u32>,
        launch: NodeLaunch,
        target: &str,
    ) -> Result<(), CompileError> {
        let (digest, bytes) = launch.kernel.to_image().map_err(|log| CompileError::Kernel {
            kernel: launch.name.clone(),
            target: target.to_owned(),
            log,
        })?;
        if !self.images.iter().any(|(known, _)| *known == digest) {
            self.images.push((digest, bytes));
        }
        self.scratch = self.scratch.max(launch.scratch);
        self.launches.push(Launch {
            name: launch.name,
            nodes,
            args: launch.args,
            image: digest,
            grid: [u32::try_from(launch.grid).unwrap_or(u32::MAX), 1, 1],
            params: Vec::new(),
            capture: launch.capture,
        });
        Ok(())
    }

    pub(super) fn finish(self, piece: &UniquePiece, size: PieceSize) -> Artifact {
        let Self { launches, scratch, images } = self;
        let alternatives = vec![Lowered { launches, scratch }];
        Artifact { piece: piece.hash, size, alternatives, images }
    }
}

/// The layouts of every weight of every unique piece: row-major, which every kernel here reads.
pub(super) fn row_major(stitch: &Stitch) -> Vec<Vec<WeightLayout>> {
    let pieces = stitch.unique.iter();
    pieces.map(|(_, piece)| vec![WeightLayout::RowMajor; piece.graph.weights().len()]).collect()
}

impl Compiler for CpuCompiler {
    fn identity(&self) -> String {
        format!("cpu image-{IMAGE_VERSION} workers-{}", self.workers)
    }

    fn weight_layouts(&self, stitch: &Stitch, _: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        row_major(stitch)
    }

    fn compile(
        &self,
        piece: &UniquePiece,
        size: PieceSize,
        bounds: &[u64],
        _: &[WeightLayout],
        _: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let limits = Self::limits(piece, size, bounds);
        let positions = Positions::new(piece);
        let mut assembly = Assembly::new();
        for (i, node) in piece.graph.nodes().enumerate() {
            let launch = self.node(piece, &positions, i, node, &limits)?;
            assembly.push(vec![i as u32], launch, &self.identity())?;
        }
        Ok(assembly.finish(piece, size))
    }
}
