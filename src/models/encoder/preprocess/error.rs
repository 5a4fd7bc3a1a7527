//! Which images are not taken.

/// The most pixels of an image, as it comes and as it is made: what a larger one would take of
/// memory is no image's worth.
pub const MOST_PIXELS: u64 = 1 << 27;
/// The longest side may be so many times the shortest where the processor keeps the ratio.
pub(super) const MOST_RATIO: f64 = 200.0;

/// Why the bytes of a file make no item.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ImageError {
    /// The bytes begin like no format that is read.
    #[error("it is no image: PNG, JPEG and WebP are read")]
    Unknown,
    /// The format is known, and the file is cut off or damaged.
    #[error("the image can't be decoded: {reason}")]
    Damaged { reason: String },
    /// Decoding it, or making it ready, would take too much memory.
    #[error(
        "an image of {width} x {height} pixels, but at most {MOST_PIXELS} are taken; make it \
         smaller"
    )]
    TooLarge { width: u64, height: u64 },
    /// The processor takes no image of this shape.
    #[error("an image of {width} x {height} pixels: {reason}")]
    Shape { width: u32, height: u32, reason: String },
}
