//! Matrix products as images hold them.

use piecewise_ir::entity::Node;
use piecewise_ir::graph::Graph;
use piecewise_ir::op::{Op, check_types};
use piecewise_ir::types::TensorType;
use serde::{Deserialize, Serialize};

/// A matrix product whose sizes are known when it runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Matmul {
    /// Whether the left operand is `[.., k, m]`.
    pub transpose_lhs: bool,
    /// Whether the right operand is `[.., n, k]`, as weights of linear layers are.
    pub transpose_rhs: bool,
    /// `[.., m, k]` unless transposed.
    pub lhs: TensorType,
    /// `[.., k, n]` unless transposed; of rank 2 where every batch has the same.
    pub rhs: TensorType,
    /// `[.., m, n]`.
    pub out: TensorType,
}

impl Matmul {
    /// The product that a node is.
    pub(crate) fn of(graph: &Graph, node: Node) -> Result<Self, String> {
        let data = graph.node(node);
        let (&Op::MatMul { transpose_lhs, transpose_rhs }, &[lhs, rhs], &[out]) =
            (&data.op, &data.operands[..], &data.results[..])
        else {
            return Err("a matmul takes two operands and has one result".to_owned());
        };
        let [lhs, rhs, out] = [lhs, rhs, out].map(|value| graph.ty(value).clone());
        Ok(Self { transpose_lhs, transpose_rhs, lhs, rhs, out })
    }

    pub(crate) fn op(&self) -> Op {
        Op::MatMul { transpose_lhs: self.transpose_lhs, transpose_rhs: self.transpose_rhs }
    }

    /// That the types are those of the op.
    pub(crate) fn check_types(&self) -> Result<(), String> {
        let operands = [self.lhs.clone(), self.rhs.clone()];
        let out = std::slice::from_ref(&self.out);
        check_types(&self.op(), &operands, out).map_err(|e| e.to_string())
    }
}

/// A product of rows with narrow codes and their scales, whose sizes are known when it runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct ScaledMatmul {
    /// Rows and columns of the codes that share a scale.
    pub(crate) block: [u64; 2],
    /// Rows `[.., m, k]`, codes `[n, k]`, scales, and zeros if there are any.
    pub(crate) operands: Vec<TensorType>,
    /// `[.., m, n]`.
    pub(crate) out: TensorType,
}

impl ScaledMatmul {
    /// The product that a node is.
    pub(crate) fn of(graph: &Graph, node: Node) -> Result<Self, String> {
        let data = graph.node(node);
        let (&Op::ScaledMatMul { block }, &[out]) = (&data.op, &data.results[..]) else {
            return Err("a product with scales has one result".to_owned());
        };
        Ok(Self { block, operands: graph.operand_types(node), out: graph.ty(out).clone() })
    }

    pub(crate) fn op(&self) -> Op {
        Op::ScaledMatMul { block: self.block }
    }

    /// That the types are those of the op.
    pub(crate) fn check_types(&self) -> Result<(), String> {
        let out = std::slice::from_ref(&self.out);
        check_types(&self.op(), &self.operands, out).map_err(|e| e.to_string())
    }
}
