//! What a rule is: a pattern, a guard and a replacement under one name.

use crate::analysis::splat;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::{Graph, NodeData};
use piecewise_ir::literal::{Literal, Scalar};
use piecewise_ir::op::Op;
use piecewise_ir::types::TensorType;

/// A local rewrite of nodes with one result. What it gives must have every bit of what was there, and
/// rest on the node and on what defines its operands alone, never on who reads it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub(super) name: &'static str,
    pub(super) pattern: fn(&Op) -> bool,
    pub(super) replace: fn(&Site<'_>) -> Option<New>,
    pub(super) otherwise: Option<&'static str>,
}

impl Rule {
    /// A rule that looks at nodes whose op fits `pattern`. Of each, `replace` is the guard, where it
    /// gives `None` and the node stays, and else the replacement. The name stands in reports, diffs
    /// and errors: `cast of widening cast`.
    pub const fn new(
        name: &'static str,
        pattern: fn(&Op) -> bool,
        replace: fn(&Site<'_>) -> Option<New>,
    ) -> Self {
        Self { name, pattern, replace, otherwise: None }
    }

    /// Remarks `why` of each node that fits the pattern and stays.
    #[must_use]
    pub const fn or_remark(mut self, why: &'static str) -> Self {
        self.otherwise = Some(why);
        self
    }
}

/// A node that a rule looks at: its operands as they are by now.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// What defines the operands.
    pub graph: &'a Graph,
    /// With its attributes.
    pub op: &'a Op,
    /// In the order of the op.
    pub operands: &'a [Value],
    /// Of the result.
    pub ty: &'a TensorType,
}

impl<'a> Site<'a> {
    /// The type of an operand.
    pub fn operand_ty(&self, position: usize) -> &'a TensorType {
        self.graph.ty(self.operands[position])
    }

    /// The node that defines an operand; `None` of an input, a weight or a state.
    pub fn definition(&self, position: usize) -> Option<&'a NodeData> {
        self.graph.defining_node(self.operands[position]).map(|node| self.graph.node(node))
    }

    /// The first operand of the node that defines an operand, if its op is as wanted.
    pub fn through(&self, position: usize, wanted: impl Fn(&Op) -> bool) -> Option<Value> {
        let data = self.definition(position)?;
        wanted(&data.op).then(|| data.operands[0])
    }

    /// The one value of all elements of an operand, if that is known.
    pub fn splat(&self, position: usize) -> Option<Scalar> {
        splat(self.graph, self.operands[position])
    }

    /// Another op on values that are there, with the result's type.
    pub fn node(&self, op: Op, operands: impl IntoIterator<Item = Value>) -> New {
        self.nodes(op, operands.into_iter().map(New::Value))
    }

    /// Another op, on new nodes too, with the result's type.
    pub fn nodes(&self, op: Op, operands: impl IntoIterator<Item = New>) -> New {
        New::Node(op, operands.into_iter().collect(), self.ty.clone())
    }
}

/// What comes in the place of a node.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one lives at a time, and a box each would cost more"
)]
pub enum New {
    /// A value that is there already.
    Value(Value),
    /// A new node with a result of this type.
    Node(Op, Vec<New>, TensorType),
}

impl New {
    /// A constant in every element of a tensor of a type.
    pub fn splat(scalar: Scalar, ty: &TensorType) -> Self {
        let literal = Op::Literal(Literal::from_scalars(ty.dtype, [scalar]));
        let one = Self::Node(literal, Vec::new(), TensorType::scalar(ty.dtype));
        match ty.rank() {
            0 => one,
            _ => Self::Node(Op::Broadcast, vec![one], ty.clone()),
        }
    }
}
