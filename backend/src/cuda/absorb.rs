//! Which regions of a piece become part of the products and custom ops beside them.
//!
//! Of products: at one row, and on Hopper after products of more and, in an alternative, before
//! those of a few. A region that is a map of the product before it ends that product, which finishes
//! elements instead of storing its own; where its results are narrower than the product, an element
//! of each of equal ranges of the columns (a gate and what it gates) together. Another goes where its
//! results go: what a product reads and nothing else does is computed by that product's blocks, the
//! rest by the product that the region follows. The region is cut between the two at values that have
//! a slot. A region is absorbed whole or not at all, so that each saves a launch.
//!
//! Of custom ops: at the positions that the op's definition names, by those of its implementations
//! whose kernels have the argument element by element.
//!
//! A region after a node may have others in between: both run where the region stands, unless
//! something in between waits for the node, and at the node otherwise, unless the region waits for
//! something in between.
//!
//! The plan's lifetimes take a node that absorbs and the regions beside it as one moment, so no slot
//! that such a launch reads shares bytes with one that it writes.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::alternatives::Way;
use super::product_ways::{ABSORBING_ROWS, ProductWays};
use crate::artifact::Access;
use crate::matmul::{Matmul, ScaledMatmul};
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::{Op, OpClass};
use piecewise_kernels::cuda::{
    AfterProduct, BeforeProduct, BesideOp, MatMulSpec, OpKernels, OperandRole, PartParam,
    RegionPart,
};
use piecewise_kernels::lower::LowerError;

/// Bytes of a map that a block computes for itself: 128 for each of its threads, which takes about
/// as long as another launch.
const RECOMPUTED_BYTES: u64 = 32 << 10;

/// Bytes of weights that take so long to read that a launch less is not worth another kernel.
const LONG_BYTES: u64 = 256 << 20;

/// The most rows of a step whose products may be faster where their blocks compute the norms before them.
const RECOMPUTING_ROWS: u64 = 8;

/// Which regions before a product may be absorbed: every block of it computes them again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recomputed {
    /// Also those that are maps of few enough elements, like activations.
    Any,
    /// Those that reduce their rows, like norms: few elements, and little work beside the wait for
    /// the row itself.
    Reductions,
    /// No region: each has a launch of its own before the product.
    Nothing,
}

impl Recomputed {
    /// What alternatives of a piece of so many rows absorb, in their order.
    pub(super) fn in_order(rows: Option<u64>) -> &'static [Self] {
        match rows {
            Some(..=ABSORBING_ROWS) => &[Self::Reductions, Self::Any],
            Some(..=RECOMPUTING_ROWS) => &[Self::Nothing, Self::Reductions],
            _ => &[Self::Nothing],
        }
    }
}

/// Into which launches an alternative takes the regions beside them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Absorbing {
    /// Into products, and if so, which regions before them.
    pub(super) products: Option<Recomputed>,
    /// Whether custom ops take in what their definitions let them.
    pub(super) ops: bool,
}

impl Absorbing {
    /// What alternatives of a piece of so many rows absorb, in their order. Ops that may absorb do so
    /// first: their author says that it saves more than a launch and a value's way through memory
    /// cost to compute it where it is loaded. Where he is wrong, measuring finds one that does not.
    pub(super) fn in_order(graph: &Graph, rows: Option<u64>) -> Vec<Self> {
        let absorbs =
            |op: &Op| matches!(op.class(), OpClass::Custom(call) if !call.absorbs.is_empty());
        let has_ops = graph.nodes().any(|node| absorbs(&graph.node(node).op));
        let ops = if has_ops { &[true, false][..] } else { &[false] };
        let products = Recomputed::in_order(rows).iter().copied().map(Some).chain([None]);
        let both = products.flat_map(|products| ops.iter().map(move |&ops| Self { products, ops }));
        both.filter(|one| one.products.is_some() || one.ops).collect()
    }
}

/// A region's part in another node's launch.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Absorbed {
    /// The region's position in program order.
    pub(super) position: usize,
    part: RegionPart,
    /// What its parameters and its results are.
    operands: Vec<Value>,
    results: Vec<Value>,
    roles: Vec<OperandRole>,
}

