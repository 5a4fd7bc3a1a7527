//! Artifacts bound to addresses.

use super::image::Kernel;
use super::memory::{Mapping, Memory};
use crate::artifact::{Access, Arg, ArgRef, Artifact, Digest, Launch};
use crate::binding::{Argument, Fit, Images};
use crate::device::{Address, Binding, DeviceError};
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

/// One launch with everything it needs: types, addresses, scratch, the memory they lie in.
#[derive(Debug)]
pub(super) struct BoundCall {
    pub(super) name: String,
    /// What it runs, by the name of its image.
    pub(super) kernel: String,
    /// The nodes of the unique piece that it computes, by position in program order.
    pub(super) nodes: Vec<u32>,
    pub(super) label: Arc<str>,
    pub(super) support: CaptureSupport,
    pub(super) parts: Vec<BoundPart>,
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

/// A kernel with its addresses.
#[derive(Debug)]
pub(super) struct BoundPart {
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
        let kernel_name = kernel.name().to_owned();
        let mut operands = Vec::new();
        for (i, arg) in launch.args.iter().enumerate() {
            let mut operand = self.operand(fit.argument(i, arg)?);
            operand.may_lack_backing = operand.at.is_state
                && (arg.access == Access::Read || is_only_scattered(&kernel, i as u32));
            operands.push(operand);
        }
        let mut parts = Vec::new();
        #[cfg(piecewise_testing)]
        if let Kernel::Absorbed(absorbed) = &*kernel {
            for part in &absorbed.parts {
                let args = part.args.iter().map(|&i| operands.get(i as usize));
                let args: Option<Vec<_>> = args.collect();
                let args = args.ok_or("an argument that is not there")?;
                let own = (part.scratch_at, part.scratch);
                parts.push(self.part(Arc::new(part.kernel.clone()), &args, own, fit)?);
            }
        }
        if parts.is_empty() {
            let args: Vec<&BoundOperand> = operands.iter().collect();
            parts.push(self.part(kernel, &args, (0, fit.scratch), fit)?);
        }
        if fit.scratch > 0 {
            operands.push(self.operand(fit.whole_scratch()));
        }
        operands.push(self.operand(fit.counts()));
        Ok(BoundCall {
            name: launch.name.clone(),
            kernel: kernel_name,
            nodes: launch.nodes.clone(),
            label: fit.label.clone(),
            support: launch.capture,
            parts,
            operands,
            counts: fit.binding.counts,
            limits: fit.limits.clone(),
        })
    }

    fn operand(&self, at: Argument) -> BoundOperand {
        let mapping = self.memory.find(at.address, at.bytes).cloned();
        BoundOperand { at, may_lack_backing: false, mapping }
    }

    fn part(
        &mut self,
        kernel: Arc<Kernel>,
        args: &[&BoundOperand],
        scratch: (u64, u64),
        fit: &Fit<'_>,
    ) -> Result<BoundPart, String> {
        let needs = argument_needs(&kernel, &fit.limits)?;
        let given: Vec<_> = args.iter().map(|arg| (arg.at.bytes, arg.at.access)).collect();
        check_needs(&needs, &given, |i| args[i].at.name.clone())?;
        let mut args_needs = needs.iter().zip(args);
        if let Some((need, arg)) =
            args_needs.find(|(need, arg)| !arg.at.address.0.is_multiple_of(need.align))
        {
            return Err(format!("{} is not aligned to {}", arg.at.name, need.align));
        }
        let own = kernel.scratch_bytes(&fit.limits, 1);
        let end = scratch.0.checked_add(scratch.1);
        if own > scratch.1
            || end.is_none_or(|end| end > fit.scratch)
            || !scratch.0.is_multiple_of(64)
        {
            return Err(format!("needs {own} bytes of scratch, has {}", scratch.1));
        }
        let start = fit.binding.scratch.offset(scratch.0);
        let workspace = Argument { address: start, bytes: scratch.1, ..fit.whole_scratch() };
        args.iter().try_for_each(|arg| arg.at.check_apart(&workspace))?;
        let op = match &*kernel {
            Kernel::Custom(custom) => Some(self.registry.cpu(&custom.name).ok_or_else(|| {
                format!(
                    "custom op `{}` has no implementation on this device; register it",
                    custom.name
                )
            })?),
            #[cfg(piecewise_testing)]
            Kernel::Absorbed(_) => return Err("an absorbed launch inside another".to_owned()),
            Kernel::Rows(_) | Kernel::MatMul(_) => None,
            #[cfg(piecewise_testing)]
            Kernel::Poison(_) => None,
        };
        let (types, writable) = kernel.tensors();
        Ok(BoundPart {
            op: op.cloned(),
            types: types.into_iter().cloned().collect(),
            writable,
            addresses: args.iter().map(|arg| arg.at.address.0 as usize).collect(),
            mappings: args.iter().map(|arg| arg.mapping.clone()).collect(),
            scratch: start.0 as usize,
            scratch_bytes: scratch.1,
            kernel,
        })
    }
}

