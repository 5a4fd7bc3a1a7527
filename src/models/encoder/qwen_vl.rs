//! The vision towers of Qwen2.5-VL and Qwen3-VL: patches in blocks that a merger joins, rope over
//! rows and columns, frames and windows as segments.

use super::super::config::fields::Fields;
use super::super::config::options::sort_keys_beside;
use super::super::config::{ConfigError, RopeConfig, read_dtype};
use super::super::op_builders::{AttentionSpec, KernelOps, Segments};
use super::inputs::{EncoderBounds, LENGTHS, STARTS};
use super::layers::{
    Activation, NormNames, ROW_ELEMENTS, layer_norm, linear, patch_rows, with_zeros,
};
use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Symbol;
use piecewise_runtime::words::roles;

/// Inputs; T counts patches, of which a merged token has `block`: `f32 [T, patch_width]`, `i32 [T]`
/// twice, `i32 [M]`, `i32 [windows]` twice, `i32 [T]` four times and `f32 [T, 4]`.
pub(super) const PATCHES: &str = "patches";
pub(super) const ROWS: &str = "patch_rows";
pub(super) const COLUMNS: &str = "patch_columns";
pub(super) const FIRSTS: &str = "first_patches";
pub(super) const WINDOW_STARTS: &str = "window_starts";
pub(super) const WINDOW_LENGTHS: &str = "window_lengths";
pub(super) const CORNERS: [&str; 4] = ["corner_0", "corner_1", "corner_2", "corner_3"];
pub(super) const CORNER_WEIGHTS: &str = "corner_weights";

/// In no configuration: every norm of both towers has it.
const EPS: f64 = 1e-6;
const ROPE_THETA: f64 = 10_000.0;
/// The most patches of a frame's side.
pub(super) const LONGEST_SIDE: u64 = 1 << 12;

/// What differs between the two towers.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum QwenVlKind {
    /// RMS norms, a gated feed-forward, windows.
    Qwen25 {
        /// Merged tokens of a window's side.
        window_side: usize,
        /// The layers that see whole frames.
        full_layers: Vec<usize>,
    },
    /// Layer norms, learned positions, outputs after some layers.
    Qwen3 {
        /// The side of the square table of positions.
        table_side: usize,
        /// The layers after which a merger of their own takes the rows.
        deepstack: Vec<usize>,
    },
}

/// What a vision tower of Qwen is.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct QwenVlConfig {
    /// Which of the two towers, with what it alone has.
    pub kind: QwenVlKind,
    /// Width of the residual stream, a multiple of `num_heads`.
    pub hidden_size: usize,
    /// Width between the products of a layer's feed-forward.
    pub intermediate_size: usize,
    /// How many layers there are, each of attention and a feed-forward.
    pub num_layers: usize,
    /// Number of heads, of a width that is a multiple of 4.
    pub num_heads: usize,
    /// Channels of an image: 3 of one in colors.
    pub channels: usize,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Frames that a patch covers; one of an image covers the image so many times.
    pub temporal_patch_size: usize,
    /// Patches of a merged token's side.
    pub merge_size: usize,
    /// Width of an output row.
    pub out_hidden_size: usize,
    /// Between the products of a layer's feed-forward.
    pub activation: Activation,
    /// What the configuration says that weights are stored as.
    pub dtype: Option<DType>,
}

const READ: &[&str] = &[
    "depth",
    "num_heads",
    "in_channels",
    "in_chans",
    "patch_size",
    "spatial_merge_size",
    "spatial_patch_size",
    "temporal_patch_size",
    "out_hidden_size",
    "window_size",
    "fullatt_block_indexes",
    "tokens_per_second",
    "num_position_embeddings",
    "deepstack_visual_indexes",
    "hidden_act",
    "rope_parameters",
];

/// Refuses angles that are not those of [`ROPE_THETA`].
fn check_rope(root: &Fields<'_>) -> Result<(), ConfigError> {
    let Some(rope) = root.child("rope_parameters")? else { return Ok(()) };
    if !matches!(rope.string("rope_type")?, None | Some("axial" | "default")) {
        return Err(rope.unsupported("rope_type", "axial is"));
    }
    match rope.number("rope_theta", 1.0..=1e15)? {
        None | Some(ROPE_THETA) => Ok(()),
        Some(_) => Err(rope.unsupported("rope_theta", format!("only {ROPE_THETA} is"))),
    }
}

