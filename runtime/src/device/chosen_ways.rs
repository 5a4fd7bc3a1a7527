//! What was chosen, for people.

use super::choices::{Choices, Chosen, is_open};
use super::record::WaysOrigin;
use crate::store::CompiledPieces;
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Stitch;
use serde::Serialize;

/// How a piece is run at a size of its own.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ChosenWays {
    /// The unique piece, as plans name it.
    pub piece: String,
    /// Its size, in rows of what it iterates over.
    pub size: PieceSize,
    /// Where the choice comes from.
    pub origin: WaysOrigin,
    /// The alternative that is taken.
    pub alternative: usize,
    /// Its parts in order.
    pub parts: Vec<ChosenPart>,
    /// Products of a library whose algorithm was measured.
    pub algorithms: usize,
    /// The step that it was measured in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Microseconds of that step as it was before its ways were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmeasured_us: Option<f64>,
    /// The same with all that was chosen in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen_us: Option<f64>,
}

/// A part of a piece and its way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ChosenPart {
    /// The first launch of its first way.
    pub name: String,
    /// The way that is taken.
    pub way: String,
    /// Every way that there is.
    pub of: Vec<String>,
}

impl ChosenWays {
    /// Whether it runs otherwise than it would unmeasured.
    pub fn differ(&self) -> bool {
        let is_other = |part: &ChosenPart| part.of.first() != Some(&part.way);
        self.alternative > 0 || self.algorithms > 0 || self.parts.iter().any(is_other)
    }

    fn new(piece: String, artifact: &Artifact, chosen: &Chosen) -> Self {
        let Chosen { choice, origin, record } = chosen;
        let alternative = artifact.alternatives.get(choice.alternative);
        let parts = alternative.map_or(&[][..], |one| &one.parts).iter().enumerate();
        let parts = parts.map(|(i, part)| {
            let first = part.ways.first().and_then(|way| way.launches.first());
            ChosenPart {
                name: first.map_or_else(String::new, |launch| launch.name.clone()),
                way: part.ways.get(choice.way(i)).map_or_else(String::new, |w| w.name.clone()),
                of: part.ways.iter().map(|way| way.name.clone()).collect(),
            }
        });
        Self {
            piece,
            size: artifact.size,
            origin: *origin,
            alternative: choice.alternative,
            parts: parts.collect(),
            algorithms: record.as_ref().map_or(0, |record| record.algorithms.len()),
            step: record.as_ref().map(|record| record.step.clone()),
            unmeasured_us: record.as_ref().map(|record| record.unmeasured_us),
            chosen_us: record.as_ref().map(|record| record.chosen_us),
        }
    }
}

impl Choices {
    /// How each unique piece is run at each size at which there is a choice.
    pub(crate) fn ways(&self, stitch: &Stitch, compiled: &CompiledPieces) -> Vec<ChosenWays> {
        let all = stitch.unique.keys().zip(&self.by_unique).flat_map(|(unique, chosen)| {
            let artifacts = &compiled.artifacts[unique.index()];
            let pairs = artifacts.iter().zip(chosen).filter(|(a, _)| is_open(a));
            pairs.map(move |(artifact, chosen)| {
                ChosenWays::new(unique.to_string(), artifact, chosen)
            })
        });
        all.collect()
    }
}
