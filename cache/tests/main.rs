//! Every test of the crate from outside, in one program: each further one would be linked anew.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod archives;
#[path = "../../tests/support/bounded.rs"]
mod bounded;
#[path = "support/child.rs"]
mod children;
mod conditions;
#[path = "support/damage.rs"]
mod damage;
mod entries;
mod fuzz;
mod packs;
mod processes;
mod remote;
mod size;
#[path = "../../tests/support/skip.rs"]
mod skip;
mod support;
mod tasks;
mod warnings;
