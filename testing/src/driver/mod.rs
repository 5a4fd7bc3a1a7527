//! Drivers of CUDA that are not the system's, and the time that passes by them.
//!
//! The unit tests of the backend have these files, too: what they look into is no other crate's to see.
#![allow(
    unsafe_code,
    reason = "drivers copy from and to the host; every block states why it is sound"
)]

pub mod faulty;
mod graphs;
pub mod host_time;
pub mod noted;
pub mod simulated;

pub use faulty::{CallFault, Faults, FaultyDriver};
pub use noted::Noted;
pub use simulated::SimulatedDriver;
