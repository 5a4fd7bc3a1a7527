//! Products of rows with narrow codes and their scales.

use super::MatMulSpec;
use crate::cuda::text::{defines, storage};
use crate::lower::LowerError;
use crate::op::cuda::{GridAxis, LaunchRecipe, Param};
use piecewise_ir::dtype::DType;
use piecewise_ir::op::{Op, check_types};
use piecewise_ir::types::TensorType;

/// The kernel of a product with scales, for any rows and blocks: right, and far from the rate that
/// memory gives. Arguments: x, codes, scales, zeros if there are any, y.
///
/// # Errors
/// When the types do not make a product, or an axis other than the outermost of x is symbolic.
pub fn scaled_matmul_kernel(
    block: [u64; 2],
    operands: &[TensorType],
    out: &TensorType,
) -> Result<LaunchRecipe, LowerError> {
    check_types(&Op::ScaledMatMul { block }, operands, std::slice::from_ref(out))
        .map_err(|e| LowerError(e.to_string()))?;
    let [x, codes, scales, ..] = operands else {
        return Err(LowerError("a product with scales has rows, codes and scales".to_owned()));
    };
    let floats = MatMulSpec::new(false, true, x, &codes.with_dtype(DType::F32), out)?;
    let arguments = (0..operands.len() as u32 + 1).map(Param::Arg).chain([Param::Counts]);
    let sizes = [floats.columns, floats.depth].into_iter().chain(floats.real()?).chain(block);
    let rows = Param::size(floats.rows.clone());
    let params = arguments.chain([rows]).chain(sizes.map(Param::size)).collect();
    let values = [("CODE_BITS", codes.dtype.bits()), ("HAS_ZEROS", u64::from(operands.len() > 3))];
    let types = [("X", x.dtype), ("S", scales.dtype), ("Y", out.dtype)];
    let types = types.map(|(name, dtype)| format!("typedef {} {name};\n", storage(dtype)));
    let source = format!(
        "#include \"prelude.cuh\"\n\n{}{}\n{}",
        types.concat(),
        defines(values),
        include_str!("scaled.cu")
    );
    let grid =
        [GridAxis::of(floats.columns, 64), GridAxis::of(floats.rows.clone(), 64), GridAxis::one()];
    let launch = LaunchRecipe::own(source, "scaled_matmul", grid, 256, params);
    Ok(LaunchRecipe { static_shared: 2 * 16 * 68 * 4, ..launch })
}
