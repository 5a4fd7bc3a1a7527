//! What a graph computes in, and what to try where its numbers leave that.

use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;

/// The narrowest range of numbers that a graph computes in.
pub fn narrowest_range(graph: &Graph) -> DType {
    let results = graph.nodes().flat_map(|node| &graph.node(node).results);
    let dtypes = results.map(|&value| graph.ty(value).dtype);
    let rank =
        |dtype: &DType| [DType::F32, DType::BF16, DType::F16].iter().position(|d| d == dtype);
    dtypes.filter(|dtype| rank(dtype).is_some()).max_by_key(rank).unwrap_or(DType::F32)
}

/// What to try where a model that computes in this dtype makes NaN or infinite numbers.
pub fn out_of_range_advice(computes_in: DType) -> &'static str {
    match computes_in {
        DType::F16 => {
            "the model computes in f16, which ends at 65504: try bf16 (`--dtype bf16`), which does not"
        }
        _ => {
            "look for NaN or infinite numbers in the weights, and run with checks.poison and \
             checks.compare to see whether an op makes them"
        }
    }
}
