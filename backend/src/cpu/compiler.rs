//! The CPU compiler: one launch for each node of a piece.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::image::{CustomKernel, IMAGE_VERSION, Kernel};
use super::program::{check_arguments, workspace};
use crate::artifact::{Alternative, Arg, Artifact, Digest, Launch, PieceSize, Way};
use crate::compiler::{CompileError, Compiler, ImageListing, PieceAt, Store};
use crate::lowering::{Positions, launch_name, location, node_args, row_major};
use crate::matmul::{Matmul, ScaledMatmul};
use crate::weights::WeightLayout;
use piecewise_ir::entity::Node;
use piecewise_ir::graph::ValueDef;
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::op::Op;
use piecewise_ir::types::TensorType;
use piecewise_kernels::lower::{lower_node, lower_region};
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;

/// Compiles pieces for the CPU. A pure function of piece, size and bounds: the instruction set is
/// chosen where the artifact runs, and scratch is for one thread until the artifact is admitted.
#[derive(Clone, Debug)]
pub struct CpuCompiler {
    registry: Arc<OpRegistry>,
    workers: usize,
}

/// A node's kernel and what it works on.
struct NodeLaunch {
    name: String,
    kernel: Kernel,
    args: Vec<Arg>,
    scratch: u64,
    grid: u64,
    capture: CaptureSupport,
}

impl CpuCompiler {
    /// A compiler that admits artifacts with scratch for `threads` threads; they run on any number.
    pub fn new(registry: Arc<OpRegistry>, threads: usize) -> Self {
        Self { registry, workers: threads.max(1) }
    }

    /// The scratch bytes of a way of an artifact, for as many threads as this compiler
    /// is for. Launches that hold values in scratch keep what they have.
    fn scratch(
        &self,
        piece: &UniquePiece,
        artifact: &Artifact,
        way: &Way,
        limits: &[u64],
    ) -> Result<u64, String> {
        let graph = &piece.graph;
        let operands: Vec<&TensorType> =
            piece.operands().into_iter().map(|value| graph.ty(value)).collect();
        let mut most = 0;
        for launch in &way.launches {
            let failed = |reason| format!("launch `{}`: {reason}", launch.name);
            let bytes = artifact.image(launch.image);
            let bytes = bytes.ok_or_else(|| failed("its image is missing".to_owned()))?;
            let kernel = Kernel::from_image(bytes).map_err(failed)?;
            check_arguments(&kernel, &launch.args, &operands, limits).map_err(failed)?;
            let mut scratch = kernel.scratch_bytes(limits, self.workers);
            if let Kernel::Custom(custom) = &kernel {
                let op = self.registry.cpu(&custom.name);
                let op = op.ok_or_else(|| failed("its op has no implementation".to_owned()))?;
                scratch = scratch.max(op.scratch_bytes(&custom.call(limits, self.workers)));
            }
            let (held, _) = workspace(&launch.args, u64::MAX);
            most = most.max(held.saturating_add(aligned(scratch)));
        }
        Ok(most)
    }

