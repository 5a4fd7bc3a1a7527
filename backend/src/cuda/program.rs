//! Artifacts bound to addresses.

use super::context::Context;
use super::driver::TensorMap;
use super::image::{CudaImage, HostImage, LIBRARY_MATMUL};
use super::lt::{LtCall, LtProduct};
use super::memory::{AddressRange, Memory};
use super::module::{Kernel, Modules};
use super::prepared::Prepared;
use crate::artifact::{ArgRef, Artifact, Launch};
use crate::binding::{Argument, Fit, Images};
use crate::device::{Address, Binding, DeviceError};
use crate::matmul::Matmul;
use piecewise_ir::dim::Dim;
use piecewise_ir::graph::ValueDef;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::op::cuda::{CudaOp, LaunchRecipe, Param, Scalar};
use piecewise_kernels::step::CaptureSupport;
use std::cell::RefCell;
use std::sync::Arc;

/// The alignment of operands that the library assumes when it offers algorithms, in bytes.
const MATMUL_ALIGN: u64 = 256;

/// An artifact bound to addresses.
#[derive(Debug)]
pub struct CudaProgram {
    pub(super) launches: Vec<Arc<BoundLaunch>>,
    pub(super) support: CaptureSupport,
    pub(super) prepared: RefCell<Prepared>,
}

impl CudaProgram {
    pub(super) fn new(launches: Vec<Arc<BoundLaunch>>, support: CaptureSupport) -> Self {
        let prepared = RefCell::new(Prepared::of(&launches));
        Self { launches, support, prepared }
    }

    /// Whether a function of the host is among its launches.
    pub(super) fn has_host_functions(&self) -> bool {
        self.launches.iter().any(|launch| matches!(launch.work, Work::Host(_)))
    }
}

/// One launch with everything it needs, and the memory that it points to.
#[derive(Debug)]
pub(super) struct BoundLaunch {
    pub(super) name: String,
    /// The nodes of the unique piece that it computes, by position in program order.
    pub(super) nodes: Vec<u32>,
    pub(super) label: Arc<str>,
    pub(super) support: CaptureSupport,
    pub(super) work: Work,
    /// What it is bound to: the counts, then its arguments.
    pub(super) arguments: Vec<Argument>,
    ranges: Vec<UsedRange>,
    /// The largest size of each symbol that its memory holds.
    pub(super) limits: Arc<[u64]>,
}

#[derive(Debug)]
struct UsedRange {
    range: Arc<AddressRange>,
    /// States may lack backing: a warm-up run writes to no slot and reads no row.
    is_state: bool,
}

#[derive(Debug)]
pub(super) enum Work {
    Kernel(Box<BoundKernel>),
    Matmul(Box<BoundMatmul>),
    Host(BoundHost),
}

#[derive(Debug)]
pub(super) struct BoundKernel {
    pub(super) kernel: Arc<Kernel>,
    pub(super) recipe: LaunchRecipe,
    pub(super) values: Vec<ParameterValue>,
    /// The parameters that are tensor maps instead, by position; of the largest size.
    pub(super) maps: Vec<(usize, TensorMap)>,
}

/// The value of a kernel's parameter.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum ParameterValue {
    Fixed(u64),
    /// A function of the padded sizes.
    Size(Dim),
    /// Where the blocks of a captured launch note their times.
    Stamps,
}

impl ParameterValue {
    pub(super) fn at(&self, sizes: &[u64], stamps: u64) -> u64 {
        match self {
            Self::Stamps => stamps,
            Self::Fixed(value) => *value,
            Self::Size(dim) => dim.eval(sizes),
        }
    }

    fn of_size(dim: &Dim) -> Self {
        match dim.as_constant() {
            Some(value) => Self::Fixed(value),
            None => Self::Size(dim.clone()),
        }
    }
}

/// A product of the library.
#[derive(Debug)]
pub(super) struct BoundMatmul {
    pub(super) matmul: Matmul,
    pub(super) call: LtCall,
}

impl BoundMatmul {
    /// The product at these sizes.
    pub(super) fn product(&self, sizes: &[u64]) -> Result<LtProduct, String> {
        Ok((self.matmul.problem(sizes)?, self.call.workspace_bytes))
    }
}

#[derive(Debug)]
pub(super) struct BoundHost {
    pub(super) op: Arc<dyn CudaOp>,
    pub(super) image: Arc<CudaImage>,
    pub(super) addresses: Vec<u64>,
    pub(super) scratch: (u64, u64),
    pub(super) counts: u64,
}

impl BoundHost {
    pub(super) fn image(&self) -> Option<&HostImage> {
        match &*self.image {
            CudaImage::Host(image) => Some(image),
            _ => None,
        }
    }
}

