//! Custom ops that take in the region before them.

use super::absorb::role;
use crate::artifact::{Access, Arg, ArgRef};
use crate::lowering::Positions;
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::op::Op;
use piecewise_ir::region::Region;
use piecewise_kernels::cuda::OperandRole;
use piecewise_kernels::op::cuda::CudaRegionBefore;

/// The region before a custom op, whose results the op alone reads.
pub(super) struct RegionOf<'a> {
    /// Its position in program order.
    pub(super) position: usize,
    pub(super) node: Node,
    region: &'a Region,
    roles: Vec<OperandRole>,
    results: Vec<usize>,
    shared: Vec<Option<usize>>,
}

impl<'a> RegionOf<'a> {
    pub(super) fn find(graph: &'a Graph, op: Node) -> Option<Self> {
        let operands = &graph.node(op).operands;
        let at = |value: &Value| operands.iter().position(|operand| operand == value);
        let order = graph.nodes().take_while(|&node| node != op).enumerate();
        let (position, node) = order.filter(|&(_, node)| feeds_alone(graph, node, op)).last()?;
        let data = graph.node(node);
        let Op::Region(region) = &data.op else { return None };
        // What lies between the two must not see what the region scatters later.
        let between = graph.nodes().skip(position + 1).take_while(|&other| other != op);
        let touched = |other: Node| {
            let states = graph.node(other).operands.iter().filter(|&&v| role(graph, v).state);
            states.into_iter().any(|state| data.operands.contains(state))
        };
        if between.into_iter().any(touched) {
            return None;
        }
        Some(Self {
            position,
            node,
            region,
            roles: data.operands.iter().map(|&v| role(graph, v)).collect(),
            results: data.results.iter().map(at).collect::<Option<_>>()?,
            shared: data.operands.iter().map(at).collect(),
        })
    }

    pub(super) fn before(&self) -> CudaRegionBefore<'_> {
        CudaRegionBefore {
            region: self.region,
            roles: &self.roles,
            results: &self.results,
            shared: &self.shared,
        }
    }

    /// The arguments of the op's launches: its operands but for what the region makes, its results,
    /// the operands of the region; `None` where a value is none of the piece's.
    pub(super) fn args(
        &self,
        graph: &Graph,
        positions: &Positions<'_>,
        op: Node,
    ) -> Option<Vec<Arg>> {
        let (own, before) = (graph.node(op), graph.node(self.node));
        let access = |node: &Op, i: usize| match node.mutated_operands().contains(&i) {
            true => Access::ReadWrite,
            false => Access::Read,
        };
        let operands = own.operands.iter().enumerate().map(|(i, v)| (*v, access(&own.op, i)));
        let operands = operands.filter(|(v, _)| !before.results.contains(v));
        let results = own.results.iter().map(|v| (*v, Access::Write));
        let of_region = before.operands.iter().enumerate();
        let of_region = of_region.map(|(i, v)| (*v, access(&before.op, i)));
        operands
            .chain(results)
            .chain(of_region)
            .map(|(value, access)| {
                positions.of(value).map(|at| Arg { at: ArgRef::Operand(at), access })
            })
            .collect()
    }
}

/// Whether `op` reads every result of the region at `node`, and nothing else reads any.
fn feeds_alone(graph: &Graph, node: Node, op: Node) -> bool {
    let data = graph.node(node);
    let read_by_op = |value: &Value| {
        let readers = graph.nodes().filter(|&n| graph.node(n).operands.contains(value));
        readers.eq([op]) && !graph.outputs().contains(value)
    };
    matches!(data.op, Op::Region(_))
        && !data.results.is_empty()
        && data.results.iter().all(read_by_op)
}
