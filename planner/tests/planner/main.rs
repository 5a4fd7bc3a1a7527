//! The planner from outside: against brute force, on large logs, and with hostile input.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod brute_force;
mod hostile;
mod properties;