/// A product or custom op with the regions in it.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Group {
    /// By the operand that each makes.
    before: Vec<(usize, Absorbed)>,
    after: Option<Absorbed>,
}

/// What becomes of the nodes of a piece.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Absorption {
    /// The positions of the nodes that have launches, in the order of these.
    pub(super) launched: Vec<usize>,
    /// Products and custom ops with what they absorb, by position in program order.
    pub(super) groups: Vec<Option<Group>>,
}

/// What a node's operand is to kernels. Of the inputs of a piece those of the step itself say what
/// their padding holds where it matters, what other pieces make does not.
pub(super) fn role(graph: &Graph, value: Value) -> OperandRole {
    let def = graph.def(value);
    OperandRole {
        state: matches!(def, ValueDef::State(_)),
        weight: matches!(def, ValueDef::Weight(_)),
        staged: matches!(def, ValueDef::Input(i) if graph.inputs()[i].padding.is_some()),
    }
}

/// The product that a node is.
///
/// # Errors
/// When it is none, or one that our kernels do not take: why.
pub(super) fn product(graph: &Graph, node: Node) -> Result<MatMulSpec, String> {
    let spec = if let Ok(ScaledMatmul { block, operands, out }) = ScaledMatmul::of(graph, node) {
        MatMulSpec::scaled(block, &operands, &out)
    } else {
        let Matmul { transpose_lhs, transpose_rhs, lhs, rhs, out } = Matmul::of(graph, node)?;
        MatMulSpec::new(transpose_lhs, transpose_rhs, &lhs, &rhs, &out)
    };
    let spec = spec.map_err(|e| e.to_string())?;
    Ok(if role(graph, graph.node(node).operands[1]).weight { spec.of_weight() } else { spec })
}

/// A product of so many arguments in tiles, of what is made of its codes if it has some.
///
/// # Errors
/// When tiles do not take it with what is after.
pub(super) fn tile_kernels(
    spec: &MatMulSpec,
    after: Option<AfterProduct<'_>>,
    arguments: u32,
) -> Result<OpKernels, LowerError> {
    match spec.has_codes() {
        true => spec.widened_kernels(after, arguments),
        false => Ok(OpKernels::new([spec.tile_kernel(after)?])),
    }
}

/// Whether it is the second product of a piece, the fourth and so on.
pub(super) fn is_odd_product(graph: &Graph, matmul: Node) -> bool {
    let before = graph.nodes().take_while(|&node| node != matmul);
    let is_product = |node: &Node| matches!(graph.node(*node).op.class(), OpClass::Product { .. });
    before.filter(is_product).count() % 2 == 1
}

impl Absorbed {
    fn of(
        graph: &Graph,
        position: usize,
        node: Node,
        wanted: &[usize],
        given: &[usize],
    ) -> Option<Self> {
        let data = graph.node(node);
        let Op::Region(region) = &data.op else { return None };
        let part = RegionPart::of(region, wanted, given).ok()?;
        let value = |param: &PartParam| match *param {
            PartParam::Operand(i) => data.operands.get(i).copied(),
            PartParam::Result(i) => data.results.get(i).copied(),
        };
        let operands: Vec<Value> = part.params.iter().map(value).collect::<Option<_>>()?;
        let results = wanted.iter().map(|&i| data.results[i]).collect();
        let roles = operands.iter().map(|&v| role(graph, v)).collect();
        Some(Self { position, part, operands, results, roles })
    }
}

