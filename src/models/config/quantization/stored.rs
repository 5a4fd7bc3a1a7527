//! The ways in which files keep a linear layer, and the recipes of each.

use piecewise_ir::builder::{Builder, Tensor};
use piecewise_ir::dtype::DType;
use piecewise_ir::weight::Recipe;

/// Integers of 4 bits in a word of a file.
const IN_A_WORD: u64 = 8;
/// The integer that unsigned codes of 4 bits have in the middle.
const MIDDLE: u8 = 8;
const PLAIN: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// In which order AutoAWQ has the columns of a word.
const AWQ: [u8; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// What zero points a layer of integers has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::models) enum ZeroPoints {
    /// Each is the middle.
    Symmetric,
    /// The file has them.
    Stored,
    /// The file has each less one, as the first format of GPTQ does.
    LessOne,
}

/// How a file keeps a linear layer `[out, in]`, whose tensors begin with its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::models) enum Stored {
    /// `weight` in e4m3, and a scale for each block in the tensor `scale`.
    Float8 {
        /// Rows and columns that share a scale; `None` where all do.
        block: Option<[u64; 2]>,
        /// The name of the scales: `weight_scale` or, though they multiply too, `weight_scale_inv`.
        scale: &'static str,
    },
    /// `weight` in e4m3, and a scale for each row in `weight_scale`.
    Float8Rows,
    /// compressed-tensors' `pack-quantized`: words along the input in `weight_packed`, scales in
    /// `weight_scale`, zero points along the output in `weight_zero_point`.
    Packed {
        /// Columns that share a scale; `None` where all of a row do.
        group: Option<u64>,
        /// Its zero points.
        zeros: ZeroPoints,
    },
    /// AutoAWQ's `gemm`: transposed words along the output in `qweight` and `qzeros`, `scales`.
    Awq {
        /// Columns that share a scale; `None` where all of a row do.
        group: Option<u64>,
    },
    /// GPTQ without an order of its own: transposed words along the input in `qweight`, along the output
    /// in `qzeros`, `scales`.
    Gptq {
        /// Columns that share a scale; `None` where all of a row do.
        group: Option<u64>,
        /// Its zero points.
        zeros: ZeroPoints,
    },
}

/// What a linear layer is made of.
struct Parts {
    codes: Recipe,
    scales: Recipe,
    zeros: Option<Recipe>,
    block: [u64; 2],
}

impl Stored {
    /// Columns of `inner` that share a scale.
    pub(super) fn group(&self, inner: u64) -> u64 {
        match *self {
            Self::Float8 { block, .. } => group_of(block.map(|block| block[1]), inner),
            Self::Float8Rows => group_of(None, inner),
            Self::Packed { group, .. } | Self::Awq { group } | Self::Gptq { group, .. } => {
                group_of(group, inner)
            }
        }
    }

