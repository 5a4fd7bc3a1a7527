//! The kernels of a plan, each once.

use piecewise_backend::artifact::{Artifact, Digest};
use piecewise_backend::compiler::Compiler;
use serde::Serialize;

/// A kernel.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ImageRow {
    pub digest: String,
    pub name: String,
    pub kind: &'static str,
    /// How the text is written, as the ending of a file.
    pub language: &'static str,
    pub text: String,
    /// How it is launched; `null` where nothing but its arguments is needed.
    pub recipe: serde_json::Value,
    /// Whether it may start before the launch ahead of it ends.
    pub programmatic: bool,
}

impl ImageRow {
    /// The image of this digest in an artifact, as its compiler lists it.
    pub(super) fn of(compiler: &dyn Compiler, artifact: &Artifact, digest: Digest) -> Self {
        let listing = artifact.image(digest).and_then(|bytes| compiler.listing(bytes));
        let digest = digest.to_string();
        match listing {
            Some(listing) => Self {
                digest,
                name: listing.name,
                kind: listing.kind,
                language: listing.language,
                text: listing.text,
                recipe: listing.recipe,
                programmatic: listing.programmatic,
            },
            None => Self {
                digest,
                name: "image".to_owned(),
                kind: "kernel",
                language: "txt",
                text: String::new(),
                recipe: serde_json::Value::Null,
                programmatic: false,
            },
        }
    }
}
