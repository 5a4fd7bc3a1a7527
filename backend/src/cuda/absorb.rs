//! Which regions of a piece become part of the products beside them: at one row, and on Hopper after
//! products of more and, in an alternative, before those of a few.
//!
//! A region that is a map of the product before it ends that product, which finishes elements
//! instead of storing its own; where its results are narrower than the product, an element of each
//! of equal ranges of the columns (a gate and what it gates) together. Another goes where its results
//! go: what a product reads and nothing else does is computed by that product's blocks, the rest by
//! the product that the region follows. The region is cut between the two at values that have a slot. A
//! region is absorbed whole or not at all, so that each saves a launch.
//!
//! The plan's lifetimes take a product and the regions beside it as one moment, so no slot that
//! such a launch reads shares bytes with one that it writes.

use super::alternatives::Way;
use super::product_ways::{ABSORBING_ROWS, ProductWays};
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::op::Op;
use piecewise_kernels::cuda::{
    AfterProduct, BeforeProduct, LaunchRecipe, MatMulSpec, OperandRole, PartParam, RegionPart,
};

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
    /// None.
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

/// A region's part in a product's launch.
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

/// A product with the regions in it.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Group {
    pub(super) before: Option<Absorbed>,
    pub(super) after: Option<Absorbed>,
}

/// What becomes of each node of a piece, by position in program order.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Absorption {
    /// Regions that have no launch of their own.
    pub(super) gone: Vec<bool>,
    /// Products with what they absorb.
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
    let data = graph.node(node);
    let (operands, results) = (graph.operand_types(node), graph.result_types(node));
    let (&Op::MatMul { transpose_lhs, transpose_rhs }, [lhs, rhs], [out]) =
        (&data.op, &operands[..], &results[..])
    else {
        return Err("a matmul takes two operands and has one result".to_owned());
    };
    let spec = MatMulSpec::new(transpose_lhs, transpose_rhs, lhs, rhs, out);
    let spec = spec.map_err(|e| e.to_string())?;
    Ok(if role(graph, data.operands[1]).weight { spec.of_weight() } else { spec })
}

/// Whether it is the second product of a piece, the fourth and so on.
pub(super) fn is_odd_product(graph: &Graph, matmul: Node) -> bool {
    let before = graph.nodes().take_while(|&node| node != matmul);
    before.filter(|&node| matches!(graph.node(node).op, Op::MatMul { .. })).count() % 2 == 1
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
    ) -> Option<Vec<(Way, LaunchRecipe)>> {
        let spec = product(graph, matmul).ok()?;
        let rows = spec.rows().eval(limits);
        let before = self.before.as_ref();
        let before = before.map(|b| BeforeProduct { region: &b.part.region, roles: &b.roles });
        let after = match &self.after {
            None => None,
            Some(_) => Some(self.product_and_after(graph, matmul)?),
        };
        let weights = graph.node(matmul).operands.get(1)?;
        let is_long = graph.ty(*weights).bytes(limits) > LONG_BYTES;
        if ways.prefers_ring(&spec, rows) && (before.is_none() || !is_long) {
            let longer = is_odd_product(graph, matmul);
            let kernel =
                |(way, form)| Some((way, spec.ring_kernel(rows, before, after, form).ok()?));
            let kernels: Vec<_> =
                ways.rings(&spec, rows, longer).filter_map(kernel).take(most).collect();
            return (!kernels.is_empty()).then_some(kernels);
        }
        if self.before.is_none() && ways.prefers_tiles(&spec, rows) {
            let recipe = spec.tile_kernel(after).ok()?;
            return Some(vec![(Way::Tile, recipe)]);
        }
        if is_long || !ways.absorbs(rows) {
            return None;
        }
        Some(vec![(Way::Stream, spec.absorbing_kernel(rows, before, after).ok()?)])
    }

    fn product_and_after(&self, graph: &Graph, matmul: Node) -> Option<AfterProduct<'_>> {
        let after = self.after.as_ref()?;
        let value = graph.result(matmul);
        let product = after.operands.iter().position(|&v| v == value)?;
        Some(AfterProduct { region: &after.part.region, roles: &after.roles, product })
    }

    /// What the kernel reads and what it writes, in the order of its arguments.
    pub(super) fn arguments(&self, graph: &Graph, matmul: Node) -> (Vec<Value>, Vec<Value>) {
        let data = graph.node(matmul);
        let mut read = match &self.before {
            Some(before) => before.operands.clone(),
            None => vec![data.operands[0]],
        };
        read.push(data.operands[1]);
        let Some(after) = &self.after else { return (read, data.results.clone()) };
        read.extend(after.operands.iter().filter(|v| !data.results.contains(v)));
        (read, after.results.clone())
    }
}

/// A piece at a size.
struct Piece<'a> {
    graph: &'a Graph,
    order: Vec<Node>,
    limits: &'a [u64],
    recomputed: Recomputed,
    ways: ProductWays,
}

