//! Running bound calls. Nothing here allocates; rayon may, in its own queues, when work enters
//! its pool.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::image::{CustomKernel, Kernel};
use super::profile::Profile;
use super::program::BoundCall;
use crate::device::{Address, DeviceError};
use crate::matmul::{Matmul, ScaledMatmul};
use piecewise_ir::custom::Attrs;
use piecewise_kernels::cpu::Isa;
use piecewise_kernels::cpu::matmul::{MatmulArgs, ScaledArgs, matmul, scaled_matmul};
use piecewise_kernels::cpu::rows::{RowArg, RowCall, run_rows};
use piecewise_kernels::cpu::team::Team;
use piecewise_kernels::lower::{ArgKind, RowProgram};
use piecewise_kernels::op::{CpuOpArgs, CpuOpBinding, OpError};
use piecewise_kernels::step::LaunchContext;
use std::sync::Arc;
use std::time::Instant;

static NO_ATTRS: Attrs = Attrs::new();

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
        self.row_args.clear();
        self.row_args.reserve(call.addresses.len());
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
        match &*self.kernel {
            Kernel::Rows(program) => self.row_call(program, &[], sizes).is_parallel(),
            Kernel::MatMul(_) | Kernel::ScaledMatMul(_) | Kernel::Custom(_) => true,
        }
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
        match &*self.kernel {
            Kernel::Rows(program) => {
                self.rows(program, counts, row_args);
                Ok(())
            }
            Kernel::MatMul(matmul) => self.matmul(matmul, context, counts),
            Kernel::ScaledMatMul(scaled) => self.scaled_matmul(scaled, context, counts),
            Kernel::Custom(custom) => self.custom(custom, context, counts),
        }
    }

    fn rows(&self, program: &RowProgram, counts: &[u64], row_args: &mut Vec<RowArg>) {
        row_args.clear();
        for (i, (decl, &address)) in program.args.iter().zip(&self.addresses).enumerate() {
            let backed = self.mappings[i].as_ref().is_some_and(|m| m.is_backed());
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
        // not, it reads as zeros and nothing is written) and that no argument that is written shares
        // bytes with another or with the scratch; a device runs one launch at a time.
        unsafe { run_rows(&self.row_call(program, row_args, counts)) };
    }

    fn matmul(
        &self,
        spec: &Matmul,
        context: LaunchContext<'_>,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let Some((problem, rows)) = spec.rows_problem(context.sizes(), counts) else {
            return Err(self.failed("a matmul larger than the address space".to_owned()));
        };
        if rows == 0 || problem.batch == 0 {
            return Ok(());
        }
        let binding = self.arguments("matmul", &NO_ATTRS, context, counts);
        // SAFETY: as for row programs; the scratch is this launch's alone.
        let args = unsafe { CpuOpArgs::new(binding) };
        let taken = || -> Result<_, OpError> {
            let (a, b, out) = (args.read_floats(0)?, args.read_floats(1)?, args.write_floats(2)?);
            Ok(MatmulArgs { problem, rows, a, b, out, scratch: args.scratch()? })
        };
        let taken = taken().map_err(|error| self.failed(error.to_string()))?;
        matmul(Isa::detected(), taken).map_err(|error| self.failed(error.to_string()))
    }

    fn scaled_matmul(
        &self,
        spec: &ScaledMatmul,
        context: LaunchContext<'_>,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let Some((problem, rows)) = spec.rows_problem(context.sizes(), counts) else {
            return Err(self.failed("a matmul larger than the address space".to_owned()));
        };
        let binding = self.arguments("scaled_matmul", &NO_ATTRS, context, counts);
        // SAFETY: as for row programs; the scratch is this launch's alone.
        let args = unsafe { CpuOpArgs::new(binding) };
        let out = spec.operands.len();
        let taken = || -> Result<_, OpError> {
            Ok(ScaledArgs {
                problem,
                rows,
                x: args.read_floats(0)?,
                codes: args.read(1)?,
                scales: args.read_floats(2)?,
                zeros: (out > 3).then(|| args.read(3)).transpose()?,
                out: args.write_floats(out)?,
                scratch: args.scratch()?,
            })
        };
        let taken = taken().map_err(|error| self.failed(error.to_string()))?;
        scaled_matmul(Isa::detected(), taken).map_err(|error| self.failed(error.to_string()))
    }

    fn custom(
        &self,
        kernel: &CustomKernel,
        context: LaunchContext<'_>,
        counts: &[u64],
    ) -> Result<(), DeviceError> {
        let Some(op) = &self.op else { return Ok(()) };
        let binding = self.arguments(&kernel.name, &kernel.attrs, context, counts);
        // SAFETY: as for row programs.
        let args = unsafe { CpuOpArgs::new(binding) };
        op.run(&args).map_err(|error| self.failed(error.to_string()))
    }

    fn arguments<'a>(
        &'a self,
        name: &'a str,
        attrs: &'a Attrs,
        context: LaunchContext<'a>,
        counts: &'a [u64],
    ) -> CpuOpBinding<'a> {
        let Self { types, addresses, writable, .. } = self;
        let scratch = (self.scratch, self.scratch_bytes as usize);
        let writable = *writable;
        CpuOpBinding { name, attrs, types, writable, addresses, counts, context, scratch }
    }

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

/// Runs calls in order, each with its context: inside the pool if any wants other threads, else on this
/// thread.
pub(super) fn run_calls<'a>(
    calls: impl Iterator<Item = (&'a Arc<BoundCall>, LaunchContext<'a>)> + Clone + Send,
    workspace: &mut Workspace,
    mut profile: Option<&mut Profile>,
    (pool, team): (&rayon::ThreadPool, &mut Team),
) -> Result<(), DeviceError> {
    let is_parallel = calls.clone().any(|(call, context)| call.is_parallel(context.sizes()));
    let mut run = move || {
        calls.clone().try_for_each(|(call, context)| {
            let started = profile.is_some().then(Instant::now);
            call.run(context, workspace)?;
            if let (Some(profile), Some(started)) = (&mut profile, started) {
                profile.add(call, started);
            }
            Ok(())
        })
    };
    match is_parallel {
        true => pool.install(|| team.lead(run)),
        false => run(),
    }
}
