//! Checkers that share no code with what they check.
//!
//! [`check_plan`] proves slots and offsets against the graph and the order of the step, with
//! lifetimes that it derives itself. [`check_launches`] runs the launch list of a step on the
//! bytes of the arena and finds what a plan alone can't show.
//!
//! | code | what is wrong |
//! |---|---|
//! | `B0101` | the module has no pieces, no slots or no offsets |
//! | `B0102` | the plan names a value, a node or a member that does not exist |
//! | `B0103` | a value that memory must hold has no slot |
//! | `B0104` | a value has two slots |
//! | `B0105` | a weight, a state or a value outside the step has a slot |
//! | `B0106` | a slot's kind is not what its value is |
//! | `B0107` | a slot's lifetime is shorter than the rule demands |
//! | `B0201` | the alignment is not a power of two |
//! | `B0202` | an offset or the arena's end is not aligned |
//! | `B0203` | a slot ends outside the arena |
//! | `B0204` | a slot is smaller than its value at the bounds |
//! | `B0205` | the layout has not one offset and one size for each slot, one bound for each symbol |
//! | `B0206` | a bound is smaller than the symbol's |
//! | `B0301` | two slots overlap while both are live |
//! | `B0302` | a slot overlaps the true counts |
//! | `B0401` | the true counts are outside the staged bytes |
//! | `B0402` | an input is outside the staged bytes |
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
