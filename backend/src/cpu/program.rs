//! Artifacts bound to addresses.

use super::image::Kernel;
use super::memory::{Mapping, Memory};
use crate::artifact::{Access, Arg, ArgRef, Artifact, Digest, Launch};
use crate::device::{Address, Binding, BoundTo, DeviceError};
use piecewise_ir::entity::Entity;
use piecewise_ir::graph::ValueDef;
use piecewise_ir::text::Names;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cpu::SCRATCH_ALIGN;
use piecewise_kernels::lower::ArgKind;
use piecewise_kernels::op::{CpuOp, OpRegistry};
use piecewise_kernels::step::CaptureSupport;
use rustc_hash::FxHashMap;
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
    pub(super) what: BoundTo,
    pub(super) name: String,
    pub(super) address: Address,
    pub(super) bytes: u64,
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
    pub(super) kernel: BoundKernel,
    pub(super) addresses: Vec<usize>,
    /// The memory of each address, for tables that may lack backing.
    pub(super) mappings: Vec<Option<Arc<Mapping>>>,
    pub(super) scratch: usize,
    pub(super) scratch_bytes: u64,
}

/// A kernel that can run.
#[derive(Debug)]
pub(super) enum BoundKernel {
    /// A row program or matmul.
    Own(Arc<Kernel>),
    /// A custom op with its implementation.
    Custom(CustomCall),
}

/// A custom op with its implementation.
#[derive(Debug)]
pub(super) struct CustomCall {
    pub(super) op: Arc<dyn CpuOp>,
    pub(super) kernel: Arc<Kernel>,
    pub(super) types: Vec<TensorType>,
    pub(super) writable: u64,
}

/// Decoded kernels by digest, so that layers share them.
pub(super) type Kernels = FxHashMap<Digest, Arc<Kernel>>;

/// What binding needs of the device.
pub(super) struct Binder<'a> {
    pub(super) memory: &'a Memory,
    pub(super) registry: &'a OpRegistry,
    pub(super) kernels: &'a mut Kernels,
}

struct Operand {
    name: String,
    ty: TensorType,
    is_state: bool,
}

