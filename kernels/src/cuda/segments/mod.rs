//! [`crate::segments`] on CUDA: attention within segments on tensor cores where types and widths
//! allow it, on Hopper by warpgroups where widths allow that, else without them; the mean over
//! segments.

use super::attention::prefill::{ENOUGH_BLOCKS, Staging};
use super::attention::{Forms, WARP, header, hopper};
use super::text::storage;
use crate::lower::{LowerError, fail};
use crate::op::Blocks;
use crate::op::ScoreSpec;
use crate::op::cuda::CudaOpCall;
use crate::op::cuda::{GridAxis, LaunchRecipe, OpKernels, Param, Scalar};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::types::TensorType;

/// The widest head.
const MAX_DIM: u64 = 256;
/// Threads of a block of `mean.cu`: a column each.
const MEAN_COLUMNS: u64 = 128;
/// The name of every kernel of attention here.
const ENTRY: &str = "segment_attention";
/// So many pages that `find_tile` takes lengths as they are.
const MOST_PAGES: u64 = 0x0fff_ffff;

struct Shape {
    heads: u64,
    kv_heads: u64,
    dim: u64,
    value_dim: u64,
    rows: Dim,
    key_rows: Dim,
    segments: Dim,
    segment_symbol: u64,
    spec: ScoreSpec,
    dtypes: [DType; 2],
}

impl Shape {
    fn new(operands: &[TensorType], spec: ScoreSpec) -> Result<Self, LowerError> {
        let [q, k, v, starts, ..] = operands else {
            return fail("attention within segments takes seven operands");
        };
        let fixed = |ty: &TensorType, axis: usize| ty.shape[axis].as_constant().unwrap_or(0);
        let shape = Self {
            heads: fixed(q, 1),
            kv_heads: fixed(k, 1),
            dim: fixed(q, 2),
            value_dim: fixed(v, 2),
            rows: q.shape[0].clone(),
            key_rows: k.shape[0].clone(),
            segments: starts.shape[0].clone(),
            segment_symbol: counted_by(starts)?,
            spec,
            dtypes: [q.dtype, k.dtype],
        };
        if shape.dim > MAX_DIM || shape.value_dim > MAX_DIM {
            return fail(format!(
                "attention within segments with heads of {} and {} elements; up to {MAX_DIM} have \
                 a kernel",
                shape.dim, shape.value_dim
            ));
        }
        Ok(shape)
    }

    fn group(&self) -> u64 {
        self.heads / self.kv_heads.max(1)
    }

    fn on_tensor_cores(&self) -> bool {
        let [q, kv] = self.dtypes;
        q == kv
            && matches!(q, DType::BF16 | DType::F16)
            && self.dim.is_multiple_of(8)
            && self.value_dim.is_multiple_of(8)
    }

    fn header(&self, own: &[(&str, u64)]) -> String {
        let segments = [
            ("WINDOWED", u64::from(self.spec.window.is_some())),
            ("WINDOW", u64::from(self.spec.window.unwrap_or(0))),
            ("MOST_PAGES", MOST_PAGES),
        ];
        let own: Vec<_> = segments.iter().chain(own).copied().collect();
        let (heads, dims) = ([self.heads, self.kv_heads], [self.dim, self.value_dim]);
        let none = Forms::default();
        header(self.dtypes, heads, dims, self.spec.causal, &own, "", none)
            + include_str!("seen.cuh")
    }

    /// Scores as powers of two.
    /// The kernel of prompts over a pool, whose keys lie in rows here.
    fn by_warpgroups(&self, computing: u64) -> OpKernels {
        let arguments = [0, 1, 2, 5, 6, 3, 4, 7].map(Param::Arg);
        let sizes = [
            Param::Counts,
            Param::size(self.rows.clone()),
            Param::size(self.segments.clone()),
            Param::size(self.segment_symbol),
            Param::Scalar(Scalar::U64(self.key_rows.clone())),
            Param::size(MOST_PAGES),
            Param::scale(self.spec),
        ];
        let tiles = hopper::Tiles {
            // Segments of a single query, too.
            header: self.header(&[("FEW", 0)]),
            entry: ENTRY,
            forms: Forms::default(),
            dtype: self.dtypes[0],
            dims: [self.dim, self.value_dim],
            computing,
            ranges: None,
            params: arguments.into_iter().chain(sizes).collect(),
        };
        OpKernels::new([tiles.launch(1)])
    }