impl Group {
    /// At most so many kernels where symbols have these sizes, the one first that is expected to be
    /// fastest, if there are any.
    pub(super) fn kernels(
        &self,
        graph: &Graph,
        matmul: Node,
        limits: &[u64],
        ways: ProductWays,
        most: usize,
    ) -> Option<Vec<(Way, OpKernels)>> {
        let spec = product(graph, matmul).ok()?;
        let rows = spec.rows.eval(limits);
        let before = self.before.first().map(|(_, before)| before);
        let before = before.map(|b| BeforeProduct { region: &b.part.region, roles: &b.roles });
        let after = match &self.after {
            None => None,
            Some(_) => Some(self.product_and_after(graph, matmul)?),
        };
        let weights = graph.node(matmul).operands.get(1)?;
        let is_long = graph.ty(*weights).bytes(limits) > LONG_BYTES;
        if ways.prefers_ring(&spec, rows) && (before.is_none() || !is_long) {
            let longer = is_odd_product(graph, matmul);
            let kernel = |(way, form)| {
                let recipe = spec.ring_kernel(rows, before, after, form).ok()?;
                Some((way, OpKernels::new([recipe])))
            };
            let kernels: Vec<_> =
                ways.rings(&spec, rows, longer).filter_map(kernel).take(most).collect();
            return (!kernels.is_empty()).then_some(kernels);
        }
        if self.before.is_empty() && ways.prefers_tiles_with_region(&spec, rows) {
            let arguments = self.arguments(graph, matmul).len() as u32;
            return Some(vec![(Way::Tile, tile_kernels(&spec, after, arguments).ok()?)]);
        }
        if is_long || !ways.absorbs(rows) {
            return None;
        }
        let recipe = spec.absorbing_kernel(rows, before, after).ok()?;
        Some(vec![(Way::Stream, OpKernels::new([recipe]))])
    }

    fn product_and_after(&self, graph: &Graph, matmul: Node) -> Option<AfterProduct<'_>> {
        let after = self.after.as_ref()?;
        let value = graph.result(matmul);
        let product = after.operands.iter().position(|&v| v == value)?;
        Some(AfterProduct { region: &after.part.region, roles: &after.roles, product })
    }

    /// The regions as parts of the kernels of a custom op.
    pub(super) fn beside_op(&self, graph: &Graph, op: Node) -> Vec<BesideOp<'_>> {
        let data = graph.node(op);
        fn beside(absorbed: &Absorbed, position: usize, result: Option<usize>) -> BesideOp<'_> {
            let Absorbed { part, roles, .. } = absorbed;
            BesideOp { position, region: &part.region, roles, result }
        }
        let before = self.before.iter().map(|(operand, part)| beside(part, *operand, None));
        let after = self.after.iter().filter_map(|part| {
            let at = |value| part.operands.iter().position(|&v| v == value);
            let mut results = data.results.iter().enumerate();
            let (i, read) = results.find_map(|(i, &value)| Some((i, at(value)?)))?;
            Some(beside(part, data.operands.len() + i, Some(read)))
        });
        before.chain(after).collect()
    }

    /// What the kernels read and what they write, in the order of their arguments.
    pub(super) fn arguments(&self, graph: &Graph, node: Node) -> Vec<(Value, Access)> {
        let data = graph.node(node);
        let mutated = data.op.mutated_operands();
        let is_made = |operand| self.before.iter().any(|(made, _)| *made == operand);
        let is_read = |value| self.after.iter().any(|after| after.operands.contains(value));
        let kept = data.operands.iter().enumerate().filter(|(i, _)| !is_made(*i));
        let kept = kept.map(|(i, &value)| match mutated.contains(&i) {
            true => (value, Access::ReadWrite),
            false => (value, Access::Read),
        });
        let stored = data.results.iter().filter(|value| !is_read(value)).copied();
        let before = self.before.iter().flat_map(|(_, part)| part.operands.iter().copied());
        let after = self.after.iter().flat_map(|part| part.operands.iter().copied());
        let after = after.filter(|value| !data.results.contains(value));
        let results = self.after.iter().flat_map(|part| part.results.iter().copied());
        let read = |value| (value, Access::Read);
        let written = |value| (value, Access::Write);
        if let OpClass::Product { .. } = data.op.class() {
            // What is before a product comes before its weight.
            let read = before.map(read).chain(kept).chain(after.map(read));
            return read.chain(results.chain(stored).map(written)).collect();
        }
        kept.chain(stored.map(written))
            .chain(before.chain(after).map(read))
            .chain(results.map(written))
            .collect()
    }

    /// The positions of its regions and of the node itself, in program order.
    pub(super) fn positions(&self, node: usize) -> Vec<usize> {
        let before = self.before.iter().map(|(_, part)| part.position);
        let after = self.after.iter().map(|part| part.position);
        let mut positions: Vec<usize> = before.chain([node]).chain(after).collect();
        positions.sort_unstable();
        positions.dedup();
        positions
    }
}