impl Absorption {
    /// What is absorbed where symbols have these sizes; nothing where no region is.
    pub(super) fn of(
        graph: &Graph,
        limits: &[u64],
        recomputed: Recomputed,
        ways: ProductWays,
    ) -> Option<Self> {
        let piece = Piece { graph, order: graph.nodes().collect(), limits, recomputed, ways };
        let n = piece.order.len();
        let mut absorption = Self { gone: vec![false; n], groups: vec![None; n] };
        for position in 0..n {
            let moved = piece.moves(position, false).or_else(|| piece.moves(position, true));
            let Some((before, after)) = moved else { continue };
            absorption.gone[position] = true;
            for (matmul, part) in before {
                absorption.groups[matmul].get_or_insert_default().before = Some(part);
            }
            for (matmul, part) in after {
                absorption.groups[matmul].get_or_insert_default().after = Some(part);
            }
        }
        absorption.gone.contains(&true).then_some(absorption)
    }
}

/// Parts of a region by the position of the product that takes each.
type Moved = Vec<(usize, Absorbed)>;

impl Piece<'_> {
    /// Where the parts of the region at `position` go, before and after products, if all of it can:
    /// with what products read computed by them (`ahead`), or all of it after one.
    fn moves(&self, position: usize, ahead: bool) -> Option<(Moved, Moved)> {
        let node = self.order[position];
        let data = self.graph.node(node);
        let Op::Region(_) = &data.op else { return None };
        let results = 0..data.results.len();
        let recomputes = self.recomputed != Recomputed::Nothing;
        let reader = |&i: &usize| self.product_of(data.results[i]).filter(|_| ahead && recomputes);
        let readers: Vec<(usize, usize)> =
            results.clone().filter_map(|i| Some((i, reader(&i)?))).collect();
        let stays: Vec<usize> =
            results.filter(|i| !readers.iter().any(|(read, _)| read == i)).collect();
        let mut before = Moved::new();
        for (result, matmul) in readers {
            let part = Absorbed::of(self.graph, position, node, &[result], &stays)?;
            let group = Group { before: Some(part), after: None };
            group.kernels(self.graph, self.order[matmul], self.limits, self.ways, 1)?;
            let part = group.before.filter(|p| self.may_recompute(p))?;
            before.push((matmul, part));
        }
        if stays.is_empty() {
            return (!before.is_empty()).then_some((before, vec![]));
        }
        let matmul = position.checked_sub(1)?;
        let value = self.single_result(self.order[matmul])?;
        let needs = |part: &Absorbed| part.operands.contains(&value);
        if self.readers(value) != [position] || before.iter().any(|(_, part)| needs(part)) {
            return None;
        }
        let part = Absorbed::of(self.graph, position, node, &stays, &[])?;
        let group = Group { before: None, after: Some(part) };
        group.kernels(self.graph, self.order[matmul], self.limits, self.ways, 1)?;
        Some((before, vec![(matmul, group.after?)]))
    }

    fn may_recompute(&self, part: &Absorbed) -> bool {
        let body = &part.part.region.body;
        if body.nodes().any(|n| matches!(body.node(n).op, Op::Reduce { .. })) {
            return true;
        }
        let bytes = part.results.iter().map(|&v| self.graph.ty(v).bytes(self.limits));
        self.recomputed == Recomputed::Any && bytes.sum::<u64>() <= RECOMPUTED_BYTES
    }

    /// The result of a product.
    fn single_result(&self, node: Node) -> Option<Value> {
        let data = self.graph.node(node);
        matches!(data.op, Op::MatMul { .. }).then(|| data.results.first().copied()).flatten()
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

    /// The position of the product that reads a value as its left operand, where nothing else
    /// reads it.
    fn product_of(&self, value: Value) -> Option<usize> {
        let [reader] = self.readers(value)[..] else { return None };
        let &node = self.order.get(reader)?;
        self.single_result(node)?;
        (self.graph.node(node).operands.iter().position(|&v| v == value) == Some(0)
            && self.graph.node(node).operands[1] != value)
            .then_some(reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvrtc::Arch;
    use piecewise_ir::builder::Builder;
    use piecewise_ir::dtype::DType;

    #[test]
    fn a_piece_without_regions_absorbs_nothing() {
        let b = Builder::new("plain");
        let rows = b.symbol("T", 1, 64);
        let x = b.input("x", DType::BF16, (rows, 64));
        let y = x.matmul_transposed(b.weight("w", [64u64, 64]), DType::BF16);
        let graph = b.finish([y]).unwrap();
        assert!(product(&graph, graph.nodes().next().unwrap()).unwrap().streams());
        for rows in [0, 1, 8, 9, 1 << 20] {
            let ways = ProductWays::new(Arch::HOPPER, false);
            assert_eq!(Absorption::of(&graph, &[rows], Recomputed::Any, ways), None);
        }
    }
}
