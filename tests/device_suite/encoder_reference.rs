//! The encoders once more, in f64 and as plainly as they can be said: an item at a time, every row
//! against every row, and what a row sees as a question of two places. Nothing of the library is
//! used, so that it can hold the library's graphs, packing and kernels of any shape.

mod rows;

pub(crate) use rows::{gelu, gelu_tanh, quick_gelu};

use half::bf16;
use rows::{attention, columns, frequencies, map, normalized, normalized_mean, rope, silu, sum};
use std::cell::RefCell;
use std::collections::BTreeMap;

pub(crate) type Rows = Vec<Vec<f64>>;

/// Weights that are made when a network first asks for them, from their names.
pub(crate) struct Parameters {
    seed: u64,
    made: RefCell<BTreeMap<String, Parameter>>,
}

/// Shape and values.
type Parameter = (Vec<usize>, Vec<bf16>);

impl Parameters {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, made: RefCell::default() }
    }

    /// Values near 1 of a norm's weight, else small ones.
    fn get(&self, name: &str, shape: &[usize]) -> Vec<f64> {
        let mut made = self.made.borrow_mut();
        let (known, values) = made.entry(name.to_owned()).or_insert_with(|| {
            let mut state = name.bytes().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, |state, byte| {
                (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
            let mut uniform = || {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 * 2.0 - 1.0
            };
            let fan: usize = shape.iter().skip(1).product();
            let is_norm = shape.len() == 1 && name.ends_with("weight");
            let value = |x: f64| match is_norm {
                true => 1.0 + 0.2 * x,
                false if shape.len() == 1 => 0.3 * x,
                false => x * (3.0 / fan as f64).sqrt(),
            };
            let count = shape.iter().product();
            (shape.to_vec(), (0..count).map(|_| bf16::from_f64(value(uniform()))).collect())
        });
        assert_eq!(known, shape, "{name}");
        values.iter().map(|x| x.to_f64()).collect()
    }

    /// Everything that was asked for, as a safetensors file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let made = self.made.borrow();
        let bytes = made.iter().map(|(name, (shape, values))| {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            (name.clone(), shape.clone(), bytes)
        });
        let bytes = Vec::from_iter(bytes);
        let views = bytes.iter().map(|(name, shape, bytes)| {
            let dtype = safetensors::Dtype::BF16;
            let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes);
            (name.as_str(), view.unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    pub(crate) fn table(&self, name: &str, rows: usize, width: usize) -> Rows {
        self.get(name, &[rows, width]).chunks(width).map(<[f64]>::to_vec).collect()
    }

    fn product(&self, name: &str, shape: &[usize], x: &Rows) -> Rows {
        let (weight, width) = (self.get(name, shape), shape[1..].iter().product());
        let row = |row: &Vec<f64>| {
            assert_eq!(row.len(), width, "{name}");
            weight.chunks(width).map(|w| w.iter().zip(row).map(|(a, b)| a * b).sum()).collect()
        };
        x.iter().map(row).collect()
    }

    /// `name.weight` and, where there is one, `name.bias`.
    fn linear(&self, name: &str, x: &Rows, out: usize, has_bias: bool) -> Rows {
        let mut y = self.product(&format!("{name}.weight"), &[out, x[0].len()], x);
        if has_bias {
            let bias = self.get(&format!("{name}.bias"), &[out]);
            y.iter_mut().for_each(|row| row.iter_mut().zip(&bias).for_each(|(y, b)| *y += b));
        }
        y
    }

    fn layer_norm(&self, name: &str, x: &Rows, eps: f64, has_bias: bool) -> Rows {
        let width = x[0].len();
        let weight = self.get(&format!("{name}.weight"), &[width]);
        let bias = match has_bias {
            true => self.get(&format!("{name}.bias"), &[width]),
            false => vec![0.0; width],
        };
        let row = |row: &Vec<f64>| {
            let mean = row.iter().sum::<f64>() / width as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let factor = 1.0 / (variance + eps).sqrt();
            let scaled = row.iter().map(|x| (x - mean) * factor);
            scaled.zip(&weight).zip(&bias).map(|((x, w), b)| x * w + b).collect()
        };
        x.iter().map(row).collect()
    }

    fn rms_norm(&self, name: &str, x: &Rows) -> Rows {
        let weight = self.get(&format!("{name}.weight"), &[x[0].len()]);
        let row = |row: &Vec<f64>| {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let factor = 1.0 / (mean + 1e-6).sqrt();
            row.iter().zip(&weight).map(|(x, w)| x * factor * w).collect()
        };
        x.iter().map(row).collect()
    }
}

/// What the shapes of a network have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) inner: usize,
    pub(crate) layers: usize,
}

impl Shape {
    pub(crate) fn hidden(self) -> usize {
        self.heads * self.dim
    }
}

pub(crate) const VOCAB: usize = 50;
pub(crate) const POSITIONS: usize = 40;

/// The embedding and the rows of a text.
pub(crate) fn bert(p: &Parameters, shape: Shape, ids: &[u32]) -> Vec<Rows> {
    let hidden = shape.hidden();
    let words = p.table("embeddings.word_embeddings.weight", VOCAB, hidden);
    let positions = p.table("embeddings.position_embeddings.weight", POSITIONS, hidden);
    let types = p.table("embeddings.token_type_embeddings.weight", 2, hidden);
    let row = |(i, &id): (usize, &u32)| {
        (0..hidden).map(|c| words[id as usize][c] + positions[i][c] + types[0][c]).collect()
    };
    let x: Rows = ids.iter().enumerate().map(row).collect();
    let mut x = p.layer_norm("embeddings.LayerNorm", &x, 1e-12, true);
    for layer in 0..shape.layers {
        let name = |rest: &str| format!("encoder.layer.{layer}.{rest}");
        let of = |part: &str| p.linear(&name(&format!("attention.self.{part}")), &x, hidden, true);
        let mixed = attention([&of("query"), &of("key"), &of("value")], shape.heads, |_, _| true);
        let back = p.linear(&name("attention.output.dense"), &mixed, hidden, true);
        x = p.layer_norm(&name("attention.output.LayerNorm"), &sum(&back, &x), 1e-12, true);
        let wide = map(p.linear(&name("intermediate.dense"), &x, shape.inner, true), gelu);
        let back = p.linear(&name("output.dense"), &wide, hidden, true);
        x = p.layer_norm(&name("output.LayerNorm"), &sum(&back, &x), 1e-12, true);
    }
    vec![vec![normalized_mean(&x)], x]
}

/// The same of a ModernBERT, whose layers but every third see `window / 2` to either side.
pub(crate) fn modernbert(p: &Parameters, shape: Shape, window: usize, ids: &[u32]) -> Vec<Rows> {
    let hidden = shape.hidden();
    let words = p.table("embeddings.tok_embeddings.weight", VOCAB, hidden);
    let x = ids.iter().map(|&id| words[id as usize].clone()).collect();
    let mut x = p.layer_norm("embeddings.norm", &x, 1e-5, false);
    for layer in 0..shape.layers {
        let name = |rest: &str| format!("layers.{layer}.{rest}");
        let is_local = layer % 3 != 0;
        let h = match layer {
            0 => x.clone(),
            _ => p.layer_norm(&name("attn_norm"), &x, 1e-5, false),
        };
        let qkv = p.linear(&name("attn.Wqkv"), &h, 3 * hidden, false);
        let part = |n: usize| columns(&qkv, n * hidden..(n + 1) * hidden);
        let of_one = frequencies(if is_local { 500.0 } else { 9000.0 }, shape.dim);
        let angles = |i: usize| of_one.iter().map(|f| f * i as f64).collect();
        let (q, k) = (rope(&part(0), shape.heads, angles), rope(&part(1), shape.heads, angles));
        let sees = |i: usize, j: usize| !is_local || i.abs_diff(j) <= window / 2;
        let mixed = attention([&q, &k, &part(2)], shape.heads, sees);
        x = sum(&x, &p.linear(&name("attn.Wo"), &mixed, hidden, false));
        let h = p.layer_norm(&name("mlp_norm"), &x, 1e-5, false);
        let wide = p.linear(&name("mlp.Wi"), &h, 2 * shape.inner, false);
        let gated = wide.iter().map(|row| {
            let (input, gate) = row.split_at(shape.inner);
            input.iter().zip(gate).map(|(x, gate)| gelu(*x) * gate).collect()
        });
        x = sum(&x, &p.linear(&name("mlp.Wo"), &gated.collect(), hidden, false));
    }
    let x = p.layer_norm("final_norm", &x, 1e-5, false);
    vec![vec![normalized_mean(&x)], x]
}

/// The feed-forward of a Qwen.
fn gated(p: &Parameters, name: &str, h: &Rows, inner: usize, has_bias: bool) -> Rows {
    let of = |part: &str| p.linear(&format!("{name}.{part}"), h, inner, has_bias);
    let (gate, up) = (map(of("gate_proj"), silu), of("up_proj"));
    let row = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| a * b).collect();
    let product = gate.iter().zip(&up).map(row).collect();
    p.linear(&format!("{name}.down_proj"), &product, h[0].len(), has_bias)
}

/// The same of a Qwen3, whose queries share `kv_heads` heads of keys and values, and whose rows,
/// `hidden` wide, see those before them; the embedding is of the last one.
pub(crate) fn qwen3(
    p: &Parameters,
    shape: Shape,
    kv_heads: usize,
    hidden: usize,
    ids: &[u32],
) -> Vec<Rows> {
    let Shape { heads, dim, inner, layers } = shape;
    let words = p.table("embed_tokens.weight", VOCAB, hidden);
    let mut x: Rows = ids.iter().map(|&id| words[id as usize].clone()).collect();
    let of_one = frequencies(10_000.0, dim);
    let angles = |i: usize| of_one.iter().map(|f| f * i as f64).collect();
    for layer in 0..layers {
        let name = |rest: &str| format!("layers.{layer}.{rest}");
        let h = p.rms_norm(&name("input_layernorm"), &x);
        let of = |part: &str, heads: usize| {
            p.linear(&name(&format!("self_attn.{part}_proj")), &h, heads * dim, false)
        };
        let turned = |part: &str, heads: usize| {
            let each = of(part, heads).concat().chunks(dim).map(<[f64]>::to_vec).collect();
            let each = p.rms_norm(&name(&format!("self_attn.{part}_norm")), &each);
            rope(&each.chunks(heads).map(<[Vec<f64>]>::concat).collect(), heads, angles)
        };
        let shared = |x: Rows| -> Rows {
            let of_query = |head: usize| head / (heads / kv_heads) * dim;
            let row = |row: &Vec<f64>| {
                let each = (0..heads).map(|head| &row[of_query(head)..][..dim]);
                Vec::from_iter(each.flatten().copied())
            };
            x.iter().map(row).collect()
        };
        let (q, k) = (turned("q", heads), shared(turned("k", kv_heads)));
        let v = shared(of("v", kv_heads));
        let mixed = attention([&q, &k, &v], heads, |i, j| j <= i);
        x = sum(&x, &p.linear(&name("self_attn.o_proj"), &mixed, hidden, false));
        let h = p.rms_norm(&name("post_attention_layernorm"), &x);
        x = sum(&x, &gated(p, &name("mlp"), &h, inner, false));
    }
    let x = p.rms_norm("norm", &x);
    let last = x.last().map(|row| normalized(row));
    vec![Vec::from_iter(last), x]
}

/// The rows and the pooled row of an image of `patches`, each as wide as `kernel` says; `family` is
/// siglip, clip or vit.
pub(crate) fn vit(
    p: &Parameters,
    shape: Shape,
    family: &str,
    kernel: [usize; 3],
    patches: &Rows,
) -> Vec<Rows> {
    let hidden = shape.hidden();
    let kernel = [hidden, kernel[0], kernel[1], kernel[2]];
    let has_class = family != "siglip";
    let conv = if family == "vit" { "patch_embeddings.projection" } else { "patch_embedding" };
    let name = |rest: &str| format!("embeddings.{rest}");
    let mut x = p.product(&name(&format!("{conv}.weight")), &kernel, patches);
    if family != "clip" {
        let bias = p.get(&name(&format!("{conv}.bias")), &[hidden]);
        x.iter_mut().for_each(|row| row.iter_mut().zip(&bias).for_each(|(x, b)| *x += b));
    }
    match family {
        "clip" => x.insert(0, p.get(&name("class_embedding"), &[hidden])),
        "vit" => x.insert(0, p.get(&name("cls_token"), &[1, 1, hidden])),
        _ => {}
    }
    let places = patches.len() + usize::from(has_class);
    let table = match family {
        "vit" => p.get(&name("position_embeddings"), &[1, places, hidden]),
        _ => p.get(&name("position_embedding.weight"), &[places, hidden]),
    };
    x = sum(&x, &table.chunks(hidden).map(<[f64]>::to_vec).collect());
    let (eps, activation): (f64, fn(f64) -> f64) = match family {
        "siglip" => (1e-6, gelu_tanh),
        "clip" => (1e-5, quick_gelu),
        _ => (1e-12, gelu),
    };
    if family == "clip" {
        x = p.layer_norm("pre_layrnorm", &x, eps, true);
    }
    let [norms, qkv, out, wide, back] = match family {
        "vit" => [
            ["layernorm_before", "layernorm_after", ""],
            ["attention.attention.query", "attention.attention.key", "attention.attention.value"],
            ["attention.output.dense", "", ""],
            ["intermediate.dense", "", ""],
            ["output.dense", "", ""],
        ],
        _ => [
            ["layer_norm1", "layer_norm2", ""],
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            ["self_attn.out_proj", "", ""],
            ["mlp.fc1", "", ""],
            ["mlp.fc2", "", ""],
        ],
    };
    let list = if family == "vit" { "encoder.layer" } else { "encoder.layers" };
    for layer in 0..shape.layers {
        let name = |rest: &str| format!("{list}.{layer}.{rest}");
        let h = p.layer_norm(&name(norms[0]), &x, eps, true);
        let [q, k, v] = qkv.map(|part| p.linear(&name(part), &h, hidden, true));
        let mixed = attention([&q, &k, &v], shape.heads, |_, _| true);
        x = sum(&x, &p.linear(&name(out[0]), &mixed, hidden, true));
        let h = p.layer_norm(&name(norms[1]), &x, eps, true);
        let h = map(p.linear(&name(wide[0]), &h, shape.inner, true), activation);
        x = sum(&x, &p.linear(&name(back[0]), &h, hidden, true));
    }
    match family {
        "clip" => {
            let pooled = p.layer_norm("post_layernorm", &x[..1].to_vec(), eps, true);
            vec![x, pooled]
        }
        "vit" => {
            let x = p.layer_norm("layernorm", &x, eps, true);
            let pooled = map(p.linear("pooler.dense", &x[..1].to_vec(), hidden, true), f64::tanh);
            vec![x, pooled]
        }
        _ => {
            let x = p.layer_norm("post_layernorm", &x, eps, true);
            let weight = p.get("head.attention.in_proj_weight", &[3 * hidden, hidden]);
            let bias = p.get("head.attention.in_proj_bias", &[3 * hidden]);
            let project = |x: &Rows, part: usize| -> Rows {
                let rows = part * hidden..(part + 1) * hidden;
                let one = |row: &Vec<f64>| {
                    let dot = |r: usize| {
                        let weight = &weight[r * hidden..(r + 1) * hidden];
                        weight.iter().zip(row).map(|(w, x)| w * x).sum::<f64>() + bias[r]
                    };
                    rows.clone().map(dot).collect()
                };
                x.iter().map(one).collect()
            };
            let probe = vec![p.get("head.probe", &[1, 1, hidden])];
            let qkv = [project(&probe, 0), project(&x, 1), project(&x, 2)];
            let mixed = attention(qkv.each_ref(), shape.heads, |_, _| true);
            let mixed = p.linear("head.attention.out_proj", &mixed, hidden, true);
            let h = p.layer_norm("head.layernorm", &mixed, eps, true);
            let h = map(p.linear("head.mlp.fc1", &h, shape.inner, true), activation);
            let pooled = sum(&mixed, &p.linear("head.mlp.fc2", &h, hidden, true));
            vec![x, pooled]
        }
    }
}

/// A tower of Qwen. Patches come in blocks of `merge` by `merge`.
#[derive(Clone, Debug)]
pub(crate) struct QwenTower {
    pub(crate) shape: Shape,
    pub(crate) merge: usize,
    pub(crate) kernel: [usize; 4],
    pub(crate) out: usize,
    pub(crate) kind: QwenKind,
}

#[derive(Clone, Debug)]
pub(crate) enum QwenKind {
    /// Merged tokens of a window's side, and the layers that see whole frames.
    Qwen25 { window: usize, full: Vec<usize> },
    /// The side of the table of positions, and the layers whose rows are merged, too.
    Qwen3 { side: usize, deepstack: Vec<usize> },
}

impl QwenTower {
    /// Frame, row and column of each patch, in the order in which patches come.
    fn places(&self, [frames, height, width]: [usize; 3]) -> Vec<[usize; 3]> {
        let (merge, mut places) = (self.merge, Vec::new());
        for frame in 0..frames {
            for top in (0..height).step_by(merge) {
                for left in (0..width).step_by(merge) {
                    for row in top..top + merge {
                        places.extend((left..left + merge).map(|column| [frame, row, column]));
                    }
                }
            }
        }
        places
    }

    /// The merged tokens, then those of each deepstack merger.
    pub(crate) fn run(&self, p: &Parameters, grid: [usize; 3], patches: &Rows) -> Vec<Rows> {
        let Self { shape, merge, kernel, .. } = self;
        let (hidden, heads, dim) = (shape.hidden(), shape.heads, shape.dim);
        let is_qwen3 = matches!(self.kind, QwenKind::Qwen3 { .. });
        let kernel = [&[hidden], &kernel[..]].concat();
        let mut x = p.product("patch_embed.proj.weight", &kernel, patches);
        let places = self.places(grid);
        if let QwenKind::Qwen3 { side, .. } = self.kind {
            let bias = p.get("patch_embed.proj.bias", &[hidden]);
            let table = p.table("pos_embed.weight", side * side, hidden);
            for (x, &[_, row, column]) in x.iter_mut().zip(&places) {
                let at = |i: usize, n: usize| match n {
                    1 => 0.0,
                    _ => i as f64 * (side - 1) as f64 / (n - 1) as f64,
                };
                let (y, z) = (at(row, grid[1]), at(column, grid[2]));
                for (c, x) in x.iter_mut().enumerate() {
                    // The weight of a place of the table falls by its distance.
                    let mut here = bias[c];
                    for r in 0..side {
                        for s in 0..side {
                            let near = |a: f64, b: usize| (1.0 - (a - b as f64).abs()).max(0.0);
                            here += near(y, r) * near(z, s) * table[r * side + s][c];
                        }
                    }
                    *x += here;
                }
            }
        }
        let of_one = frequencies(10_000.0, dim / 2);
        let angles = |i: usize| {
            let [_, row, column] = places[i];
            let by = |place: usize| of_one.iter().map(move |f| f * place as f64);
            by(row).chain(by(column)).collect()
        };
        let norm = |name: &str, x: &Rows| match is_qwen3 {
            true => p.layer_norm(name, x, 1e-6, true),
            false => p.rms_norm(name, x),
        };
        let mut deep = Vec::new();
        for layer in 0..shape.layers {
            let name = |rest: &str| format!("blocks.{layer}.{rest}");
            let h = norm(&name("norm1"), &x);
            let qkv = p.linear(&name("attn.qkv"), &h, 3 * hidden, true);
            let part = |n: usize| columns(&qkv, n * hidden..(n + 1) * hidden);
            let sees = |i: usize, j: usize| {
                let ([f, r, c], [g, s, d]) = (places[i], places[j]);
                let same_window = match &self.kind {
                    QwenKind::Qwen25 { window, full } if !full.contains(&layer) => {
                        let cell = |n: usize| n / merge / window;
                        cell(r) == cell(s) && cell(c) == cell(d)
                    }
                    _ => true,
                };
                f == g && same_window
            };
            let (q, k) = (rope(&part(0), heads, angles), rope(&part(1), heads, angles));
            let mixed = attention([&q, &k, &part(2)], heads, sees);
            x = sum(&x, &p.linear(&name("attn.proj"), &mixed, hidden, true));
            let h = norm(&name("norm2"), &x);
            let back = match is_qwen3 {
                true => {
                    let wide = p.linear(&name("mlp.linear_fc1"), &h, shape.inner, true);
                    p.linear(&name("mlp.linear_fc2"), &map(wide, gelu_tanh), hidden, true)
                }
                false => gated(p, &name("mlp"), &h, shape.inner, true),
            };
            x = sum(&x, &back);
            if let QwenKind::Qwen3 { deepstack, .. } = &self.kind
                && let Some(place) = deepstack.iter().position(|&taken| taken == layer)
            {
                let name = format!("deepstack_merger_list.{place}");
                let joined = p.layer_norm(&format!("{name}.norm"), &self.join(&x), 1e-6, true);
                deep.push(self.merged(p, &name, ["linear_fc1", "linear_fc2"], &joined));
            }
        }
        let main = match is_qwen3 {
            true => {
                let joined = self.join(&norm("merger.norm", &x));
                self.merged(p, "merger", ["linear_fc1", "linear_fc2"], &joined)
            }
            false => {
                let joined = self.join(&norm("merger.ln_q", &x));
                self.merged(p, "merger", ["mlp.0", "mlp.2"], &joined)
            }
        };
        std::iter::once(main).chain(deep).collect()
    }

    fn join(&self, x: &Rows) -> Rows {
        x.chunks(self.merge * self.merge).map(<[Vec<f64>]>::concat).collect()
    }

    fn merged(&self, p: &Parameters, name: &str, layers: [&str; 2], joined: &Rows) -> Rows {
        let wide = p.linear(&format!("{name}.{}", layers[0]), joined, joined[0].len(), true);
        p.linear(&format!("{name}.{}", layers[1]), &map(wide, gelu), self.out, true)
    }
}
