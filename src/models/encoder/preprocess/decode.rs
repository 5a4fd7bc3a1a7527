//! Files to pixels.

use super::error::{ImageError, MOST_PIXELS};
use super::resample::{Filter, resample};

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
    Ok(Rgb { width: image.width(), height: image.height(), bytes: rgb(image) })
}

/// Of samples of sixteen bits the high byte, as Pillow takes it, where the crate would round.
fn rgb(image: DynamicImage) -> Vec<u8> {
    let channels = usize::from(image.color().channel_count());
    let Some(samples) = image.as_flat_samples_u16() else { return image.into_rgb8().into_raw() };
    let mut bytes = Vec::with_capacity(samples.samples.len() / channels * 3);
    for pixel in samples.samples.chunks_exact(channels) {
        let colours = if channels < 3 { [pixel[0]; 3] } else { [pixel[0], pixel[1], pixel[2]] };
        bytes.extend(colours.map(|sample| sample.to_be_bytes()[0]));
    }
    bytes
}

/// Whether a JPEG breaks off before its end: the decoder would fill up what is missing without a
/// word. What is behind the end, such as the video of a phone's photo, is not looked at.
fn is_cut_off(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    // Data between markers is skipped: that of a scan, in which a zero tells it from one.
    while let Some(place) = rest.windows(2).position(|two| two[0] == 0xff && two[1] != 0xff) {
        let marker = rest[place + 1];
        rest = &rest[place + 2..];
        match marker {
            0xd9 => return false,
            0x00 | 0x01 | 0xd0..=0xd8 => {}
            // A segment says how long it is, and may have any bytes in it.
            _ => {
                let length =
                    rest.first_chunk().map(|length| usize::from(u16::from_be_bytes(*length)));
                match length.and_then(|length| rest.get(length..)) {
                    Some(behind) => rest = behind,
                    None => return true,
                }
            }
        }
    }
    true
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
