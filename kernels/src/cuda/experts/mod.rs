//! [`crate::experts`] on CUDA: rows choose their experts, experts list their rows, then each block takes a
//! few rows of one expert, so that few rows read the weights of the experts that they chose, once.

use super::text::{defines, storage};
use crate::lower::{LowerError, fail};
use crate::op::cuda::{CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param, Scalar};
use crate::op::{Blocks, LEAST_SUM, RouterScores, Routing};
use piecewise_ir::dim::Dim;
use piecewise_ir::entity::Entity;

/// Rows of an expert that a block takes.
const TILE: u64 = 8;
/// Columns of a block of the first product, and of the second.
const GATED_COLUMNS: u64 = 8;
const COLUMNS: u64 = 16;
/// What each list in scratch begins at a multiple of.
const ALIGNED: u64 = 256;

/// How the true rows follow from the counts: constant, factor, symbol.
fn real_rows(rows: &Dim) -> Result<[u64; 3], LowerError> {
    match rows.terms() {
        [] => Ok([0, 0, 0]),
        &[(symbol, factor)] if factor > 0 && rows.constant_part() >= 0 => {
            Ok([rows.constant_part() as u64, factor as u64, symbol.index() as u64])
        }
        _ => fail("experts of rows that are no multiple of one symbol"),
    }
}

/// As [`experts_kernels`](crate::experts::experts_kernels) says, of a call whose operands fit the op.
pub(crate) fn experts_kernels(
    call: &CudaOpCall<'_>,
    routing: Routing,
) -> Result<OpKernels, LowerError> {
    let [x, logits, gate_up, down] = call.operands else {
        return fail("experts take four operands");
    };
    let (rows, Some([experts, width, inner])) =
        (&x.shape[0], down.static_shape().and_then(|shape| <[u64; 3]>::try_from(shape).ok()))
    else {
        return fail("experts whose weights are of no constant shape");
    };
    let top_k = u64::from(routing.top_k);
    let mut source = String::from("#include \"prelude.cuh\"\n\n");
    for (name, ty) in [("X", x), ("L", logits), ("W", gate_up)] {
        source += &format!("typedef {} {name};\n", storage(ty.dtype));
    }
    source += &defines([
        ("EXPERTS", experts),
        ("TOP", top_k),
        ("WIDTH", width),
        ("INNER", inner),
        ("TILE", TILE),
        ("SOFTMAX", u64::from(routing.scores == RouterScores::Softmax)),
        ("RENORMALIZE", u64::from(routing.renormalize)),
    ]);
    source += &format!("#define LEAST_SUM {LEAST_SUM:e}f\n\n");
    source += include_str!("experts.cu");

    let real = real_rows(rows)?.map(Param::size);
    let counted = || [Param::Counts, Param::size(rows.clone())].into_iter().chain(real.clone());
    let launch = |entry, grid, threads, params: Vec<Param>| {
        LaunchRecipe::own(source.as_str(), entry, grid, threads, params)
    };
    // Rows of each expert begin a unit of their own; pairs are units where they are fewer than experts.
    let pairs = rows.times(top_k as i64);
    let of = |units: Dim, per_block| Blocks { units, per_block };
    let units = GridAxis::Blocks(match pairs.eval(call.sizes) <= experts {
        true => vec![of(pairs.clone(), 1)],
        false => vec![of(pairs.clone(), TILE), of(experts.into(), 1)],
    });
    let tiles =
        |columns, per_block| [units.clone(), GridAxis::of(columns, per_block), GridAxis::one()];
    let (scratch, many) = (Param::Scratch(0), Param::size(rows.clone()));
    let route = [Param::Arg(1), scratch.clone()].into_iter().chain(counted());
    let scale = Param::Scalar(Scalar::F32(routing.scale as f32));
    let combine = [scratch.clone(), Param::Arg(4)].into_iter().chain(counted());
    let launches = vec![
        launch(
            "experts_route",
            GridAxis::of(rows.clone(), 4).alone(),
            128,
            route.chain([scale]).collect(),
        ),
        launch(
            "experts_list",
            GridAxis::of(experts, 1).alone(),
            32,
            [scratch.clone()].into_iter().chain(counted()).collect(),
        ),
        launch(
            "experts_gated",
            tiles(inner, GATED_COLUMNS),
            128,
            vec![Param::Arg(0), Param::Arg(2), scratch.clone(), many.clone()],
        ),
        launch("experts_down", tiles(width, COLUMNS), 128, vec![Param::Arg(3), scratch, many]),
        launch(
            "experts_combine",
            [GridAxis::of(rows.clone(), 1), GridAxis::of(width, 256), GridAxis::one()],
            256,
            combine.collect(),
        ),
    ];
    // Of a pair its expert, its weight and its place in a list, and what its row becomes on the way.
    let bytes = 3 * 4 + (inner + width) * x.dtype.size() as u64;
    let fixed = Dim::constant((experts + 1) * 4 + 6 * ALIGNED);
    Ok(OpKernels { launches, scratch: pairs.times(bytes as i64).plus(&fixed) })
}
