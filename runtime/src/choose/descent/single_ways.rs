//! The same way for the parts of all artifacts of a step at once: what each of them gains can be less
//! than the noise where all of them together gain more.

use super::{Descent, carried};
use crate::device::Place;
use crate::words::ModelError;
use piecewise_backend::artifact::Choice;
use std::collections::BTreeSet;

impl Descent<'_> {
    /// Tries each way that has a name, in each alternative, wherever what was measured has it.
    pub(super) fn try_single_ways(&mut self) -> Result<(), ModelError> {
        let places: Vec<Place> = self.measured.iter().map(|(place, _)| *place).collect();
        let mut tried = BTreeSet::new();
        for (alternative, name) in self.named_ways(&places) {
            let candidate: Vec<(Place, Choice)> = places
                .iter()
                .map(|&place| (place, self.everywhere(place, alternative, &name)))
                .filter(|(place, choice)| *choice != self.chosen(*place))
                .collect();
            if candidate.is_empty()
                || self.was_tried_alone(&candidate)
                || !tried.insert(candidate.clone())
            {
                continue;
            }
            if !self.has_time() {
                break;
            }
            if let Some(trial) = self.trial(&candidate, false, 1.0)? {
                self.settle(&candidate, trial)?;
            }
        }
        Ok(())
    }

    /// The ways of parts that have several, with the positions of the alternatives that have them.
    fn named_ways(&self, places: &[Place]) -> BTreeSet<(usize, String)> {
        let mut named = BTreeSet::new();
        for &place in places {
            for (alternative, divided) in self.artifact(place).alternatives.iter().enumerate() {
                let parts = divided.parts.iter().filter(|part| part.ways.len() > 1);
                let ways = parts.flat_map(|part| &part.ways);
                named.extend(ways.map(|way| (alternative, way.name.clone())));
            }
        }
        named
    }

    /// What is chosen of an artifact, but by this alternative, if it has so many, and with the way of
    /// this name wherever a part has one.
    fn everywhere(&self, place: Place, alternative: usize, name: &str) -> Choice {
        let (artifact, mut choice) = (self.artifact(place), self.chosen(place));
        if alternative < artifact.alternatives.len() && alternative != choice.alternative {
            choice = carried(artifact, &choice, alternative);
        }
        let parts = artifact.alternatives[choice.alternative].parts.iter().enumerate();
        for (i, part) in parts {
            if let Some(way) = part.ways.iter().position(|way| way.name == name) {
                choice = choice.with(i, way);
            }
        }
        choice
    }

    fn was_tried_alone(&self, candidate: &[(Place, Choice)]) -> bool {
        let [(place, choice)] = candidate else { return false };
        let record = self.measured.iter().find(|(of, _)| of == place);
        record.is_some_and(|(_, record)| record.trials.iter().any(|t| t.choice == *choice))
    }
}
