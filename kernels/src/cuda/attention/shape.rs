//! The shape of a call of attention, and grids that hold its work.

use super::super::text::{defines, float, resolved, storage};
use crate::lower::LowerError;
use crate::op::Blocks;
use crate::op::ScoreSpec;
use crate::op::cuda::CudaOpCall;
use crate::op::cuda::{GridAxis, Param, Scalar};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::types::TensorType;

/// The widest head.
const MAX_DIM: u64 = 256;
/// The most heads that share a key-value head.
const MAX_GROUP: u64 = 16;

/// What a warp does with a block of keys and values on tensor cores.
pub(in super::super) const WARP: &str = include_str!("warp.cuh");
/// Rows of a page of the pool.
const PAGE: u64 = 16;

/// The conditions of the sources of attention.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Forms {
    /// Whether tokens see no keys before a window.
    pub sliding: bool,
    pub capped: bool,
    pub sinks: bool,
}

impl Forms {
    /// A source as these forms have it.
    pub(in super::super) fn of(self, source: &str) -> String {
        let Self { sliding, capped, sinks } = self;
        resolved(source, &[("SLIDING", sliding), ("CAPPED", capped), ("SINKS", sinks)])
    }
}

pub(super) struct Shape {
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) dim: u64,
    pub(super) value_dim: u64,
    pub(super) pages: u64,
    pub(super) rows: Dim,
    pub(super) row_symbol: Symbol,
    pub(super) sequences: Dim,
    pub(super) sequence_symbol: Symbol,
    pub(super) kv_rows: Dim,
    pub(super) spec: ScoreSpec,
    pub(super) dtypes: [DType; 2],
    /// The dtype of the sinks, where there are some.
    pub(super) sinks: Option<DType>,
    /// Whether the host stages tables, lengths and starts: they are read before the wait, and so
    /// are the pages of states that the step does not write.
    pub(super) ahead: bool,
    /// Whether blocks can be clusters.
    pub(super) clusters: bool,
}

