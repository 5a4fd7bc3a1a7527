//! Custom ops on CUDA: source with a launch recipe, or a host function over a raw stream handle.

use super::error::OpError;
pub use super::recipe::{GridAxis, LaunchRecipe, OpKernels, Param, Scalar, TensorBoxes};
use crate::step::{CaptureSupport, LaunchContext};
use piecewise_ir::custom::Attrs;
use piecewise_ir::types::TensorType;

/// What an op is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CudaTarget {
    /// Major and minor compute capability: `(9, 0)`.
    pub capability: (u32, u32),
}

/// How a custom op runs on CUDA.
#[derive(Clone, PartialEq, Debug)]
pub enum CudaImplementation {
    /// Kernels that the backend compiles, caches and launches like its own. Their source may
    /// include `prelude.cuh` ([`crate::cuda::PRELUDE`]); there are no system headers. Where they
    /// have an argument at which the op's definition absorbs as [`Param::Elements`] or
    /// [`Param::Rows`], a region may take its place.
    Source(OpKernels),
    /// [`CudaOp::enqueue`] puts the work on the stream.
    Host,
}

/// What an operand is to its node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OperandRole {
    /// A launch mutates it: it is never read early.
    pub state: bool,
    /// Whether it is a weight: no kernel of a step writes it, so it may be read early.
    pub weight: bool,
    /// Whether the host stages it for each step: no kernel of a step writes it either.
    pub staged: bool,
}

/// A call of a custom op: everything known when it is compiled.
#[derive(Clone, Copy, Debug)]
pub struct CudaOpCall<'a> {
    /// Dtypes and shapes of the operands, mutated ones among them.
    pub operands: &'a [TensorType],
    /// Of each operand, whether it is an activation, a weight or a state.
    pub roles: &'a [OperandRole],
    /// Dtypes and shapes of the results.
    pub results: &'a [TensorType],
    /// What the op was called with besides its operands.
    pub attrs: &'a Attrs,
    /// What it is compiled for.
    pub target: CudaTarget,
    /// The padded sizes by symbol index: exact ones, or the largest of any size.
    pub sizes: &'a [u64],
    /// The tokens of every sequence, where it is compiled for uniform batches alone.
    pub query_length: Option<u64>,
}

/// An implementation of a custom op on CUDA.
pub trait CudaOp: Send + Sync + std::fmt::Debug {
    /// The name of its definition.
    fn name(&self) -> &str;

    /// In which batches it may be captured. A host function that reads host values, or puts
    /// anything but kernels, copies and fills on the stream, must say [`CaptureSupport::Never`].
    fn capture_support(&self) -> CaptureSupport {
        CaptureSupport::Always
    }

    /// Bytes of scratch of a [`CudaImplementation::Host`] call.
    fn scratch_bytes(&self, call: &CudaOpCall<'_>) -> u64 {
        let _ = call;
        0
    }

    /// How this call runs.
    ///
    /// # Errors
    /// When an operand or attribute does not fit, or the target lacks what it needs.
    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError>;

    /// Other ways to run the same call, among which a measurement on the device chooses: the order of
    /// sums may differ.
    ///
    /// # Errors
    /// As for [`Self::implementation`].
    fn other_implementations(
        &self,
        call: &CudaOpCall<'_>,
    ) -> Result<Vec<CudaImplementation>, OpError> {
        let _ = call;
        Ok(Vec::new())
    }

    /// Puts the work of a [`CudaImplementation::Host`] call on the stream, and returns without
    /// waiting for it. It allocates nothing, writes only results, mutated operands and scratch,
    /// and finds the device's primary context current.
    ///
    /// # Errors
    /// When an operand does not fit or the work can't be enqueued.
    fn enqueue(&self, args: &CudaOpArgs<'_>) -> Result<(), OpError> {
        Err(args.error("it has no host function; `implementation` must return its source"))
    }
}

/// The arguments of one launch of a host function.
#[derive(Clone, Copy, Debug)]
pub struct CudaOpArgs<'a> {
    /// The op's name, for errors.
    pub name: &'a str,
    /// What the op was called with besides its operands.
    pub attrs: &'a Attrs,
    /// Types of operands, then of results.
    pub types: &'a [TensorType],
    /// Device addresses of operands, then of results; padded extents at the context's sizes.
    pub addresses: &'a [u64],
    /// Device address and bytes of the scratch.
    pub scratch: (u64, u64),
    /// Device address of the true counts: one `i32` for each symbol.
    pub counts: u64,
    /// The `CUstream` to put the work on, as a number.
    pub stream: u64,
    /// How the launch happens: host values are there only in a step.
    pub context: LaunchContext<'a>,
}

impl CudaOpArgs<'_> {
    /// For what an implementation finds wrong; the message of the step names the call.
    pub fn error(&self, message: impl Into<String>) -> OpError {
        OpError { op: self.name.to_owned(), message: message.into() }
    }

    /// The padded extent of an axis of a position.
    pub fn dim(&self, position: usize, axis: usize) -> u64 {
        self.types[position].shape[axis].eval(self.context.sizes())
    }
}
