//! Rows of a vision tower in the place of a decoder's tokens, on one device.

use super::budgets::default_budgets;
use super::folder::default_tokens;
use super::path::with_inputs;
use super::protocol::{ItemError, TokenRange};
use super::runner::EncoderBuildError;
use super::text::{LoadError, bounds_and_dtype};
use crate::assembly::{Assembly, AssemblyError, Notice, Planned, Purpose};
use crate::device::OpenDevice;
use crate::models::encoder::{EncoderBounds, ImageItem, VisionConfig};
use crate::models::{Checkpoint, ImagePrompts, check_weights};
use crate::session::{Session, SessionError};
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::{ConfigError, ConfigLayers};
use piecewise_runtime::engine::{Engine, EngineError, RowSource};
use piecewise_runtime::memory::RowsId;
use piecewise_runtime::observe::Statistics;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::Quantize;
use std::path::Path;

/// An image may have any number of tokens.
const ANY: TokenRange = TokenRange::up_to(u64::MAX);

/// Why an image's rows are not with the decoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The image does not fit the tower, or has more tokens than a step.
    #[error(transparent)]
    Item(#[from] ItemError),
    /// The tower's step failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The decoder does not take them.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A vision tower whose rows go to a decoder, past the host where both are on one device.
#[derive(Debug)]
pub struct JoinedTower {
    config: VisionConfig,
    session: Session,
    bounds: EncoderBounds,
}

impl JoinedTower {
    /// The tower in a model folder, for images of up to `most` tokens, on the device of the decoder
    /// that is to take its rows. The configuration may be the decoder's: the sizes of the tower's
    /// graphs are its own, powers of two up to `most`.
    ///
    /// # Errors
    /// When the folder has no tower that is known here, or a setting, the device or a weight is
    /// wrong.
    pub fn load(
        folder: &Path,
        layers: ConfigLayers,
        most: u64,
        device: &OpenDevice,
        watch: impl FnMut(Notice<'_>) + Send + 'static,
    ) -> Result<Self, LoadError> {
        let Tower { config, bounds, assembly } = Tower::read(folder, layers, most)?;
        let session = assembly.on(device).watch(watch).plan().and_then(Planned::session);
        Ok(Self { config, session: session.map_err(EncoderBuildError::from)?, bounds })
    }

    /// Encodes an image and adds its rows, in the order of its tokens, to `decoder`.
    ///
    /// # Errors
    /// When the image does not fit the tower or has more tokens than a step, the step fails, or the
    /// decoder has no room for its rows.
    pub fn add(&mut self, item: &ImageItem, decoder: &mut Engine) -> Result<RowsId, JoinError> {
        let tokens = self.tokens_of(item)?;
        let rows = self.add_step(&[(item, tokens)], decoder)?;
        // A step of one image adds the rows of one.
        rows.into_iter().next().ok_or_else(|| {
            let reason = "its step added no rows".to_owned();
            ItemError::Protocol { reason }.into()
        })
    }

    /// Encodes images, as many in a step as it holds, and adds the rows of each to `decoder`; all or
    /// none.
    ///
    /// # Errors
    /// As for [`Self::add`].
    pub fn add_all(
        &mut self,
        items: &[ImageItem],
        decoder: &mut Engine,
    ) -> Result<Vec<RowsId>, JoinError> {
        let sized = items.iter().map(|item| Ok((item, self.tokens_of(item)?)));
        let sized = sized.collect::<Result<Vec<_>, JoinError>>()?;
        let mut added = Vec::with_capacity(items.len());
        let mut rest = sized.as_slice();
        while !rest.is_empty() {
            let step = &rest[..self.fitting(rest)];
            match self.add_step(step, decoder) {
                Ok(rows) => added.extend(rows),
                Err(error) => {
                    // What the decoder gave it takes back.
                    added.into_iter().for_each(|rows| drop(decoder.remove_rows(rows)));
                    return Err(error);
                }
            }
            rest = &rest[step.len()..];
        }
        Ok(added)
    }

    /// How many of the first images a step holds, one at least.
    fn fitting(&self, items: &[(&ImageItem, u64)]) -> usize {
        let EncoderBounds { max_rows, max_items, max_frames } = self.bounds;
        let (mut tokens, mut frames) = (0_u64, 0_u64);
        let fits = items.iter().zip(1..).take_while(|((item, own), count)| {
            tokens = tokens.saturating_add(*own);
            frames = frames.saturating_add(item.grid[0] as u64);
            *count == 1 || (*count <= max_items && tokens <= max_rows && frames <= max_frames)
        });
        fits.count()
    }

    fn tokens_of(&self, item: &ImageItem) -> Result<u64, JoinError> {
        let tokens = self.config.tokens_of(item);
        let tokens = tokens.map_err(|reason| ItemError::Invalid { reason })?;
        let max_num_tokens = self.bounds.max_rows;
        match tokens > max_num_tokens {
            true => Err(ItemError::LargerThanAStep { tokens, max_num_tokens }.into()),
            false => Ok(tokens),
        }
    }

    /// Encodes images that a step holds; all of their rows are added, or none.
    fn add_step(
        &mut self,
        items: &[(&ImageItem, u64)],
        decoder: &mut Engine,
    ) -> Result<Vec<RowsId>, JoinError> {
        let inputs = self.config.fill(&Vec::from_iter(items.iter().map(|(item, _)| *item)));
        with_inputs(self.session.step(), &inputs).run_unread()?;
        let (mut added, mut first) = (Vec::with_capacity(items.len()), 0);
        for (item, tokens) in items {
            let rows = self.config.raster_rows(item.grid).into_iter().map(|row| row + first);
            let (rows, model) = (Vec::from_iter(rows), self.session.model_mut());
            match decoder.add_rows(RowSource::Output { model, output: 0, rows: &rows }) {
                Ok(rows) => added.push(rows),
                Err(error) => {
                    added.into_iter().for_each(|rows| drop(decoder.remove_rows(rows)));
                    return Err(error.into());
                }
            }
            first += *tokens as u32;
        }
        Ok(added)
    }

    /// What the tower's steps counted.
    pub fn statistics(&self) -> &Statistics {
        self.model().statistics()
    }

    /// The tower as a model: its graphs, its memory, what was compiled.
    pub fn model(&self) -> &CompiledModel {
        self.session.model()
    }
}

/// A tower before it is planned.
struct Tower {
    config: VisionConfig,
    bounds: EncoderBounds,
    assembly: Assembly,
}

impl Tower {
    fn read(folder: &Path, layers: ConfigLayers, most: u64) -> Result<Self, LoadError> {
        let checkpoint = Checkpoint::open(folder)?;
        let config = VisionConfig::load(folder)?.of_checkpoint(&checkpoint);
        let layers = sized(layers, most.max(1))?;
        let (bounds, dtype) = bounds_and_dtype(&layers, config.stored_dtype(), ANY)?;
        let graph = config.graph(&checkpoint, dtype, DType::F32, &bounds)?;
        check_weights(&graph, &checkpoint)?;
        let assembly = Assembly::graph(graph).configure(layers).checkpoint(checkpoint);
        let assembly = assembly.built_by_settings().purpose(Purpose::Rows);
        let assembly = assembly.whole_where_possible().map_err(EncoderBuildError::from)?;
        Ok(Self { config, bounds, assembly })
    }
}

/// The tower of a folder whose decoder reads images, as [`JoinedTower::load`] has it for images of
/// up to [`default_tokens`](super::default_tokens) tokens, to be compiled and not run; `None` of a
/// decoder that reads text alone. The configuration may be the decoder's.
///
/// # Errors
/// As for [`JoinedTower::load`].
pub fn tower_assembly(folder: &Path, layers: ConfigLayers) -> Result<Option<Assembly>, LoadError> {
    if ImagePrompts::load(folder)?.is_none() {
        return Ok(None);
    }
    let from = layers.clone().finish()?;
    let device = from.config.device.parse().map_err(|reason| {
        EncoderBuildError::from(AssemblyError::DeviceName { from: from.source("device"), reason })
    })?;
    let most = default_tokens(folder, device)?;
    Ok(Some(Tower::read(folder, layers, most)?.assembly))
}

fn sized(layers: ConfigLayers, most: u64) -> Result<ConfigLayers, ConfigError> {
    let bounds = EncoderBounds { max_rows: most, max_items: most, max_frames: u64::MAX };
    let budgets = default_budgets(ANY, bounds).into_iter().map(u64::cast_signed);
    let list = toml::Value::Array(budgets.map(toml::Value::Integer).collect());
    let from = "the largest image";
    let layers = layers.imposed("max_num_tokens", most.cast_signed(), from)?;
    let layers = layers.imposed("capture_num_tokens", list, from)?;
    let layers = layers.imposed("quantize", Quantize::None.name(), "a tower beside a decoder")?;
    match layers.clone().finish()?.config.dump.dir {
        // Beside the decoder's, whose unique pieces are others.
        Some(dir) => layers
            .imposed(
                "dump.dir",
                dir.join("images").display().to_string(),
                "the decoder's dump.dir",
            )?
            .imposed("dump.pieces", toml::Value::Array(Vec::new()), "the decoder's dump.pieces"),
        None => Ok(layers),
    }
}
