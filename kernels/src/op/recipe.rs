//! Launch recipes: a kernel's source and everything that a launch of it needs, without addresses
//! and without sizes.

use super::scores::ScoreSpec;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use serde::{Deserialize, Serialize};

/// Blocks for work that is divided evenly.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Blocks {
    /// How many units of work there are, as a function of the sizes.
    pub units: Dim,
    /// Units of one block; at least 1.
    pub per_block: u64,
}

/// The extent of one axis of the grid.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GridAxis {
    /// The sum of the blocks of each part, in order.
    Blocks(Vec<Blocks>),
    /// A multiple of the device's multiprocessors, in whole clusters: each block takes its share
    /// of the work.
    Persistent {
        /// Blocks for each multiprocessor.
        per_multiprocessor: u32,
    },
}

/// The value of a scalar parameter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scalar {
    /// A `u32` that depends on the sizes.
    U32(Dim),
    /// A `u64` that depends on the sizes.
    U64(Dim),
    /// An `f32` constant.
    F32(f32),
}

/// One parameter of the entry function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Param {
    /// The address of the argument at this position: operands first, then results.
    Arg(u32),
    /// The address of scratch that is this launch's (or this op's launches') alone, this many
    /// bytes from its start, aligned to 256.
    Scratch(u64),
    /// The address of the true counts: one `i32` for each symbol.
    Counts,
    /// Passed by value.
    Scalar(Scalar),
    /// The address at which the launch's blocks note where and when they ran, or 0: what a compiler
    /// adds to kernels that are to be looked at.
    Stamps,
    /// The argument at this position, whose elements the source loads or stores one by one: what is
    /// to be launched has it, or what takes its place, as [`Param::Arg`]
    /// ([`OpKernels::beside`]).
    Elements(u32),
    /// A tensor map over an argument, 128 bytes by value; needs sm_90.
    TensorMap(TensorBoxes),
    /// The operand at this position, of which a block of the source has whole rows: in memory, or
    /// computed by the block into shared memory where a region takes its place
    /// ([`OpKernels::beside`]).
    Rows(u32),
}

impl Param {
    /// A count of 32 bits.
    pub(crate) fn size(dim: impl Into<Dim>) -> Self {
        Self::Scalar(Scalar::U32(dim.into()))
    }

    /// What products of queries and keys are multiplied by: to powers of two, or to shares of their cap
    /// as tanh takes them.
    pub(crate) fn scale(spec: ScoreSpec) -> Self {
        let scale = match spec.softcap {
            None => spec.scale * std::f64::consts::LOG2_E,
            Some(cap) => spec.scale / cap,
        };
        Self::Scalar(Scalar::F32(scale as f32))
    }
}

/// An argument as copies of boxes see it: rows of 16-bit elements, one after the other. A box is
/// some slices of 128 bytes of each of its rows, swizzled by 128 bytes: all rows of a slice, then
/// those of the next; outside the rows it holds zeros.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TensorBoxes {
    /// The position of the argument, as in [`Param::Arg`]; its address is a multiple of 16.
    pub arg: u32,
    /// Of the elements: bf16 or f16.
    pub dtype: DType,
    /// How many rows there are at the most: of the largest size.
    pub rows: Dim,
    /// Elements of a row; a multiple of 8.
    pub columns: u64,
    /// Rows of a box, up to 256.
    pub box_rows: u32,
    /// Slices of a box, up to 256. Where they are several, copies name the slice that is first, and
    /// rows are a multiple of 128 bytes.
    pub box_slices: u32,
}

/// A kernel and how it is launched. Equal recipes give equal bytes of source.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LaunchRecipe {
    /// CUDA C++; includes `prelude.cuh`, whose text is [`PRELUDE`](crate::cuda::PRELUDE).
    pub source: String,
    /// The name of the `extern "C"` entry.
    pub entry: String,
    /// Options for the compiler besides the architecture.
    pub options: Vec<String>,
    /// The grid: x, y, z.
    pub grid: [GridAxis; 3],
    /// Threads of a block: x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster: x, y, z, at most 8 in all, and on each axis a divisor of the grid. Ones
    /// where blocks do not reach into each other's shared memory; more needs sm_90.
    pub cluster: [u32; 3],
    /// Bytes of shared memory that the source declares.
    pub static_shared: u32,
    /// Bytes of shared memory given at the launch; above 48 KiB (less what the source declares)
    /// the function needs its attribute set.
    pub dynamic_shared: u32,
    /// What each parameter of the entry is, in its order.
    pub params: Vec<Param>,
    /// Whether every block executes `griddepcontrol.wait` before it touches what another kernel
    /// writes, so that an edge to it may be programmatic.
    pub programmatic: bool,
    /// The arguments that it reads before that wait, by position: no kernel of a step may write
    /// them. The checker of a step's launches holds it.
    pub ahead: Vec<u32>,
}

