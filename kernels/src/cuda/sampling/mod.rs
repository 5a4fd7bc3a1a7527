//! [`crate::sampling::Sample`] and [`crate::sampling::ControlledSample`] on CUDA: the twins of the
//! CPU's sampler, bit for bit.

use super::text::{defines, float};
use crate::inputs::{DETAIL_WORDS, MAX_LOGIT_BIASES, NO_ID};
use crate::lower::{LowerError, fail};
use crate::op::cuda::{GridAxis, LaunchRecipe, OpKernels, Param};
use crate::op::{LN2_HIGH, LN2_LOW, LOWEST, POLYNOMIAL};
use piecewise_ir::dim::Dim;
use piecewise_ir::entity::Entity;
use piecewise_ir::types::TensorType;

/// Blocks that look for the largest logit of one row.
const PARTS: u64 = 32;
/// As on the CPU: weights of 40 binary places then sum to less than 2^63.
const MAX_VOCABULARY: u64 = 1 << 22;

/// The two launches of `piecewise.sample` for operands of these types: the largest logit of each
/// part of a row, then the choice. Arguments: the op's operands, then its result.
///
/// # Errors
/// When the logits are not `[R, V]` with a symbol R and a static V of 1 to 2^22.
pub fn sample_kernels(operands: &[TensorType]) -> Result<OpKernels, LowerError> {
    let launches = Launches::of(operands, include_str!("sample.cu"))?;
    let args = |range: std::ops::Range<u32>| range.map(Param::Arg).chain([Param::Scratch(0)]);
    Ok(launches.kernels(
        ("sample_parts", args(0..1).collect()),
        ("sample", args(0..7).collect()),
        0,
    ))
}

/// The same of `piecewise.controlled_sample`.
///
/// # Errors
/// As for [`sample_kernels`].
pub fn controlled_sample_kernels(operands: &[TensorType]) -> Result<OpKernels, LowerError> {
    let sizes = format!("#define BIASES {MAX_LOGIT_BIASES}\n#define DETAILS {DETAIL_WORDS}\n\n");
    let launches = Launches::of(operands, &(sizes + include_str!("controlled.cu")))?;
    let parts = [0, 6, 7, 8, 9].map(Param::Arg).into_iter().chain([Param::Scratch(0)]);
    let whole = (0..12).map(Param::Arg).chain([Param::Scratch(0)]);
    let parts = ("controlled_parts", parts.collect());
    Ok(launches.kernels(parts, ("controlled_sample", whole.collect()), 32 * 8))
}

/// What the launches of both have in common.
struct Launches {
    source: String,
    rows: Dim,
    /// The last parameters of each.
    tail: [Param; 4],
}

impl Launches {
    fn of(operands: &[TensorType], entries: &str) -> Result<Self, LowerError> {
        let shape = operands.first().map(|ty| ty.shape.as_slice()).unwrap_or_default();
        let [rows, vocabulary] = shape else {
            return fail("sampling takes logits [R, V]");
        };
        let (Some(symbol), Some(vocabulary @ 1..=MAX_VOCABULARY)) =
            (rows.as_symbol(), vocabulary.as_constant())
        else {
            return fail("sampling needs rows counted by one symbol and a vocabulary of 1 to 2^22");
        };
        let mut source = String::from("#include \"prelude.cuh\"\n\n");
        source += &defines([
            ("PARTS", PARTS.to_string()),
            ("NO_ID", format!("({NO_ID})")),
            ("LOWEST", format!("({})", float(LOWEST))),
            ("LOG2_E", float(std::f32::consts::LOG2_E)),
            ("LN2_HIGH", float(LN2_HIGH)),
            ("LN2_LOW", format!("({})", float(LN2_LOW))),
        ]);
        for (i, coefficient) in POLYNOMIAL.iter().rev().enumerate() {
            source.push_str(&format!("#define P{i} {}\n", float(*coefficient)));
        }
        source.push_str(include_str!("choose.cuh"));
        source.push('\n');
        source.push_str(entries);
        let tail = [
            Param::Counts,
            Param::size(rows.clone()),
            Param::size(vocabulary),
            Param::size(symbol.index()),
        ];
        Ok(Self { source, rows: rows.clone(), tail })
    }

    /// The launches with these entries and parameters; the second has `shared` bytes of its own.
    fn kernels(
        self,
        parts: (&str, Vec<Param>),
        whole: (&str, Vec<Param>),
        shared: u32,
    ) -> OpKernels {
        let Self { source, rows, tail } = self;
        let launch = |(entry, args): (&str, Vec<Param>), grid, threads, static_shared| {
            let params = args.into_iter().chain(tail.clone()).collect();
            let launch = LaunchRecipe::own(source.as_str(), entry, grid, threads, params);
            LaunchRecipe { static_shared, ..launch }
        };
        let of_parts = [GridAxis::of(PARTS, 1), GridAxis::of(rows.clone(), 1), GridAxis::one()];
        let of_rows = GridAxis::of(rows.clone(), 1).alone();
        OpKernels {
            launches: vec![
                launch(parts, of_parts, 256, 64),
                launch(whole, of_rows, 1024, 32 * 8 + 256 * 8 + 16 + shared),
            ],
            scratch: rows.times((PARTS * 8) as i64),
        }
    }
}
