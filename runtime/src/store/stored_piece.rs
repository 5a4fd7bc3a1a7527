//! Lowered pieces as bytes: launches that refer to images by digest.

use piecewise_backend::artifact::{Alternative, Artifact, Digest, PieceSize};
use serde::{Deserialize, Serialize};

/// The kind of entry of an image, whose key is the digest of its bytes.
pub const IMAGE_KIND: &str = "image";

/// Changes when the bytes of lowered pieces mean something else.
pub(super) const FORMAT_VERSION: u32 = 3;

/// Bytes that an entry may have: launches are some hundred bytes each.
const LARGEST: usize = 64 << 20;

/// A lowered piece without the bytes of its images. Written by `postcard`: a compact encoding
/// without names or padding, the same bytes for the same piece.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredPiece {
    version: u32,
    piece: [u8; 32],
    size: PieceSize,
    images: Vec<Digest>,
    alternatives: Vec<Alternative>,
}

impl StoredPiece {
    /// The bytes of an artifact without those of its images.
    ///
    /// # Errors
    /// A sentence, when a launch refers to an image that the artifact lacks, or it is too large.
    pub fn encode(artifact: &Artifact) -> Result<Vec<u8>, String> {
        let images: Vec<Digest> = artifact.images.iter().map(|(digest, _)| *digest).collect();
        let mut launches = artifact.ways().flat_map(|way| &way.launches);
        if let Some(launch) = launches.find(|launch| !images.contains(&launch.image)) {
            return Err(format!("image {} is missing", launch.image));
        }
        let (piece, size) = (artifact.piece, artifact.size);
        let alternatives = artifact.alternatives.clone();
        let stored = Self { version: FORMAT_VERSION, piece, size, images, alternatives };
        let bytes = postcard::to_allocvec(&stored).map_err(|e| e.to_string())?;
        match bytes.len() {
            n if n > LARGEST => Err(format!("{n} bytes, more than {LARGEST}")),
            _ => Ok(bytes),
        }
    }

    /// The lowered piece that an entry holds. It allocates no more than a small multiple of the
    /// bytes that are there.
    ///
    /// # Errors
    /// A sentence, when they hold none, one of another version, or more besides.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > LARGEST {
            return Err(format!("{} bytes, more than {LARGEST}", bytes.len()));
        }
        let version = postcard::take_from_bytes::<u32>(bytes).map(|(version, _)| version);
        match version {
            Ok(FORMAT_VERSION) => {}
            Ok(other) => return Err(format!("version {other}, and {FORMAT_VERSION} is known")),
            Err(error) => return Err(error.to_string()),
        }
        let (stored, rest) = postcard::take_from_bytes::<Self>(bytes).map_err(|e| e.to_string())?;
        match rest.len() {
            0 => Ok(stored),
            more => Err(format!("{more} bytes follow its end")),
        }
    }

    /// The images that it refers to.
    pub fn images(&self) -> &[Digest] {
        &self.images
    }

    /// The row counts that the artifact was lowered for.
    pub fn size(&self) -> PieceSize {
        self.size
    }

    /// The artifact, with the images that were found.
    pub fn into_artifact(self, images: Vec<(Digest, Vec<u8>)>) -> Artifact {
        let Self { piece, size, alternatives, .. } = self;
        Artifact { piece, size, alternatives, images }
    }
}
