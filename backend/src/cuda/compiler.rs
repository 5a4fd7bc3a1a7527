//! The CUDA compiler: kernels, library calls and host functions for each node of a piece.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::absorb::{Absorption, is_odd_product, product, role, tile_kernels};
use super::alternatives::{Choice, Draft, Groups, HeldWays, Listed, Lowering, Way, assemble};
use super::code::Code;
use super::disassembly::code_files;
use super::image::{CudaImage, IMAGE_VERSION, KernelImage, with_lines};
use super::kernel_cache::KernelCache;
use super::lazy_nvrtc::LazyNvrtc;
use super::materialize::weight_kernels;
use super::nvrtc::Arch;
use super::product_ways::ProductWays;
use super::site::{Site, rows_of};
use super::stamps::stamped;
use crate::artifact::{ArgRef, Artifact, Digest, Launch, PieceSize};
use crate::compiler::{
    CodeFile, CompileError, Compiler, CompilerOptions, FirstWay, Footprint, ImageListing, PieceAt,
    Store,
};
use crate::lowering::{Positions, launch_name, location, node_args, row_major};
use crate::matmul::Matmul;
use crate::weights::WeightLayout;
use piecewise_ir::entity::Node;
use piecewise_ir::module::Stitch;
use piecewise_ir::op::Op;
use piecewise_ir::text::Names;
use piecewise_kernels::cuda::{
    LaunchRecipe, OperandRole, narrow_region_kernel, node_kernel, region_kernel,
};
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::op::cuda::CudaImplementation;
use std::cell::OnceCell;
use std::sync::Arc;

/// The most rows of a step whose regions may be faster in blocks that take half of a multiprocessor.
const SPREAD_ROWS: u64 = 64;
/// The fewest rows of a step whose regions may be faster with fewer threads for each row.
const NARROW_ROWS: u64 = 64;
/// Workspace of a library matmul, in bytes: what NVIDIA advises for Hopper.
const WORKSPACE_BYTES: u64 = 32 << 20;

/// Compiles pieces for a CUDA architecture. It needs no GPU, and NVRTC only for kernels that the
/// store does not have.
///
/// At one row the first alternatives of a piece have regions absorbed into the products beside
/// them: those that cost each block no more than a norm, then all that can be. In those that follow
/// each node has a launch of its own.
///
/// On Hopper, a product of more rows takes in a region after it that is a map of its elements, and where
/// rows are few, in a later alternative, a norm before it.
///
/// A product has several ways to be computed, and so may have a custom op: the first of each part is
/// what its size suggests. A custom op takes in what its definition says that it may absorb and its
/// kernels have element by element, at any size; alternatives in which it does not follow.
#[derive(Debug)]
pub struct CudaCompiler {
    pub(super) registry: Arc<OpRegistry>,
    kernels: Arc<KernelCache>,
    /// Whether blocks note where and when they run.
    stamps: bool,
    options: CompilerOptions,
}

impl CudaCompiler {
    /// A compiler for `arch` with the ops of `registry`.
    pub fn new(registry: Arc<OpRegistry>, arch: Arch, nvrtc: impl Into<LazyNvrtc>) -> Self {
        Self::over(registry, Arc::new(KernelCache::new(nvrtc.into(), arch)), false)
    }

    /// A compiler that shares its kernels with others.
    pub(super) fn over(registry: Arc<OpRegistry>, kernels: Arc<KernelCache>, stamps: bool) -> Self {
        Self { registry, kernels, stamps, options: CompilerOptions::default() }
    }

    /// The same compiler, whose kernels note where and when their blocks run, as those of a device
    /// that was opened so do. What it compiles has keys of its own.
    #[must_use]
    pub fn with_stamps(self) -> Self {
        Self { stamps: true, ..self }
    }

    /// The same compiler with these options. Where rows have the same bits at any size, products are
    /// computed in the one way whose sums depend on nothing but their depth; of what is only taken
    /// unmeasured, nothing else is compiled. What it compiles has keys of its own.
    #[must_use]
    pub fn with_options(self, options: CompilerOptions) -> Self {
        Self { options, ..self }
    }

    /// Ways differ in the order of sums, which what has the same bits at any size must not.
    pub(super) fn held(&self) -> HeldWays {
        let CompilerOptions { batch_invariant, first_ways, .. } = self.options;
        if first_ways || batch_invariant { HeldWays::First } else { HeldWays::All }
    }

    pub(super) fn ways(&self) -> ProductWays {
        ProductWays::new(self.arch(), self.options.batch_invariant)
    }

    /// The library that it compiles with.
    pub fn nvrtc(&self) -> &LazyNvrtc {
        &self.kernels.nvrtc
    }

    /// The architecture of the code that it compiles.
    pub fn arch(&self) -> Arch {
        self.kernels.arch
    }

