//! Artifacts bound to addresses.

use super::image::Kernel;
use super::memory::{Mapping, Memory};
use crate::artifact::{Access, Arg, ArgRef, Artifact, Digest, Launch};
use crate::binding::{Argument, Fit, Images};
use crate::device::{Address, Binding, BoundProgram, DeviceError, LaunchView, Program};
use piecewise_ir::text::Names;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cpu::SCRATCH_ALIGN;
use piecewise_kernels::lower::ArgKind;
use piecewise_kernels::op::{CpuOp, OpRegistry};
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;

/// An artifact bound to addresses.
#[derive(Debug)]
pub struct CpuProgram {
    pub(super) calls: Vec<Arc<BoundCall>>,
    pub(super) support: CaptureSupport,
}

impl BoundProgram for CpuProgram {
    fn capture_support(&self) -> CaptureSupport {
        self.support
    }

    fn launches(&self) -> Vec<LaunchView<'_>> {
        let launches = self.calls.iter().map(|call| LaunchView {
            name: &call.name,
            kernel: call.kernel.name(),
            nodes: &call.nodes,
        });
        launches.collect()
    }

    fn without(&self, left_out: &[usize]) -> Program {
        let calls = self.calls.iter().enumerate();
        let kept = calls.filter(|(i, _)| !left_out.contains(i));
        let calls: Vec<_> = kept.map(|(_, call)| call.clone()).collect();
        let support = calls.iter().map(|call| call.support).min();
        Program::new(Self { calls, support: support.unwrap_or(CaptureSupport::Always) })
    }
}

/// One launch with everything it needs: types, addresses, scratch, the memory they lie in.
#[derive(Debug)]
pub(super) struct BoundCall {
    pub(super) name: String,
    /// The nodes of the unique piece that it computes, by position in program order.
    pub(super) nodes: Vec<u32>,
    pub(super) label: Arc<str>,
    pub(super) support: CaptureSupport,
    pub(super) kernel: Arc<Kernel>,
    /// The implementation of a custom op.
    pub(super) op: Option<Arc<dyn CpuOp>>,
    /// The types of arguments that are whole tensors, and a bit for each that is written.
    pub(super) types: Vec<TensorType>,
    pub(super) writable: u64,
    pub(super) addresses: Vec<usize>,
    /// The memory of each address, for tables that may lack backing.
    pub(super) mappings: Vec<Option<Arc<Mapping>>>,
    pub(super) scratch: usize,
    pub(super) scratch_bytes: u64,
    pub(super) operands: Vec<BoundOperand>,
    pub(super) counts: Address,
    /// The largest size of each symbol that this call may run with.
    pub(super) limits: Arc<[u64]>,
}

/// Memory that a call uses.
#[derive(Debug)]
pub(super) struct BoundOperand {
    pub(super) at: Argument,
    /// Whether it may be without backing: a state that the call reads, or scatters into.
    pub(super) may_lack_backing: bool,
    pub(super) mapping: Option<Arc<Mapping>>,
}

impl BoundOperand {
    /// Whether the call may use it now.
    pub(super) fn is_usable(&self) -> bool {
        self.mapping.as_ref().is_some_and(|m| self.may_lack_backing || m.is_backed())
    }
}

/// What binding needs of the device.
pub(super) struct Binder<'a> {
    pub(super) memory: &'a Memory,
    pub(super) registry: &'a OpRegistry,
    pub(super) kernels: &'a mut Images<Kernel>,
}

impl Binder<'_> {
    pub(super) fn bind(
        &mut self,
        artifact: &Artifact,
        binding: &Binding<'_>,
    ) -> Result<CpuProgram, DeviceError> {
        let names = Names::of(&binding.piece.graph);
        let fit = Fit::new(artifact, binding, |value| names.value(value))?;
        let fail = |reason| DeviceError::Bind { label: binding.label.to_owned(), reason };
        if !binding.scratch.0.is_multiple_of(SCRATCH_ALIGN as u64) && fit.scratch > 0 {
            return Err(fail(format!("the scratch at {} is not aligned to 64", binding.scratch)));
        }
        if !binding.counts.0.is_multiple_of(4) {
            return Err(fail(format!("the counts at {} are not aligned to 4", binding.counts)));
        }
        let (calls, support) = fit.each(|launch| self.call(launch, &fit))?;
        Ok(CpuProgram { calls, support })
    }

    fn call(&mut self, launch: &Launch, fit: &Fit<'_>) -> Result<BoundCall, String> {
        let digest = launch.image;
        let kernel = fit.image(launch, self.kernels, |bytes| {
            if Digest::of(bytes) != digest {
                return Err(format!("image {digest} has other bytes than its digest says"));
            }
            Kernel::from_image(bytes).map_err(|e| format!("image {digest}: {e}"))
        })?;
        let mut args = Vec::new();
        for (i, arg) in launch.args.iter().enumerate() {
            let mut operand = self.operand(fit.argument(i, arg)?);
            operand.may_lack_backing = operand.at.is_state
                && (arg.access == Access::Read || is_only_scattered(&kernel, i as u32));
            args.push(operand);
        }
        let needs = argument_needs(&kernel, &fit.limits);
        let given: Vec<_> = args.iter().map(|arg| (arg.at.bytes, arg.at.access)).collect();
        check_needs(&needs, &given, |i| args[i].at.name.clone())?;
        let mut args_needs = needs.iter().zip(&args);
        if let Some((need, arg)) =
            args_needs.find(|(need, arg)| !arg.at.address.0.is_multiple_of(need.align))
        {
            return Err(format!("{} is not aligned to {}", arg.at.name, need.align));
        }
        let (start, left) = workspace(&launch.args, fit.scratch);
        let own = kernel.scratch_bytes(&fit.limits, 1);
        if own > left {
            return Err(format!("needs {own} bytes of scratch, has {left}"));
        }
        let address = fit.binding.scratch.offset(start);
        let own_scratch = Argument { address, bytes: left, ..fit.whole_scratch() };
        args.iter().try_for_each(|arg| arg.at.check_apart(&own_scratch))?;
        let op = match &*kernel {
            Kernel::Custom(custom) => Some(self.registry.cpu(&custom.name).ok_or_else(|| {
                format!(
                    "custom op `{}` has no implementation on this device; register it",
                    custom.name
                )
            })?),
            Kernel::Rows(_) | Kernel::MatMul(_) | Kernel::ScaledMatMul(_) => None,
        };
        let (types, writable) = kernel.tensors();
        let types = types.into_iter().cloned().collect();
        let addresses = args.iter().map(|arg| arg.at.address.0 as usize).collect();
        let mappings = args.iter().map(|arg| arg.mapping.clone()).collect();
        let mut operands = args;
        if fit.scratch > 0 {
            operands.push(self.operand(fit.whole_scratch()));
        }
        operands.push(self.operand(fit.counts()));
        Ok(BoundCall {
            name: launch.name.clone(),
            nodes: launch.nodes.clone(),
            label: fit.label.clone(),
            support: launch.capture,
            op: op.cloned(),
            kernel,
            types,
            writable,
            addresses,
            mappings,
            scratch: address.0 as usize,
            scratch_bytes: left,
            operands,
            counts: fit.binding.counts,
            limits: fit.limits.clone(),
        })
    }

    fn operand(&self, at: Argument) -> BoundOperand {
        let mapping = self.memory.find(at.address, at.bytes).cloned();
        BoundOperand { at, may_lack_backing: false, mapping }
    }
}

