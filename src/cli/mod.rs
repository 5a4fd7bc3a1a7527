//! The subcommands.

pub(crate) mod plan;