    pub(super) fn unsupported(&self, site: &Site<'_>, reason: String) -> CompileError {
        CompileError::Unsupported {
            node: site.position,
            op: site.name.clone(),
            loc: location(&site.piece.graph, site.node),
            target: self.target(),
            reason,
        }
    }

    fn failed(&self, kernel: &str, log: String) -> CompileError {
        CompileError::Kernel { kernel: kernel.to_owned(), target: self.target(), log }
    }

    pub(super) fn kernel(&self, site: &Site<'_>, recipe: LaunchRecipe) -> Draft {
        let recipe = match self.has_rows(site, 1) {
            true => self.spread(recipe),
            false => recipe,
        };
        let recipe = if self.stamps { stamped(recipe) } else { recipe };
        let recipe = if self.options.line_info { with_lines(recipe) } else { recipe };
        Draft::Kernel(recipe, OnceCell::new())
    }

    /// A kernel whose blocks take half of a multiprocessor: a block that starts while those ahead still
    /// run goes where room is, and no two of such a kernel crowd while others are empty.
    fn spread(&self, mut recipe: LaunchRecipe) -> LaunchRecipe {
        let half = self.arch().shared_bytes_of_half() as u32;
        let padded = half.saturating_sub(recipe.static_shared);
        recipe.dynamic_shared = recipe.dynamic_shared.max(padded);
        recipe
    }

    /// What a launch runs, compiled.
    fn image(&self, draft: &Draft, store: &dyn Store) -> Result<CudaImage, String> {
        Ok(match draft {
            Draft::Kernel(recipe, wanted) => {
                let wanted = wanted.get_or_init(|| self.kernels.want(recipe));
                let code = Code::clone(&*self.kernels.code(wanted, store)?);
                let recipe = recipe.clone();
                CudaImage::Kernel(KernelImage { arch: self.arch(), code, recipe })
            }
            Draft::Ready(image) => image.clone(),
        })
    }