/// The launches of one op, in order, and the scratch that they share.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OpKernels {
    /// In order; arguments are the op's operands, then its results.
    pub launches: Vec<LaunchRecipe>,
    /// Bytes of scratch, as a function of the sizes.
    pub scratch: Dim,
}

impl OpKernels {
    /// Launches that share no scratch.
    pub fn new(launches: impl IntoIterator<Item = LaunchRecipe>) -> Self {
        Self { launches: launches.into_iter().collect(), scratch: Dim::constant(0) }
    }
}

/// Why a launch has no grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum GridError {
    /// More work than a kernel counts.
    #[error("{units} units of work; a launch counts below 2^32, so run fewer rows at a time")]
    Units { units: u64 },
    /// An axis longer than the device takes.
    #[error("{blocks} blocks on grid axis {axis}; at most {most}, so run fewer rows at a time")]
    Axis { axis: usize, blocks: u64, most: u64 },
    /// An axis that clusters do not divide.
    #[error("{blocks} blocks on grid axis {axis}, which is no multiple of a cluster's {cluster}")]
    Cluster { axis: usize, blocks: u64, cluster: u32 },
}

impl GridAxis {
    /// An axis of one block, whatever the counts are.
    pub fn one() -> Self {
        Self::of(1u64, 1)
    }

    /// Blocks for `units` of work, `per_block` each.
    pub fn of(units: impl Into<Dim>, per_block: u64) -> Self {
        Self::Blocks(vec![Blocks { units: units.into(), per_block }])
    }

    /// Where a launch has blocks along its first axis and no other.
    pub(crate) fn alone(self) -> [Self; 3] {
        [self, Self::one(), Self::one()]
    }

    /// Whether it has a block at all sizes that are not 0.
    fn always_has_blocks(&self) -> bool {
        let always = |part: &Blocks| {
            let terms = part.units.terms();
            let sum = terms.iter().fold(part.units.constant_part(), |n, t| n.saturating_add(t.1));
            sum > 0 && terms.iter().all(|(_, coefficient)| *coefficient > 0)
        };
        match self {
            Self::Persistent { per_multiprocessor } => *per_multiprocessor > 0,
            Self::Blocks(parts) => parts.iter().any(always),
        }
    }

    fn extent(&self, sizes: &[u64], multiprocessors: u32) -> Result<u64, GridError> {
        match self {
            Self::Persistent { per_multiprocessor } => {
                Ok(u64::from(multiprocessors) * u64::from(*per_multiprocessor))
            }
            Self::Blocks(parts) => parts.iter().try_fold(0, |sum: u64, part| {
                let units = part.units.eval(sizes);
                if units > u64::from(u32::MAX) {
                    return Err(GridError::Units { units });
                }
                Ok(sum + units.div_ceil(part.per_block.max(1)))
            }),
        }
    }
}

/// The clusters that fit in so many blocks, at least one, in blocks: what shares its work may have
/// fewer blocks, and a cluster lacks none.
fn whole_clusters(blocks: u64, cluster: u64) -> u64 {
    let cluster = cluster.max(1);
    (blocks / cluster).max(1) * cluster
}

impl LaunchRecipe {
    /// Whether it is never left out where no size is 0: only then can a captured launch of it be set to
    /// other sizes, since a node of a graph has blocks.
    pub fn always_has_work(&self) -> bool {
        self.grid.iter().all(GridAxis::always_has_blocks)
    }

