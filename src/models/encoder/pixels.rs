//! Images as pixels, cut into the patches of a tower.

use super::images::ImageItem;
use super::vision::VisionConfig;
use super::vit::VitConfig;

impl VisionConfig {
    /// Channels, rows and columns of the pixels of every image, where all have the same; `None` of a
    /// tower whose images have grids of their own.
    pub fn pixels_shape(&self) -> Option<[usize; 3]> {
        match self {
            Self::Vit(config) => Some([config.channels, config.image_size, config.image_size]),
            Self::QwenVl(_) => None,
        }
    }

    /// A grey image of so many tokens, as near to a square as they let it be: for measuring.
    ///
    /// # Errors
    /// How many tokens an image has, where that is always another number.
    pub fn item_of_tokens(&self, tokens: u64) -> Result<ImageItem, String> {
        let (grid, width) = match self {
            Self::Vit(config) => ([1, config.side(), config.side()], config.patch_width()),
            Self::QwenVl(config) => {
                let tokens = tokens.clamp(1, 1 << 20) as usize;
                let rows = (1..=tokens.isqrt()).rev().find(|rows| tokens.is_multiple_of(*rows));
                let rows = rows.unwrap_or(1);
                let sides = [rows, tokens / rows].map(|side| side * config.merge_size);
                ([1, sides[0], sides[1]], config.patch_width())
            }
        };
        let patches = vec![0.5; grid.iter().product::<usize>() * width];
        let item = ImageItem { grid, patches };
        match self.tokens_of(&item)? {
            found if found == tokens => Ok(item),
            found => Err(format!("an image of this model has {found} tokens, not {tokens}")),
        }
    }

    /// An image from its normalized pixels `[channels, rows, columns]`, of a tower that has a
    /// [`Self::pixels_shape`].
    ///
    /// # Errors
    /// Which shape it takes, where it is another.
    pub fn item_of_pixels(&self, pixels: &[f32], shape: [usize; 3]) -> Result<ImageItem, String> {
        let (Self::Vit(config), Some(taken)) = (self, self.pixels_shape()) else {
            return Err("the model takes patches with a grid, no pixels".to_owned());
        };
        if shape != taken || pixels.len() != taken.iter().product::<usize>() {
            let ([c, h, w], [channels, rows, columns]) = (shape, taken);
            return Err(format!(
                "pixels of {c} x {h} x {w}, but the model takes {channels} x {rows} x {columns}"
            ));
        }
        Ok(cut(config, pixels))
    }
}

fn cut(config: &VitConfig, pixels: &[f32]) -> ImageItem {
    let (side, patch, width) = (config.side(), config.patch_size, config.image_size);
    let mut patches = Vec::with_capacity(side * side * config.patch_width());
    for place in 0..side * side {
        let (top, left) = (place / side * patch, place % side * patch);
        for channel in 0..config.channels {
            for row in top..top + patch {
                let start = (channel * width + row) * width + left;
                patches.extend_from_slice(&pixels[start..][..patch]);
            }
        }
    }
    ImageItem { grid: [1, side, side], patches }
}
