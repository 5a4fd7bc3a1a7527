//! The plan document: unique pieces, the step's members and their order, slots, offsets.

use super::graph::{Anchors, Scope};
use super::writer::{Mode, Printer, undefined};
use crate::diagnostic::Anchor;
use crate::entity::{Entity, Node, PieceId, UniquePieceId};
use crate::module::{ArenaLayout, Module, PieceUse, Step, Stitch, UniquePiece};
use crate::text::names::printed_word;

impl Printer {
    /// The graph document, then the plan document if there is anything in it.
    pub(in crate::text) fn module(&mut self, module: &Module) {
        self.graph_document(module.graph());
        if module.stitch().is_none() && module.slots().is_none() && module.layout().is_none() {
            return;
        }
        self.end();
        self.line("plan {");
        self.indented(|p| {
            let scope = Scope::new(module.graph(), Mode::Listing, Anchors::Graph, 'v');
            if let Some(stitch) = module.stitch() {
                p.stitch(&scope, stitch);
            }
            if let Some(layout) = module.layout() {
                p.arena(&scope, layout);
            }
            p.slots(&scope, module);
        });
        self.line("}");
    }

    fn stitch(&mut self, scope: &Scope<'_>, stitch: &Stitch) {
        self.line("pieces {");
        self.indented(|p| {
            for (id, unique) in stitch.unique.iter() {
                p.unique(id, unique);
            }
            let nodes = node_names(scope);
            for (id, piece) in stitch.uses.iter() {
                let step = stitch.steps.iter().copied().find(|step| step.id() == id);
                p.piece_use(scope, &nodes, step, id, piece);
            }
            if stitch.steps != steps_of_uses(stitch) {
                p.begin();
                p.put("order");
                for (i, &step) in stitch.steps.iter().enumerate() {
                    p.put(if i == 0 { " " } else { ", " });
                    p.put(format_args!("{} {}", step.keyword(), step.id()));
                }
                p.end();
            }
        });
        self.line("}");
    }

    fn unique(&mut self, id: UniquePieceId, unique: &UniquePiece) {
        self.begin();
        self.put(format_args!("unique {id}"));
        self.graph_name(&unique.graph);
        if let Some(over) = unique.over {
            self.put(" over ");
            self.symbol(unique.graph.symbols(), over);
        }
        let hash: String = unique.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        self.put(format_args!(" hash \"{hash}\" {{"));
        self.end();
        self.graph_block(&unique.graph, Anchors::None);
        self.line("}");
    }

    fn piece_use(
        &mut self,
        scope: &Scope<'_>,
        nodes: &[Option<String>],
        step: Option<Step>,
        id: PieceId,
        piece: &PieceUse,
    ) {
        self.begin();
        let start = self.here();
        self.put(format_args!("{} {id}", step.map_or("use", Step::keyword)));
        self.mark(Some(Anchor::Piece(id)), start);
        self.put(format_args!(" = {} nodes [", piece.unique));
        let name = |node: Node| nodes.get(node.index()).and_then(Option::as_deref);
        self.list(&piece.nodes, |p, &node| match name(node) {
            Some(name) => p.put(name),
            None => p.put(undefined(node)),
        });
        self.put("] operands [");
        self.list(&piece.operands, |p, &value| p.put(scope.name(value)));
        self.put(']');
        self.end();
    }

    fn arena(&mut self, scope: &Scope<'_>, layout: &ArenaLayout) {
        self.begin();
        self.put("arena bounds [");
        let symbols = scope.symbols();
        self.list(layout.bounds.iter().enumerate(), |p, (i, bound)| {
            match symbols.get(Entity::new(i)) {
                Some(decl) => p.put(printed_word(&decl.name)),
                None => p.put('?'),
            }
            p.put(format_args!("={bound}"));
        });
        self.put(format_args!(
            "] align {} counts 0x{:x} staged {} bytes {}",
            layout.align, layout.counts, layout.staged, layout.bytes
        ));
        self.end();
    }

    fn slots(&mut self, scope: &Scope<'_>, module: &Module) {
        let Some(table) = module.slots() else { return };
        self.line("slots {");
        self.indented(|p| {
            for (slot, data) in table.slots.iter() {
                p.begin();
                let start = p.here();
                p.put(format_args!("{slot}: "));
                if scope.graph.has_value(data.value) {
                    p.ty(scope.symbols(), scope.graph.ty(data.value));
                }
                p.put(format_args!(" {} {}", data.kind.name(), scope.name(data.value)));
                p.put(format_args!(" live {}..{}", data.live.start, data.live.end));
                let offset = module.layout().and_then(|l| l.offsets.get(slot.index()));
                let size = module.layout().and_then(|l| l.sizes.get(slot.index()));
                if let (Some(offset), Some(size)) = (offset, size) {
                    p.put(format_args!(" at 0x{offset:x} size {size}"));
                }
                p.mark(Some(Anchor::Slot(slot)), start);
                p.end();
            }
        });
        self.line("}");
    }
}

/// The order of a step in which every use comes once, as its line says.
fn steps_of_uses(stitch: &Stitch) -> Vec<Step> {
    let of = |id| stitch.steps.iter().copied().find(|step| step.id() == id);
    stitch.uses.keys().filter_map(of).collect()
}

/// Nodes by their first result, or by their position in the program where they have none.
fn node_names(scope: &Scope<'_>) -> Vec<Option<String>> {
    let mut names = vec![None; scope.graph.node_count()];
    for (position, node) in scope.graph.nodes().enumerate() {
        if let Some(name) = names.get_mut(node.index()) {
            let result = scope.graph.node(node).results.first();
            let named = result.map(|&value| scope.name(value));
            *name = Some(named.unwrap_or_else(|| Node::new(position).to_string()));
        }
    }
    names
}
