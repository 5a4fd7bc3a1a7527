//! What is decided of a row while its stages are found.

use super::super::index::Variables;
use super::component::{Frame, Kept, Stage};
use super::source::{Id, Source};
use std::collections::{BTreeMap, BTreeSet};

/// The stages of one component as far as they are known.
pub(super) struct Planner<'a, 'b> {
    pub(super) source: &'b Source<'a>,
    pub(super) variables: &'b mut Variables,
    pub(super) frame: Frame<'b>,
    pub(super) stages: Vec<Stage>,
    pub(super) kept: BTreeMap<Id, Kept>,
    pub(super) shared: u64,
    /// Reductions over segments that no chunk width fits.
    pub(super) one_by_one: &'b BTreeSet<usize>,
    pub(super) budget: usize,
}
