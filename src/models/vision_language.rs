//! Models that read images and write text: where images stand in a prompt.

use super::config::fields::Fields;
use super::config::vision_language::MODEL_TYPE;
use super::config::{ConfigError, parse_json, read};
use super::encoder::VisionConfig;
use piecewise_kernels::inputs::TokenValues;
use piecewise_kernels::roles;
use std::path::Path;

/// The ids by which images stand in a prompt, and how many tokens one becomes.
#[derive(Clone, PartialEq, Debug)]
pub struct ImagePrompts {
    image: u32,
    start: u32,
    end: u32,
    /// Patches of a token's side.
    merge: usize,
}

/// A prompt with images in their places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedImages {
    /// The ids, as many for each image as it has tokens.
    pub ids: Vec<u32>,
    /// The position of the first token of each image.
    pub positions: Vec<u64>,
    /// Frame, row and column of each token, for the request.
    pub coordinates: TokenValues,
}

/// Why images have no place in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum PlaceError {
    /// The prompt says where images stand, and has another number of places.
    #[error("the prompt has {places} places for images, but {images} images are given")]
    Count { places: usize, images: usize },
}

impl ImagePrompts {
    /// Reads `config.json` of `folder`; `None` of a model that reads text alone.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the file and the field.
    pub fn load(folder: &Path) -> Result<Option<Self>, ConfigError> {
        let file = folder.join("config.json");
        let value = parse_json(&read(&file)?, &file)?;
        let root = Fields::root(&file, &value)?;
        if root.string("model_type")? != Some(MODEL_TYPE) {
            return Ok(None);
        }
        let id = |key| Ok(root.required_count(key, 0..=1 << 24)? as u32);
        let merge = match VisionConfig::load(folder)? {
            VisionConfig::QwenVl(tower) => tower.merge_size,
            VisionConfig::Vit(_) => 1,
        };
        Ok(Some(Self {
            image: id("image_token_id")?,
            start: id("vision_start_token_id")?,
            end: id("vision_end_token_id")?,
            merge,
        }))
    }

    /// Puts images of these grids (frames, rows and columns in patches) into `prompt`: each in the
    /// place of one of its placeholders, or, where it has none, all of them before it, each between
    /// the ids that begin and end one.
    ///
    /// # Errors
    /// When the prompt has placeholders, and not as many as there are images.
    pub fn place(&self, prompt: &[u32], grids: &[[usize; 3]]) -> Result<PlacedImages, PlaceError> {
        let places = prompt.iter().filter(|&&id| id == self.image).count();
        let with_places: Vec<u32>;
        let prompt = match places {
            0 if !grids.is_empty() => {
                let place = [self.start, self.image, self.end];
                with_places =
                    place.repeat(grids.len()).into_iter().chain(prompt.iter().copied()).collect();
                &with_places
            }
            places if places == grids.len() => prompt,
            places => return Err(PlaceError::Count { places, images: grids.len() }),
        };
        let (mut ids, mut positions, mut values) = (Vec::new(), Vec::new(), Vec::new());
        // Where the next token of text lies on each axis.
        let mut next = 0;
        let mut grids = grids.iter();
        for &id in prompt {
            let grid = (id == self.image).then(|| grids.next()).flatten();
            let Some(&[frames, rows, columns]) = grid else {
                ids.push(id);
                values.extend([next; 3]);
                next += 1;
                continue;
            };
            positions.push(ids.len() as u64);
            let (rows, columns) = (rows / self.merge, columns / self.merge);
            for token in 0..frames * rows * columns {
                let place = [token / columns / rows, token / columns % rows, token % columns];
                ids.push(id);
                values.extend(place.map(|place| next + place as i32));
            }
            next += frames.max(rows).max(columns) as i32;
        }
        let rest = next - ids.len() as i32;
        let name = roles::TOKEN_COORDINATES.into();
        let coordinates = TokenValues { name, width: 3, values, rest };
        Ok(PlacedImages { ids, positions, coordinates })
    }
}
