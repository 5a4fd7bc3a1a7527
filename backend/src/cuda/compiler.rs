//! The CUDA compiler: kernels, library calls and host functions for each node of a piece.

use super::code::Code;
use super::image::{CudaImage, HostImage, IMAGE_VERSION, KernelImage};
use super::kernel_cache::KernelCache;
use super::lazy_nvrtc::LazyNvrtc;
use super::materialize::weight_kernels;
use super::matmul::Matmul;
use super::nvrtc::Arch;
use crate::artifact::{Access, Arg, ArgRef, Artifact, Digest, Launch, Lowered, PieceSize};
use crate::compiler::{CompileError, Compiler, ImageListing, NoStore, Store};
use crate::lowering::{Positions, launch_name, limits, location, node_args, row_major};
use crate::weights::WeightLayout;
use piecewise_ir::custom::CustomCall;
use piecewise_ir::entity::Node;
use piecewise_ir::graph::ValueDef;
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::op::Op;
use piecewise_ir::text::Names;
use piecewise_kernels::cuda::{
    LaunchRecipe, MatMulSpec, OperandRole, STREAM_ROWS, node_kernel, region_kernel,
};
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::op::cuda::{CudaImplementation, CudaOpCall, CudaTarget};
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;

/// Workspace of a library matmul, in bytes: what NVIDIA advises for Hopper.
const WORKSPACE_BYTES: u64 = 32 << 20;

/// Compiles pieces for a CUDA architecture. It needs no GPU, and NVRTC only for kernels that the
/// store does not have.
///
/// A matmul has up to four alternatives, in this order: from two rows on the kernel on tensor cores
/// where it applies ([`MatMulSpec::multiplies_on_tensor_cores`]), the streaming kernel for up to
/// [`STREAM_ROWS`] rows, cuBLASLt where it takes the dtypes, the general kernel.
#[derive(Debug)]
pub struct CudaCompiler {
    registry: Arc<OpRegistry>,
    kernels: Arc<KernelCache>,
}

/// One way to compute a node.
struct Choice {
    /// What each launch runs, and what it is called beside the node's own name.
    launches: Vec<(CudaImage, Option<String>)>,
    scratch: u64,
    capture: CaptureSupport,
}

impl Choice {
    fn of(image: CudaImage, scratch: u64) -> Self {
        Self { launches: vec![(image, None)], scratch, capture: CaptureSupport::Always }
    }
}

/// A node with its ways to be computed.
struct Lowering {
    node: u32,
    name: String,
    args: Vec<Arg>,
    choices: Vec<Choice>,
}

/// What is known of a node while it is lowered.
struct Site<'a> {
    piece: &'a UniquePiece,
    node: Node,
    position: usize,
    name: String,
    limits: &'a [u64],
    store: &'a dyn Store,
}

impl CudaCompiler {
    /// A compiler for `arch` with the ops of `registry`.
    pub fn new(registry: Arc<OpRegistry>, arch: Arch, nvrtc: impl Into<LazyNvrtc>) -> Self {
        Self::over(registry, Arc::new(KernelCache::new(nvrtc.into(), arch)))
    }

    /// A compiler that shares its kernels with others.
    pub(super) fn over(registry: Arc<OpRegistry>, kernels: Arc<KernelCache>) -> Self {
        Self { registry, kernels }
    }

    /// The library that it compiles with.
    pub fn nvrtc(&self) -> &LazyNvrtc {
        self.kernels.nvrtc()
    }

    /// What it compiles for.
    pub fn arch(&self) -> Arch {
        self.kernels.arch()
    }

    fn unsupported(&self, site: &Site<'_>, reason: String) -> CompileError {
        CompileError::Unsupported {
            node: site.position,
            op: site.name.clone(),
            loc: location(&site.piece.graph, site.node),
            target: self.target(),
            reason,
        }
    }

    fn kernel(&self, site: &Site<'_>, recipe: LaunchRecipe) -> Result<CudaImage, CompileError> {
        let code = self.kernels.code(&recipe, site.store).map_err(|log| CompileError::Kernel {
            kernel: format!("{} ({})", site.name, recipe.entry),
            target: self.target(),
            log,
        })?;
        Ok(CudaImage::Kernel(KernelImage { arch: self.arch(), code: Code::clone(&code), recipe }))
    }

