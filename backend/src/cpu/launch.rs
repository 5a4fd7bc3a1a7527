//! Running bound calls. Nothing here allocates; rayon may, in its own queues, when work enters
//! its pool.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::image::{Kernel, MatMul};
use super::profile::Profile;
use super::program::{BoundCall, BoundKernel, BoundPart, CustomCall};
use crate::device::{Address, DeviceError};
use half::{bf16, f16};
use piecewise_ir::dtype::DType;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cpu::matmul::{MatmulArgs, matmul};
use piecewise_kernels::cpu::team::Team;
use piecewise_kernels::cpu::{FloatSlice, FloatSliceMut, Isa};
use piecewise_kernels::lower::{ArgKind, RowArg, RowCall, RowProgram, run_rows};
use piecewise_kernels::op::{CpuOpArgs, CpuOpBinding};
use piecewise_kernels::step::LaunchContext;
use std::sync::Arc;
use std::time::Instant;

/// Buffers of the stepping thread, large enough for every bound call.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    counts: Vec<u64>,
    row_args: Vec<RowArg>,
}

impl Workspace {
    /// Makes room for a call, when it is bound.
    pub(super) fn fit(&mut self, call: &BoundCall) {
        self.counts.clear();
        self.counts.reserve(call.limits.len());
        let most = call.parts.iter().map(|part| part.addresses.len()).max().unwrap_or(0);
        self.row_args.clear();
        self.row_args.reserve(most);
    }
}

impl BoundCall {
    fn failed(&self, reason: String) -> DeviceError {
        DeviceError::Launch {
            launch: self.name.clone(),
            label: self.label.as_ref().to_owned(),
            reason,
        }
    }

    /// Refuses sizes above those that the call was bound for.
    pub(super) fn check_sizes(&self, sizes: &[u64]) -> Result<(), DeviceError> {
        let fits = sizes.len() >= self.limits.len()
            && self.limits.iter().zip(sizes).all(|(limit, size)| size <= limit);
        if fits {
            return Ok(());
        }
        Err(self.failed(format!(
            "sizes {sizes:?} exceed those it was bound for, {:?}; take a program of a larger size",
            self.limits
        )))
    }

    fn check_memory(&self) -> Result<(), DeviceError> {
        match self.operands.iter().find(|operand| !operand.is_usable()) {
            None => Ok(()),
            Some(operand) => Err(DeviceError::BadAddress {
                what: format!("{} of `{}` in {}", operand.at.name, self.name, self.label),
                address: operand.at.address,
                bytes: operand.at.bytes,
            }),
        }
    }

    /// Whether it may want other threads.
    pub(super) fn is_parallel(&self, sizes: &[u64]) -> bool {
        self.parts.iter().any(|part| match &part.kernel {
            BoundKernel::Custom(_) => true,
            BoundKernel::Own(kernel) => match &**kernel {
                Kernel::Rows(program) => part.row_call(program, &[], sizes).is_parallel(),
                #[cfg(piecewise_testing)]
                Kernel::Poison(_) => false,
                Kernel::MatMul(_) | Kernel::Custom(_) => true,
                #[cfg(piecewise_testing)]
                Kernel::Absorbed(_) => true,
            },
        })
    }

    fn run(
        &self,
        context: LaunchContext<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), DeviceError> {
        self.check_sizes(context.sizes())?;
        self.check_memory()?;
        let Workspace { counts, row_args } = workspace;
        read_counts(self.counts, context.sizes(), self.limits.len(), counts);
        for part in &self.parts {
            match &part.kernel {
                BoundKernel::Own(kernel) => match &**kernel {
                    Kernel::Rows(program) => self.rows(part, program, counts, row_args),
                    Kernel::MatMul(matmul) => self.matmul(part, matmul, context.sizes(), counts)?,
                    #[cfg(piecewise_testing)]
                    Kernel::Poison(types) => poison(part, types, context.sizes()),
                    Kernel::Custom(_) => {}
                    #[cfg(piecewise_testing)]
                    Kernel::Absorbed(_) => {}
                },
                BoundKernel::Custom(custom) => self.custom(part, custom, context, counts)?,
            }
        }
        Ok(())
    }

    fn rows(
        &self,
        part: &BoundPart,
        program: &RowProgram,
        counts: &[u64],
        row_args: &mut Vec<RowArg>,
    ) {
        row_args.clear();
        for (i, (decl, &address)) in program.args.iter().zip(&part.addresses).enumerate() {
            let backed = part.mappings[i].as_ref().is_some_and(|m| m.is_backed());
            let extent = match decl.kind {
                ArgKind::Table if decl.written && !backed => 0,
                // A state is as large as it was made; of anything else the true rows are real.
                ArgKind::Table if decl.state => decl.table_rows(&self.limits),
                ArgKind::Table => decl.table_rows(counts),
                ArgKind::Row | ArgKind::Whole => 0,
            };
            row_args.push(RowArg { address, extent });
        }
        // SAFETY: binding checked the program, and the alignment and bytes of every argument at
        // sizes that `check_sizes` holds these to; `check_memory` found the memory backed (where
        // not, it reads as zeros and nothing is written); the plan gives no bytes to two live
        // operands, the scratch to one launch at a time, and distinct slots to one scatter.
        unsafe { run_rows(&part.row_call(program, row_args, counts)) };
    }

