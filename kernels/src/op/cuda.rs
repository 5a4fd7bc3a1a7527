//! Custom ops on CUDA: source with a launch recipe, or a host function over a raw stream handle.

use super::OpError;
use crate::step::{CaptureSupport, LaunchContext};
use piecewise_ir::custom::Attrs;
use piecewise_ir::dim::Dim;
use piecewise_ir::types::TensorType;
use serde::{Deserialize, Serialize};

/// How many blocks a launch has along an axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GridAxis {
    /// Always this many.
    Fixed(u32),
    /// What the launch says, which differs from size to size.
    Launch,
    /// One for each `tile` of an extent, counted at the padded sizes of the launch.
    Tiles {
        /// The extent in symbols: `T`, or `T * 8` for eight heads a row.
        extent: Dim,
        /// How much of it a block does.
        tile: u32,
    },
}

impl GridAxis {
    /// The number of blocks for these padded sizes by symbol; at least 1, since a kernel leaves
    /// by the true count. `fixed` is what the launch says.
    pub fn blocks(&self, sizes: &[u64], fixed: u32) -> u32 {
        let blocks = match self {
            Self::Fixed(blocks) => u64::from(*blocks),
            Self::Launch => u64::from(fixed),
            Self::Tiles { extent, tile } => extent.eval(sizes).div_ceil(u64::from(*tile).max(1)),
        };
        u32::try_from(blocks).unwrap_or(u32::MAX).max(1)
    }
}

/// A parameter of a kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parameter {
    /// The address of an argument of the launch, 8 bytes. For a custom op the arguments are its
    /// operands, then its results, then its scratch if it asked for any.
    Argument(u32),
    /// The address of the true counts, one `i32` for each symbol; 8 bytes.
    Counts,
    /// The padded extent as `i32`.
    Extent(Dim),
    /// A number that differs from size to size, by its position in the launch: 8 bytes, of which
    /// a kernel may declare the low 4.
    Launch(u32),
    /// An `i32`.
    I32(i32),
    /// An `i64`.
    I64(i64),
    /// A `float`.
    F32(f32),
}

/// How a kernel is launched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LaunchRecipe {
    /// The kernel's `extern "C"` name.
    pub entry: String,
    /// Blocks along x, y and z.
    pub grid: [GridAxis; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Blocks of a cluster along x, y and z; all 1 without clusters.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// What the kernel takes, in order.
    pub parameters: Vec<Parameter>,
    /// Whether it may start before the launch before it ends. Only for a kernel that runs
    /// `griddepcontrol.wait` in every block before it touches anything that a launch of the step
    /// writes.
    pub programmatic: bool,
}

impl LaunchRecipe {
    /// A launch of `entry` with `threads` threads in each of the blocks of `grid`.
    pub fn new(entry: &str, grid: GridAxis, threads: u32, parameters: Vec<Parameter>) -> Self {
        Self {
            entry: entry.to_owned(),
            grid: [grid, GridAxis::Fixed(1), GridAxis::Fixed(1)],
            block: [threads, 1, 1],
            cluster: [1; 3],
            shared_bytes: 0,
            parameters,
            programmatic: false,
        }
    }

    /// Says what can't be launched.
    ///
    /// # Errors
    /// A sentence that names the field.
    pub fn check(&self, arguments: usize, params: usize) -> Result<(), String> {
        let Self { entry, block, cluster, parameters, .. } = self;
        if entry.is_empty() || entry.contains('\0') {
            return Err(format!("`{}` names no kernel", entry.escape_debug()));
        }
        let threads = block.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d)));
        if threads == 0 || threads > 1024 {
            return Err(format!("`{entry}` has {threads} threads in a block; 1 to 1024 fit"));
        }
        let blocks = cluster.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d)));
        if blocks == 0 || blocks > 16 {
            return Err(format!("`{entry}` has {blocks} blocks in a cluster; 1 to 16 fit"));
        }
        for parameter in parameters {
            match *parameter {
                Parameter::Argument(i) if i as usize >= arguments => {
                    return Err(format!("`{entry}` takes argument {i} of {arguments}"));
                }
                Parameter::Launch(i) if i as usize >= params => {
                    return Err(format!("`{entry}` takes number {i} of {params} of its launch"));
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

/// CUDA C++ with its launches, compiled and cached like generated kernels.
#[derive(Clone, PartialEq, Debug)]
pub struct CudaSource {
    /// The text; its kernels are `extern "C"`.
    pub text: String,
    /// What it includes, by name; there are no system headers.
    pub headers: Vec<(String, String)>,
    /// The launches, in order.
    pub launches: Vec<LaunchRecipe>,
}

/// How a custom op runs on CUDA.
#[derive(Clone, PartialEq, Debug)]
pub enum CudaImplementation {
    /// Kernels that the backend compiles and launches.
    Source(CudaSource),
    /// [`CudaOp::enqueue`] puts the work on the stream.
    Host,
}

/// A call of a custom op: everything known when it is compiled.
#[derive(Clone, Copy, Debug)]
pub struct CudaOpCall<'a> {
    /// Types of the operands.
    pub operands: &'a [TensorType],
    /// Types of the results.
    pub results: &'a [TensorType],
    /// The call's attributes.
    pub attrs: &'a Attrs,
    /// What it is compiled for.
    pub target: CudaTarget,
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

    /// Bytes of scratch at these sizes by symbol index.
    fn scratch_bytes(&self, call: &CudaOpCall<'_>, sizes: &[u64]) -> u64 {
        let _ = (call, sizes);
        0
    }

    /// How this call runs.
    ///
    /// # Errors
    /// When an operand or attribute does not fit, or the target lacks what it needs.
    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError>;

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
    /// The call's attributes.
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
    /// An error of this op.
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
        let parameters = vec![Parameter::Argument(1), Parameter::Counts, Parameter::Launch(0)];
        LaunchRecipe::new("scale", GridAxis::Launch, 256, parameters)
    }

    #[test]
    fn recipes_are_checked_against_their_launch() {
        assert_eq!(recipe().check(2, 1), Ok(()));
        assert_eq!(recipe().check(1, 1), Err("`scale` takes argument 1 of 1".to_owned()));
        assert_eq!(
            recipe().check(2, 0),
            Err("`scale` takes number 0 of 0 of its launch".to_owned())
        );
        let wide = LaunchRecipe { block: [64, 32, 1], ..recipe() };
        assert_eq!(
            wide.check(2, 1),
            Err("`scale` has 2048 threads in a block; 1 to 1024 fit".to_owned())
        );
        let none = LaunchRecipe { cluster: [0, 1, 1], ..recipe() };
        assert!(none.check(2, 1).is_err());
        assert!(LaunchRecipe { entry: "a\0b".to_owned(), ..recipe() }.check(2, 1).is_err());
    }

    #[test]
    fn grids_grow_with_the_padded_sizes_and_are_never_empty() {
        use piecewise_ir::entity::{Entity, Symbol};
        let rows = Dim::from(Symbol::new(0));
        let tiles = GridAxis::Tiles { extent: rows, tile: 8 };
        assert_eq!([0, 1, 8, 9].map(|rows| tiles.blocks(&[rows], 77)), [1, 1, 1, 2]);
        assert_eq!(GridAxis::Launch.blocks(&[9], 77), 77);
        assert_eq!(GridAxis::Fixed(3).blocks(&[9], 77), 3);
    }
}