    fn choices(&self, site: &Site<'_>) -> Result<Vec<Choice>, CompileError> {
        let graph = &site.piece.graph;
        let data = graph.node(site.node);
        match &data.op {
            Op::MatMul { transpose_lhs, transpose_rhs } => {
                self.matmul(site, *transpose_lhs, *transpose_rhs)
            }
            Op::Custom(call) => Ok(vec![self.custom(site, call)?]),
            op => {
                let role = |&value| OperandRole {
                    state: matches!(graph.def(value), ValueDef::State(_)),
                    weight: matches!(graph.def(value), ValueDef::Weight(_)),
                };
                let roles: Vec<_> = data.operands.iter().map(role).collect();
                let recipe = match op {
                    Op::Region(region) => region_kernel(region, &roles),
                    op => {
                        let operands = graph.operand_types(site.node);
                        node_kernel(op, &operands, &roles, &graph.result_types(site.node))
                    }
                };
                let recipe = recipe.map_err(|e| self.unsupported(site, e.to_string()))?;
                Ok(vec![Choice::of(self.kernel(site, recipe)?, 0)])
            }
        }
    }

    fn matmul(
        &self,
        site: &Site<'_>,
        transpose_lhs: bool,
        transpose_rhs: bool,
    ) -> Result<Vec<Choice>, CompileError> {
        let unsupported = |reason| self.unsupported(site, reason);
        let graph = &site.piece.graph;
        let (operands, results) = (graph.operand_types(site.node), graph.result_types(site.node));
        let ([lhs, rhs], [out]) = (&operands[..], &results[..]) else {
            return Err(unsupported("a matmul takes two operands and has one result".to_owned()));
        };
        let spec = MatMulSpec::new(transpose_lhs, transpose_rhs, lhs, rhs, out);
        let mut spec = spec.map_err(|e| unsupported(e.to_string()))?;
        let right = graph.node(site.node).operands.get(1);
        if right.is_some_and(|&value| matches!(graph.def(value), ValueDef::Weight(_))) {
            spec = spec.of_weight();
        }
        let mut choices = Vec::with_capacity(4);
        let rows = spec.rows().eval(site.limits);
        let shared_bytes = self.arch().shared_bytes_of_block();
        if rows >= 2 && spec.multiplies_on_tensor_cores(rows, shared_bytes) {
            let recipe = spec.tensor_kernel(rows, shared_bytes);
            let recipe = recipe.map_err(|e| unsupported(e.to_string()))?;
            choices.push(Choice::of(self.kernel(site, recipe)?, 0));
        }
        if spec.streams() && (1..=STREAM_ROWS).contains(&rows) {
            let recipe = spec.stream_kernel(rows).map_err(|e| unsupported(e.to_string()))?;
            choices.push(Choice::of(self.kernel(site, recipe)?, 0));
        }
        let library = Matmul {
            transpose_lhs,
            transpose_rhs,
            lhs: lhs.clone(),
            rhs: rhs.clone(),
            out: out.clone(),
        };
        if library.check().is_ok() && library.problem(site.limits).is_ok() {
            choices.push(Choice::of(CudaImage::Matmul(Box::new(library)), WORKSPACE_BYTES));
        }
        let recipe = spec.general_kernel().map_err(|e| unsupported(e.to_string()))?;
        choices.push(Choice::of(self.kernel(site, recipe)?, 0));
        Ok(choices)
    }

    /// A custom op's implementation for a call, and the bytes of scratch of a host function.
    fn implementation(
        &self,
        site: &Site<'_>,
        call: &CustomCall,
    ) -> Result<(CudaImplementation, u64, CaptureSupport), CompileError> {
        let graph = &site.piece.graph;
        let Some(op) = self.registry.cuda(&call.name) else {
            return Err(CompileError::Unregistered {
                op: call.name.clone(),
                loc: location(graph, site.node),
                target: self.target(),
            });
        };
        let (operands, results) = (graph.operand_types(site.node), graph.result_types(site.node));
        let number = self.arch().number;
        let request = CudaOpCall {
            operands: &operands,
            results: &results,
            attrs: &call.attrs,
            target: CudaTarget { capability: (number / 10, number % 10) },
            sizes: site.limits,
        };
        let implementation = op.implementation(&request);
        let implementation = implementation.map_err(|e| self.unsupported(site, e.to_string()))?;
        let scratch = match &implementation {
            CudaImplementation::Source(kernels) => kernels.scratch.eval(site.limits),
            CudaImplementation::Host => op.scratch_bytes(&request),
        };
        Ok((implementation, scratch, op.capture_support()))
    }

