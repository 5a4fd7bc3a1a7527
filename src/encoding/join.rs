//! Rows of a vision tower in the place of a decoder's tokens, on one device.

use super::budgets::default_budgets;
use super::path::with_inputs;
use super::protocol::{ItemError, TokenRange};
use super::runner::EncoderBuildError;
use super::text::{LoadError, bounds_and_dtype};
use crate::assembly::{Assembly, Notice, Planned, Purpose};
use crate::device::OpenDevice;
use crate::models::encoder::{EncoderBounds, ImageItem, VisionConfig};
use crate::models::{Checkpoint, check_weights};
use crate::session::{Session, SessionError};
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::{ConfigError, ConfigLayers};
use piecewise_runtime::engine::{Engine, EngineError, RowSource, RowsId};
use std::path::Path;

/// Tokens of an image.
const ANY: TokenRange = TokenRange::up_to(u64::MAX);

/// Why an image's rows are not with the decoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The image.
    #[error(transparent)]
    Item(#[from] ItemError),
    /// The tower's step.
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
        let config = VisionConfig::load(folder)?;
        let checkpoint = Checkpoint::open(folder)?;
        let layers = sized(layers, most.max(1))?;
        let (bounds, dtype) = bounds_and_dtype(&layers, config.stored_dtype(), ANY)?;
        let graph = config.graph(&checkpoint, dtype, DType::F32, &bounds)?;
        check_weights(&graph, &checkpoint)?;
        let assembly = Assembly::graph(graph).configure(layers).checkpoint(checkpoint);
        let assembly = assembly.purpose(Purpose::Rows).on(device).watch(watch);
        let session = assembly.plan().and_then(Planned::session);
        Ok(Self { config, session: session.map_err(EncoderBuildError::from)?, bounds })
    }

    /// Encodes an image and adds its rows, in the order of its tokens, to `decoder`.
    ///
    /// # Errors
    /// When the image does not fit the tower or has more tokens than a step, the step fails, or the
    /// decoder has no room for its rows.
    pub fn add(&mut self, item: &ImageItem, decoder: &mut dyn Engine) -> Result<RowsId, JoinError> {
        let invalid = |reason| ItemError::Invalid { reason };
        let tokens = self.config.tokens_of(item).map_err(invalid)?;
        let max_num_tokens = self.bounds.max_rows;
        if tokens > max_num_tokens {
            return Err(ItemError::LargerThanAStep { tokens, max_num_tokens }.into());
        }
        let inputs = self.config.fill(&[item]);
        with_inputs(self.session.step(), &inputs).run_unread()?;
        let rows = self.config.raster_rows(item.grid);
        let model = self.session.model_mut();
        Ok(decoder.add_rows(RowSource::Output { model, output: 0, rows: &rows })?)
    }
}

fn sized(layers: ConfigLayers, most: u64) -> Result<ConfigLayers, ConfigError> {
    let bounds = EncoderBounds { max_rows: most, max_items: most, max_frames: u64::MAX };
    let budgets = default_budgets(ANY, bounds).into_iter().map(u64::cast_signed);
    let list = toml::Value::Array(budgets.map(toml::Value::Integer).collect());
    let from = "the largest image";
    let layers = layers.imposed("max_num_tokens", most.cast_signed(), from)?;
    layers.imposed("capture_num_tokens", list, from)
}