    /// What its scales are called.
    pub(in crate::models) fn scales(&self) -> &'static str {
        match self {
            Self::Float8 { scale, .. } => scale,
            Self::Float8Rows | Self::Packed { .. } => "weight_scale",
            Self::Awq { .. } | Self::Gptq { .. } => "scales",
        }
    }

    /// Its tensors that are of no use here.
    pub(super) fn inert(&self) -> &'static [&'static str] {
        match self {
            Self::Float8 { .. } | Self::Float8Rows => &["input_scale", "activation_scale"],
            Self::Packed { .. } => &["weight_shape", "weight_g_idx", "input_scale"],
            Self::Awq { .. } => &[],
            Self::Gptq { zeros: ZeroPoints::Symmetric, .. } => &["g_idx", "qzeros"],
            Self::Gptq { .. } => &["g_idx"],
        }
    }

    /// `x [.., in]` times the layer of the current scope, `[.., out]`, rounded to `dtype`.
    pub(in crate::models) fn linear<'b>(
        self,
        b: &'b Builder,
        x: Tensor<'b>,
        shape: [u64; 2],
        dtype: DType,
    ) -> Tensor<'b> {
        match self.parts(b, shape) {
            Ok(Parts { codes, scales, zeros, block }) => {
                let zeros = zeros.map(|zeros| b.weight_of(zeros));
                x.scaled_matmul(b.weight_of(codes), b.weight_of(scales), zeros, block, dtype)
            }
            Err(reason) => b.fail(reason),
        }
    }

    fn parts(self, b: &Builder, [out, inner]: [u64; 2]) -> Result<Parts, String> {
        let tensor = |name: &str, dtype, shape: [u64; 2]| b.tensor(name, dtype, shape);
        match self {
            Self::Float8 { block: Some(block), scale } => Ok(Parts {
                codes: tensor("weight", DType::E4M3, [out, inner]),
                scales: wide(tensor(scale, DType::F32, blocks(block, [out, inner]))),
                zeros: None,
                block,
            }),
            // One scale for each row too: then layers of one input still become one.
            Self::Float8 { block: None, scale } => Ok(Parts {
                codes: tensor("weight", DType::E4M3, [out, inner]),
                scales: Recipe::Broadcast {
                    shape: vec![out, 1],
                    of: Box::new(wide(b.tensor(scale, DType::F32, [1]))),
                },
                zeros: None,
                block: [1, inner],
            }),
            Self::Float8Rows => Ok(Parts {
                codes: tensor("weight", DType::E4M3, [out, inner]),
                scales: wide(tensor("weight_scale", DType::F32, [out, 1])),
                zeros: None,
                block: [1, inner],
            }),
            Self::Packed { group, zeros } => {
                let group = group_of(group, inner);
                let groups = inner.div_ceil(group);
                let words = tensor("weight_packed", DType::I32, [out, inner.div_ceil(IN_A_WORD)]);
                let zeros = match zeros {
                    ZeroPoints::Symmetric => None,
                    ZeroPoints::Stored | ZeroPoints::LessOne => {
                        let shape = [out.div_ceil(IN_A_WORD), groups];
                        Some(tensor("weight_zero_point", DType::I32, shape))
                    }
                };
                Ok(Parts {
                    codes: unpacked(words, 1, inner, PLAIN, MIDDLE),
                    scales: wide(tensor("weight_scale", DType::F16, [out, groups])),
                    zeros: zeros.map(|words| unpacked(words, 0, out, PLAIN, MIDDLE)),
                    block: [1, group],
                })
            }
            Self::Awq { group } => {
                let group = group_of(group, inner);
                let across = words(out, "out")?;
                let groups = inner.div_ceil(group);
                let codes = transposed(tensor("qweight", DType::I32, [inner, across]));
                let zeros = transposed(tensor("qzeros", DType::I32, [groups, across]));
                Ok(Parts {
                    codes: unpacked(codes, 0, out, AWQ, MIDDLE),
                    scales: wide(transposed(tensor("scales", DType::F16, [groups, out]))),
                    zeros: Some(unpacked(zeros, 0, out, AWQ, MIDDLE)),
                    block: [1, group],
                })
            }
            Self::Gptq { group, zeros } => {
                let group = group_of(group, inner);
                let groups = inner.div_ceil(group);
                let codes = tensor("qweight", DType::I32, [words(inner, "in")?, out]);
                let less = match zeros {
                    ZeroPoints::Symmetric => None,
                    ZeroPoints::Stored => Some(MIDDLE),
                    // One more than what is stored is the zero point.
                    ZeroPoints::LessOne => Some(MIDDLE - 1),
                };
                let zeros = less.map(|less| -> Result<_, String> {
                    let shape = [groups, words(out, "out")?];
                    let zeros = transposed(tensor("qzeros", DType::I32, shape));
                    Ok(unpacked(zeros, 0, out, PLAIN, less))
                });
                Ok(Parts {
                    codes: unpacked(transposed(codes), 1, inner, PLAIN, MIDDLE),
                    scales: wide(transposed(tensor("scales", DType::F16, [groups, out]))),
                    zeros: zeros.transpose()?,
                    block: [1, group],
                })
            }
        }
    }
}

fn group_of(group: Option<u64>, inner: u64) -> u64 {
    group.unwrap_or(inner).max(1)
}

fn blocks(block: [u64; 2], [out, inner]: [u64; 2]) -> [u64; 2] {
    [out.div_ceil(block[0].max(1)), inner.div_ceil(block[1].max(1))]
}

/// Words that hold so many integers; formats that do not say the shape have no others.
fn words(integers: u64, axis: &str) -> Result<u64, String> {
    match integers.is_multiple_of(IN_A_WORD) {
        true => Ok(integers / IN_A_WORD),
        false => Err(format!(
            "a layer with {integers} features {axis} is no whole number of words of {IN_A_WORD} \
             integers, so this format can't keep it"
        )),
    }
}

/// Scales in f32, which holds those of every format: so formats share what is compiled.
fn wide(of: Recipe) -> Recipe {
    match of.ty() {
        Ok(ty) if ty.dtype == DType::F32 => of,
        _ => Recipe::Cast { to: DType::F32, of: Box::new(of) },
    }
}

fn transposed(of: Recipe) -> Recipe {
    Recipe::Transpose { perm: vec![1, 0], of: Box::new(of) }
}

fn unpacked(of: Recipe, axis: usize, len: u64, order: [u8; 8], less: u8) -> Recipe {
    Recipe::Unpack { axis, order, less, len, of: Box::new(of) }
}