    fn custom(&self, site: &Site<'_>, call: &CustomCall) -> Result<Choice, CompileError> {
        let (implementation, scratch, capture) = self.implementation(site, call)?;
        match implementation {
            CudaImplementation::Source(kernels) => {
                let several = kernels.launches.len() > 1;
                let launches = kernels
                    .launches
                    .into_iter()
                    .map(|recipe| {
                        let part = several.then(|| recipe.entry.clone());
                        Ok((self.kernel(site, recipe)?, part))
                    })
                    .collect::<Result<_, CompileError>>()?;
                Ok(Choice { launches, scratch, capture })
            }
            CudaImplementation::Host => {
                let graph = &site.piece.graph;
                let (operands, results) =
                    (graph.operand_types(site.node), graph.result_types(site.node));
                let types = operands.into_iter().chain(results).collect();
                let image = HostImage { name: call.name.clone(), attrs: call.attrs.clone(), types };
                Ok(Choice { capture, ..Choice::of(CudaImage::Host(image), scratch) })
            }
        }
    }

    /// That a launch gives its image what it takes.
    fn check_launch(
        &self,
        launch: &Launch,
        image: &CudaImage,
        limits: &[u64],
    ) -> Result<(), String> {
        let scratch = launch.args.iter().find_map(|arg| match arg.at {
            ArgRef::Scratch { bytes, .. } => Some(bytes),
            ArgRef::Operand(_) => None,
        });
        let arguments = launch.args.len();
        match image {
            CudaImage::Kernel(kernel) if kernel.arch != self.arch() => {
                Err(format!("compiled for {}, not for {}", kernel.arch, self.arch()))
            }
            CudaImage::Kernel(kernel) => {
                kernel.recipe.check(arguments, scratch.unwrap_or(0))?;
                kernel.recipe.grid_at(limits, 1).map_err(|e| e.to_string())?;
                Ok(())
            }
            CudaImage::Matmul(_) if arguments < 3 => {
                Err(format!("{arguments} arguments for a matmul"))
            }
            CudaImage::Matmul(matmul) => matmul.problem(limits).map(drop),
            CudaImage::Host(host) if arguments < host.types.len() => {
                Err(format!("{arguments} arguments for {} positions", host.types.len()))
            }
            CudaImage::Host(_) => Ok(()),
        }
    }

    /// The artifact whose alternative `i` takes choice `i` of every node, or its last.
    fn assemble(
        &self,
        piece: &UniquePiece,
        size: PieceSize,
        lowerings: &[Lowering],
        limits: &[u64],
    ) -> Result<Artifact, CompileError> {
        let count = lowerings.iter().map(|l| l.choices.len()).max().unwrap_or(1);
        let mut images: Vec<(Digest, Vec<u8>)> = Vec::new();
        let mut alternatives = Vec::with_capacity(count);
        for alternative in 0..count {
            let mut lowered = Lowered { launches: Vec::new(), scratch: 0 };
            for lowering in lowerings {
                let last = lowering.choices.len() - 1;
                let choice = &lowering.choices[alternative.min(last)];
                lowered.scratch = lowered.scratch.max(choice.scratch);
                for (image, part) in &choice.launches {
                    let name = match part {
                        Some(part) => format!("{} ({part})", lowering.name),
                        None => lowering.name.clone(),
                    };
                    let (digest, bytes) = image.to_bytes().map_err(|log| CompileError::Kernel {
                        kernel: name.clone(),
                        target: self.target(),
                        log,
                    })?;
                    if !images.iter().any(|(known, _)| *known == digest) {
                        images.push((digest, bytes));
                    }
                    let mut args = lowering.args.clone();
                    if choice.scratch > 0 {
                        let at = ArgRef::Scratch { offset: 0, bytes: choice.scratch };
                        args.push(Arg { at, access: Access::ReadWrite });
                    }
                    lowered.launches.push(Launch {
                        name,
                        nodes: vec![lowering.node],
                        args,
                        image: digest,
                        grid: shown_grid(image, limits),
                        params: Vec::new(),
                        capture: choice.capture,
                    });
                }
            }
            alternatives.push(lowered);
        }
        Ok(Artifact { piece: piece.hash, size, alternatives, images })
    }
}