/// Whether all that a kernel does with an argument is scattering rows into it.
fn is_only_scattered(kernel: &Kernel, position: u32) -> bool {
    match kernel {
        Kernel::Rows(program) => {
            let arg = program.args.get(position as usize);
            arg.is_some_and(|arg| arg.kind == ArgKind::Table)
        }
        #[cfg(piecewise_testing)]
        Kernel::Absorbed(absorbed) => absorbed.parts.iter().all(|part| {
            let mut uses = part.args.iter().zip(0..).filter(|(arg, _)| **arg == position);
            uses.all(|(_, own)| is_only_scattered(&part.kernel, own))
        }),
        Kernel::MatMul(_) | Kernel::Custom(_) => false,
        #[cfg(piecewise_testing)]
        Kernel::Poison(_) => false,
    }
}

struct Need {
    bytes: u64,
    align: u64,
    written: bool,
}

/// What a kernel uses of its arguments at the largest sizes.
fn argument_needs(kernel: &Kernel, limits: &[u64]) -> Result<Vec<Need>, String> {
    let typed = |ty: &TensorType, written| Need {
        bytes: ty.bytes(limits),
        align: ty.dtype.size() as u64,
        written,
    };
    Ok(match kernel {
        Kernel::Rows(program) => {
            let rows = program.rows(limits);
            let need = |arg: &piecewise_kernels::lower::ArgDecl| Need {
                bytes: arg.bytes(rows, limits),
                align: arg.dtype.size() as u64,
                written: arg.written,
            };
            program.args.iter().map(need).collect()
        }
        Kernel::MatMul(_) | Kernel::Custom(_) => {
            let (types, written) = kernel.tensors();
            let typed = |(i, ty): (usize, &&TensorType)| typed(ty, written >> i & 1 == 1);
            types.iter().enumerate().map(typed).collect()
        }
        #[cfg(piecewise_testing)]
        Kernel::Poison(types) => types.iter().map(|ty| typed(ty, true)).collect(),
        #[cfg(piecewise_testing)]
        Kernel::Absorbed(_) => return Err("an absorbed launch has no arguments of its own".into()),
    })
}

/// That a kernel uses no more of a piece's operands than there is, and writes to none that its
/// launch declares as read.
pub(super) fn check_arguments(
    kernel: &Kernel,
    args: &[Arg],
    operands: &[&TensorType],
    limits: &[u64],
) -> Result<(), String> {
    #[cfg(piecewise_testing)]
    if let Kernel::Absorbed(absorbed) = kernel {
        return absorbed.parts.iter().try_for_each(|part| {
            let arg = |&i: &u32| args.get(i as usize).copied();
            let own: Option<Vec<Arg>> = part.args.iter().map(arg).collect();
            let own = own.ok_or("a part uses an argument that is not there")?;
            check_arguments(&part.kernel, &own, operands, limits)
        });
    }
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
    check_needs(&argument_needs(kernel, limits)?, &given, |i| format!("argument {i}"))
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