impl BoundLaunch {
    /// The entry of its kernel, the library's function, or the op of its host function.
    pub(super) fn kernel(&self) -> &str {
        match &self.work {
            Work::Kernel(bound) => &bound.recipe.entry,
            Work::Matmul(_) => LIBRARY_MATMUL,
            Work::Host(bound) => bound.image().map_or("", |image| &image.name),
        }
    }

    /// That its memory holds these sizes and can be used.
    pub(super) fn check(&self, sizes: &[u64]) -> Result<(), String> {
        if sizes.len() < self.limits.len() {
            return Err(format!("{} sizes for {} symbols", sizes.len(), self.limits.len()));
        }
        for (symbol, (size, limit)) in sizes.iter().zip(self.limits.iter()).enumerate() {
            if size > limit {
                return Err(format!("size {size} of symbol {symbol} is over its bound {limit}"));
            }
        }
        check_backing(self.needed())
    }

    /// The ranges that must be backed where it runs.
    pub(super) fn needed(&self) -> impl Iterator<Item = &Arc<AddressRange>> {
        self.ranges.iter().filter(|used| !used.is_state).map(|used| &used.range)
    }
}

/// The ranges that launches need backed, each once: launches share few.
pub(super) fn needed_once(launches: &[Arc<BoundLaunch>]) -> Vec<Arc<AddressRange>> {
    let mut needed: Vec<Arc<AddressRange>> = Vec::new();
    for range in launches.iter().flat_map(|launch| launch.needed()) {
        if !needed.iter().any(|known| Arc::ptr_eq(known, range)) {
            needed.push(range.clone());
        }
    }
    needed
}

/// An error that names the first range whose memory was given back.
pub(super) fn check_backing<'a>(
    mut ranges: impl Iterator<Item = &'a Arc<AddressRange>>,
) -> Result<(), String> {
    match ranges.find(|range| !range.is_backed()) {
        Some(range) => Err(format!("the memory of {} is not backed", range.what)),
        None => Ok(()),
    }
}

/// What binding needs of the device.
pub(super) struct Binder<'a> {
    pub(super) context: &'a Context,
    pub(super) memory: &'a Memory,
    pub(super) registry: &'a OpRegistry,
    pub(super) modules: &'a mut Modules,
    pub(super) images: &'a mut Images<CudaImage>,
}

/// The arguments of a launch, resolved.
struct Arguments {
    addresses: Vec<u64>,
    /// Address and bytes of the last scratch argument.
    scratch: Option<(u64, u64)>,
    /// The counts, then the arguments.
    all: Vec<Argument>,
    ranges: Vec<UsedRange>,
}

