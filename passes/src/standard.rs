//! The passes of this crate by name.

use crate::{Registry, fuse, optimize, stages};

impl Registry {
    /// A registry of every pass of this crate.
    pub fn standard() -> Self {
        let mut registry = Self::default();
        optimize::register(&mut registry);
        fuse::register(&mut registry);
        stages::register(&mut registry);
        registry
    }
}
