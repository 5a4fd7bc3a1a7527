//! What every compiler asks of a piece: operand positions, sizes, names.

use crate::artifact::{Access, Arg, ArgRef};
use crate::weights::WeightLayout;
use piecewise_ir::entity::{Entity, Node, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::text::Names;

/// The code that lowers: digests of the sources of the crates that it is in.
pub(crate) fn generator() -> String {
    let (ir, kernels) = (piecewise_ir::SOURCE_DIGEST, piecewise_kernels::SOURCE_DIGEST);
    format!("ir-{ir} kernels-{kernels} backend-{}", crate::SOURCE_DIGEST)
}

/// Operand positions of a piece's values, and what its text calls them.
pub(crate) struct Positions<'p> {
    of_values: Vec<Option<u32>>,
    pub(crate) names: Names<'p>,
}

impl<'p> Positions<'p> {
    pub(crate) fn new(piece: &'p UniquePiece) -> Self {
        let mut positions = vec![None; piece.graph.value_count()];
        for (position, value) in piece.operands().into_iter().enumerate() {
            positions[value.index()] = Some(position as u32);
        }
        Self { of_values: positions, names: Names::of(&piece.graph) }
    }

    /// The arguments of a launch, by value and access.
    pub(crate) fn args(
        &self,
        arguments: impl IntoIterator<Item = (Value, Access)>,
    ) -> Result<Vec<Arg>, String> {
        let arg = |(value, access): (Value, Access)| {
            let position = self.of_values.get(value.index()).copied().flatten();
            let unknown = || format!("{} is no operand of the piece", self.names.value(value));
            Ok(Arg { at: ArgRef::Operand(position.ok_or_else(unknown)?), access })
        };
        arguments.into_iter().map(arg).collect()
    }
}

/// A node's scope and source line.
pub(crate) fn location(graph: &Graph, node: Node) -> String {
    let loc = &graph.node(node).loc;
    match (loc.scope.as_str(), loc.source.as_str()) {
        ("", "") => "no source line".to_owned(),
        (scope, "") => scope.to_owned(),
        ("", source) => source.to_owned(),
        (scope, source) => format!("{scope}, {source}"),
    }
}

/// What a launch is called: its op and the first thing it defines.
pub(crate) fn launch_name(graph: &Graph, names: &Names<'_>, node: Node) -> String {
    let data = graph.node(node);
    match data.results.first() {
        Some(&result) => format!("{} {}", data.op.name(), names.value(result)),
        None => data.op.name().to_owned(),
    }
}

/// The arguments of a node: its operands, then its results.
///
/// # Errors
/// A sentence, when a value is no operand of the piece.
pub(crate) fn node_args(
    graph: &Graph,
    positions: &Positions<'_>,
    node: Node,
) -> Result<Vec<Arg>, String> {
    let data = graph.node(node);
    let mutated = data.op.mutated_operands();
    let read = data.operands.iter().enumerate().map(|(i, &value)| {
        let access = if mutated.contains(&i) { Access::ReadWrite } else { Access::Read };
        (value, access)
    });
    let written = data.results.iter().map(|&value| (value, Access::Write));
    positions.args(read.chain(written))
}

/// The layouts of every weight of every unique piece: row-major, which every kernel here reads.
pub(crate) fn row_major(stitch: &Stitch) -> Vec<Vec<WeightLayout>> {
    let pieces = stitch.unique.iter();
    pieces.map(|(_, piece)| vec![WeightLayout::RowMajor; piece.graph.weights().len()]).collect()
}