impl QwenVlConfig {
    pub(super) fn read(root: &Fields<'_>, is_qwen3: bool) -> Result<Self, ConfigError> {
        sort_keys_beside(root, READ)?;
        check_rope(root)?;
        let hidden_size = root.required_count("hidden_size", 1..=1 << 20)?;
        let num_heads = root.required_count("num_heads", 1..=1 << 14)?;
        if !hidden_size.is_multiple_of(4 * num_heads) {
            let reason = format!("makes no width of {num_heads} heads that is a multiple of 4");
            return Err(root.bad_value("hidden_size", reason));
        }
        let num_layers = root.required_count("depth", 1..=1 << 12)?;
        let patch_size = root.required_count("patch_size", 1..=1 << 10)?;
        let merge_size = root.count("spatial_merge_size", 1..=16)?.unwrap_or(2);
        let layers = |key: &str| -> Result<Vec<usize>, ConfigError> {
            let list = root.counts(key, 0..=num_layers - 1)?;
            list.ok_or_else(|| root.missing(key))
        };
        let kind = match is_qwen3 {
            true => {
                let places = root.required_count("num_position_embeddings", 1..=1 << 24)?;
                let table_side = places.isqrt();
                if table_side * table_side != places {
                    return Err(root.bad_value("num_position_embeddings", "is no square"));
                }
                QwenVlKind::Qwen3 { table_side, deepstack: layers("deepstack_visual_indexes")? }
            }
            false => {
                let pixels = root.required_count("window_size", 1..=1 << 20)?;
                let window_side = pixels / patch_size / merge_size;
                if window_side == 0 {
                    let reason = format!("holds no merged token of {merge_size} patches");
                    return Err(root.bad_value("window_size", reason));
                }
                QwenVlKind::Qwen25 { window_side, full_layers: layers("fullatt_block_indexes")? }
            }
        };
        let activation = if is_qwen3 { Activation::GeluTanh } else { Activation::Silu };
        Ok(Self {
            kind,
            hidden_size,
            intermediate_size: root.required_count("intermediate_size", 1..=1 << 22)?,
            num_layers,
            num_heads,
            channels: root.count("in_channels", 1..=16)?.unwrap_or(3),
            patch_size,
            temporal_patch_size: root.count("temporal_patch_size", 1..=16)?.unwrap_or(2),
            merge_size,
            out_hidden_size: root.required_count("out_hidden_size", 1..=1 << 20)?,
            activation: Activation::read(root, "hidden_act", activation)?,
            dtype: read_dtype(root)?,
        })
    }

    /// Patches of a merged token.
    pub fn block(&self) -> usize {
        self.merge_size * self.merge_size
    }