    /// The grid where symbols have these sizes, on a device of so many multiprocessors. An axis
    /// without work is 0: such a launch is left out.
    ///
    /// # Errors
    /// When there is more work than a launch can hold.
    pub fn grid_at(&self, sizes: &[u64], multiprocessors: u32) -> Result<[u32; 3], GridError> {
        let mut grid = [0; 3];
        for (axis, rule) in self.grid.iter().enumerate() {
            let most = if axis == 0 { (1 << 31) - 1 } else { 65_535 };
            let cluster = self.cluster[axis];
            let blocks = match rule.extent(sizes, multiprocessors)? {
                blocks if matches!(rule, GridAxis::Blocks(_)) => blocks,
                blocks => whole_clusters(blocks, u64::from(cluster)),
            };
            if blocks > most {
                return Err(GridError::Axis { axis, blocks, most });
            }
            if !blocks.is_multiple_of(u64::from(cluster)) {
                return Err(GridError::Cluster { axis, blocks, cluster });
            }
            grid[axis] = blocks as u32;
        }
        Ok(grid)
    }
}

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

    /// A launch of a source of this crate, which waits for the kernels ahead of it.
    pub(crate) fn own(
        source: impl Into<String>,
        entry: &str,
        grid: [GridAxis; 3],
        threads: u64,
        params: Vec<Param>,
    ) -> Self {
        let launch = Self::new(source, entry, GridAxis::one(), threads as u32, params);
        Self { grid, options: options(), programmatic: true, ..launch }
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

/// Options of the compiler for every source: sums and products are rounded one by one, and what a
/// kernel declares for others and does not use is no warning.
pub(crate) fn options() -> Vec<String> {
    vec!["--fmad=false".to_owned(), "--diag-suppress=177".to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::entity::{Entity, Symbol};

    #[test]
    fn grids_follow_sizes() {
        let rows = Dim::from(Symbol::new(0));
        let recipe = LaunchRecipe {
            source: String::new(),
            entry: "k".to_owned(),
            options: Vec::new(),
            grid: [
                GridAxis::Blocks(vec![
                    Blocks { units: rows.times(96), per_block: 256 },
                    Blocks { units: rows.clone(), per_block: 1 },
                ]),
                GridAxis::Persistent { per_multiprocessor: 2 },
                GridAxis::one(),
            ],
            block: [256, 1, 1],
            cluster: [1; 3],
            static_shared: 0,
            dynamic_shared: 0,
            params: Vec::new(),
            programmatic: true,
            ahead: Vec::new(),
        };
        assert_eq!(recipe.grid_at(&[8], 132), Ok([3 + 8, 264, 1]));
        assert_eq!(recipe.grid_at(&[0], 132), Ok([0, 264, 1]));
        let units = 96 << 26;
        assert_eq!(recipe.grid_at(&[1 << 26], 132), Err(GridError::Units { units }));
        let clusters = LaunchRecipe { cluster: [3, 1, 1], ..recipe.clone() };
        assert_eq!(clusters.grid_at(&[24], 132), Ok([9 + 24, 264, 1]));
        let error = GridError::Cluster { axis: 0, blocks: 11, cluster: 3 };
        assert_eq!(clusters.grid_at(&[8], 132), Err(error));
        let persistent = LaunchRecipe { cluster: [1, 4, 1], ..recipe.clone() };
        for (multiprocessors, blocks) in [(1, 4), (2, 4), (3, 4), (5, 8), (67, 132), (132, 264)] {
            assert_eq!(persistent.grid_at(&[8], multiprocessors), Ok([11, blocks, 1]));
        }
        let long = LaunchRecipe {
            grid: [GridAxis::one(), GridAxis::of(rows, 1), GridAxis::one()],
            ..recipe
        };
        assert!(matches!(long.grid_at(&[70_000], 1), Err(GridError::Axis { axis: 1, .. })));
    }

    #[test]
    fn a_launch_always_has_work_where_no_grid_is_empty_at_ones() {
        let symbol = |i| Symbol::new(i);
        let rows = || Dim::from(symbol(0));
        let at = |axis: GridAxis| {
            let recipe =
                LaunchRecipe { grid: [GridAxis::one(), axis, GridAxis::one()], ..recipe() };
            let found = recipe.always_has_work();
            let sizes = [[1, 1], [1, 9], [9, 1], [70, 3], [3, 70]];
            let is_empty = |sizes| recipe.grid_at(sizes, 132).is_ok_and(|grid| grid.contains(&0));
            assert!(!found || !sizes.iter().any(|sizes| is_empty(sizes)), "{recipe:?}");
            found
        };
        assert!(at(GridAxis::Persistent { per_multiprocessor: 2 }));
        assert!(at(GridAxis::of(rows().times(3), 64)));
        let beyond = || Dim::affine(0, [(symbol(0), 1), (symbol(1), -1)]);
        assert!(!at(GridAxis::of(beyond(), 1)), "rows beyond one a sequence");
        assert!(!at(GridAxis::of(Dim::affine(-1, [(symbol(0), 1)]), 1)));
        let parts = [beyond(), rows()].map(|units| Blocks { units, per_block: 4 });
        assert!(at(GridAxis::Blocks(parts.to_vec())), "a part is enough");
    }

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
