//! Artifacts bound to addresses.

use super::bound::{
    BoundHost, BoundKernel, BoundLaunch, BoundMatmul, ParameterValue, UsedRange, Work,
};
use super::context::Context;
use super::image::CudaImage;
use super::lt::LtCall;
use super::memory::Memory;
use super::module::Modules;
use super::prepared::Prepared;
use crate::artifact::{ArgRef, Artifact, Launch};
use crate::binding::{Argument, Fit, Images};
use crate::device::{Address, Binding, BoundProgram, DeviceError, LaunchView, Program};
use crate::matmul::Matmul;
use piecewise_ir::dim::Dim;
use piecewise_ir::graph::ValueDef;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::op::cuda::{Param, Scalar};
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

impl BoundProgram for CudaProgram {
    fn capture_support(&self) -> CaptureSupport {
        self.support
    }

    fn launches(&self) -> Vec<LaunchView<'_>> {
        let launches = self.launches.iter().map(|launch| LaunchView {
            name: &launch.name,
            kernel: launch.kernel(),
            nodes: &launch.nodes,
        });
        launches.collect()
    }

    fn without(&self, left_out: &[usize]) -> Program {
        let launches = self.launches.iter().enumerate();
        let kept = launches.filter(|(i, _)| !left_out.contains(i));
        let launches: Vec<_> = kept.map(|(_, launch)| launch.clone()).collect();
        let support = launches.iter().map(|launch| launch.support).min();
        Program::new(Self::new(launches, support.unwrap_or(CaptureSupport::Always)))
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