/// Whether a node's kernels take a group in.
pub(super) type Takes<'a> = dyn Fn(Node, &Group) -> bool + 'a;

/// A piece at a size.
struct Piece<'a> {
    graph: &'a Graph,
    order: Vec<Node>,
    limits: &'a [u64],
    absorbing: Absorbing,
    takes: &'a Takes<'a>,
}

impl Absorption {
    /// What is absorbed where symbols have these sizes; nothing where no region is.
    pub(super) fn of(
        graph: &Graph,
        limits: &[u64],
        absorbing: Absorbing,
        takes: &Takes<'_>,
    ) -> Option<Self> {
        let piece = Piece { graph, order: graph.nodes().collect(), limits, absorbing, takes };
        let n = piece.order.len();
        let (mut at, mut groups) = (Vec::from_iter((0..n).map(Some)), vec![None; n]);
        for position in 0..n {
            let moved = |ahead| piece.moves(&groups, position, ahead);
            let Some((before, after)) = moved(false).or_else(|| moved(true)) else { continue };
            at[position] = None;
            for (taker, operand, part) in before {
                groups[taker].get_or_insert_default().before.push((operand, part));
            }
            if let Some(After { taker, launched, part }) = after {
                groups[taker].get_or_insert_default().after = Some(part);
                at[taker] = Some(launched);
            }
        }
        let mut launched = Vec::from_iter((0..n).filter(|&position| at[position].is_some()));
        launched.sort_by_key(|&position| at[position]);
        (launched.len() < n).then_some(Self { launched, groups })
    }
}

/// A part of a region that follows a node.
struct After {
    taker: usize,
    /// The place in program order of the launch that is both.
    launched: usize,
    part: Absorbed,
}

/// Parts of a region before nodes, by the positions of the node that takes each and of its operand,
/// and after one.
type Moved = (Vec<(usize, usize, Absorbed)>, Option<After>);

