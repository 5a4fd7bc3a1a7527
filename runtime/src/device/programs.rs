//! Programs: every member of the step bound at each of its sizes.

use crate::dispatch::StretchPart;
use crate::words::{ModelError, Over, StepSizes, SymbolClass};
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::device::Program;
use piecewise_ir::entity::Node;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, Step};
use piecewise_kernels::step::CaptureSupport;
use std::collections::BTreeSet;

/// What a probe found of a member.
#[derive(Clone, Debug)]
pub(crate) struct Probed {
    /// The batches that it can be captured for.
    pub support: CaptureSupport,
    /// What went wrong in others.
    pub reason: String,
}

/// A member of the step with its programs.
#[derive(Debug)]
pub(crate) struct Member<P = Program> {
    /// A use of a unique piece, or a split op.
    pub step: Step,
    /// For people: `p3` or the op's name.
    pub label: String,
    /// What it iterates over, if it does.
    pub over: Option<Over>,
    /// The layer that keeps it from being captured, as the configuration names it.
    pub excluded_by: Option<String>,
    /// Whether every launch of every way of it follows sizes: what it launches can be set in a captured graph.
    pub follows_sizes: bool,
    /// What a probe found that it does not do as it declares.
    pub probed: Option<Probed>,
    /// Those of one size each, ascending.
    pub sized: Vec<(PieceSize, P)>,
    /// The program for any size.
    pub general: P,
}

impl<P> Member<P> {
    /// The class of the rows that it iterates over, if it does.
    pub(crate) fn class(&self) -> Option<SymbolClass> {
        self.over.map(|over| over.class)
    }

    /// Whether it is a piece that may be captured on its own, and not an op between pieces or a
    /// piece of an excluded layer.
    pub(crate) fn is_captured_piece(&self) -> bool {
        matches!(self.step, Step::Piece(_)) && self.excluded_by.is_none()
    }

    /// Whether it has programs for uniform batches alone.
    pub(crate) fn has_uniform(&self) -> bool {
        self.sized.iter().any(|(size, _)| size.query_length().is_some())
    }

    /// Its own size in a step of these sizes, where it may be captured by it: the same whether the
    /// step is launched or replayed.
    pub(crate) fn size(&self, sizes: &StepSizes) -> Option<PieceSize> {
        let over = self.over?;
        let uniform = sizes.uniform().filter(|&size| self.index(size).is_some());
        uniform.or_else(|| sizes.of_rows(over))
    }

    /// Its own size in a stretch of this size.
    pub(crate) fn size_in(&self, size: PieceSize) -> Option<PieceSize> {
        match self.index(size) {
            Some(_) if size.query_length().is_some() => Some(size),
            _ => self.over.map(|over| over.of_size(size)),
        }
    }

    /// The program in a stretch of this size.
    pub(crate) fn program_in(&self, size: PieceSize) -> &P {
        self.size_in(size).map_or(&self.general, |size| self.at(size))
    }

    /// What it can be in a stretch, by what it supports.
    pub(crate) fn stretch_part(&self, support: CaptureSupport) -> StretchPart {
        let is_piece = matches!(self.step, Step::Piece(_));
        let follows = || self.follows_sizes && support == CaptureSupport::Always;
        let joins = self.excluded_by.is_none() && (is_piece || follows());
        StretchPart {
            joins: self.class().filter(|_| joins),
            is_piece,
            has_uniform: self.has_uniform(),
        }
    }

    /// The program for the sizes of a step.
    pub(crate) fn program(&self, sizes: &StepSizes) -> &P {
        self.size(sizes).map_or(&self.general, |size| self.at(size))
    }

    /// The program for a size of its own rows.
    pub(crate) fn at(&self, size: PieceSize) -> &P {
        self.index(size).map_or(&self.general, |i| &self.sized[i].1)
    }

    /// Its place among the programs of a size, where a step of these sizes runs one of them.
    pub(crate) fn sized_at(&self, sizes: &StepSizes) -> Option<usize> {
        self.size(sizes).and_then(|size| self.index(size))
    }

    fn index(&self, size: PieceSize) -> Option<usize> {
        self.sized.binary_search_by_key(&size, |(known, _)| *known).ok()
    }
}

/// The members in the order of the step.
#[derive(Debug)]
pub(crate) struct Members {
    pub list: Vec<Member>,
}

impl Members {
    /// Keeps every member that computes a part of one of these layers from being captured: what the
    /// model's code made in a scope of that name, or in one inside of it.
    ///
    /// # Errors
    /// When a name is of no layer.
    pub(crate) fn exclude(&mut self, layers: &[String], module: &Module) -> Result<(), ModelError> {
        check_layers(layers, module.graph())?;
        let Some(stitch) = module.stitch() else { return Ok(()) };
        for layer in layers {
            for member in &mut self.list {
                let nodes = &stitch.uses[member.step.id()].nodes;
                if nodes.iter().any(|&node| is_inside(layer, module.graph(), node)) {
                    member.excluded_by.get_or_insert_with(|| layer.clone());
                }
            }
        }
        Ok(())
    }
}

/// That a graph has layers of these names, which are to be launched and never captured.
///
/// # Errors
/// [`ModelError::NoLayer`] for the first that it does not have.
pub fn check_layers(layers: &[String], graph: &Graph) -> Result<(), ModelError> {
    let is_there = |layer: &str| graph.nodes().any(|node| is_inside(layer, graph, node));
    let Some(layer) = layers.iter().find(|layer| !is_there(layer)) else { return Ok(()) };
    let scopes = graph.nodes().map(|node| graph.node(node).loc.scope.as_str());
    let known: BTreeSet<_> = scopes.filter(|scope| !scope.is_empty()).collect();
    Err(ModelError::NoLayer {
        layer: layer.clone(),
        known: known.into_iter().take(4).collect::<Vec<_>>().join(", "),
    })
}

/// Whether a node is of a layer, or of a part of it.
fn is_inside(layer: &str, graph: &Graph, node: Node) -> bool {
    let rest = graph.node(node).loc.scope.strip_prefix(layer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
