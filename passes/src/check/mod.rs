//! Checkers that share no code with what they check.
//!
//! [`check_plan`] proves slots and offsets against the order of the step, with lifetimes that it
//! derives itself; that each value has its slot and each slot its bytes are rules of the module
//! (`piecewise_ir::verify`, `P0401` to `P0506`), which it looks at first. [`check_launches`] runs the launch list of a step on the
//! bytes of the arena and finds what a plan alone can't show.
//!
//! | code | what is wrong |
//! |---|---|
//! | `B0101` | the module has no pieces, no slots or no offsets |
//! | `B0102` | the plan names a value, a node or a member that does not exist |
//! | `B0107` | a slot's lifetime is shorter than the rule demands |
//! | `B0206` | a bound is smaller than the symbol's |
//! | `B0301` | two slots overlap while both are live |
//! | `B0403` | a slot of something else is inside the staged bytes |
//! | `B0501` | a launch reads bytes that were never written |
//! | `B0502` | a launch reads bytes that an earlier launch has overwritten |
//! | `B0503` | a launch writes bytes that it also reads, or writes for two values |
//! | `B0504` | a launch writes an input or something that has no slot |
//! | `B0505` | a member leaves a value unwritten that is read after it or returned |
//! | `B0506` | a value that the graph returns is overwritten before the step ends |
//! | `B0507` | the launch lists are not those of the members in the order of the step |
//! | `B0508` | a launch uses scratch beyond the piece's, or reads scratch never written |
//! | `B0509` | a launch reads what the step writes before the launches ahead are done |

mod launches;
mod lifetime;
mod plan;

pub use launches::{LaunchAccess, MemberLaunches, ScratchRange, check_launches};
pub use plan::check_plan;
pub(crate) use plan::find_overlaps;