    fn launch(&self, source: String, tile: u64, threads: u64, dynamic_shared: u32) -> OpKernels {
        let mut params: Vec<Param> = (0..8).map(Param::Arg).collect();
        params.extend([
            Param::Counts,
            Param::size(self.rows.clone()),
            Param::size(self.key_rows.clone()),
            Param::size(self.segments.clone()),
            Param::size(self.segment_symbol),
            Param::scale(self.spec),
        ]);
        let tiles = vec![
            Blocks { units: self.rows.times(self.group() as i64), per_block: tile },
            // Rounded up for each segment apart.
            Blocks { units: self.segments.clone(), per_block: 1 },
        ];
        let grid = [GridAxis::Blocks(tiles), GridAxis::of(self.kv_heads, 1), GridAxis::one()];
        let launch = LaunchRecipe::own(source, ENTRY, grid, threads, params);
        OpKernels::new([LaunchRecipe { dynamic_shared, ..launch }])
    }
}

/// The number of the symbol that counts the rows of `ty`.
fn counted_by(ty: &TensorType) -> Result<u64, LowerError> {
    let unknown = "segments that no symbol counts; shape their starts by a symbol";
    ty.outer_symbol().map_or_else(|| fail(unknown), |symbol| Ok(symbol.index() as u64))
}

/// As [`segment_attention_kernels`](crate::segments::segment_attention_kernels) says, of a call whose
/// operands fit the op.
pub(crate) fn attention_kernels(
    call: &CudaOpCall<'_>,
    spec: ScoreSpec,
) -> Result<OpKernels, LowerError> {
    let shape = Shape::new(call.operands, spec)?;
    if !shape.on_tensor_cores() {
        let source = shape.header(&[]) + include_str!("plain.cu");
        return Ok(shape.launch(source, 4, 128, 0));
    }
    // More rows of a block read the keys less often.
    let rows = shape.rows.eval(call.sizes).saturating_mul(shape.heads);
    let is_enough = |tile: u64| rows / tile >= ENOUGH_BLOCKS;
    let dims = [shape.dim, shape.value_dim];
    if hopper::fits(call.target, dims) {
        let at_once = hopper::ENOUGH_BLOCKS * hopper::beside_each_other(dims, 1);
        let computing = match hopper::most_computing(shape.value_dim) {
            3.. if is_enough(3 * 64) => 3,
            // Blocks of one would come in two rounds.
            _ if rows.div_ceil(64) > at_once => 2,
            _ => 1,
        };
        return Ok(shape.by_warpgroups(computing));
    }
    let staging = Staging::of(dims, rows);
    let warp = Forms::default().of(WARP);
    let source = shape.header(&staging.defines) + &warp + include_str!("tensor.cu");
    Ok(shape.launch(source, staging.tile, staging.threads, staging.dynamic_shared))
}

/// As [`segment_mean_kernels`](crate::segments::segment_mean_kernels) says, of operands that fit the op.
pub(crate) fn mean_kernels(operands: &[TensorType]) -> Result<OpKernels, LowerError> {
    let [x, starts, _] = operands else {
        return fail("the mean over segments takes three operands");
    };
    let width = x.shape[1].as_constant().unwrap_or(0);
    let source = format!(
        "#include \"prelude.cuh\"\n\ntypedef {} X;\n#define WIDTH {width}\n{}",
        storage(x.dtype),
        include_str!("mean.cu")
    );
    let mut params: Vec<Param> = (0..4).map(Param::Arg).collect();
    params.extend([
        Param::Counts,
        Param::size(x.shape[0].clone()),
        Param::size(starts.shape[0].clone()),
        Param::size(counted_by(starts)?),
    ]);
    let segments = GridAxis::of(starts.shape[0].clone(), 1);
    let grid = [segments, GridAxis::of(width, MEAN_COLUMNS), GridAxis::one()];
    let launch = LaunchRecipe::own(source, "segment_mean", grid, MEAN_COLUMNS, params);
    Ok(OpKernels::new([launch]))
}