impl Piece<'_> {
    /// Where the parts of the region at `position` go, before and after other nodes, if all of it
    /// can: with what they read computed by them (`ahead`), or all of it after one.
    fn moves(&self, groups: &[Option<Group>], position: usize, ahead: bool) -> Option<Moved> {
        let node = self.order[position];
        let data = self.graph.node(node);
        let Op::Region(_) = &data.op else { return None };
        let results = 0..data.results.len();
        let reader = |&i: &usize| self.taker_of(data.results[i]).filter(|_| ahead);
        let readers: Vec<(usize, (usize, usize))> =
            results.clone().filter_map(|i| Some((i, reader(&i)?))).collect();
        let stays: Vec<usize> =
            results.filter(|i| !readers.iter().any(|(read, _)| read == i)).collect();
        let mut before = Vec::new();
        for (result, (taker, operand)) in readers {
            let part = Absorbed::of(self.graph, position, node, &[result], &stays)?;
            let mut group = Group { before: vec![(operand, part)], after: None };
            if !(self.takes)(self.order[taker], &group) {
                return None;
            }
            let (operand, part) = group.before.pop()?;
            if !self.is_op(taker) && !self.may_recompute(&part) {
                return None;
            }
            before.push((taker, operand, part));
        }
        if stays.is_empty() {
            return (!before.is_empty()).then_some((before, None));
        }
        let part = Absorbed::of(self.graph, position, node, &stays, &[])?;
        // The latest first, since the fewest nodes are in between.
        let after = (0..position).rev().find_map(|taker| {
            let value = self.result_read_at(taker, position)?;
            let is_free = groups[taker].as_ref().is_none_or(|group| group.after.is_none());
            let reads = |part: &Absorbed| part.operands.contains(&value);
            if !is_free || !reads(&part) || before.iter().any(|(_, _, part)| reads(part)) {
                return None;
            }
            let launched = self.place_of_both(taker, position)?;
            let group = Group { before: Vec::new(), after: Some(part.clone()) };
            let is_taken = (self.takes)(self.order[taker], &group);
            Some(After { taker, launched, part: group.after.filter(|_| is_taken)? })
        })?;
        Some((before, Some(after)))
    }

    /// Where a node and a region that reads its result, and no state, may be one launch: at the
    /// region, if nothing before it needs the node to be done, or at the node, if the region needs
    /// nothing in between.
    fn place_of_both(&self, node: usize, region: usize) -> Option<usize> {
        let data = |at: usize| self.graph.node(self.order[at]);
        let (taker, reader) = (data(node), data(region));
        let only_there = |&value: &Value| self.readers(value).iter().all(|&at| at == region);
        let written = taker.op.mutated_operands();
        let may_be_first = |other: usize| {
            !data(other).op.has_effect()
                && !written.iter().any(|&i| data(other).operands.contains(&taker.operands[i]))
        };
        let mut between = node + 1..region;
        if taker.results.iter().all(only_there) && between.clone().all(may_be_first) {
            return Some(region);
        }
        let makes = |value: &Value| reader.operands.contains(value);
        (!between.any(|other| data(other).results.iter().any(makes))).then_some(node)
    }

    fn may_recompute(&self, part: &Absorbed) -> bool {
        let body = &part.part.region.body;
        if body.nodes().any(|n| matches!(body.node(n).op, Op::Reduce { .. })) {
            return true;
        }
        let bytes = part.results.iter().map(|&v| self.graph.ty(v).bytes(self.limits));
        self.absorbing.products == Some(Recomputed::Any) && bytes.sum::<u64>() <= RECOMPUTED_BYTES
    }

    fn is_op(&self, position: usize) -> bool {
        matches!(self.graph.node(self.order[position]).op, Op::Custom(_))
    }

    /// The result of the node at `taker` that the region at `region` may take the elements of: no
    /// other node reads it, nor the region any other of them.
    fn result_read_at(&self, taker: usize, region: usize) -> Option<Value> {
        let data = self.graph.node(self.order[taker]);
        let operands = &self.graph.node(self.order[region]).operands;
        let mut read = data.results.iter().enumerate().filter(|(_, v)| operands.contains(v));
        let (i, &value) = read.next()?;
        let is_alone = read.next().is_none() && self.readers(value) == [region];
        let takes_products = self.absorbing.products.is_some();
        let absorbs = self.absorbs(&data.op, data.operands.len() + i, takes_products);
        (is_alone && absorbs).then_some(value)
    }

    /// The positions that read a value; one past the end for the piece's outputs.
    fn readers(&self, value: Value) -> Vec<usize> {
        let reads = |node: &Node| self.graph.node(*node).operands.contains(&value);
        let mut readers: Vec<usize> =
            (0..self.order.len()).filter(|&i| reads(&self.order[i])).collect();
        if self.graph.outputs().contains(&value) {
            readers.push(self.order.len());
        }
        readers
    }

    /// The positions of the node that may compute a value for itself, and of the operand that it is:
    /// nothing else reads it.
    fn taker_of(&self, value: Value) -> Option<(usize, usize)> {
        let [reader] = self.readers(value)[..] else { return None };
        let data = self.graph.node(*self.order.get(reader)?);
        let mut read = (0..data.operands.len()).filter(|&i| data.operands[i] == value);
        let (operand, None) = (read.next()?, read.next()) else { return None };
        let recomputes = self.absorbing.products.is_some_and(|r| r != Recomputed::Nothing);
        self.absorbs(&data.op, operand, recomputes && operand == 0).then_some((reader, operand))
    }

    /// Whether a launch of the op may have a region in place of an argument, which `takes_products`
    /// says of products.
    fn absorbs(&self, op: &Op, argument: usize, takes_products: bool) -> bool {
        match op.class() {
            OpClass::Product { .. } => takes_products,
            OpClass::Custom(call) => self.absorbing.ops && call.absorbs.contains(&argument),
            OpClass::Elementwise | OpClass::Remap | OpClass::Reduction | OpClass::Search => false,
            OpClass::Gather | OpClass::Scatter | OpClass::Constant | OpClass::Region(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