    fn matmul(
        &self,
        part: &BoundPart,
        spec: &MatMul,
        sizes: &[u64],
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let Some((problem, rows)) = spec.problem(sizes, counts) else {
            return Err(self.failed("a matmul larger than the address space".to_owned()));
        };
        if rows == 0 || problem.batch == 0 {
            return Ok(());
        }
        let [a, b, out] = part.addresses[..] else {
            return Err(self.failed("a matmul takes three arguments".to_owned()));
        };
        // SAFETY: as for row programs; the scratch is this launch's alone.
        let done = unsafe {
            let scratch = bytes_at(part.scratch, part.scratch_bytes);
            match (floats(&spec.lhs, a, sizes), floats(&spec.rhs, b, sizes)) {
                (Some(a), Some(b)) => floats_mut(&spec.out, out, sizes).map(|out| {
                    matmul(Isa::detected(), MatmulArgs { problem, rows, a, b, out, scratch })
                }),
                _ => None,
            }
        };
        match done {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(self.failed(error.to_string())),
            None => Err(self.failed("a matmul of a type that is no float".to_owned())),
        }
    }

    fn custom(
        &self,
        part: &BoundPart,
        call: &CustomCall,
        context: LaunchContext<'_>,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let Kernel::Custom(kernel) = &*call.kernel else { return Ok(()) };
        let binding = CpuOpBinding {
            name: &kernel.name,
            attrs: &kernel.attrs,
            types: &call.types,
            writable: call.writable,
            addresses: &part.addresses,
            counts,
            context,
            scratch: (part.scratch, part.scratch_bytes as usize),
        };
        // SAFETY: as for row programs.
        let args = unsafe { CpuOpArgs::new(binding) };
        call.op.run(&args).map_err(|error| self.failed(error.to_string()))
    }
}

impl BoundPart {
    fn row_call<'a>(
        &self,
        program: &'a RowProgram,
        args: &'a [RowArg],
        counts: &[u64],
    ) -> RowCall<'a> {
        RowCall {
            program,
            args,
            rows: program.rows(counts),
            scratch: self.scratch,
            scratch_bytes: self.scratch_bytes,
        }
    }
}

#[cfg(piecewise_testing)]
/// Fills results with bytes that are a NaN in every float type.
fn poison(part: &BoundPart, types: &[TensorType], sizes: &[u64]) {
    for (ty, &address) in types.iter().zip(&part.addresses) {
        // SAFETY: as for row programs.
        unsafe { bytes_at(address, ty.bytes(sizes)) }.fill(0xff);
    }
}

/// Reads the true counts, held to the sizes.
fn read_counts(at: Address, sizes: &[u64], symbols: usize, counts: &mut Vec<u64>) {
    counts.clear();
    let start: *const i32 = std::ptr::with_exposed_provenance(at.0 as usize);
    for (i, size) in sizes.iter().enumerate().take(symbols) {
        // SAFETY: `check_memory` found one i32 for each symbol backed, and binding its alignment.
        let count = unsafe { *start.add(i) };
        counts.push(u64::try_from(count).unwrap_or(0).min(*size));
    }
}

/// The bytes of a launch's scratch.
///
/// # Safety
/// They must be backed and the caller's alone for `'a`.
unsafe fn bytes_at<'a>(address: usize, bytes: u64) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(start, bytes as usize) }
}

/// The elements of a float operand.
///
/// # Safety
/// They must be backed, aligned and written by nobody for `'a`.
unsafe fn floats<'a>(ty: &TensorType, address: usize, sizes: &[u64]) -> Option<FloatSlice<'a>> {
    let n = ty.bytes(sizes) as usize / ty.dtype.size();
    let start: *const u8 = std::ptr::with_exposed_provenance(address);
    // SAFETY: the caller's promise.
    unsafe {
        Some(match ty.dtype {
            DType::F32 => FloatSlice::F32(std::slice::from_raw_parts(start.cast::<f32>(), n)),
            DType::F16 => FloatSlice::F16(std::slice::from_raw_parts(start.cast::<f16>(), n)),
            DType::BF16 => FloatSlice::Bf16(std::slice::from_raw_parts(start.cast::<bf16>(), n)),
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => return None,
        })
    }
}

/// The elements of a float result.
///
/// # Safety
/// They must be backed, aligned and the caller's alone for `'a`.
unsafe fn floats_mut<'a>(
    ty: &TensorType,
    address: usize,
    sizes: &[u64],
) -> Option<FloatSliceMut<'a>> {
    let n = ty.bytes(sizes) as usize / ty.dtype.size();
    let start: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller's promise.
    unsafe {
        Some(match ty.dtype {
            DType::F32 => {
                FloatSliceMut::F32(std::slice::from_raw_parts_mut(start.cast::<f32>(), n))
            }
            DType::F16 => {
                FloatSliceMut::F16(std::slice::from_raw_parts_mut(start.cast::<f16>(), n))
            }
            DType::BF16 => {
                FloatSliceMut::Bf16(std::slice::from_raw_parts_mut(start.cast::<bf16>(), n))
            }
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => return None,
        })
    }
}

/// Runs calls in order: inside the pool if any wants other threads, else on this thread.
pub(super) fn run_calls(
    calls: &[Arc<BoundCall>],
    context: LaunchContext<'_>,
    workspace: &mut Workspace,
    mut profile: Option<&mut Profile>,
    (pool, team): (&rayon::ThreadPool, &mut Team),
) -> Result<(), DeviceError> {
    let mut run = || {
        calls.iter().try_for_each(|call| {
            let started = profile.is_some().then(Instant::now);
            call.run(context, workspace)?;
            if let (Some(profile), Some(started)) = (&mut profile, started) {
                profile.add(call, started);
            }
            Ok(())
        })
    };
    match calls.iter().any(|call| call.is_parallel(context.sizes())) {
        true => pool.install(|| team.lead(run)),
        false => run(),
    }
}