/// Where the scratch begins that is a launch's alone, and its bytes: behind the values that the launch
/// holds in the scratch, and to the end of it.
pub(super) fn workspace(args: &[Arg], scratch: u64) -> (u64, u64) {
    let ends = args.iter().map(|arg| match arg.at {
        ArgRef::Scratch { offset, bytes } => offset.saturating_add(bytes),
        ArgRef::Operand(_) => 0,
    });
    let held = ends.max().unwrap_or(0);
    let start = held.checked_next_multiple_of(SCRATCH_ALIGN as u64).unwrap_or(u64::MAX);
    (start.min(scratch), scratch.saturating_sub(start))
}

/// Whether all that a kernel does with an argument is scattering rows into it.
fn is_only_scattered(kernel: &Kernel, position: u32) -> bool {
    match kernel {
        Kernel::Rows(program) => {
            let arg = program.args.get(position as usize);
            arg.is_some_and(|arg| arg.kind == ArgKind::Table)
        }
        Kernel::MatMul(_) | Kernel::ScaledMatMul(_) | Kernel::Custom(_) => false,
    }
}

struct Need {
    bytes: u64,
    align: u64,
    written: bool,
}

/// What a kernel uses of its arguments at the largest sizes.
fn argument_needs(kernel: &Kernel, limits: &[u64]) -> Vec<Need> {
    let typed = |ty: &TensorType, written| Need {
        bytes: ty.bytes(limits),
        align: ty.dtype.size() as u64,
        written,
    };
    match kernel {
        Kernel::Rows(program) => {
            let rows = program.rows(limits);
            let need = |arg: &piecewise_kernels::lower::ArgDecl| Need {
                bytes: arg.bytes(rows, limits),
                align: arg.dtype.size() as u64,
                written: arg.written,
            };
            program.args.iter().map(need).collect()
        }
        Kernel::MatMul(_) | Kernel::ScaledMatMul(_) | Kernel::Custom(_) => {
            let (types, written) = kernel.tensors();
            let typed = |(i, ty): (usize, &&TensorType)| typed(ty, written >> i & 1 == 1);
            types.iter().enumerate().map(typed).collect()
        }
    }
}

/// That a kernel uses no more of a piece's operands than there is, and writes to none that its
/// launch declares as read.
pub(super) fn check_arguments(
    kernel: &Kernel,
    args: &[Arg],
    operands: &[&TensorType],
    limits: &[u64],
) -> Result<(), String> {
    let given = args.iter().enumerate().map(|(i, arg)| {
        let bytes = match arg.at {
            ArgRef::Operand(position) => match operands.get(position as usize) {
                Some(ty) => ty.bytes(limits),
                None => return Err(format!("argument {i} is operand {position}")),
            },
            ArgRef::Scratch { bytes, .. } => bytes,
        };
        Ok((bytes, arg.access))
    });
    let given = given.collect::<Result<Vec<_>, _>>()?;
    check_needs(&argument_needs(kernel, limits), &given, |i| format!("argument {i}"))
}

/// Holds what a kernel uses against the bytes and the access of its arguments, which errors name.
fn check_needs(
    needs: &[Need],
    args: &[(u64, Access)],
    name: impl Fn(usize) -> String,
) -> Result<(), String> {
    if needs.len() != args.len() {
        return Err(format!("{} arguments where {} are needed", args.len(), needs.len()));
    }
    for (i, (need, &(bytes, access))) in needs.iter().zip(args).enumerate() {
        if need.bytes > bytes {
            return Err(format!("{} has {bytes} bytes, {} are used", name(i), need.bytes));
        }
        if need.written && access == Access::Read {
            return Err(format!("{} is written but declared as read", name(i)));
        }
    }
    Ok(())
}
