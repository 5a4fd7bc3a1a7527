//! Scopes: what the paths of weights and states begin with.

use super::{BuildError, Builder, Tensor};
use crate::dtype::DType;
use crate::graph::Loc;
use crate::types::IntoShape;
use std::panic::Location;

#[derive(Debug)]
pub(super) struct OpenScope {
    name: String,
    loc: Loc,
    is_used: bool,
    end: End,
}

/// How far a scope is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Open,
    /// Its guard is dropped, but not that of a scope inside it.
    Early,
    /// Paths were asked for all the same, which is noted.
    Told,
}

impl Builder {
    /// Enters a scope: until the returned guard is dropped, weight and state paths start with
    /// `name` and nodes record it. Scopes end in the opposite order of their beginning.
    #[track_caller]
    pub fn scope(&self, name: impl Into<String>) -> Scope<'_> {
        let (name, loc) = (name.into(), self.loc(Location::caller()));
        let scopes = &mut self.state.borrow_mut().scopes;
        scopes.push(OpenScope { name, loc, is_used: false, end: End::Open });
        Scope { builder: self, depth: scopes.len() - 1 }
    }

    /// The open scopes hold something, be it a tensor that swallows what is built of it.
    pub(crate) fn use_scopes(&self) {
        let mut state = self.state.borrow_mut();
        let mut early = Vec::new();
        let mut scopes = state.scopes.iter_mut().peekable();
        while let Some(scope) = scopes.next() {
            scope.is_used = true;
            if scope.end == End::Early {
                scope.end = End::Told;
                let inner = scopes.peek().map_or("", |inner| &inner.name);
                let message = format!(
                    "scope `{}` ended before `{inner}` inside it, and something was built then, whose \
                     path has no such place; end the inner one first",
                    scope.name
                );
                early.push(BuildError { message, loc: scope.loc.clone() });
            }
        }
        state.errors.extend(early);
    }

    /// `name` under the current scope, as checkpoint tensors are named: `layers.0.mlp.up_proj`.
    pub fn path(&self, name: &str) -> String {
        self.use_scopes();
        let state = self.state.borrow();
        let parts = state.scopes.iter().map(|scope| scope.name.as_str()).chain([name]);
        parts.filter(|p| !p.is_empty()).collect::<Vec<_>>().join(".")
    }
}

/// A builder inside a scope, until it is dropped.
#[must_use = "the scope ends where this is dropped: bind it to a name such as `_scope`"]
#[derive(Debug, derive_more::Deref)]
pub struct Scope<'b> {
    #[deref(forward)]
    builder: &'b Builder,
    #[deref(ignore)]
    depth: usize,
}

impl<'b> Scope<'b> {
    /// The builder, for tensors that outlive the scope.
    pub fn builder(&self) -> &'b Builder {
        self.builder
    }

    /// [`Builder::weight`], living as long as the builder.
    #[track_caller]
    pub fn weight(&self, name: &str, shape: impl IntoShape) -> Tensor<'b> {
        self.builder.weight(name, shape)
    }

    /// [`Builder::state`], living as long as the builder.
    #[track_caller]
    pub fn state(&self, name: &str, dtype: DType, shape: impl IntoShape) -> Tensor<'b> {
        self.builder.state(name, dtype, shape)
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let state = &mut *self.builder.state.borrow_mut();
        let Some(scope) = state.scopes.get_mut(self.depth) else { return };
        scope.end = End::Early;
        if !scope.is_used {
            let message = format!(
                "scope `{}` ended before anything was built in it; bind it to a name such as \
                 `_scope`, since `let _ =` ends it at once",
                scope.name
            );
            state.errors.push(BuildError { message, loc: scope.loc.clone() });
        }
        // A scope that ends early keeps the places of those inside it, and goes with the last.
        while state.scopes.pop_if(|scope| scope.end != End::Open).is_some() {}
    }
}