    /// Lowers one node of a piece.
    #[expect(clippy::wildcard_enum_match_arm, reason = "lowering names the other ops")]
    fn node(
        &self,
        piece: &UniquePiece,
        operands: &Positions<'_>,
        position: usize,
        node: Node,
        limits: &[u64],
    ) -> Result<NodeLaunch, CompileError> {
        let graph = &piece.graph;
        let data = graph.node(node);
        let unsupported = |reason: String| CompileError::Unsupported {
            node: position,
            op: launch_name(graph, &operands.names, node),
            loc: location(graph, node),
            target: self.target(),
            reason,
        };
        let states: Vec<bool> =
            data.operands.iter().map(|&v| matches!(graph.def(v), ValueDef::State(_))).collect();
        let (operand_types, result_types) = (graph.operand_types(node), graph.result_types(node));
        let mut capture = CaptureSupport::Always;
        let kernel = match &data.op {
            Op::MatMul { .. } => {
                let matmul = Matmul::of(graph, node).map_err(unsupported)?;
                matmul.check_rows().map_err(unsupported)?;
                Kernel::MatMul(Box::new(matmul))
            }
            Op::ScaledMatMul { .. } => {
                let scaled = ScaledMatmul::of(graph, node).map_err(unsupported)?;
                scaled.check_rows().map_err(unsupported)?;
                Kernel::ScaledMatMul(Box::new(scaled))
            }
            Op::Custom(call) => {
                let Some(op) = self.registry.cpu(&call.name) else {
                    return Err(CompileError::Unregistered {
                        op: call.name.clone(),
                        loc: location(graph, node),
                        target: self.target(),
                    });
                };
                capture = op.capture_support();
                let mut kernel = CustomKernel {
                    name: call.name.clone(),
                    attrs: call.attrs.clone(),
                    operands: operand_types,
                    results: result_types,
                    mutates: call.mutates.clone(),
                    scratch: 0,
                };
                kernel.scratch = op.scratch_bytes(&kernel.call(limits, 1));
                if kernel.operands.len() + kernel.results.len() > 64 {
                    return Err(unsupported("more than 64 operands and results".to_owned()));
                }
                Kernel::Custom(kernel)
            }
            op => {
                let program = match op {
                    Op::Region(region) => lower_region(region, &states),
                    op => lower_node(op, &operand_types, &states, &result_types),
                };
                Kernel::Rows(program.map_err(|e| unsupported(e.to_string()))?)
            }
        };
        let scratch = aligned(kernel.scratch_bytes(limits, 1));
        let grid = if let Kernel::Rows(program) = &kernel {
            program.tiles(program.rows(limits))
        } else {
            1
        };
        let args = node_args(graph, operands, node).map_err(unsupported)?;
        let name = launch_name(graph, &operands.names, node);
        Ok(NodeLaunch { name, kernel, args, scratch, grid, capture })
    }
}

/// Whole cache lines.
fn aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(64).unwrap_or(u64::MAX)
}

/// Collects launches and images into an artifact.
#[derive(Default)]
struct Assembly {
    launches: Vec<Launch>,
    scratch: u64,
    images: Vec<(Digest, Vec<u8>)>,
}

impl Assembly {
    fn push(
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
            follows_sizes: true,
        });
        Ok(())
    }

    fn finish(self, piece: &UniquePiece, size: PieceSize) -> Artifact {
        let Self { launches, scratch, images } = self;
        let alternatives = vec![Alternative::single(launches, scratch)];
        Artifact { piece: piece.hash, size, alternatives, images }
    }
}

impl Compiler for CpuCompiler {
    fn target(&self) -> String {
        "cpu".to_owned()
    }

    fn identity(&self) -> String {
        format!("image-{IMAGE_VERSION} {}", crate::lowering::generator())
    }

    fn custom_ops(&self, at: PieceAt<'_>) -> Result<String, CompileError> {
        let (PieceAt { piece, .. }, limits) = (at, at.limits());
        let positions = Positions::new(piece);
        let mut ops = Vec::new();
        for (i, node) in piece.graph.nodes().enumerate() {
            if !matches!(piece.graph.node(node).op, Op::Custom(_)) {
                continue;
            }
            let launch = self.node(piece, &positions, i, node, &limits)?;
            if let Kernel::Custom(custom) = launch.kernel {
                ops.push(format!("{} {} {:?}", custom.name, custom.scratch, launch.capture));
            }
        }
        Ok(ops.join(", "))
    }

    fn admit(&self, at: PieceAt<'_>, artifact: &mut Artifact) -> Result<(), String> {
        let limits = at.limits();
        let scratch = artifact.ways().map(|way| self.scratch(at.piece, artifact, way, &limits));
        let scratch = scratch.collect::<Result<Vec<_>, _>>()?;
        for (way, scratch) in artifact.ways_mut().zip(scratch) {
            way.scratch = scratch;
        }
        Ok(())
    }

    fn weight_layouts(&self, stitch: &Stitch, _: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        row_major(stitch)
    }

    fn compile(
        &self,
        at: PieceAt<'_>,
        _: &[WeightLayout],
        _: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let (PieceAt { piece, size, .. }, limits) = (at, at.limits());
        let positions = Positions::new(piece);
        let mut assembly = Assembly::default();
        for (i, node) in piece.graph.nodes().enumerate() {
            let launch = self.node(piece, &positions, i, node, &limits)?;
            assembly.push(vec![i as u32], launch, &self.target())?;
        }
        Ok(assembly.finish(piece, size))
    }

    fn listing(&self, image: &[u8]) -> Option<ImageListing> {
        Some(Kernel::from_image(image).ok()?.listing())
    }
}