    /// Whether a site is of a step of at most so few rows, and its kernels, which are short then, follow
    /// each other at once.
    fn has_rows(&self, site: &Site<'_>, most: u64) -> bool {
        self.arch().has_programmatic_launch() && rows_of(site).is_some_and(|rows| rows <= most)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "lowering names the other ops")]
    fn choices(&self, site: &Site<'_>) -> Result<Vec<Choice>, CompileError> {
        let graph = &site.piece.graph;
        let data = graph.node(site.node);
        match &data.op {
            Op::MatMul { .. } | Op::ScaledMatMul { .. } => self.matmul(site),
            Op::Custom(call) => self.custom(site, call),
            op => {
                let roles: Vec<OperandRole> =
                    data.operands.iter().map(|&value| role(graph, value)).collect();
                let recipe = match op {
                    Op::Region(region) => region_kernel(region, &roles),
                    op => {
                        let operands = graph.operand_types(site.node);
                        node_kernel(op, &operands, &roles, &graph.result_types(site.node))
                    }
                };
                let recipe = recipe.map_err(|e| self.unsupported(site, e.to_string()))?;
                let mut choices =
                    vec![Choice::of(Way::General, self.kernel(site, recipe.clone()), 0)];
                if self.held() == HeldWays::First {
                    return Ok(choices);
                }
                if self.has_rows(site, SPREAD_ROWS) && !self.has_rows(site, 1) {
                    let spread = self.kernel(site, self.spread(recipe.clone()));
                    choices.push(Choice::of(Way::Spread, spread, 0));
                }
                if let Op::Region(region) = op
                    && rows_of(site).is_some_and(|rows| rows >= NARROW_ROWS)
                {
                    let narrow = narrow_region_kernel(region, &roles, &recipe);
                    let narrow = narrow.map_err(|e| self.unsupported(site, e.to_string()))?;
                    let narrow = narrow.map(|recipe| self.kernel(site, recipe));
                    choices.extend(narrow.map(|draft| Choice::of(Way::Narrow, draft, 0)));
                }
                Ok(choices)
            }
        }
    }

    fn matmul(&self, site: &Site<'_>) -> Result<Vec<Choice>, CompileError> {
        let unsupported = |reason| self.unsupported(site, reason);
        let graph = &site.piece.graph;
        let spec = product(graph, site.node).map_err(unsupported)?;
        let mut choices = Vec::with_capacity(4);
        let rows = spec.rows.eval(site.limits);
        let ways = self.ways();
        let ring = ways.prefers_ring(&spec, rows);
        for (way, form) in ways
            .rings(&spec, rows, is_odd_product(graph, site.node))
            .filter(|_| ring)
            .take(self.held().most())
        {
            let recipe = spec.ring_kernel(rows, None, None, form);
            let recipe = recipe.map_err(|e| unsupported(e.to_string()))?;
            choices.push(Choice::of(way, self.kernel(site, recipe), 0));
        }
        if !ring && ways.has_tensor(&spec, rows) {
            let shared_bytes = self.arch().shared_bytes_of_block();
            let recipe = spec.tensor_kernel(rows, shared_bytes);
            let recipe = recipe.map_err(|e| unsupported(e.to_string()))?;
            choices.push(Choice::of(Way::Tensor, self.kernel(site, recipe), 0));
        }
        if !ring && ways.has_stream(&spec, rows) {
            let recipe = spec.stream_kernel(rows).map_err(|e| unsupported(e.to_string()))?;
            choices.push(Choice::of(Way::Stream, self.kernel(site, recipe), 0));
        }
        let library = Matmul::of(graph, site.node).ok().filter(|library| {
            ways.has_library() && library.check().is_ok() && library.problem(site.limits).is_ok()
        });
        if let Some(library) = library {
            let image = Draft::Ready(CudaImage::Matmul(Box::new(library)));
            choices.push(Choice::of(Way::Library, image, WORKSPACE_BYTES));
        }
        if ways.has_tiles(&spec, rows) {
            let data = graph.node(site.node);
            let arguments = (data.operands.len() + data.results.len()) as u32;
            let kernels = tile_kernels(&spec, None, arguments);
            let kernels = kernels.map_err(|e| unsupported(e.to_string()))?;
            choices.push(self.choice_of(site, Way::Tile, kernels));
        }
        let recipe = spec.general_kernel().map_err(|e| unsupported(e.to_string()))?;
        choices.push(Choice::of(Way::General, self.kernel(site, recipe), 0));
        let order = ways.in_order(&spec, rows);
        choices.sort_by_key(|choice| order.iter().position(|way| *way == choice.way));
        Ok(choices)
    }

    /// What becomes of the alternatives of a piece at a size, and of the most of each symbol, once all
    /// of their kernels are wanted.
    fn with_wanted<T>(
        &self,
        at: PieceAt<'_>,
        then: impl FnOnce(&[Listed<'_>], &[u64]) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        self.with_listed(at, |listed, limits| {
            let choices = listed.iter().flatten().flat_map(|(_, choices)| *choices);
            for (draft, _) in choices.flat_map(|choice| &choice.launches) {
                if let Draft::Kernel(recipe, wanted) = draft {
                    wanted.get_or_init(|| self.kernels.want(recipe));
                }
            }
            then(listed, limits)
        })
    }

    /// What becomes of the alternatives of a piece at a size, and of the most of each symbol.
    fn with_listed<T>(
        &self,
        at: PieceAt<'_>,
        then: impl FnOnce(&[Listed<'_>], &[u64]) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        let (PieceAt { piece, size, .. }, limits) = (at, at.limits());
        let positions = Positions::new(piece);
        let lower = |(position, node): (usize, Node)| {
            let name = launch_name(&piece.graph, &positions.names, node);
            let site = Site { piece, node, position, name, limits: &limits, size };
            let args = node_args(&piece.graph, &positions, node);
            let args = args.map_err(|reason| self.unsupported(&site, reason))?;
            let choices = self.choices(&site)?;
            Ok(Lowering { nodes: vec![position as u32], name: site.name, args, choices })
        };
        let lowerings =
            piece.graph.nodes().enumerate().map(lower).collect::<Result<Vec<_>, CompileError>>()?;
        let absorptions = |ways| self.absorptions(piece, &positions, (size, &limits), ways);
        let expected = absorptions(self.ways())?;
        let mut others = match self.held() {
            HeldWays::First => Vec::new(),
            HeldWays::All => absorptions(self.ways().with_tiles_of_any_size())?,
        };
        others.retain(|(other, _)| expected.iter().all(|(one, _)| one != other));
        fn launched<'a>(
            (absorption, groups): &'a (Absorption, Groups),
            lowerings: &'a [Lowering],
        ) -> Vec<&'a Lowering> {
            let lowering = |&at: &usize| groups[at].as_ref().unwrap_or(&lowerings[at]);
            absorption.launched.iter().map(lowering).collect()
        }
        let absorbed = |one| launched(one, &lowerings);
        let alternatives = expected.iter().map(absorbed).chain([lowerings.iter().collect()]);
        let listed = self.held().of(alternatives.chain(others.iter().map(absorbed)).collect());
        then(&listed, &limits)
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
}

/// Measured on an H100, driver 580, by `tests/gpu/ledger.py`: the graphs of three models at 22 sizes took
/// 29 to 68 MiB of what the driver counts as free, 11.5 to 12.5 KB for each of their launches, and the
/// context with cuBLASLt's handle 529 MiB.
const FOOTPRINT: Footprint = Footprint {
    graph_bytes: 0,
    launch_bytes: 12_000,
    context_bytes: 529 << 20,
    loads_images: true,
};

