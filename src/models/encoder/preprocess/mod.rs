//! From the bytes of an image file to the patches of a tower, as the processor of the model in
//! transformers makes them.

mod decode;
mod error;
mod resample;
mod settings;

use super::images::ImageItem;
use super::qwen_vl::QwenVlConfig;
use super::vision::VisionConfig;
use crate::models::config::ConfigError;
use decode::{Rgb, decode};
pub use error::{ImageError, MOST_PIXELS};
use settings::{Resize, Settings};
use std::path::Path;

/// Makes images ready for a tower, by the `preprocessor_config.json` of its folder.
#[derive(Clone, Debug)]
pub struct ImageProcessor {
    settings: Settings,
    tower: VisionConfig,
}

impl ImageProcessor {
    /// Reads `preprocessor_config.json` of `folder`, or what `processor_config.json` says of images,
    /// for the tower that `config.json` describes.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the file and the field: also of a setting that is not supported,
    /// or that the tower contradicts.
    pub fn load(folder: &Path) -> Result<Self, ConfigError> {
        let tower = VisionConfig::load(folder)?;
        Ok(Self { settings: Settings::load(folder, &tower)?, tower })
    }

    /// The most tokens that an image file can become.
    pub fn most_tokens(&self) -> u64 {
        match (self.tower.fixed_tokens(), &self.settings.resize) {
            (Some(tokens), _) => tokens,
            (None, Some(Resize::Within { most, side, .. })) => (most / (side * side).max(1)).max(1),
            (None, _) => u64::MAX,
        }
    }

    /// The item of an image file (PNG, JPEG or WebP) by its bytes.
    ///
    /// # Errors
    /// When it is no image, is damaged, or is of a size that can't be taken.
    pub fn item(&self, bytes: &[u8]) -> Result<ImageItem, ImageError> {
        let image = decode(bytes)?;
        let (width, height) = (image.width, image.height);
        let fail = |reason: String| ImageError::Shape { width, height, reason };
        let image = self.sized(image)?;
        let shape = [3, image.height as usize, image.width as usize];
        let pixels = self.normalized(&image);
        match &self.tower {
            VisionConfig::Vit(_) => self.tower.item_of_pixels(&pixels, shape).map_err(fail),
            VisionConfig::QwenVl(config) => in_blocks(config, &pixels, shape).map_err(fail),
        }
    }

    /// The image at the size that the model takes: resized, then cropped about its middle.
    fn sized(&self, image: Rgb) -> Result<Rgb, ImageError> {
        let Settings { resize, filter, crop, .. } = &self.settings;
        let (width, height) = (image.width, image.height);
        let shape = |reason| ImageError::Shape { width, height, reason };
        let image = match resize {
            None => image,
            Some(resize) => {
                let [rows, columns] = resize.to(height, width).map_err(shape)?;
                if rows.saturating_mul(columns) > MOST_PIXELS {
                    return Err(ImageError::TooLarge { width: columns, height: rows });
                }
                image.resized(columns as u32, rows as u32, *filter)
            }
        };
        match *crop {
            None => Ok(image),
            Some([rows, columns]) if rows <= image.height && columns <= image.width => {
                Ok(image.cropped(columns, rows))
            }
            Some([rows, columns]) => {
                let (height, width) = (image.height, image.width);
                let reason = format!(
                    "it is resized to {width} x {height}, which has no crop of {columns} x {rows} \
                     (`crop_size`)"
                );
                Err(shape(reason))
            }
        }
    }

    /// `[3, height, width]`; rounded as the processor rounds.
    fn normalized(&self, image: &Rgb) -> Vec<f32> {
        let Settings { rescale, normalize, .. } = &self.settings;
        let values = (0..3).map(|channel| {
            Vec::from_iter((0..=255u8).map(|value| {
                let value = match rescale {
                    Some(factor) => (f64::from(value) * factor) as f32,
                    None => f32::from(value),
                };
                match normalize {
                    Some([mean, std]) => (value - mean[channel]) / std[channel],
                    None => value,
                }
            }))
        });
        let of_channel = |(channel, values): (usize, Vec<f32>)| {
            let bytes = image.bytes.iter().skip(channel).step_by(3);
            Vec::from_iter(bytes.map(|&byte| values[usize::from(byte)]))
        };
        values.enumerate().flat_map(of_channel).collect()
    }
}

/// One frame of pixels `[3, rows, columns]` in the patches of a Qwen, repeated to fill the frames of
/// a patch.
fn in_blocks(
    config: &QwenVlConfig,
    pixels: &[f32],
    [channels, rows, columns]: [usize; 3],
) -> Result<ImageItem, String> {
    let (patch, merge) = (config.patch_size, config.merge_size);
    let token = patch * merge;
    if !rows.is_multiple_of(token) || !columns.is_multiple_of(token) || channels != config.channels
    {
        return Err(format!(
            "it is made {channels} x {rows} x {columns}, but the model takes {} channels and sides \
             that are multiples of {token} (`patch_size` times `merge_size`)",
            config.channels
        ));
    }
    let mut patches = Vec::with_capacity(pixels.len() * config.temporal_patch_size);
    for top in (0..rows).step_by(token) {
        for left in (0..columns).step_by(token) {
            for place in 0..merge * merge {
                let (top, left) = (top + place / merge * patch, left + place % merge * patch);
                for channel in 0..channels {
                    for _ in 0..config.temporal_patch_size {
                        for row in top..top + patch {
                            let start = (channel * rows + row) * columns + left;
                            patches.extend_from_slice(&pixels[start..][..patch]);
                        }
                    }
                }
            }
        }
    }
    Ok(ImageItem { grid: [1, rows / patch, columns / patch], patches })
}
