//! The kernels of a plan, each once.

use piecewise_backend::artifact::{Artifact, Digest};
use piecewise_backend::compiler::{Compiler, ImageListing};
use serde::Serialize;

/// A kernel that launches name, once however many of them do.
#[derive(Clone, Debug, Serialize)]
pub struct ImageRow {
    /// By which launches name it.
    pub digest: String,
    /// What its compiler shows of it.
    #[serde(flatten)]
    pub listing: ImageListing,
}

impl ImageRow {
    /// The image of this digest in an artifact, as its compiler lists it.
    pub(super) fn of(compiler: &dyn Compiler, artifact: &Artifact, digest: Digest) -> Self {
        let listing = artifact.image(digest).and_then(|bytes| compiler.listing(bytes));
        let unknown = || ImageListing {
            name: "image".to_owned(),
            kind: "kernel",
            language: "txt",
            text: String::new(),
            ..ImageListing::default()
        };
        Self { digest: digest.to_string(), listing: listing.unwrap_or_else(unknown) }
    }
}
