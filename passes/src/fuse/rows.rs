//! The row form: what a node looks like to one row of a symbol.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use piecewise_ir::entity::{Node, Symbol, Value};
use piecewise_ir::graph::{Graph, NodeData, ValueDef};
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::region::ParamMode;
use piecewise_ir::types::TensorType;

/// Whether a value of type `ty` is rows of `over`: the symbol exactly outermost, all else static.
pub(super) fn is_rows(ty: &TensorType, over: Symbol) -> bool {
    ty.outer_symbol() == Some(over) && ty.shape[1..].iter().all(|d| d.as_constant().is_some())
}

/// The number of elements of one row of `ty`; saturating.
pub(super) fn row_elements(ty: &TensorType) -> u64 {
    let extents = ty.shape.iter().skip(1).map(|d| d.as_constant().unwrap_or(u64::MAX));
    extents.fold(1, u64::saturating_mul)
}

/// What a node makes rows of: its results, or what it scatters and where.
pub(super) fn made_rows(data: &NodeData) -> &[Value] {
    if data.op == Op::Scatter { &data.operands[1..] } else { &data.results }
}

/// The symbol over whose rows `node` is a row program, or why it is none.
pub(super) fn row_symbol(graph: &Graph, node: Node) -> Result<Symbol, &'static str> {
    let data = graph.node(node);
    match data.op.class() {
        OpClass::Product { .. } => return Err("a matmul is a kernel of its own"),
        OpClass::Custom(_) => return Err("a custom op is a kernel of its own"),
        OpClass::Region(_) => return Err("it is a region already"),
        OpClass::Elementwise | OpClass::Remap | OpClass::Reduction | OpClass::Search => {}
        OpClass::Gather | OpClass::Scatter | OpClass::Constant => {}
    }
    let rows = made_rows(data);
    let over = rows.first().and_then(|&v| graph.ty(v).outer_symbol());
    let over = over.ok_or("it has no symbol outermost")?;
    if !rows.iter().all(|&v| is_rows(graph.ty(v), over)) {
        return Err("a dimension further in is symbolic");
    }
    if data.op.on_row().is_none() {
        return Err("it works along the rows themselves");
    }
    let modes = (0..data.operands.len()).map(|i| operand_mode(graph, node, i, over));
    if modes.into_iter().any(|mode| mode.is_none()) {
        return Err("a row of it needs other rows");
    }
    Ok(over)
}

/// How a row of `node` sees its operand at `position`; `None` if it sees other rows.
pub(super) fn operand_mode(
    graph: &Graph,
    node: Node,
    position: usize,
    over: Symbol,
) -> Option<ParamMode> {
    let data = graph.node(node);
    let ty = graph.ty(data.operands[position]);
    let row = || is_rows(ty, over).then_some(ParamMode::Row);
    let unless_mentioned = |mode| (!ty.mentions(over)).then_some(mode);
    match data.op.class() {
        OpClass::Gather if position == 0 => unless_mentioned(ParamMode::Whole),
        OpClass::Scatter if position == 0 => unless_mentioned(ParamMode::Mut),
        // Of rows with one slot one stays, so that a row looks at the slots of others unless the host
        // has held them apart.
        OpClass::Scatter if position == 1 && is_computed(graph, data.operands[1]) => None,
        OpClass::Gather | OpClass::Scatter => row(),
        OpClass::Remap if data.op == Op::Broadcast => {
            unless_mentioned(ParamMode::Whole).or_else(row)
        }
        OpClass::Remap | OpClass::Elementwise | OpClass::Reduction | OpClass::Search => row(),
        OpClass::Constant => row(),
        OpClass::Product { .. } | OpClass::Region(_) | OpClass::Custom(_) => None,
    }
}

fn is_computed(graph: &Graph, value: Value) -> bool {
    matches!(graph.def(value), ValueDef::Result { .. })
}

/// Appends the row form of `node` to `body`, with `operands` in the place of its own, and
/// returns its results.
pub(super) fn push_row_form(
    body: &mut Graph,
    graph: &Graph,
    node: Node,
    operands: Vec<Value>,
) -> Vec<Value> {
    let data = graph.node(node);
    let loc = data.loc.clone();
    if data.op == Op::Broadcast {
        let (from, to) = (graph.ty(data.operands[0]), graph.ty(data.results[0]));
        let mut value = operands[0];
        // Without its outer extent of 1, an operand of full rank lines up with the row.
        let inner = if from.rank() == to.rank() { from.row() } else { from.clone() };
        if *body.ty(value) != inner {
            value = body.push(Op::Reshape, vec![value], inner, loc.clone());
        }
        if *body.ty(value) != to.row() {
            value = body.push(Op::Broadcast, vec![value], to.row(), loc);
        }
        return vec![value];
    }
    let op = data.op.on_row().unwrap_or_else(|| data.op.clone());
    let results = data.results.iter().map(|&v| graph.ty(v).row()).collect();
    let node = body.push_node(op, operands, results, loc);
    body.node(node).results.clone()
}
