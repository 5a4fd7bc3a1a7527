//! Products whose weights are in few bits.

use piecewise_ir::graph::Graph;
use piecewise_ir::op::Op;
use serde::Serialize;
use std::collections::BTreeMap;

/// Products with scales whose weights are of one shape, kept in one form.
#[derive(Debug, Serialize)]
pub struct ScaledRow {
    /// The dtype of the codes.
    pub dtype: &'static str,
    /// The bits of a code.
    pub bits: u64,
    /// Rows and columns of the weight.
    pub shape: Vec<u64>,
    /// Rows and columns that share a scale.
    pub block: [u64; 2],
    /// Whether each block has a zero point.
    pub zeros: bool,
    /// How many such products a step has.
    pub products: usize,
    /// Bytes of the codes of all.
    pub bytes: u64,
    /// Bytes of the scales and zero points of all.
    pub scale_bytes: u64,
}

/// The products with scales of a graph, in order of dtype and shape.
pub(super) fn scaled_rows(graph: &Graph) -> Vec<ScaledRow> {
    let mut rows = BTreeMap::new();
    for node in graph.nodes() {
        let Op::ScaledMatMul { block } = graph.node(node).op else { continue };
        let types = graph.operand_types(node);
        let [_, codes, scales @ ..] = &types[..] else { continue };
        let (dtype, shape) = (codes.dtype, codes.static_shape().unwrap_or_default());
        let zeros = scales.len() > 1;
        let row = rows.entry((dtype, shape.clone(), block, zeros)).or_insert(ScaledRow {
            dtype: dtype.name(),
            bits: dtype.bits(),
            shape,
            block,
            zeros,
            products: 0,
            bytes: 0,
            scale_bytes: 0,
        });
        row.products += 1;
        row.bytes += codes.bytes(&[]);
        row.scale_bytes += scales.iter().map(|ty| ty.bytes(&[])).sum::<u64>();
    }
    rows.into_values().collect()
}
