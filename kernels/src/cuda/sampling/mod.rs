//! [`crate::sampling::Sample`] on CUDA: the twin of the CPU's sampler, bit for bit.

use super::matmul::options;
use super::recipe::{GridAxis, LaunchRecipe, OpKernels, Param, Scalar};
use super::text::float;
use crate::cpu::sampling::{LN2_HIGH, LN2_LOW, LOWEST, POLYNOMIAL};
use crate::lower::LowerError;
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
    let shape = operands.first().map(|ty| ty.shape.as_slice()).unwrap_or_default();
    let [rows, vocabulary] = shape else {
        return Err(LowerError("sampling takes logits [R, V]".to_owned()));
    };
    let (Some(symbol), Some(vocabulary @ 1..=MAX_VOCABULARY)) =
        (rows.as_symbol(), vocabulary.as_constant())
    else {
        return Err(LowerError(
            "sampling needs rows counted by one symbol and a vocabulary of 1 to 2^22".to_owned(),
        ));
    };
    let mut source = String::from("#include \"prelude.cuh\"\n\n");
    source.push_str(&format!("#define PARTS {PARTS}\n#define LOWEST ({})\n", float(LOWEST)));
    source.push_str(&format!("#define LOG2_E {}\n", float(std::f32::consts::LOG2_E)));
    source.push_str(&format!(
        "#define LN2_HIGH {}\n#define LN2_LOW ({})\n",
        float(LN2_HIGH),
        float(LN2_LOW)
    ));
    for (i, coefficient) in POLYNOMIAL.iter().rev().enumerate() {
        source.push_str(&format!("#define P{i} {}\n", float(*coefficient)));
    }
    source.push_str(include_str!("sample.cu"));
    let number = |n: u64| Param::Scalar(Scalar::U32(Dim::constant(n)));
    let tail = [
        Param::Counts,
        Param::Scalar(Scalar::U32(rows.clone())),
        number(vocabulary),
        number(symbol.index() as u64),
    ];
    let launch = |entry: &str, grid, threads, static_shared, args: Vec<Param>| LaunchRecipe {
        source: source.clone(),
        entry: entry.to_owned(),
        options: options(),
        grid,
        block: [threads, 1, 1],
        cluster: [1; 3],
        static_shared,
        dynamic_shared: 0,
        params: args.into_iter().chain(tail.clone()).collect(),
        programmatic: true,
        ahead: Vec::new(),
    };
    let parts = [GridAxis::of(PARTS, 1), GridAxis::of(rows.clone(), 1), GridAxis::one()];
    let whole = [GridAxis::of(rows.clone(), 1), GridAxis::one(), GridAxis::one()];
    let all = (0..7).map(Param::Arg).chain([Param::Scratch(0)]).collect();
    Ok(OpKernels {
        launches: vec![
            launch("sample_parts", parts, 256, 64, vec![Param::Arg(0), Param::Scratch(0)]),
            launch("sample", whole, 1024, 32 * 8 + 256 * 8 + 16, all),
        ],
        scratch: rows.times((PARTS * 8) as i64),
    })
}