impl Binder<'_> {
    pub(super) fn bind(
        &mut self,
        artifact: &Artifact,
        binding: &Binding<'_>,
    ) -> Result<CpuProgram, DeviceError> {
        let fail = |reason: String| DeviceError::Bind { label: binding.label.to_owned(), reason };
        if artifact.piece != binding.piece.hash {
            return Err(fail("the artifact was made for another piece".to_owned()));
        }
        let ways = artifact.chosen(binding.choice).map_err(fail)?;
        let scratch = ways.iter().map(|way| way.scratch).max().unwrap_or(0);
        if scratch > binding.scratch_bytes {
            return Err(fail(format!(
                "needs {scratch} bytes of scratch, has {}",
                binding.scratch_bytes
            )));
        }
        if !binding.scratch.0.is_multiple_of(SCRATCH_ALIGN as u64) && scratch > 0 {
            return Err(fail(format!("the scratch at {} is not aligned to 64", binding.scratch)));
        }
        if !binding.counts.0.is_multiple_of(4) {
            return Err(fail(format!("the counts at {} are not aligned to 4", binding.counts)));
        }
        let operands = operands_of(binding);
        if binding.operands.len() != operands.len() {
            return Err(fail(format!(
                "{} addresses for {} operands",
                binding.operands.len(),
                operands.len()
            )));
        }
        let symbols = binding.piece.graph.symbols().len();
        if binding.bounds.len() < symbols {
            return Err(fail(format!("{} bounds for {symbols} symbols", binding.bounds.len())));
        }
        let mut limits = binding.bounds.to_vec();
        if let Some(over) = binding.piece.over {
            limits[over.index()] = artifact.size.rows();
        }
        let shared = Shared {
            binding,
            operands,
            limits: limits.into(),
            label: binding.label.into(),
            scratch,
        };
        let calls = ways
            .iter()
            .flat_map(|way| &way.launches)
            .map(|launch| self.call(artifact, launch, &shared).map(Arc::new))
            .collect::<Result<Vec<_>, String>>()
            .map_err(fail)?;
        let support = calls.iter().map(|call| call.support).min().unwrap_or(CaptureSupport::Always);
        Ok(CpuProgram { calls, support })
    }

    fn kernel(&mut self, artifact: &Artifact, digest: Digest) -> Result<Arc<Kernel>, String> {
        if let Some(kernel) = self.kernels.get(&digest) {
            return Ok(kernel.clone());
        }
        let Some(bytes) = artifact.image(digest) else {
            return Err(format!("image {digest} is missing"));
        };
        if Digest::of(bytes) != digest {
            return Err(format!("image {digest} has other bytes than its digest says"));
        }
        let kernel = Kernel::from_image(bytes).map_err(|e| format!("image {digest}: {e}"))?;
        let kernel = Arc::new(kernel);
        self.kernels.insert(digest, kernel.clone());
        Ok(kernel)
    }

    fn call(
        &mut self,
        artifact: &Artifact,
        launch: &Launch,
        shared: &Shared<'_>,
    ) -> Result<BoundCall, String> {
        let at = |reason: String| format!("launch `{}`: {reason}", launch.name);
        let kernel = self.kernel(artifact, launch.image).map_err(at)?;
        let kernel_name = kernel.name().to_owned();
        let mut bound = Vec::new();
        for (i, arg) in launch.args.iter().enumerate() {
            bound.push(self.arg(i, arg, shared).map_err(at)?);
        }
        for (i, arg) in bound.iter_mut().enumerate() {
            arg.operand.may_lack_backing |= arg.is_state && is_only_scattered(&kernel, i as u32);
        }
        let whole = (0, shared.scratch);
        let mut parts = Vec::new();
        #[cfg(any(test, feature = "testing"))]
        if let Kernel::Absorbed(absorbed) = &*kernel {
            for part in &absorbed.parts {
                let args = part
                    .args
                    .iter()
                    .map(|&i| bound.get(i as usize).ok_or("an argument that is not there"))
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|e| at(e.to_owned()))?;
                let own = (part.scratch_at, part.scratch);
                let kernel = Arc::new(part.kernel.clone());
                parts.push(self.part(kernel, &args, own, shared).map_err(at)?);
            }
        }
        if parts.is_empty() {
            let args: Vec<&BoundArg> = bound.iter().collect();
            parts.push(self.part(kernel, &args, whole, shared).map_err(at)?);
        }
        let binding = shared.binding;
        let mut operands: Vec<BoundOperand> = bound.into_iter().map(|arg| arg.operand).collect();
        let mut extra = |what, name: &str, address: Address, bytes: u64| {
            operands.push(BoundOperand {
                what,
                name: name.to_owned(),
                address,
                bytes,
                may_lack_backing: false,
                mapping: self.memory.find(address, bytes).cloned(),
            });
        };
        if shared.scratch > 0 {
            extra(BoundTo::Scratch, "scratch", binding.scratch, shared.scratch);
        }
        let symbols = binding.piece.graph.symbols().len();
        extra(BoundTo::Counts, "counts", binding.counts, 4 * symbols as u64);
        Ok(BoundCall {
            name: launch.name.clone(),
            kernel: kernel_name,
            nodes: launch.nodes.clone(),
            label: shared.label.clone(),
            support: launch.capture,
            parts,
            operands,
            counts: binding.counts,
            limits: shared.limits.clone(),
        })
    }

    fn arg(&self, i: usize, arg: &Arg, shared: &Shared<'_>) -> Result<BoundArg, String> {
        let (name, address, bytes, is_state) = match arg.at {
            ArgRef::Operand(position) => {
                let position = position as usize;
                let (Some(operand), Some(address)) =
                    (shared.operands.get(position), shared.binding.operands.get(position))
                else {
                    return Err(format!("argument {i} is operand {position}, which is not there"));
                };
                let Some(address) = *address else {
                    return Err(format!("operand {} has no slot but is used", operand.name));
                };
                if !address.0.is_multiple_of(operand.ty.dtype.size() as u64) {
                    return Err(format!("operand {} at {address} is not aligned", operand.name));
                }
                let bytes = operand.ty.bytes(&shared.limits);
                (operand.name.clone(), address, bytes, operand.is_state)
            }
            ArgRef::Scratch { offset, bytes } => {
                let end = offset.checked_add(bytes);
                if end.is_none_or(|end| end > shared.scratch) || !offset.is_multiple_of(64) {
                    return Err(format!("argument {i} lies outside the scratch"));
                }
                let address = shared.binding.scratch.offset(offset);
                (format!("scratch+{offset}"), address, bytes, false)
            }
        };
        let mapping = self.memory.find(address, bytes).cloned();
        let may_lack_backing = is_state && arg.access == Access::Read;
        let what = match arg.at {
            ArgRef::Operand(position) => BoundTo::Operand(position),
            ArgRef::Scratch { .. } => BoundTo::Scratch,
        };
        let operand = BoundOperand { what, name, address, bytes, may_lack_backing, mapping };
        Ok(BoundArg { operand, is_state, access: arg.access })
    }

    fn part(
        &mut self,
        kernel: Arc<Kernel>,
        args: &[&BoundArg],
        scratch: (u64, u64),
        shared: &Shared<'_>,
    ) -> Result<BoundPart, String> {
        let needs = argument_needs(&kernel, &shared.limits)?;
        if needs.len() != args.len() {
            return Err(format!("{} arguments where {} are needed", args.len(), needs.len()));
        }
        for (need, arg) in needs.iter().zip(args) {
            let BoundOperand { name, bytes, .. } = &arg.operand;
            if need.bytes > *bytes {
                return Err(format!("{name} has {bytes} bytes, {} are used", need.bytes));
            }
            if !arg.operand.address.0.is_multiple_of(need.align) {
                return Err(format!("{name} is not aligned to {}", need.align));
            }
            if need.written && arg.access == Access::Read {
                return Err(format!("{name} is written but declared as read"));
            }
        }
        let own = scratch_need(&kernel, &shared.limits);
        let end = scratch.0.checked_add(scratch.1);
        if own > scratch.1
            || end.is_none_or(|end| end > shared.scratch)
            || !scratch.0.is_multiple_of(64)
        {
            return Err(format!("needs {own} bytes of scratch, has {}", scratch.1));
        }
        let bound = match &*kernel {
            Kernel::Custom(custom) => {
                let Some(op) = self.registry.cpu(&custom.name) else {
                    return Err(format!(
                        "custom op `{}` has no implementation on this device; register it",
                        custom.name
                    ));
                };
                let results = custom.operands.len()..needs.len();
                let writable = results.chain(custom.mutates.iter().copied());
                BoundKernel::Custom(CustomCall {
                    op: op.clone(),
                    types: custom.operands.iter().chain(&custom.results).cloned().collect(),
                    writable: writable.fold(0, |bits, i| bits | 1 << i),
                    kernel,
                })
            }
            #[cfg(any(test, feature = "testing"))]
            Kernel::Absorbed(_) => return Err("an absorbed launch inside another".to_owned()),
            Kernel::Rows(_) | Kernel::MatMul(_) => BoundKernel::Own(kernel),
            #[cfg(any(test, feature = "testing"))]
            Kernel::Poison(_) => BoundKernel::Own(kernel),
        };
        let start = shared.binding.scratch.offset(scratch.0);
        Ok(BoundPart {
            kernel: bound,
            addresses: args.iter().map(|a| a.operand.address.0 as usize).collect(),
            mappings: args.iter().map(|a| a.operand.mapping.clone()).collect(),
            scratch: start.0 as usize,
            scratch_bytes: scratch.1,
        })
    }
}

