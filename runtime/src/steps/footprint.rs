//! What a model takes besides its data, before anything is there: code, captured graphs and pinned
//! blocks.

use super::staging::BLOCKS;
use crate::device::Member;
use crate::dispatch::{Dispatcher, Stretch};
use crate::memory::sample_blocks;
use crate::words::{Ledger, SymbolClass, SymbolTable};
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::compiler::Footprint;
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::{Module, Step};
use piecewise_kernels::step::CaptureSupport;
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
        let mut by_unique: BTreeMap<UniquePieceId, Lowered> = BTreeMap::new();
        for (unique, artifact) in lowered {
            by_unique.entry(unique).or_default().add(artifact);
            images.extend(artifact.images.iter().map(|(digest, bytes)| (*digest, bytes.len())));
        }
        if footprint.loads_images {
            self.modules = images.into_values().map(|bytes| bytes as u64).sum();
        }
        let (graphs, launches) = graphs_of(module, symbols, dispatcher, &by_unique);
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

/// What a unique piece was lowered to.
struct Lowered {
    /// How many launches it has at each size.
    launches: Vec<(PieceSize, u64)>,
    support: CaptureSupport,
    follows_sizes: bool,
}

impl Default for Lowered {
    fn default() -> Self {
        let support = CaptureSupport::Always;
        Self { launches: Vec::new(), support, follows_sizes: true }
    }
}

impl Lowered {
    fn add(&mut self, artifact: &Artifact) {
        self.launches.push((artifact.size, artifact.first_launches().count() as u64));
        let support = artifact.first_launches().map(|launch| launch.capture);
        self.support = support.fold(self.support, CaptureSupport::min);
        self.follows_sizes &= artifact.follows_sizes();
    }
}

/// How many graphs there will be, and how many launches in all of them.
fn graphs_of(
    module: &Module,
    symbols: &SymbolTable,
    dispatcher: &Dispatcher,
    by_unique: &BTreeMap<UniquePieceId, Lowered>,
) -> (u64, u64) {
    let Some(stitch) = module.stitch() else { return (0, 0) };
    let none = Lowered::default();
    let lowered = |step: &Step| by_unique.get(&stitch.uses[step.id()].unique).unwrap_or(&none);
    let member = |step: &Step| {
        let Lowered { launches, follows_sizes, .. } = lowered(step);
        let is_general = |size: &PieceSize| matches!(size, PieceSize::General(_));
        let general = launches.iter().find(|(size, _)| is_general(size)).map_or(0, |(_, n)| *n);
        let sized = launches.iter().filter(|(size, _)| !is_general(size));
        let mut sized: Vec<_> = sized.copied().collect();
        sized.sort_unstable();
        Member {
            step: *step,
            label: String::new(),
            over: stitch.unique[stitch.uses[step.id()].unique].over.map(|s| symbols.over(s)),
            excluded_by: None,
            follows_sizes: *follows_sizes,
            probed: None,
            sized,
            general,
        }
    };
    let members: Vec<_> = stitch.steps.iter().map(member).collect();
    let supports = stitch.steps.iter().map(|step| lowered(step).support);
    let parts = members.iter().zip(supports).map(|(member, support)| member.stretch_part(support));
    let (mut graphs, mut launches) = (0, 0);
    for stretch in Stretch::of_step(parts) {
        for size in dispatcher.stretch_sizes(symbols, &stretch) {
            let members = members[stretch.members.clone()].iter();
            graphs += 1;
            launches += members.map(|member| *member.program_in(size)).sum::<u64>();
        }
    }
    for sizes in dispatcher.full_graph_sizes() {
        graphs += 1;
        launches += members.iter().map(|member| *member.program(&sizes)).sum::<u64>();
    }
    (graphs, launches)
}
