//! [`crate::attention::PagedAttention`] on CUDA. On tensor cores, a kernel that cuts the keys into
//! ranges, for sequences with few tokens, and one for sequences with many, which on Hopper
//! multiplies by warpgroups; for types and widths
//! that these do not take, a kernel without tensor cores that cuts the keys into ranges too.

mod decode;
mod hopper;
mod prefill;
mod ranges;
mod split;
mod taken;

use super::recipe::{Blocks, GridAxis, OpKernels, Param, Scalar};
use super::text::storage;
use crate::lower::LowerError;
use crate::op::cuda::{CudaOpCall, CudaRegionBefore};
use piecewise_ir::custom::{Attr, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::types::TensorType;

/// The widest head.
const MAX_DIM: u64 = 256;
/// The most heads that share a key-value head.
const MAX_GROUP: u64 = 16;
/// The fewest rows of a step that is given to both kernels on tensor cores: below, the larger
/// tiles are mostly empty.
const PREFILL_ROWS: u64 = 64;

struct Shape {
    heads: u64,
    kv_heads: u64,
    dim: u64,
    value_dim: u64,
    pages: u64,
    rows: Dim,
    row_symbol: Symbol,
    sequences: Dim,
    sequence_symbol: Symbol,
    kv_rows: Dim,
    scale: f64,
    causal: bool,
    dtypes: [DType; 2],
    /// Whether the host stages tables, lengths and starts: they are read before the wait, and so
    /// are the pages of states that the step does not write.
    ahead: bool,
    /// Whether blocks can be clusters.
    clusters: bool,
}

impl Shape {
    fn new(call: &CudaOpCall<'_>) -> Result<Self, LowerError> {
        let CudaOpCall { operands, attrs, .. } = *call;
        crate::attention::PagedAttention.infer(operands, attrs).map_err(LowerError)?;
        let [q, k, v, table, lengths, ..] = operands else {
            return Err(LowerError("attention takes seven operands".to_owned()));
        };
        let fixed = |ty: &TensorType, axis: usize| {
            ty.shape[axis].as_constant().ok_or_else(|| {
                LowerError("attention with a symbolic number of heads, dims or pages".to_owned())
            })
        };
        let symbol = |ty: &TensorType| {
            ty.outer_symbol().ok_or_else(|| {
                LowerError("attention whose rows or sequences no symbol counts".to_owned())
            })
        };
        let (Some(Attr::Float(scale)), Some(Attr::Bool(causal))) =
            (attrs.get("scale"), attrs.get("causal"))
        else {
            return Err(LowerError("attention needs the attributes scale and causal".to_owned()));
        };
        let shape = Self {
            heads: fixed(q, 1)?,
            kv_heads: fixed(k, 1)?,
            dim: fixed(q, 2)?,
            value_dim: fixed(v, 2)?,
            pages: fixed(table, 1)?,
            rows: q.shape[0].clone(),
            row_symbol: symbol(q)?,
            sequences: lengths.shape[0].clone(),
            sequence_symbol: symbol(lengths)?,
            kv_rows: k.shape[0].clone(),
            scale: *scale,
            causal: *causal,
            dtypes: [q.dtype, k.dtype],
            ahead: call.roles.len() == 7
                && call.roles[1..3].iter().all(|role| role.state)
                && call.roles[3..].iter().all(|role| role.staged),
            clusters: call.target.capability >= (9, 0),
        };
        let group = shape.group();
        if !(1..=MAX_DIM).contains(&shape.dim)
            || !(1..=MAX_DIM).contains(&shape.value_dim)
            || !(1..=MAX_GROUP).contains(&group)
        {
            return Err(LowerError(format!(
                "attention with heads of {} and {} elements, {group} to a key-value head; dims of \
                 up to {MAX_DIM} and groups of up to {MAX_GROUP} have a kernel",
                shape.dim, shape.value_dim
            )));
        }
        Ok(shape)
    }

    fn group(&self) -> u64 {
        self.heads / self.kv_heads.max(1)
    }

    /// The most tokens of a sequence that the decode kernel takes where both kernels run: those
    /// that fill half of its tile, or one.
    fn few(&self) -> u64 {
        (8 / self.group()).clamp(1, 4)
    }

    /// Whether tensor cores take these types and widths.
    fn on_tensor_cores(&self) -> bool {
        let [q, kv] = self.dtypes;
        q == kv
            && matches!(q, DType::BF16 | DType::F16)
            && self.dim.is_multiple_of(16)
            && self.value_dim.is_multiple_of(16)
            // The largest score is taken before it is scaled.
            && self.scale > 0.0
    }

    /// Blocks for any division of the rows among the sequences.
    fn tiles(&self, tile: u64) -> Vec<Blocks> {
        let group = self.group();
        let units = self.rows.times(group as i64);
        let mut parts = vec![Blocks { units, per_block: tile }];
        if !group.is_multiple_of(tile) {
            // Rounded up for each sequence apart.
            parts.push(Blocks { units: self.sequences.clone(), per_block: 1 });
        }
        parts
    }

    /// The arguments, those `beside` them, the sizes, what is `last` of those, and the scale.
    fn params(&self, beside: &[Param], last: &[Param]) -> Vec<Param> {
        let sizes = [
            Param::Counts,
            size(&self.rows),
            size(&self.sequences),
            number(self.sequence_symbol.index() as u64),
            Param::Scalar(Scalar::U64(self.kv_rows.clone())),
            number(self.pages),
        ];
        let arguments = (0..8).map(Param::Arg).chain(beside.iter().cloned());
        let sizes = sizes.into_iter().chain(last.iter().cloned());
        arguments.chain(sizes).chain([self.scale()]).collect()
    }

    /// Scores as powers of two.
    fn scale(&self) -> Param {
        Param::Scalar(Scalar::F32((self.scale * std::f64::consts::LOG2_E) as f32))
    }

    /// What the source of either kernel starts with; `few` is 0 where there is one kernel alone.
    fn header(&self, few: u64, defines: &[(&str, u64)]) -> String {
        let [q, k] = self.dtypes.map(storage);
        let mut source = format!("#include \"prelude.cuh\"\n\ntypedef {q} Q;\ntypedef {k} K;\n");
        let common = [
            ("HEADS", self.heads),
            ("KV_HEADS", self.kv_heads),
            ("GROUP", self.group()),
            ("DIM", self.dim),
            ("VALUE_DIM", self.value_dim),
            ("CAUSAL", u64::from(self.causal)),
            ("FEW", few),
        ];
        for (name, value) in common.iter().chain(defines) {
            source.push_str(&format!("#define {name} {value}\n"));
        }
        source.push_str(include_str!("walk.cuh"));
        source
    }
}

fn number(n: u64) -> Param {
    size(&Dim::constant(n))
}

fn size(dim: &Dim) -> Param {
    Param::Scalar(Scalar::U32(dim.clone()))
}

fn blocks_at(parts: &[Blocks], sizes: &[u64]) -> u64 {
    parts.iter().fold(0, |sum: u64, part| {
        sum.saturating_add(part.units.eval(sizes).div_ceil(part.per_block))
    })
}

/// The shorter of two grids that both hold the work.
fn shorter(a: Vec<Blocks>, b: Vec<Blocks>, sizes: &[u64]) -> GridAxis {
    GridAxis::Blocks(if blocks_at(&b, sizes) < blocks_at(&a, sizes) { b } else { a })
}

/// The launches of `piecewise.paged_attention` at a call's sizes: which kernels run, their grids
/// and how keys are divided are functions of the types, the sizes and the target alone; on
/// tensor cores, in steps of 64 rows or more, each sequence is taken by one of two kernels, by how
/// many tokens it brings. Arguments: the op's operands, then its result. Can be captured in every
/// batch.
///
/// # Errors
/// When the operands do not fit the op, a head is wider than 256, or more than 16 heads share a
/// key-value head.
pub fn attention_kernels(call: &CudaOpCall<'_>) -> Result<OpKernels, LowerError> {
    let (shape, sizes) = (Shape::new(call)?, call.sizes);
    if !shape.on_tensor_cores() {
        return Ok(split::kernels(&shape, sizes));
    }
    if shape.rows.eval(sizes) < PREFILL_ROWS {
        return Ok(decode::kernels(&shape, sizes, None));
    }
    let mut kernels = decode::kernels(&shape, sizes, Some(shape.few()));
    let by_warpgroups = call.target.capability == (9, 0) && hopper::fits(&shape);
    let prefill = if by_warpgroups { hopper::kernel } else { prefill::kernel };
    kernels.launches.push(prefill(&shape, sizes, shape.few()));
    Ok(kernels)
}

/// The launches of `piecewise.paged_attention` with the region before it in them, where that makes
/// the queries of one row, and scatters its keys and values into the op's states. Arguments: the
/// op's operands but the queries, its result, the region's operands. `None` where the region makes
/// anything else, or the kernels of the call have no place for it.
pub fn attention_with_region(
    call: &CudaOpCall<'_>,
    before: &CudaRegionBefore<'_>,
) -> Option<OpKernels> {
    let shape = Shape::new(call).ok().filter(Shape::on_tensor_cores)?;
    decode::with_region(&shape, call.sizes, before)
}
