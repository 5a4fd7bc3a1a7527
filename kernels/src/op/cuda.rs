//! Custom ops on CUDA: source with a launch recipe, or a host function over a raw stream handle.

use super::OpError;
pub use crate::cuda::{GridAxis, LaunchRecipe, OpKernels, OperandRole, Param, Scalar, TensorBoxes};
use crate::lower::LowerError;
use crate::step::{CaptureSupport, LaunchContext};
use piecewise_ir::custom::Attrs;
use piecewise_ir::dtype::DType;
use piecewise_ir::types::TensorType;

impl LaunchRecipe {
    /// A launch of `entry` with `threads` threads in each of the blocks of `grid`.
    pub fn new(
        source: impl Into<String>,
        entry: &str,
        grid: GridAxis,
        threads: u32,
        params: Vec<Param>,
    ) -> Self {
        Self {
            source: source.into(),
            entry: entry.to_owned(),
            options: Vec::new(),
            grid: [grid, GridAxis::one(), GridAxis::one()],
            block: [threads, 1, 1],
            cluster: [1; 3],
            static_shared: 0,
            dynamic_shared: 0,
            params,
            programmatic: false,
            ahead: Vec::new(),
        }
    }

    /// Says what can't be launched with so many arguments and so many bytes of scratch.
    ///
    /// # Errors
    /// A sentence that names the field.
    pub fn check(&self, arguments: usize, scratch: u64) -> Result<(), String> {
        let Self { entry, block, cluster, params, ahead, .. } = self;
        if entry.is_empty() || entry.contains('\0') {
            return Err(format!("`{}` names no kernel", entry.escape_debug()));
        }
        let threads = block.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d)));
        if threads == 0 || threads > 1024 {
            return Err(format!("`{entry}` has {threads} threads in a block; 1 to 1024 fit"));
        }
        let blocks = cluster.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d)));
        if blocks == 0 || blocks > 8 {
            return Err(format!("`{entry}` has {blocks} blocks in a cluster; 1 to 8 fit"));
        }
        if let Some(i) = ahead.iter().find(|&&i| i as usize >= arguments) {
            return Err(format!("`{entry}` reads ahead argument {i} of {arguments}"));
        }
        for param in params {
            match param {
                Param::Arg(i) | Param::TensorMap(TensorBoxes { arg: i, .. })
                    if *i as usize >= arguments =>
                {
                    return Err(format!("`{entry}` takes argument {i} of {arguments}"));
                }
                Param::TensorMap(boxes)
                    if !matches!(boxes.dtype, DType::BF16 | DType::F16)
                        || boxes.columns == 0
                        || !boxes.columns.is_multiple_of(8)
                        || !(1..=256).contains(&boxes.box_rows)
                        || !(1..=256).contains(&boxes.box_slices)
                        || (boxes.box_slices > 1 && !boxes.columns.is_multiple_of(64)) =>
                {
                    return Err(format!(
                        "`{entry}` copies boxes of {} slices and {} rows of {} {}; 1 to 256 of a \
                         multiple of 8 bf16 or f16 can be copied, of 64 where slices are several",
                        boxes.box_slices, boxes.box_rows, boxes.columns, boxes.dtype
                    ));
                }
                Param::Elements(i) | Param::Rows(i) => {
                    return Err(format!(
                        "`{entry}` has argument {i} element by element or row by row, and nothing \
                         says how"
                    ));
                }
                Param::Scratch(offset) if *offset >= scratch => {
                    return Err(format!(
                        "`{entry}` takes scratch from byte {offset} of {scratch} on"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

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

impl CudaImplementation {
    /// The kernels of an op of this crate.
    pub(crate) fn own(op: &str, kernels: Result<OpKernels, LowerError>) -> Result<Self, OpError> {
        let failed = |e: LowerError| OpError { op: op.to_owned(), message: e.to_string() };
        kernels.map(Self::Source).map_err(failed)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> LaunchRecipe {
        let params = vec![Param::Arg(1), Param::Counts, Param::Scratch(64)];
        LaunchRecipe::new("", "scale", GridAxis::one(), 256, params)
    }

    #[test]
    fn recipes_are_checked_against_their_launch() {
        assert_eq!(recipe().check(2, 65), Ok(()));
        assert_eq!(recipe().check(1, 65), Err("`scale` takes argument 1 of 1".to_owned()));
        assert_eq!(
            recipe().check(2, 64),
            Err("`scale` takes scratch from byte 64 of 64 on".to_owned())
        );
        let wide = LaunchRecipe { block: [64, 32, 1], ..recipe() };
        assert_eq!(
            wide.check(2, 65),
            Err("`scale` has 2048 threads in a block; 1 to 1024 fit".to_owned())
        );
        let crowded = LaunchRecipe { cluster: [4, 4, 1], ..recipe() };
        assert_eq!(
            crowded.check(2, 65),
            Err("`scale` has 16 blocks in a cluster; 1 to 8 fit".to_owned())
        );
        let map = |arg, columns, box_rows, box_slices| {
            let rows = 1u64.into();
            let dtype = DType::BF16;
            let boxes = TensorBoxes { arg, dtype, rows, columns, box_rows, box_slices };
            LaunchRecipe { params: vec![Param::TensorMap(boxes)], ..recipe() }.check(2, 65)
        };
        assert_eq!(map(1, 72, 256, 1), Ok(()));
        assert_eq!(map(1, 64, 256, 8), Ok(()));
        assert_eq!(map(2, 64, 256, 1), Err("`scale` takes argument 2 of 2".to_owned()));
        let wrong = [(0, 8, 1), (12, 8, 1), (64, 0, 1), (64, 257, 1), (64, 8, 0), (72, 8, 2)];
        for (columns, box_rows, slices) in wrong {
            let error = map(0, columns, box_rows, slices).unwrap_err();
            assert!(error.contains(&format!("{box_rows} rows of {columns} bf16")), "{error}");
        }
        assert!(LaunchRecipe { entry: "a\0b".to_owned(), ..recipe() }.check(2, 65).is_err());
    }
}
