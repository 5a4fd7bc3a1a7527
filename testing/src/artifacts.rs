//! Artifacts with fewer ways than their compiler made.

use piecewise_backend::artifact::{Alternative, Artifact, Choice, Part};

/// What takes the last way of each part of an alternative, or of the last one: the one that is there
/// for any types and sizes.
pub fn last_ways(artifact: &Artifact, alternative: usize) -> Choice {
    let alternative = alternative.min(artifact.alternatives.len().saturating_sub(1));
    let parts = artifact.alternatives.get(alternative).map_or(&[][..], |one| &one.parts);
    let ways = parts.iter().map(|part| part.ways.len().saturating_sub(1)).collect();
    Choice { alternative, ways }
}

/// The same with nothing but what a choice takes.
///
/// # Errors
/// As for [`Artifact::chosen`].
pub fn narrowed(artifact: &Artifact, choice: &Choice) -> Result<Artifact, String> {
    let ways = artifact.chosen(choice)?.into_iter().cloned();
    let parts: Vec<Part> = ways.map(|way| Part { ways: vec![way] }).collect();
    let launches = || parts.iter().flat_map(|part| &part.ways).flat_map(|way| &way.launches);
    let used = |digest| launches().any(|launch| launch.image == digest);
    let images = artifact.images.iter().filter(|(digest, _)| used(*digest)).cloned().collect();
    let alternatives = vec![Alternative { parts: parts.clone() }];
    Ok(Artifact { piece: artifact.piece, size: artifact.size, alternatives, images })
}
