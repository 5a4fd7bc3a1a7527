//! What a program must do, in parts that share no work.

use super::plan::StageKind;
use super::source::Source;
use crate::lower::{PlaceKind, RowStep};
use std::collections::BTreeSet;

/// A result or a scatter: what, after which step, and the elements of its loop.
pub(super) type Root = (StageKind, usize, u64);

/// The stages that must be, grouped by the work that they share.
pub(super) fn roots(source: &Source<'_>) -> Vec<Vec<Root>> {
    let program = source.program;
    let mut roots: Vec<(StageKind, usize, u64, BTreeSet<u32>)> = Vec::new();
    let inputs = |step: &RowStep| -> Vec<u32> {
        match step {
            RowStep::Map { inputs, .. } => inputs.iter().map(|a| a.place).collect(),
            RowStep::Reduce { input, .. } | RowStep::TopK { input, .. } => vec![input.place],
            RowStep::Gather { table, indices, .. } => vec![*table, indices.place],
            RowStep::Scatter { slots, rows, .. } => vec![slots.place, rows.0],
        }
    };
    let reach = |from: Vec<u32>| {
        let (mut seen, mut next) = (BTreeSet::new(), from);
        while let Some(place) = next.pop() {
            if seen.insert(place) {
                for &writer in &source.writers[place as usize] {
                    next.extend(inputs(&program.steps[writer]));
                }
            }
        }
        seen
    };
    for (i, place) in program.places.iter().enumerate() {
        if matches!(place.kind, PlaceKind::Arg(_))
            && let Some(&anchor) = source.writers[i].last()
            && place.elements > 0
        {
            let kind = StageKind::Store { place: i as u32 };
            roots.push((kind, anchor, place.elements, reach(vec![i as u32])));
        }
    }
    for (i, step) in program.steps.iter().enumerate() {
        if let RowStep::Scatter { row, nest, .. } = step {
            let elements = nest.extents.iter().product::<u64>() * row;
            if elements > 0 {
                roots.push((StageKind::Scatter { step: i }, i, elements, reach(inputs(step))));
            }
        }
    }
    roots.sort_by_key(|(kind, anchor, ..)| (*anchor, *kind));
    let worth_sharing = |place: u32| {
        !source.is_leaf(place)
            && (source.is_staged(place)
                || (source.elements(place) >= 32
                    && source.writers[place as usize]
                        .iter()
                        .any(|&w| matches!(program.steps[w], RowStep::Map { .. }))))
    };
    let mut groups: Vec<(Vec<Root>, BTreeSet<u32>)> = Vec::new();
    for (kind, anchor, elements, reached) in roots {
        let mut shared: BTreeSet<u32> =
            reached.into_iter().filter(|&place| worth_sharing(place)).collect();
        let mut members = vec![(kind, anchor, elements)];
        let (joined, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(_, places)| !places.is_disjoint(&shared));
        groups = apart;
        for (others, places) in joined {
            members.extend(others);
            shared.extend(places);
        }
        members.sort_by_key(|(kind, anchor, _)| (*anchor, *kind));
        groups.push((members, shared));
    }
    let mut groups: Vec<_> = groups.into_iter().map(|(members, _)| members).collect();
    groups.sort_by_key(|members| (members[0].1, members[0].0));
    groups
}
