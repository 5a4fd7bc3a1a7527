//! Why a way comes first, in words.

// A new way must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::absorb::product;
use super::alternatives::{Choice, HeldWays, Lowering, Way};
use super::compiler::CudaCompiler;
use crate::compiler::{FirstWay, PieceAt};
use piecewise_ir::op::OpClass;

impl CudaCompiler {
    /// Why the first of a part's choices is taken where nothing was measured.
    pub(super) fn first_way(
        &self,
        at: PieceAt<'_>,
        lowering: &Lowering,
        choices: &[Choice],
        limits: &[u64],
    ) -> FirstWay {
        let graph = &at.piece.graph;
        let nodes = lowering.nodes.iter().filter_map(|&node| graph.order().get(node as usize));
        let of_product = nodes
            .copied()
            .find(|&node| matches!(graph.node(node).op.class(), OpClass::Product { .. }))
            .and_then(|node| product(graph, node).ok())
            .map(|spec| self.ways().reason(&spec, spec.rows.eval(limits)));
        let ways = Vec::from_iter(choices.iter().map(|choice| choice.way));
        let first = ways.first().copied().unwrap_or(Way::General);
        let mut why = match first {
            Way::Implementation(_) => "it is the first that the op gives for this call".to_owned(),
            Way::General if of_product.is_some() => format!(
                "no other kernel takes it on {}; {}",
                self.arch(),
                of_product.unwrap_or_default()
            ),
            Way::General => "each row is computed by threads of its own".to_owned(),
            Way::Ring | Way::HalfRing | Way::Panel | Way::Tensor | Way::Stream => {
                of_product.unwrap_or_default()
            }
            Way::Library | Way::Tile | Way::Spread | Way::Narrow => of_product.unwrap_or_default(),
        };
        match lowering.nodes.len() {
            ..=1 => {}
            2 => why += "; it absorbs the region beside it, which saves a launch",
            nodes => {
                why += &format!(
                    "; it absorbs {} regions beside it, a launch less for each",
                    nodes - 1
                );
            }
        }
        if self.held() == HeldWays::First {
            why += "; no other way is kept, by `tune = \"off\"` or `batch_invariant`";
        }
        FirstWay {
            name: lowering.name.clone(),
            way: first.to_string(),
            others: ways.iter().skip(1).map(Way::to_string).collect(),
            why,
        }
    }
}
