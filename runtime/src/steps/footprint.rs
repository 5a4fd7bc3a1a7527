//! What a model takes besides its data, before anything is there: code, captured graphs and pinned
//! blocks.

use super::staging::BLOCKS;
use crate::device::{Member, Members};
use crate::dispatch::Dispatcher;
use crate::memory::sample_blocks;
use crate::words::{Ledger, SymbolClass, SymbolTable};
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::compiler::Footprint;
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::Module;
use std::collections::BTreeMap;

impl Ledger {
    /// Adds what code and the graphs of the dispatcher's mode will take, from what the pieces were
    /// lowered to.
    pub fn with_code<'a>(
        mut self,
        module: &Module,
        symbols: &SymbolTable,
        dispatcher: &Dispatcher,
        lowered: impl Iterator<Item = (UniquePieceId, &'a Artifact)>,
        footprint: Footprint,
    ) -> Self {
        let mut images = BTreeMap::new();
        let mut sized: BTreeMap<UniquePieceId, Vec<(PieceSize, u64)>> = BTreeMap::new();
        for (unique, artifact) in lowered {
            let launches = artifact.first_launches().count();
            sized.entry(unique).or_default().push((artifact.size, launches as u64));
            images.extend(artifact.images.iter().map(|(digest, bytes)| (*digest, bytes.len())));
        }
        if footprint.loads_images {
            self.modules = images.into_values().map(|bytes| bytes as u64).sum();
        }
        let (graphs, launches) = graphs_of(module, symbols, dispatcher, &sized);
        self.context = footprint.context_bytes;
        self.graphs = graphs * footprint.graph_bytes + launches * footprint.launch_bytes;
        self
    }

    /// Adds the pinned blocks that steps are staged through.
    pub fn with_pinned(
        mut self,
        module: &Module,
        symbols: &SymbolTable,
        read_outputs: &[usize],
        max_logit_rows: u64,
    ) -> Self {
        let Some(layout) = module.layout() else { return self };
        let mut bounds = symbols.bounds().to_vec();
        for (i, bound) in bounds.iter_mut().enumerate() {
            if symbols.at(i).class == SymbolClass::Rows {
                *bound = (*bound).max(max_logit_rows * symbols.at(i).times);
            }
        }
        let graph = module.graph();
        let outputs = read_outputs.iter().filter_map(|&i| graph.outputs().get(i));
        let read: u64 = outputs.map(|&v| graph.ty(v).bytes(&bounds).next_multiple_of(64)).sum();
        self.pinned = BLOCKS as u64 * (layout.staged.max(64) + read.max(64));
        self.pinned += sample_blocks(graph, symbols.bounds());
        self
    }
}

/// How many graphs there will be, and how many launches in all of them.
fn graphs_of(
    module: &Module,
    symbols: &SymbolTable,
    dispatcher: &Dispatcher,
    sized: &BTreeMap<UniquePieceId, Vec<(PieceSize, u64)>>,
) -> (u64, u64) {
    let Some(stitch) = module.stitch() else { return (0, 0) };
    let member = |step: &piecewise_ir::module::Step| {
        let unique = stitch.uses[step.id()].unique;
        let all = sized.get(&unique).map_or(&[][..], Vec::as_slice);
        let is_general = |size: &PieceSize| matches!(size, PieceSize::General(_));
        let general = all.iter().find(|(size, _)| is_general(size)).map_or(0, |(_, n)| *n);
        let mut sized: Vec<_> = all.iter().filter(|(size, _)| !is_general(size)).copied().collect();
        sized.sort_unstable();
        Member {
            step: *step,
            label: String::new(),
            over: stitch.unique[unique].over.map(|s| symbols.over(s)),
            excluded_by: None,
            probed: None,
            sized,
            general,
        }
    };
    let members = Members { list: stitch.steps.iter().map(member).collect() };
    let (mut graphs, mut launches) = (0, 0);
    for member in members.list.iter().filter(|member| member.is_captured_piece()) {
        let Some(over) = member.over else { continue };
        let sizes = dispatcher.piece_graph_sizes(symbols, over, member.has_uniform());
        graphs += sizes.len() as u64;
        launches += sizes.into_iter().map(|size| *member.at(size)).sum::<u64>();
    }
    for sizes in dispatcher.full_graph_sizes() {
        graphs += 1;
        launches += members.list.iter().map(|member| *member.program(&sizes)).sum::<u64>();
    }
    (graphs, launches)
}
