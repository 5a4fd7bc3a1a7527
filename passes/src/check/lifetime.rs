//! Lifetimes for the checker, from the rule alone and by its own way: for a node, look at the
//! matmuls and custom ops that it is, feeds or reads, one node at a time.

use piecewise_ir::entity::{Entity, Node, Symbol, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{LiveRange, Module, Stitch};
use piecewise_ir::op::{Op, OpClass};

/// The order of the step with who reads what, and the lifetimes that follow.
pub(super) struct StepOrder<'a> {
    graph: &'a Graph,
    position: Vec<Option<usize>>,
    member: Vec<Option<usize>>,
    readers: Vec<Vec<Node>>,
    /// For each member, the symbol whose rows it iterates over.
    over: Vec<Option<Symbol>>,
    len: usize,
}

impl<'a> StepOrder<'a> {
    /// The order of `stitch`, whose ids must exist.
    pub(super) fn of(graph: &'a Graph, stitch: &Stitch) -> Self {
        let mut order = Self {
            graph,
            position: vec![None; graph.node_count()],
            member: vec![None; graph.node_count()],
            readers: vec![Vec::new(); graph.value_count()],
            over: Vec::new(),
            len: 0,
        };
        for (m, step) in stitch.steps.iter().enumerate() {
            order.over.push(stitch.unique[stitch.uses[step.id()].unique].over);
            for &node in &stitch.uses[step.id()].nodes {
                order.position[node.index()] = Some(order.len);
                order.member[node.index()] = Some(m);
                order.len += 1;
                for &operand in &graph.node(node).operands {
                    order.readers[operand.index()].push(node);
                }
            }
        }
        order
    }

    /// The member that holds `node`.
    pub(super) fn member(&self, node: Node) -> Option<usize> {
        self.member[node.index()]
    }

    /// The nodes that read `value`.
    pub(super) fn readers(&self, value: Value) -> &[Node] {
        &self.readers[value.index()]
    }

    /// The last position of the step.
    pub(super) fn last(&self) -> usize {
        self.len.saturating_sub(1)
    }

    /// When the bytes of `value` must not be used for anything else; `None` for a weight, a
    /// state, or a result of a node outside the step.
    pub(super) fn lifetime(&self, value: Value) -> Option<LiveRange> {
        let writer = match self.graph.def(value) {
            ValueDef::Input(_) => return Some(LiveRange { start: 0, end: self.last() }),
            ValueDef::Weight(_) | ValueDef::State(_) => return None,
            ValueDef::Result { node, .. } => node,
        };
        let own = self.moment(writer)?;
        let reads = self.readers(value).iter().filter_map(|&n| self.moment(n)).map(|m| m.end);
        let returned = self.graph.outputs().contains(&value).then(|| self.last());
        let again = self.is_read_again(value, writer).then(|| self.last());
        let end = reads.chain(returned).chain(again).fold(own.end, usize::max);
        Some(LiveRange { start: own.start, end })
    }

    /// Whether a member over another symbol than the value's rows reads it: that member may run
    /// several times in a step.
    fn is_read_again(&self, value: Value, writer: Node) -> bool {
        let Some(rows) = self.graph.ty(value).outer_symbol() else { return false };
        self.readers(value).iter().any(|&reader| {
            let member = self.member(reader);
            let over = member.and_then(|m| self.over[m]);
            member != self.member(writer) && over.is_some_and(|symbol| symbol != rows)
        })
    }

    /// From the first to the last position of what may become one launch with `node`.
    fn moment(&self, node: Node) -> Option<LiveRange> {
        let at = self.position[node.index()]?;
        let mut range = LiveRange { start: at, end: at };
        let centres: Vec<Node> = match self.is_region(node) {
            true => self.neighbours(node).filter(|&n| self.absorbs(n, node)).collect(),
            false => vec![node],
        };
        for centre in centres {
            let regions = self.neighbours(centre).filter(|&n| self.absorbs(centre, n));
            for together in regions.chain([centre]) {
                if let Some(at) = self.position[together.index()] {
                    range.start = range.start.min(at);
                    range.end = range.end.max(at);
                }
            }
        }
        Some(range)
    }

    /// The nodes of the same member that `node` reads from and that read from it.
    fn neighbours(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        let data = self.graph.node(node);
        let before = data.operands.iter().filter_map(|&v| self.graph.defining_node(v));
        let after = data.results.iter().flat_map(|&v| self.readers(v).iter().copied());
        let member = self.member(node);
        before.chain(after).filter(move |&other| self.member(other) == member)
    }

    /// Whether `region` is one beside `centre` that may become a part of its kernels.
    fn absorbs(&self, centre: Node, region: Node) -> bool {
        let data = self.graph.node(centre);
        let beside = self.graph.node(region);
        let at = |position: usize| match position.checked_sub(data.operands.len()) {
            None => beside.results.contains(&data.operands[position]),
            Some(i) => data.results.get(i).is_some_and(|v| beside.operands.contains(v)),
        };
        let is_beside = match data.op.class() {
            OpClass::Product { .. } => true,
            OpClass::Custom(call) => call.absorbs.iter().any(|&position| at(position)),
            OpClass::Elementwise | OpClass::Remap | OpClass::Reduction | OpClass::Search => false,
            OpClass::Gather | OpClass::Scatter | OpClass::Constant | OpClass::Region(_) => false,
        };
        is_beside && self.is_region(region)
    }

    fn is_region(&self, node: Node) -> bool {
        matches!(self.graph.node(node).op, Op::Region(_))
    }
}

/// Whether every id that the stitch names exists in the module.
pub(super) fn ids_exist(module: &Module, stitch: &Stitch) -> bool {
    let graph = module.graph();
    stitch.steps.iter().all(|step| stitch.uses.get(step.id()).is_some())
        && stitch.uses.values().all(|usage| {
            usage.nodes.iter().all(|n| n.index() < graph.node_count())
                && usage.operands.iter().all(|&v| graph.has_value(v))
        })
}
