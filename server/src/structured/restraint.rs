//! Ids that a reply may not have, or not yet.

use piecewise_runtime::engine::TokenConstraint;
use std::sync::Arc;

/// What a request asks of the ids of its reply, beside a structure or without one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restraint {
    /// The only ids that there may be; all of them where it is empty.
    pub allowed: Arc<[u32]>,
    /// Runs of ids that may not come, none of them empty.
    pub bad: Arc<[Vec<u32>]>,
    /// Ids that end the reply.
    pub ends: Arc<[u32]>,
    /// How many others come before one of these. A structure that is complete ends all the same.
    pub least: usize,
}

impl Restraint {
    /// A constraint of a model of so many ids, on top of another where there is one.
    pub fn over(
        self,
        other: Option<Box<dyn TokenConstraint>>,
        vocabulary: u64,
    ) -> Box<dyn TokenConstraint> {
        let mut only = vec![0; vocabulary.div_ceil(32) as usize];
        self.allowed.iter().for_each(|id| allow(&mut only, *id));
        let only = (!self.allowed.is_empty()).then(|| only.into());
        Box::new(Restrained { restraint: self, only, other, vocabulary, said: Vec::new() })
    }
}

#[derive(Debug, Clone)]
struct Restrained {
    restraint: Restraint,
    /// The mask of the ids that are allowed, where not all are.
    only: Option<Arc<[u32]>>,
    other: Option<Box<dyn TokenConstraint>>,
    vocabulary: u64,
    said: Vec<u32>,
}

/// The word of a mask that an id is in, and its bit there.
fn place(id: u32) -> (usize, u32) {
    (id as usize / 32, 1 << (id % 32))
}

pub(super) fn allow(mask: &mut [u32], id: u32) {
    let (word, bit) = place(id);
    if let Some(word) = mask.get_mut(word) {
        *word |= bit;
    }
}

pub(super) fn allow_all(mask: &mut [u32], vocabulary: u64) {
    let whole = vocabulary / 32;
    mask.iter_mut().take(whole as usize).for_each(|word| *word = u32::MAX);
    (whole * 32..vocabulary).for_each(|id| allow(mask, id as u32));
}

pub(super) fn clear(mask: &mut [u32], id: u32) {
    let (word, bit) = place(id);
    if let Some(word) = mask.get_mut(word) {
        *word &= !bit;
    }
}

impl TokenConstraint for Restrained {
    fn duplicate(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        let Self { restraint, only, other, vocabulary, said } = self;
        match other {
            Some(other) => other.allowed(mask)?,
            None => allow_all(mask, *vocabulary),
        }
        if let Some(only) = only {
            mask.iter_mut().zip(&only[..]).for_each(|(word, only)| *word &= only);
        }
        for bad in restraint.bad.iter() {
            if let Some((last, before)) = bad.split_last()
                && said.ends_with(before)
            {
                clear(mask, *last);
            }
        }
        if said.len() < restraint.least {
            let with_ends = mask.to_vec();
            restraint.ends.iter().for_each(|id| clear(mask, *id));
            if mask.iter().all(|word| *word == 0) {
                mask.copy_from_slice(&with_ends);
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<bool, String> {
        self.said.push(id);
        self.other.as_mut().map_or(Ok(false), |other| other.accept(id))
    }
}