impl Binder<'_> {
    pub(super) fn bind(
        &mut self,
        artifact: &Artifact,
        binding: &Binding<'_>,
    ) -> Result<CudaProgram, DeviceError> {
        let graph = &binding.piece.graph;
        let fit = Fit::new(artifact, binding, |value| match graph.def(value) {
            ValueDef::Input(i) => format!("input {i}"),
            ValueDef::Weight(i) => format!("w{i}"),
            ValueDef::State(i) => format!("s{i}"),
            ValueDef::Result { .. } => value.to_string(),
        })?;
        let (launches, support) = fit.each(|launch| {
            let image = fit.image(launch, self.images, CudaImage::from_bytes)?;
            let arguments = self.arguments(launch, &fit)?;
            let work = self.work(&image, binding, &arguments, &fit.limits)?;
            Ok(BoundLaunch {
                name: launch.name.clone(),
                nodes: launch.nodes.clone(),
                label: fit.label.clone(),
                support: launch.capture,
                work,
                arguments: arguments.all,
                ranges: arguments.ranges,
                limits: fit.limits.clone(),
            })
        })?;
        Ok(CudaProgram::new(launches, support))
    }

    fn arguments(&self, launch: &Launch, fit: &Fit<'_>) -> Result<Arguments, String> {
        let mut all = vec![fit.counts()];
        for (i, arg) in launch.args.iter().enumerate() {
            all.push(fit.argument(i, arg)?);
        }
        let own = launch.args.iter().zip(&all[1..]);
        let scratch = own.rev().find(|(arg, _)| matches!(arg.at, ArgRef::Scratch { .. }));
        let scratch = scratch.map(|(_, argument)| (argument.address.0, argument.bytes));
        let addresses = all[1..].iter().map(|argument| argument.address.0).collect();
        let mut ranges: Vec<UsedRange> = Vec::new();
        for &Argument { ref name, address, bytes, is_state, .. } in &all {
            // A state's rows are bound at load, and its range holds them.
            let bytes = if is_state { 1 } else { bytes };
            let range = self.memory.find(address, bytes).ok_or_else(|| {
                format!("{name} at {address} (+{bytes} bytes) is outside reserved memory")
            })?;
            match ranges.iter_mut().find(|used| Arc::ptr_eq(&used.range, range)) {
                Some(used) => used.is_state &= is_state,
                None => ranges.push(UsedRange { range: range.clone(), is_state }),
            }
        }
        Ok(Arguments { addresses, scratch, all, ranges })
    }

    fn work(
        &mut self,
        image: &Arc<CudaImage>,
        binding: &Binding<'_>,
        arguments: &Arguments,
        limits: &[u64],
    ) -> Result<Work, String> {
        let addresses = &arguments.addresses;
        match &**image {
            CudaImage::Kernel(kernel) => {
                let device = self.context.device.arch;
                if kernel.arch != device {
                    return Err(format!(
                        "compiled for {}, and the device is {device}",
                        kernel.arch
                    ));
                }
                let recipe = &kernel.recipe;
                let (scratch, scratch_bytes) = arguments.scratch.unwrap_or((0, 0));
                recipe.check(addresses.len(), scratch_bytes)?;
                recipe
                    .grid_at(limits, self.context.device.multiprocessors)
                    .map_err(|e| e.to_string())?;
                let shared = recipe.static_shared.saturating_add(recipe.dynamic_shared);
                let most = self.context.device.shared_bytes_per_block;
                if shared > most {
                    return Err(format!("{shared} bytes of shared memory, the device has {most}"));
                }
                let loaded = self
                    .modules
                    .kernel(&kernel.code.cubin, &recipe.entry, recipe.dynamic_shared)
                    .map_err(|e| format!("kernel `{}` can't be loaded: {e}", recipe.entry))?;
                let narrow = |dim: &Dim| match u32::try_from(dim.eval(limits)) {
                    Ok(_) => Ok(ParameterValue::of_size(dim)),
                    Err(_) => Err(format!("`{}` counts below 2^32, not to {dim:?}", recipe.entry)),
                };
                let driver = &self.context.driver;
                let map = |(position, param): (usize, &Param)| {
                    let Param::TensorMap(boxes) = param else { return None };
                    let (address, rows) = (addresses[boxes.arg as usize], boxes.rows.eval(limits));
                    let map = driver.encode_map(address, boxes, rows.max(1));
                    let failed =
                        |e| format!("the map of argument {} can't be made: {e}", boxes.arg);
                    Some(map.map(|map| (position, map)).map_err(failed))
                };
                let maps = recipe.params.iter().enumerate().filter_map(map);
                let maps = maps.collect::<Result<_, String>>()?;
                let value = |param: &Param| match param {
                    Param::TensorMap(_) | Param::Elements(_) | Param::Rows(_) => {
                        Ok(ParameterValue::Fixed(0))
                    }
                    Param::Arg(i) => Ok(ParameterValue::Fixed(addresses[*i as usize])),
                    Param::Scratch(offset) => Ok(ParameterValue::Fixed(scratch + offset)),
                    Param::Counts => Ok(ParameterValue::Fixed(binding.counts.0)),
                    Param::Stamps => Ok(ParameterValue::Stamps),
                    Param::Scalar(Scalar::U32(dim)) => narrow(dim),
                    Param::Scalar(Scalar::U64(dim)) => Ok(ParameterValue::of_size(dim)),
                    Param::Scalar(Scalar::F32(x)) => {
                        Ok(ParameterValue::Fixed(u64::from(x.to_bits())))
                    }
                };
                Ok(Work::Kernel(Box::new(BoundKernel {
                    kernel: loaded,
                    recipe: recipe.clone(),
                    values: recipe.params.iter().map(value).collect::<Result<_, String>>()?,
                    maps,
                })))
            }
            CudaImage::Matmul(matmul) => {
                let &[lhs, rhs, out, ..] = addresses.as_slice() else {
                    return Err(format!("{} arguments for a matmul", addresses.len()));
                };
                let (workspace, workspace_bytes) = arguments.scratch.unwrap_or((0, 0));
                let aligned = |at: &u64| at.is_multiple_of(MATMUL_ALIGN);
                if let Some(at) = [lhs, rhs, out, workspace].iter().find(|at| !aligned(at)) {
                    return Err(format!(
                        "a matmul operand at {} is not aligned to {MATMUL_ALIGN} bytes",
                        Address(*at)
                    ));
                }
                let matmul = Matmul::clone(matmul);
                let call = LtCall { lhs, rhs, out, workspace, workspace_bytes };
                Ok(Work::Matmul(Box::new(BoundMatmul { matmul, call })))
            }
            CudaImage::Host(host) => {
                let op = self.registry.cuda(&host.name).ok_or_else(|| {
                    format!("custom op `{}` has no CUDA implementation; register it", host.name)
                })?;
                let positions = host.types.len();
                if addresses.len() < positions {
                    return Err(format!("{} arguments for {positions} positions", addresses.len()));
                }
                Ok(Work::Host(BoundHost {
                    op: op.clone(),
                    image: image.clone(),
                    addresses: addresses[..positions].to_vec(),
                    scratch: arguments.scratch.unwrap_or((0, 0)),
                    counts: binding.counts.0,
                }))
            }
        }
    }
}
