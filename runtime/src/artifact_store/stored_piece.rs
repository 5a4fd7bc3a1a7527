//! Lowered pieces as bytes: launches that refer to images by digest.

use piecewise_backend::artifact::{
    Alternative, Arg, Artifact, Digest, Launch, Part, PieceSize, Way,
};
use piecewise_kernels::step::CaptureSupport;
use serde::{Deserialize, Serialize};

/// The kind of entry of an image, whose key is the digest of its bytes.
pub const IMAGE_KIND: &str = "image";

/// Changes when the bytes of lowered pieces mean something else.
pub(super) const FORMAT_VERSION: u32 = 2;

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
    /// Of each alternative the ways of each part.
    alternatives: Vec<Vec<Vec<StoredWay>>>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct StoredWay {
    name: String,
    scratch: u64,
    uses_library: bool,
    launches: Vec<StoredLaunch>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct StoredLaunch {
    name: String,
    nodes: Vec<u32>,
    args: Vec<Arg>,
    /// Its place in the list of images.
    image: u32,
    grid: [u32; 3],
    params: Vec<u64>,
    capture: CaptureSupport,
}

impl StoredPiece {
    /// The bytes of an artifact without those of its images.
    ///
    /// # Errors
    /// A sentence, when a launch refers to an image that the artifact lacks, or it is too large.
    pub fn encode(artifact: &Artifact) -> Result<Vec<u8>, String> {
        let images: Vec<Digest> = artifact.images.iter().map(|(digest, _)| *digest).collect();
        let launch = |launch: &Launch| {
            let image = images.iter().position(|digest| *digest == launch.image);
            let image = image.ok_or_else(|| format!("image {} is missing", launch.image))?;
            Ok(StoredLaunch {
                name: launch.name.clone(),
                nodes: launch.nodes.clone(),
                args: launch.args.clone(),
                image: u32::try_from(image).map_err(|e| e.to_string())?,
                grid: launch.grid,
                params: launch.params.clone(),
                capture: launch.capture,
            })
        };
        let way = |way: &Way| {
            Ok(StoredWay {
                name: way.name.clone(),
                scratch: way.scratch,
                uses_library: way.uses_library,
                launches: way.launches.iter().map(launch).collect::<Result<_, String>>()?,
            })
        };
        let part = |part: &Part| part.ways.iter().map(way).collect();
        let alternative = |one: &Alternative| one.parts.iter().map(part).collect();
        let alternatives =
            artifact.alternatives.iter().map(alternative).collect::<Result<_, String>>();
        let (piece, size) = (artifact.piece, artifact.size);
        let stored =
            Self { version: FORMAT_VERSION, piece, size, alternatives: alternatives?, images };
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

    /// The artifact, with the bytes of its images in their order.
    ///
    /// # Errors
    /// A sentence, when a launch refers to an image that is not there.
    pub fn into_artifact(self, images: Vec<(Digest, Vec<u8>)>) -> Result<Artifact, String> {
        let launch = |launch: StoredLaunch| {
            let image = images.get(launch.image as usize).map(|(digest, _)| *digest);
            let image = image.ok_or_else(|| format!("there is no image {}", launch.image))?;
            Ok(Launch {
                name: launch.name,
                nodes: launch.nodes,
                args: launch.args,
                image,
                grid: launch.grid,
                params: launch.params,
                capture: launch.capture,
            })
        };
        let way = |way: StoredWay| {
            let StoredWay { name, scratch, uses_library, launches } = way;
            let launches = launches.into_iter().map(launch).collect::<Result<_, String>>()?;
            Ok(Way { name, launches, scratch, uses_library })
        };
        let part = |ways: Vec<StoredWay>| {
            let ways = ways.into_iter().map(way).collect::<Result<_, String>>()?;
            Ok(Part { ways })
        };
        let alternative = |parts: Vec<Vec<StoredWay>>| {
            let parts = parts.into_iter().map(part).collect::<Result<_, String>>()?;
            Ok(Alternative { parts })
        };
        let alternatives =
            self.alternatives.into_iter().map(alternative).collect::<Result<_, String>>();
        Ok(Artifact { piece: self.piece, size: self.size, alternatives: alternatives?, images })
    }
}