impl Shape {
    pub(super) fn new(call: &CudaOpCall<'_>, spec: ScoreSpec) -> Result<Self, LowerError> {
        let [q, k, v, table, lengths, _, _, sinks @ ..] = call.operands else {
            return Err(LowerError("attention takes seven operands or eight".to_owned()));
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
            spec,
            dtypes: [q.dtype, k.dtype],
            sinks: sinks.first().map(|sinks| sinks.dtype),
            ahead: call.roles.len() == call.operands.len()
                && call.roles[1..3].iter().all(|role| role.state)
                && call.roles[3..7].iter().all(|role| role.staged),
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

    pub(super) fn group(&self) -> u64 {
        self.heads / self.kv_heads.max(1)
    }

    /// The most tokens of a sequence that the decode kernel takes where both kernels run: those
    /// that fill half of its tile, or one.
    pub(super) fn few(&self) -> u64 {
        (8 / self.group()).clamp(1, 4)
    }

    /// Pages that hold the keys that a token sees, at the most.
    pub(super) fn seen_pages(&self) -> u64 {
        match self.spec.window {
            // Those before it and its own, from anywhere in a page.
            Some(before) => self.pages.min(u64::from(before) / PAGE + 2),
            None => self.pages,
        }
    }

    /// Where rows are written, behind all operands.
    pub(super) fn result(&self) -> Param {
        Param::Arg(if self.sinks.is_some() { 8 } else { 7 })
    }

    pub(super) fn forms(&self) -> Forms {
        Forms {
            sliding: self.spec.window.is_some(),
            capped: self.spec.softcap.is_some(),
            sinks: self.sinks.is_some(),
        }
    }

    /// Whether tensor cores take these types and widths.
    pub(super) fn on_tensor_cores(&self) -> bool {
        let [q, kv] = self.dtypes;
        q == kv
            && matches!(q, DType::BF16 | DType::F16)
            && self.dim.is_multiple_of(16)
            && self.value_dim.is_multiple_of(16)
            // The largest score is taken before it is scaled.
            && self.spec.scale > 0.0
    }

    /// Blocks for any division of the rows among the sequences.
    pub(super) fn tiles(&self, tile: u64) -> Vec<Blocks> {
        let group = self.group();
        let units = self.rows.times(group as i64);
        let mut parts = vec![Blocks { units, per_block: tile }];
        if !group.is_multiple_of(tile) {
            // Rounded up for each sequence apart.
            parts.push(Blocks { units: self.sequences.clone(), per_block: 1 });
        }
        parts
    }

    /// The arguments, those `beside` them, the sizes, what is `last` of those, the scale, and the sinks.
    pub(super) fn params(&self, beside: &[Param], last: &[Param]) -> Vec<Param> {
        let sizes = [
            Param::Counts,
            Param::size(self.rows.clone()),
            Param::size(self.sequences.clone()),
            Param::size(self.sequence_symbol.index()),
            Param::Scalar(Scalar::U64(self.kv_rows.clone())),
            Param::size(self.pages),
        ];
        let arguments = (0..7).map(Param::Arg).chain([self.result()]).chain(beside.iter().cloned());
        let sizes = sizes.into_iter().chain(last.iter().cloned());
        let sinks = self.sinks.map(|_| Param::Arg(7));
        arguments.chain(sizes).chain([Param::scale(self.spec)]).chain(sinks).collect()
    }

    /// What the source of either kernel starts with; `few` is 0 where there is one kernel alone.
    pub(super) fn header(&self, few: u64, own: &[(&str, u64)]) -> String {
        let own: Vec<_> = [("FEW", few)].iter().chain(own).copied().collect();
        let (heads, dims) = ([self.heads, self.kv_heads], [self.dim, self.value_dim]);
        let sinks = self.sinks.map(|dtype| format!("typedef {} SINK;\n", storage(dtype)));
        let window =
            self.spec.window.map(|before| ("WINDOW", format!("{}u", u64::from(before) + 1)));
        let cap = self.spec.softcap.map(|cap| cap * std::f64::consts::LOG2_E);
        let cap = cap.map(|cap| ("CAP", float(cap as f32)));
        let scores = sinks.unwrap_or_default() + &defines(window.into_iter().chain(cap));
        header(self.dtypes, heads, dims, self.spec.causal, &own, &scores, self.forms())
    }
}

/// What the source of a kernel of attention starts with, with macros of its `own`, and those of what
/// becomes of `scores`.
pub(in super::super) fn header(
    dtypes: [DType; 2],
    [heads, kv_heads]: [u64; 2],
    [dim, value_dim]: [u64; 2],
    causal: bool,
    own: &[(&str, u64)],
    scores: &str,
    forms: Forms,
) -> String {
    let [q, k] = dtypes.map(storage);
    let mut source = format!("#include \"prelude.cuh\"\n\ntypedef {q} Q;\ntypedef {k} K;\n");
    let common = [
        ("HEADS", heads),
        ("KV_HEADS", kv_heads),
        ("GROUP", heads / kv_heads.max(1)),
        ("DIM", dim),
        ("VALUE_DIM", value_dim),
        ("CAUSAL", u64::from(causal)),
    ];
    source += &defines(common.iter().chain(own).copied());
    source + scores + &forms.of(include_str!("walk.cuh"))
}

pub(super) fn blocks_at(parts: &[Blocks], sizes: &[u64]) -> u64 {
    parts.iter().fold(0, |sum: u64, part| {
        sum.saturating_add(part.units.eval(sizes).div_ceil(part.per_block))
    })
}

/// The shorter of two grids that both hold the work.
pub(super) fn shorter(a: Vec<Blocks>, b: Vec<Blocks>, sizes: &[u64]) -> GridAxis {
    GridAxis::Blocks(if blocks_at(&b, sizes) < blocks_at(&a, sizes) { b } else { a })
}