impl Compiler for CudaCompiler {
    fn footprint(&self) -> Footprint {
        FOOTPRINT
    }

    fn target(&self) -> String {
        format!("cuda:{}", self.arch())
    }

    fn identity(&self) -> String {
        let stamps = if self.stamps { " stamps" } else { "" };
        let lines = if self.options.line_info { " line-info" } else { "" };
        let invariant = if self.options.batch_invariant { " batch-invariant" } else { "" };
        let held = match self.held() {
            HeldWays::First => " first-ways",
            HeldWays::All => "",
        };
        format!(
            "image-{IMAGE_VERSION}{stamps}{lines}{invariant}{held} {}",
            crate::lowering::generator()
        )
    }

    fn custom_ops(&self, at: PieceAt<'_>) -> Result<String, CompileError> {
        let (PieceAt { piece, size, .. }, limits) = (at, at.limits());
        let names = Names::of(&piece.graph);
        let mut ops = Vec::new();
        for (position, node) in piece.graph.nodes().enumerate() {
            let Op::Custom(call) = &piece.graph.node(node).op else { continue };
            let name = launch_name(&piece.graph, &names, node);
            let site = Site { piece, node, position, name, limits: &limits, size };
            let (implementations, capture) = self.implementations(&site, call)?;
            for (implementation, scratch) in implementations {
                let launches = match &implementation {
                    CudaImplementation::Source(kernels) => kernels.launches.as_slice(),
                    CudaImplementation::Host => &[],
                };
                let recipes = postcard::to_allocvec(launches);
                let recipes = recipes.map_err(|e| self.failed(&site.name, e.to_string()))?;
                ops.push(format!("{} {} {scratch} {capture:?}", call.name, Digest::of(&recipes)));
            }
        }
        Ok(ops.join(", "))
    }

    fn admit(&self, at: PieceAt<'_>, artifact: &mut Artifact) -> Result<(), String> {
        let limits = at.limits();
        let driver = self.kernels.nvrtc.driver_major;
        let mut images = Vec::with_capacity(artifact.images.len());
        for (digest, bytes) in &artifact.images {
            let image = CudaImage::from_bytes(bytes).map_err(|e| format!("image {digest}: {e}"))?;
            if let CudaImage::Kernel(kernel) = &image {
                kernel.code.check(driver).map_err(|e| format!("image {digest}: {e}"))?;
            }
            images.push((*digest, image));
        }
        for launch in artifact.ways().flat_map(|way| &way.launches) {
            let image = images.iter().find(|(digest, _)| *digest == launch.image);
            let (_, image) = image.ok_or_else(|| format!("image {} is missing", launch.image))?;
            self.check_launch(launch, image, &limits)
                .map_err(|reason| format!("launch `{}`: {reason}", launch.name))?;
        }
        Ok(())
    }

    fn prepare_device(&self, store: &dyn Store) -> Result<(), CompileError> {
        let made = weight_kernels(&self.kernels, store);
        made.map(drop).map_err(|log| self.failed("weights", log))
    }

    fn weight_layouts(&self, stitch: &Stitch, _: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        row_major(stitch)
    }

    fn want(&self, at: PieceAt<'_>) {
        // Compiling says what does not lower.
        let _ = self.with_wanted(at, |_, _| Ok(()));
    }

    fn compile(
        &self,
        at: PieceAt<'_>,
        _: &[WeightLayout],
        store: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let image = |draft: &Draft| self.image(draft, store);
        self.with_wanted(at, |listed, limits| {
            assemble(at.piece, at.size, listed, limits, &image)
                .map_err(|(kernel, log)| self.failed(&kernel, log))
        })
    }

    fn listing(&self, image: &[u8]) -> Option<ImageListing> {
        Some(CudaImage::from_bytes(image).ok()?.listing())
    }

    fn code(&self, image: &[u8]) -> Vec<CodeFile> {
        match CudaImage::from_bytes(image) {
            Ok(CudaImage::Kernel(kernel)) => code_files(&kernel, &self.kernels),
            Ok(CudaImage::Matmul(_) | CudaImage::Host(_)) | Err(_) => Vec::new(),
        }
    }

    fn first_ways(&self, at: PieceAt<'_>) -> Vec<FirstWay> {
        let first = |listed: &[Listed<'_>], limits: &[u64]| {
            Ok(Vec::from_iter(
                listed
                    .first()
                    .into_iter()
                    .flatten()
                    .map(|(lowering, choices)| self.first_way(at, lowering, choices, limits)),
            ))
        };
        // Compiling says what does not lower.
        self.with_listed(at, first).unwrap_or_default()
    }
}
