//! [`crate::segments`] on CUDA: attention within segments on tensor cores where types and widths
//! allow it, on Hopper by warpgroups where widths allow that, else without them; the mean over
//! segments.

use super::attention::hopper;
use super::recipe::{Blocks, GridAxis, LaunchRecipe, OpKernels, Param, Scalar};
use super::text::{defines, storage};
use crate::lower::{LowerError, fail};
use crate::op::cuda::CudaOpCall;
use crate::segments::{SegmentAttention, SegmentMean, SegmentSpec};
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::types::TensorType;

/// The widest head.
const MAX_DIM: u64 = 256;
/// The widest head whose queries stay in registers; those of wider ones lie in shared memory, and
/// fewer keys beside them, so that a block fits the 99 KiB of the smallest devices.
const REGISTER_DIM: u64 = 128;
/// Blocks that keep a large device busy; fewer are cut into smaller ones.
const ENOUGH_BLOCKS: u64 = 264;
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
    spec: SegmentSpec,
    dtypes: [DType; 2],
}

impl Shape {
    fn new(operands: &[TensorType], attrs: &Attrs) -> Result<Self, LowerError> {
        SegmentAttention.infer(operands, attrs).map_err(LowerError)?;
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
            spec: SegmentSpec::of(attrs).map_err(LowerError)?,
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
        let [q, k] = self.dtypes.map(storage);
        let mut source = format!("#include \"prelude.cuh\"\n\ntypedef {q} Q;\ntypedef {k} K;\n");
        let common = [
            ("HEADS", self.heads),
            ("KV_HEADS", self.kv_heads),
            ("GROUP", self.group()),
            ("DIM", self.dim),
            ("VALUE_DIM", self.value_dim),
            ("CAUSAL", u64::from(self.spec.causal)),
            ("WINDOWED", u64::from(self.spec.window.is_some())),
            ("WINDOW", u64::from(self.spec.window.unwrap_or(0))),
            ("MOST_PAGES", MOST_PAGES),
        ];
        source += &defines(common.iter().chain(own).copied());
        source.push_str(include_str!("../attention/walk.cuh"));
        source.push_str(include_str!("seen.cuh"));
        source
    }

    /// Scores as powers of two.
    fn scale(&self) -> Param {
        Param::Scalar(Scalar::F32((self.spec.scale * std::f64::consts::LOG2_E) as f32))
    }

    /// The kernel of prompts over a pool, whose keys lie in rows here.
    fn by_warpgroups(&self, computing: u64) -> OpKernels {
        let arguments = [0, 1, 2, 5, 6, 3, 4, 7].map(Param::Arg);
        let sizes = [
            Param::Counts,
            size(&self.rows),
            size(&self.segments),
            size(&Dim::constant(self.segment_symbol)),
            Param::Scalar(Scalar::U64(self.key_rows.clone())),
            size(&Dim::constant(MOST_PAGES)),
            self.scale(),
        ];
        let tiles = hopper::Tiles {
            // Segments of a single query, too.
            header: self.header(&[("FEW", 0)]),
            entry: ENTRY,
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
            size(&self.rows),
            size(&self.key_rows),
            size(&self.segments),
            size(&Dim::constant(self.segment_symbol)),
            self.scale(),
        ]);
        let tiles = vec![
            Blocks { units: self.rows.times(self.group() as i64), per_block: tile },
            // Rounded up for each segment apart.
            Blocks { units: self.segments.clone(), per_block: 1 },
        ];
        let grid = [GridAxis::Blocks(tiles), GridAxis::of(self.kv_heads, 1), GridAxis::one()];
        let launch = LaunchRecipe::own(source, ENTRY, grid, threads, params);
        let launch = LaunchRecipe { dynamic_shared, ..launch };
        OpKernels::new([launch])
    }
}

fn size(dim: &Dim) -> Param {
    Param::Scalar(Scalar::U32(dim.clone()))
}

/// The number of the symbol that counts the rows of `ty`.
fn counted_by(ty: &TensorType) -> Result<u64, LowerError> {
    let symbol = ty.outer_symbol().ok_or_else(|| {
        LowerError("segments that no symbol counts; shape their starts by a symbol".to_owned())
    })?;
    Ok(symbol.index() as u64)
}

/// The launch of `piecewise.segment_attention` at a call's sizes. What a row adds up, and in which
/// order, depends on the types, the attributes and the target alone, so that it has the same bits at
/// any size. Arguments: the op's operands, then its result. Can be captured in every batch.
///
/// # Errors
/// When the operands do not fit the op, no symbol counts the segments, or a head is wider than 256.
pub fn segment_attention_kernels(call: &CudaOpCall<'_>) -> Result<OpKernels, LowerError> {
    let shape = Shape::new(call.operands, call.attrs)?;
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
    let wide = shape.dim.max(shape.value_dim) > REGISTER_DIM;
    let keys = if wide { 32 } else { 64 };
    let query_staged = shape.dim > REGISTER_DIM;
    let warps = if !wide && is_enough(128) { 8 } else { 4 };
    let tile = warps * 16;
    let defines = [("WARPS", warps), ("KEYS", keys), ("QUERY_STAGED", u64::from(query_staged))];
    let source = shape.header(&defines) + include_str!("tensor.cu");
    // Rows lie an odd number of chunks apart.
    let [key_chunks, value_chunks] =
        [shape.dim, shape.value_dim].map(|dim| dim.div_ceil(16) * 2 + 1);
    let query_chunks = if query_staged { tile * key_chunks } else { 0 };
    let chunks = query_chunks + 2 * keys * (key_chunks + value_chunks);
    Ok(shape.launch(source, tile, 32 * warps, chunks as u32 * 16))
}

/// The launch of `piecewise.segment_mean`. Arguments: the op's operands, then its result.
///
/// # Errors
/// When the operands do not fit the op, or no symbol counts the segments.
pub fn segment_mean_kernels(operands: &[TensorType]) -> Result<OpKernels, LowerError> {
    SegmentMean.infer(operands, &Attrs::new()).map_err(LowerError)?;
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
        size(&x.shape[0]),
        size(&starts.shape[0]),
        size(&Dim::constant(counted_by(starts)?)),
    ]);
    let segments = GridAxis::of(starts.shape[0].clone(), 1);
    let grid = [segments, GridAxis::of(width, MEAN_COLUMNS), GridAxis::one()];
    let launch = LaunchRecipe::own(source, "segment_mean", grid, MEAN_COLUMNS, params);
    Ok(OpKernels::new([launch]))
}
