//! What a search within budgets is asked, and what it answers.

use crate::axis::Axis;

/// Bytes and nanoseconds.
pub(crate) type Resources = [u64; 2];

/// A plan within the budgets.
#[derive(Debug)]
pub(crate) struct BudgetedPlan {
    /// Chosen nodes of each axis.
    pub(crate) nodes: Vec<Vec<usize>>,
    /// Packed cost, charges included.
    pub(crate) cost: u128,
    /// No plan within the budgets costs less than this.
    pub(crate) at_least: u128,
}

/// A budget that was not set.
pub(crate) const UNLIMITED: u64 = u64::MAX >> 1;

/// Keeps sums of charges within 128 bits; a smaller charge leaves a bound a bound.
pub(crate) const LARGEST_CHARGE: u128 = 1 << 112;

/// Lists to choose within budgets.
pub(crate) struct Budgeted<'a> {
    pub(crate) axes: &'a [Axis],
    pub(crate) charges: &'a [Vec<u128>],
    pub(crate) max_graphs: usize,
    pub(crate) budgets: Resources,
}