    /// Elements of a patch: channels times frames times pixels.
    pub fn patch_width(&self) -> usize {
        self.channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    fn head_dim(&self) -> u64 {
        (self.hidden_size / self.num_heads) as u64
    }
}

/// The rows of a step: merged tokens, and the patches that they are made of.
struct Tower<'b, 'c> {
    b: &'b Builder,
    config: &'c QwenVlConfig,
    /// `i32 [M]`: the first patch of each merged token, where that has several.
    firsts: Option<Tensor<'b>>,
    /// Cosines and sines, `f32 [T, 1, head_dim / 2]` each.
    angles: [Tensor<'b>; 2],
    frames: Segments<'b>,
    windows: Option<Segments<'b>>,
}

/// `[M, out_hidden]` of the merger, then of each deepstack merger.
pub(super) fn merged_rows<'b>(
    b: &'b Builder,
    config: &QwenVlConfig,
    activations: DType,
    bounds: &EncoderBounds,
    prefix: &str,
) -> Vec<Tensor<'b>> {
    let (block, hidden) = (config.block() as u64, config.hidden_size as u64);
    let merged = b.symbol_with_role("M", 1, bounds.max_rows, roles::TOKENS);
    let rows = match block {
        1 => merged,
        _ => {
            let most = bounds.max_rows.saturating_mul(block);
            b.symbol_with_role("T", block, most, &format!("{block}*{}", roles::TOKENS))
        }
    };
    // An item may be many frames.
    let frames = b.symbol_with_role("S", 1, bounds.max_rows, "rows.frames");
    let index = |name: &str| b.input(name, DType::I32, [rows]).padding(0.0);
    let segments = |[starts, lengths]: [&str; 2], symbol: Symbol| {
        let input = |name| b.input(name, DType::I32, [symbol]).padding(0.0);
        Segments { starts: input(starts), lengths: input(lengths) }
    };
    let width = config.patch_width() as u64;
    let patches = b.input(PATCHES, DType::F32, (rows, width)).padding(0.0);
    let dim = config.head_dim();
    let rope = RopeConfig::plain(ROPE_THETA);
    // Half of a head turns by the row, half by the column.
    let table = b.rope_table(&rope.table(dim as usize / 2, LONGEST_SIDE).frequencies, LONGEST_SIDE);
    let [by_row, by_column] = [ROWS, COLUMNS].map(|name| table.gather(index(name)));
    let angles = [0, dim / 4].map(|start| {
        let part = |x: Tensor<'b>| x.slice(1, start..start + dim / 4);
        let angles = b.concat(&[part(by_row), part(by_column)], 1);
        angles.reshape((rows, 1, dim / 2))
    });
    let windows = match &config.kind {
        QwenVlKind::Qwen25 { .. } => {
            let count = b.symbol_with_role("W", 1, bounds.max_rows, "rows.windows");
            Some(segments([WINDOW_STARTS, WINDOW_LENGTHS], count))
        }
        QwenVlKind::Qwen3 { .. } => None,
    };
    let positions = match &config.kind {
        QwenVlKind::Qwen25 { .. } => None,
        QwenVlKind::Qwen3 { table_side, .. } => {
            let weights = b.input(CORNER_WEIGHTS, DType::F32, (rows, 4)).padding(0.0);
            let places = (table_side * table_side) as u64;
            Some((CORNERS.map(index), weights, places))
        }
    };
    let frames = segments([STARTS, LENGTHS], frames);
    let firsts = (block > 1).then(|| b.input(FIRSTS, DType::I32, [merged]).padding(0.0));
    let tower = Tower { b, config, firsts, angles, frames, windows };
    let _scope = (!prefix.is_empty()).then(|| b.scope(prefix));
    let mut x = {
        let (patch, frames) = (config.patch_size as u64, config.temporal_patch_size as u64);
        let kernel = [hidden, config.channels as u64, frames, patch, patch];
        let patches = patches.cast(activations);
        let seen = patch_rows(b, "patch_embed.proj.weight", patches, kernel).cast(DType::F32);
        match positions {
            None => seen,
            Some((corners, weights, places)) => {
                let table = b.weight("pos_embed.weight", [places, hidden]);
                let bias = b.weight("patch_embed.proj.bias", [hidden]).cast(DType::F32);
                corners.iter().zip(0..).fold(seen + bias, |sum, (&corner, i)| {
                    sum + table.gather(corner).cast(DType::F32) * weights.slice(1, i..i + 1)
                })
            }
        }
        .cast(activations)
    };
    let mut deepstack = Vec::new();
    for layer in 0..config.num_layers {
        x = {
            let _scope = b.scope(format!("blocks.{layer}"));
            tower.layer(x, layer)
        };
        if let QwenVlKind::Qwen3 { deepstack: layers, .. } = &config.kind
            && let Some(place) = layers.iter().position(|&taken| taken == layer)
        {
            let _scope = b.scope(format!("deepstack_merger_list.{place}"));
            deepstack.push(tower.joined_merger(x));
        }
    }
    let _scope = b.scope("merger");
    let main = tower.merger(x);
    std::iter::once(main).chain(deepstack).collect()
}