struct Shared<'a> {
    binding: &'a Binding<'a>,
    operands: Vec<Operand>,
    limits: Arc<[u64]>,
    label: Arc<str>,
    scratch: u64,
}

struct BoundArg {
    operand: BoundOperand,
    is_state: bool,
    access: Access,
}

fn operands_of(binding: &Binding<'_>) -> Vec<Operand> {
    let graph = &binding.piece.graph;
    let names = Names::of(graph);
    binding
        .piece
        .operands()
        .into_iter()
        .map(|value| Operand {
            name: names.value(value),
            ty: graph.ty(value).clone(),
            is_state: matches!(graph.def(value), ValueDef::State(_)),
        })
        .collect()
}

/// Whether all that a kernel does with an argument is scattering rows into it.
fn is_only_scattered(kernel: &Kernel, position: u32) -> bool {
    match kernel {
        Kernel::Rows(program) => {
            let arg = program.args.get(position as usize);
            arg.is_some_and(|arg| arg.kind == ArgKind::Table)
        }
        #[cfg(any(test, feature = "testing"))]
        Kernel::Absorbed(absorbed) => absorbed.parts.iter().all(|part| {
            let mut uses = part.args.iter().zip(0..).filter(|(arg, _)| **arg == position);
            uses.all(|(_, own)| is_only_scattered(&part.kernel, own))
        }),
        Kernel::MatMul(_) | Kernel::Custom(_) => false,
        #[cfg(any(test, feature = "testing"))]
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
        Kernel::MatMul(matmul) => {
            vec![typed(&matmul.lhs, false), typed(&matmul.rhs, false), typed(&matmul.out, true)]
        }
        Kernel::Custom(custom) => {
            let operands = custom.operands.iter().enumerate();
            let operands = operands.map(|(i, ty)| typed(ty, custom.mutates.contains(&i)));
            operands.chain(custom.results.iter().map(|ty| typed(ty, true))).collect()
        }
        #[cfg(any(test, feature = "testing"))]
        Kernel::Poison(types) => types.iter().map(|ty| typed(ty, true)).collect(),
        #[cfg(any(test, feature = "testing"))]
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
    #[cfg(any(test, feature = "testing"))]
    if let Kernel::Absorbed(absorbed) = kernel {
        return absorbed.parts.iter().try_for_each(|part| {
            let arg = |&i: &u32| args.get(i as usize).copied();
            let own: Option<Vec<Arg>> = part.args.iter().map(arg).collect();
            let own = own.ok_or("a part uses an argument that is not there")?;
            check_arguments(&part.kernel, &own, operands, limits)
        });
    }
    let needs = argument_needs(kernel, limits)?;
    if needs.len() != args.len() {
        return Err(format!("{} arguments where {} are needed", args.len(), needs.len()));
    }
    for (i, (need, arg)) in needs.iter().zip(args).enumerate() {
        let bytes = match arg.at {
            ArgRef::Operand(position) => match operands.get(position as usize) {
                Some(ty) => ty.bytes(limits),
                None => return Err(format!("argument {i} is operand {position}")),
            },
            ArgRef::Scratch { bytes, .. } => bytes,
        };
        if need.bytes > bytes {
            return Err(format!("argument {i} has {bytes} bytes, {} are used", need.bytes));
        }
        if need.written && arg.access == Access::Read {
            return Err(format!("argument {i} is written but declared as read"));
        }
    }
    Ok(())
}

/// Scratch without which a kernel can't run at all.
fn scratch_need(kernel: &Kernel, limits: &[u64]) -> u64 {
    match kernel {
        Kernel::Rows(program) => program.scratch_bytes(program.rows(limits), 1),
        Kernel::MatMul(matmul) => super::compiler::matmul_scratch(matmul, limits, 1),
        Kernel::Custom(custom) => custom.scratch,
        #[cfg(any(test, feature = "testing"))]
        Kernel::Absorbed(_) | Kernel::Poison(_) => 0,
    }
}
