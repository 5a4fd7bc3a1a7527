//! Dispatch: from what a step brings to the sizes that it runs at and how.
//!
//! A pure function of counts and lists, so that ranks that agree on the counts agree on the rest.

mod dispatcher;
mod lists;
mod lowering_sizes;
mod rules;
mod stretches;

pub use dispatcher::{Dispatcher, OpSupport, OwnSizes};
pub use lowering_sizes::lowering_sizes;
pub use rules::{MeasuredWays, OtherWay, SizeRules};
pub use stretches::{Stretch, StretchPart};

#[cfg(test)]
mod tests;