impl<'b> Tower<'b, '_> {
    fn layer(&self, x: Tensor<'b>, layer: usize) -> Tensor<'b> {
        let x = x + self.attention(self.norm("norm1", x), layer);
        x + self.feed_forward(self.norm("norm2", x))
    }

    fn norm(&self, name: &str, x: Tensor<'b>) -> Tensor<'b> {
        let hidden = self.config.hidden_size as u64;
        match self.config.kind {
            QwenVlKind::Qwen25 { .. } => {
                let _scope = self.b.scope(name);
                x.rms_norm(self.b.weight("weight", [hidden]), EPS)
            }
            QwenVlKind::Qwen3 { .. } => {
                layer_norm(self.b, name, x, hidden, EPS, NormNames::WeightAndBias)
            }
        }
    }

    fn attention(&self, h: Tensor<'b>, layer: usize) -> Tensor<'b> {
        let _scope = self.b.scope("attn");
        let (hidden, dim) = (self.config.hidden_size as u64, self.config.head_dim());
        let qkv = linear(self.b, "qkv", h, [3 * hidden, hidden]);
        let part = |n: u64| qkv.slice(1, n * hidden..(n + 1) * hidden).heads(dim);
        let [cos, sin] = self.angles;
        let (q, k) = (part(0).rotate(cos, sin), part(1).rotate(cos, sin));
        let segments = match (&self.config.kind, self.windows) {
            (QwenVlKind::Qwen25 { full_layers, .. }, Some(windows))
                if !full_layers.contains(&layer) =>
            {
                windows
            }
            _ => self.frames,
        };
        let spec = AttentionSpec { scale: (dim as f64).powf(-0.5), causal: false };
        let mixed = q.segment_attention(k, part(2), [segments; 2], spec);
        linear(self.b, "proj", mixed, [hidden, hidden])
    }

    fn feed_forward(&self, h: Tensor<'b>) -> Tensor<'b> {
        let _scope = self.b.scope("mlp");
        let (hidden, inner) =
            (self.config.hidden_size as u64, self.config.intermediate_size as u64);
        // The 7B tower has 3,420.
        let more = inner.next_multiple_of(ROW_ELEMENTS) - inner;
        let into = |name: &str| self.padded_linear(name, h, [inner, hidden], [more, 0]);
        let out = |name: &str, x| self.padded_linear(name, x, [hidden, inner], [0, more]);
        let act = self.config.activation;
        match self.config.kind {
            QwenVlKind::Qwen25 { .. } => {
                let gated = act.of(into("gate_proj")) * into("up_proj");
                out("down_proj", gated)
            }
            QwenVlKind::Qwen3 { .. } => out("linear_fc2", act.of(into("linear_fc1"))),
        }
    }

    /// [`linear`] whose weight and bias have `more` zeros after their own rows and columns.
    fn padded_linear(
        &self,
        name: &str,
        x: Tensor<'b>,
        shape: [u64; 2],
        more: [u64; 2],
    ) -> Tensor<'b> {
        let _scope = self.b.scope(name);
        let weight = with_zeros(self.b, self.b.weight("weight", shape), 0, more[0]);
        let y = x.linear(with_zeros(self.b, weight, 1, more[1]));
        y + with_zeros(self.b, self.b.weight("bias", [shape[0]]), 0, more[0]).cast(y.dtype())
    }

    /// The patches of each merged token side by side, `[M, block * hidden]`.
    fn join(&self, x: Tensor<'b>) -> Tensor<'b> {
        let Some(firsts) = self.firsts else { return x };
        let patches = (0..self.config.block()).map(|place| x.gather(firsts + place as f64));
        self.b.concat(&Vec::from_iter(patches), 1)
    }

    fn merger(&self, x: Tensor<'b>) -> Tensor<'b> {
        match self.config.kind {
            QwenVlKind::Qwen25 { .. } => {
                self.merge(self.join(self.norm("ln_q", x)), ["mlp.0", "mlp.2"])
            }
            QwenVlKind::Qwen3 { .. } => {
                self.merge(self.join(self.norm("norm", x)), ["linear_fc1", "linear_fc2"])
            }
        }
    }

    /// The merger of a deepstack output: its norm takes the joined patches.
    fn joined_merger(&self, x: Tensor<'b>) -> Tensor<'b> {
        let width = (self.config.block() * self.config.hidden_size) as u64;
        let joined = self.join(x);
        let normed = layer_norm(self.b, "norm", joined, width, EPS, NormNames::WeightAndBias);
        self.merge(normed, ["linear_fc1", "linear_fc2"])
    }

    fn merge(&self, joined: Tensor<'b>, [first, second]: [&str; 2]) -> Tensor<'b> {
        let width = (self.config.block() * self.config.hidden_size) as u64;
        let wide = linear(self.b, first, joined, [width, width]).gelu();
        linear(self.b, second, wide, [self.config.out_hidden_size as u64, width])
    }
}