/// The grid at the artifact's size on a device of one multiprocessor; what the library launches is
/// its own.
fn shown_grid(image: &CudaImage, limits: &[u64]) -> [u32; 3] {
    match image {
        CudaImage::Kernel(kernel) => kernel.recipe.grid_at(limits, 1).unwrap_or([u32::MAX; 3]),
        CudaImage::Matmul(_) | CudaImage::Host(_) => [1; 3],
    }
}

impl Compiler for CudaCompiler {
    fn target(&self) -> String {
        format!("cuda:{}", self.arch())
    }

    fn identity(&self) -> String {
        format!("image-{IMAGE_VERSION} {}", crate::lowering::generator())
    }

    fn custom_ops(
        &self,
        piece: &UniquePiece,
        size: PieceSize,
        bounds: &[u64],
    ) -> Result<String, CompileError> {
        let limits = limits(piece, size, bounds);
        let names = Names::of(&piece.graph);
        let mut ops = Vec::new();
        for (position, node) in piece.graph.nodes().enumerate() {
            let Op::Custom(call) = &piece.graph.node(node).op else { continue };
            let name = launch_name(&piece.graph, &names, node);
            let site = Site { piece, node, position, name, limits: &limits, store: &NoStore };
            let (implementation, scratch, capture) = self.implementation(&site, call)?;
            let launches = match &implementation {
                CudaImplementation::Source(kernels) => kernels.launches.as_slice(),
                CudaImplementation::Host => &[],
            };
            let recipes = postcard::to_allocvec(launches).map_err(|log| CompileError::Kernel {
                kernel: site.name.clone(),
                target: self.target(),
                log: log.to_string(),
            })?;
            ops.push(format!("{} {} {scratch} {capture:?}", call.name, Digest::of(&recipes)));
        }
        Ok(ops.join(", "))
    }

    fn admit(
        &self,
        piece: &UniquePiece,
        bounds: &[u64],
        artifact: &mut Artifact,
    ) -> Result<(), String> {
        let limits = limits(piece, artifact.size, bounds);
        let driver = self.kernels.nvrtc().driver_major();
        let mut images = Vec::with_capacity(artifact.images.len());
        for (digest, bytes) in &artifact.images {
            let image = CudaImage::from_bytes(bytes).map_err(|e| format!("image {digest}: {e}"))?;
            if let CudaImage::Kernel(kernel) = &image {
                kernel.code.check(driver).map_err(|e| format!("image {digest}: {e}"))?;
            }
            images.push((*digest, image));
        }
        for launch in artifact.alternatives.iter().flat_map(|lowered| &lowered.launches) {
            let image = images.iter().find(|(digest, _)| *digest == launch.image);
            let (_, image) = image.ok_or_else(|| format!("image {} is missing", launch.image))?;
            self.check_launch(launch, image, &limits)
                .map_err(|reason| format!("launch `{}`: {reason}", launch.name))?;
        }
        Ok(())
    }

    fn prepare_device(&self, store: &dyn Store) -> Result<(), CompileError> {
        let made = weight_kernels(&self.kernels, store).map_err(|log| CompileError::Kernel {
            kernel: "weights".to_owned(),
            target: self.target(),
            log,
        });
        made.map(drop)
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
        store: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let limits = limits(piece, size, bounds);
        let positions = Positions::new(piece);
        let lower = |(position, node): (usize, Node)| {
            let name = launch_name(&piece.graph, &positions.names, node);
            let site = Site { piece, node, position, name, limits: &limits, store };
            let args = node_args(&piece.graph, &positions, node);
            let args = args.map_err(|reason| self.unsupported(&site, reason))?;
            let choices = self.choices(&site)?;
            Ok(Lowering { node: position as u32, name: site.name, args, choices })
        };
        let lowerings =
            piece.graph.nodes().enumerate().map(lower).collect::<Result<Vec<_>, CompileError>>()?;
        self.assemble(piece, size, &lowerings, &limits)
    }

    fn listing(&self, image: &[u8]) -> Option<ImageListing> {
        Some(CudaImage::from_bytes(image).ok()?.listing())
    }
}
