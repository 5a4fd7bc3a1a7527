//! Lowerings of products and custom ops with the regions that they absorb.

use super::absorb::{Absorbing, Absorption, Group};
use super::alternatives::{Choice, Groups, Lowering};
use super::compiler::CudaCompiler;
use super::product_ways::ProductWays;
use super::site::Site;
use crate::artifact::PieceSize;
use crate::compiler::CompileError;
use crate::lowering::{Positions, launch_name};
use piecewise_ir::entity::{Entity, Node};
use piecewise_ir::module::UniquePiece;
use piecewise_ir::op::Op;

impl CudaCompiler {
    /// What alternatives of a piece absorb by such ways of its products, each once, with how it is
    /// launched.
    pub(super) fn absorptions(
        &self,
        piece: &UniquePiece,
        positions: &Positions<'_>,
        (size, limits): (PieceSize, &[u64]),
        ways: ProductWays,
    ) -> Result<Vec<(Absorption, Groups)>, CompileError> {
        let rows = piece.over.and_then(|over| limits.get(over.index()).copied());
        let takes = |node: Node, group: &Group| {
            let order = piece.graph.order();
            let position = order.iter().position(|&n| n == node).unwrap_or(0);
            let name = launch_name(&piece.graph, &positions.names, node);
            let site = Site { piece, node, position, name, limits, size };
            self.ways_with(&site, group, (ways, 1)).is_ok_and(|ways| !ways.is_empty())
        };
        let mut absorptions: Vec<Absorption> = Vec::new();
        for absorbing in Absorbing::in_order(&piece.graph, rows) {
            let absorption = Absorption::of(&piece.graph, limits, absorbing, &takes);
            absorptions.extend(absorption.filter(|one| !absorptions.contains(one)));
        }
        let mut absorbed = Vec::with_capacity(absorptions.len());
        for absorption in absorptions {
            let groups = self.groups(piece, positions, &absorption, (size, limits), ways)?;
            absorbed.extend(groups.map(|groups| (absorption, groups)));
        }
        Ok(absorbed)
    }

    /// The ways, at most so many of a product, of the node at `site` with the regions in `group`; none
    /// where it does not take them in.
    fn ways_with(
        &self,
        site: &Site<'_>,
        group: &Group,
        (ways, most): (ProductWays, usize),
    ) -> Result<Vec<Choice>, CompileError> {
        let graph = &site.piece.graph;
        if let Op::Custom(call) = &graph.node(site.node).op {
            return self.custom_beside(site, call, &group.beside_op(graph, site.node));
        }
        let kernels = group.kernels(graph, site.node, site.limits, ways, most);
        let choice = |(way, kernels)| self.choice_of(site, way, kernels);
        Ok(kernels.into_iter().flatten().map(choice).collect())
    }

    /// The product or custom op at `site` with the regions that it absorbs.
    fn group(
        &self,
        site: &Site<'_>,
        positions: &Positions<'_>,
        absorption: &Absorption,
        ways: ProductWays,
    ) -> Result<Option<Lowering>, CompileError> {
        let graph = &site.piece.graph;
        let Some(group) = &absorption.groups[site.position] else { return Ok(None) };
        let choices = self.ways_with(site, group, (ways, self.held().most()))?;
        if choices.is_empty() {
            return Ok(None);
        }
        let args = positions.args(group.arguments(graph, site.node));
        let args = args.map_err(|reason| self.unsupported(site, reason))?;
        let nodes = group.positions(site.position);
        let name =
            |&position: &usize| launch_name(graph, &positions.names, graph.order()[position]);
        let names: Vec<String> = nodes.iter().map(name).collect();
        Ok(Some(Lowering {
            nodes: nodes.into_iter().map(|position| position as u32).collect(),
            name: names.join(" + "),
            args,
            choices,
        }))
    }

    /// Products and custom ops with what they absorb, by position in program order; nothing where some region
    /// has no other place.
    fn groups(
        &self,
        piece: &UniquePiece,
        positions: &Positions<'_>,
        absorption: &Absorption,
        (size, limits): (PieceSize, &[u64]),
        ways: ProductWays,
    ) -> Result<Option<Groups>, CompileError> {
        let mut groups = Vec::with_capacity(absorption.groups.len());
        for (position, node) in piece.graph.nodes().enumerate() {
            let name = launch_name(&piece.graph, &positions.names, node);
            let site = Site { piece, node, position, name, limits, size };
            let group = self.group(&site, positions, absorption, ways)?;
            if group.is_none() && absorption.groups[position].is_some() {
                return Ok(None);
            }
            groups.push(group);
        }
        Ok(Some(groups))
    }
}
