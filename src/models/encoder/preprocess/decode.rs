//! Files to pixels.

use super::resample::{Filter, resample};
use super::{ImageError, MOST_PIXELS};
use image::error::ImageError as DecodeError;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;

/// An image of three channels of eight bits, side by side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rgb {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) bytes: Vec<u8>,
}

/// The pixels of a file, turned as it says; what is transparent is as if it were not.
pub(super) fn decode(bytes: &[u8]) -> Result<Rgb, ImageError> {
    let damaged = |error: DecodeError| ImageError::Damaged { reason: error.to_string() };
    let mut reader = ImageReader::new(Cursor::new(bytes));
    let mut limits = Limits::default();
    // Four channels of sixteen bits, and as much again to turn it.
    limits.max_alloc = Some(16 * MOST_PIXELS);
    reader.limits(limits);
    let reader = reader.with_guessed_format().map_err(|_| ImageError::Unknown)?;
    match reader.format() {
        None => return Err(ImageError::Unknown),
        Some(ImageFormat::Jpeg) if is_cut_off(bytes) => {
            let reason = "the file is cut off: its end is missing".to_owned();
            return Err(ImageError::Damaged { reason });
        }
        Some(_) => {}
    }
    let mut decoder = reader.into_decoder().map_err(|error| match error {
        DecodeError::Unsupported(_) => ImageError::Unknown,
        other => damaged(other),
    })?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (u64::from(width), u64::from(height));
    if width * height > MOST_PIXELS {
        return Err(ImageError::TooLarge { width, height });
    }
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    image.apply_orientation(orientation);
    let image = image.into_rgb8();
    Ok(Rgb { width: image.width(), height: image.height(), bytes: image.into_raw() })
}

/// Whether a JPEG has no end after the start of its last scan: the decoder would fill up what is
/// missing without a word.
fn is_cut_off(bytes: &[u8]) -> bool {
    let last = |marker: [u8; 2]| bytes.windows(2).rposition(|two| two == marker);
    last([0xff, 0xd9]) < last([0xff, 0xda])
}

impl Rgb {
    pub(super) fn resized(self, width: u32, height: u32, filter: Filter) -> Self {
        let bytes = resample(
            self.bytes,
            [self.width, self.height].map(|side| side as usize),
            [width, height].map(|side| side as usize),
            filter,
        );
        Self { width, height, bytes }
    }

    /// The middle; of an odd rest, more is cut below and at the right.
    pub(super) fn cropped(&self, width: u32, height: u32) -> Self {
        let (top, left) = ((self.height - height) / 2, (self.width - width) / 2);
        let mut bytes = Vec::with_capacity(3 * width as usize * height as usize);
        for row in top..top + height {
            let start = 3 * (row as usize * self.width as usize + left as usize);
            bytes.extend_from_slice(&self.bytes[start..][..3 * width as usize]);
        }
        Self { width, height, bytes }
    }
}
