//! [`crate::attention::PagedAttention`] on CUDA.

use super::matmul::options;
use super::recipe::{Blocks, GridAxis, LaunchRecipe, OpKernels, Param, Scalar};
use crate::lower::LowerError;
use piecewise_ir::custom::{Attr, Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::types::TensorType;

/// The widest head.
const MAX_DIM: u64 = 256;
/// The most heads that share a key-value head.
const MAX_GROUP: u64 = 16;
/// The most ranges that the keys of a sequence are cut into.
const MAX_SPLITS: u64 = 16;
/// Blocks that keep a large device busy: two for each of its multiprocessors.
const ENOUGH_BLOCKS: u64 = 264;

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
}

impl Shape {
    fn new(operands: &[TensorType], attrs: &Attrs) -> Result<Self, LowerError> {
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

    /// Query rows of a block: those of one token where sequences bring one each.
    fn tile(&self, sizes: &[u64]) -> u64 {
        let one_token = self.rows.eval(sizes) < 4 * self.sequences.eval(sizes);
        if one_token { self.group().next_power_of_two().min(4) } else { 4 }
    }

    /// Blocks for any division of the rows among the sequences.
    fn tiles(&self, tile: u64) -> GridAxis {
        let group = self.group();
        let units = self.rows.times(group as i64);
        let mut parts = vec![Blocks { units, per_block: tile }];
        if !group.is_multiple_of(tile) {
            // Rounded up for each sequence apart.
            parts.push(Blocks { units: self.sequences.clone(), per_block: 1 });
        }
        GridAxis::Blocks(parts)
    }
}

fn storage(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        _ => "float",
    }
}

/// The launches of `piecewise.paged_attention` at these sizes (by symbol index): the grid and how
/// keys are divided are functions of the types and the sizes alone. Arguments: the op's operands,
/// then its result. Can be captured in every batch.
///
/// # Errors
/// When the operands do not fit the op, a head is wider than 256, or more than 16 heads share a
/// key-value head.
pub fn attention_kernels(
    operands: &[TensorType],
    attrs: &Attrs,
    sizes: &[u64],
) -> Result<OpKernels, LowerError> {
    let shape = Shape::new(operands, attrs)?;
    let tile = shape.tile(sizes);
    let rows = shape.rows.eval(sizes).saturating_mul(shape.group());
    let blocks = rows.div_ceil(tile).saturating_mul(shape.kv_heads).max(1);
    let splits = (ENOUGH_BLOCKS / blocks).clamp(1, MAX_SPLITS);
    let lanes = shape.dim.max(shape.value_dim).div_ceil(8).next_power_of_two();
    let mut source = String::from("#include \"prelude.cuh\"\n\n");
    source.push_str(&format!(
        "typedef {} Q;\ntypedef {} K;\n",
        storage(operands[0].dtype),
        storage(operands[1].dtype)
    ));
    for (name, value) in [
        ("HEADS", shape.heads),
        ("KV_HEADS", shape.kv_heads),
        ("GROUP", shape.group()),
        ("DIM", shape.dim),
        ("VALUE_DIM", shape.value_dim),
        ("LANES", lanes),
        ("TILE", tile),
        ("CAUSAL", u64::from(shape.causal)),
    ] {
        source.push_str(&format!("#define {name} {value}\n"));
    }
    source.push_str(include_str!("split.cu"));
    let number = |n: u64| Param::Scalar(Scalar::U32(Dim::constant(n)));
    let size = |dim: &Dim| Param::Scalar(Scalar::U32(dim.clone()));
    // Scores are powers of two.
    let scale = (shape.scale * std::f64::consts::LOG2_E) as f32;
    let mut params: Vec<Param> = (0..8).map(Param::Arg).collect();
    params.extend([
        // One range writes the result at once and no partial sum: any valid address does.
        if splits > 1 { Param::Scratch(0) } else { Param::Arg(7) },
        Param::Counts,
        size(&shape.rows),
        size(&shape.sequences),
        number(shape.sequence_symbol.index() as u64),
        Param::Scalar(Scalar::U64(shape.kv_rows.clone())),
        number(shape.pages),
        number(splits),
        Param::Scalar(Scalar::F32(scale)),
    ]);
    let mut launches = vec![LaunchRecipe {
        source: source.clone(),
        entry: "attention_split".to_owned(),
        options: options(),
        grid: [shape.tiles(tile), GridAxis::of(shape.kv_heads, 1), GridAxis::of(splits, 1)],
        block: [128, 1, 1],
        static_shared: 4 * 4 * tile as u32 * (2 + lanes as u32 * 8),
        dynamic_shared: 0,
        params,
        programmatic: true,
    }];
    let mut scratch = Dim::constant(0);
    if splits > 1 {
        let each = shape.heads * splits * (shape.value_dim + 2) * 4;
        scratch = shape.rows.times(each as i64);
        launches.push(LaunchRecipe {
            source,
            entry: "attention_combine".to_owned(),
            options: options(),
            grid: [
                GridAxis::of(shape.rows.times(shape.heads as i64), 4),
                GridAxis::one(),
                GridAxis::one(),
            ],
            block: [128, 1, 1],
            static_shared: 0,
            dynamic_shared: 0,
            params: vec![
                Param::Scratch(0),
                Param::Arg(7),
                Param::Counts,
                size(&shape.rows),
                number(shape.row_symbol.index() as u64),
                number(splits),
            ],
            programmatic: true,
        });
    }
    Ok(OpKernels { launches, scratch })
}
