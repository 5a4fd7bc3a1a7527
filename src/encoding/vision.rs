//! Images, as patches, to rows.

use super::protocol::{ItemEncoder, ItemError};
use super::runner::Encoder;
use super::text::{LoadError, bounds_and_dtype};
use crate::assembly::Notice;
use crate::models::encoder::{ImageItem, OutputRows, Values, VisionConfig};
use crate::models::{Checkpoint, check_weights};
use piecewise_runtime::config::ConfigLayers;
use std::path::Path;

/// What encodes images.
#[derive(Clone, Debug)]
pub struct VisionModel {
    config: VisionConfig,
}

/// An encoder of images.
pub type VisionEncoder = Encoder<VisionModel>;

impl Encoder<VisionModel> {
    /// The vision tower in a model folder, alone or inside a larger checkpoint. Of the
    /// configuration, `max_num_tokens` is the most rows of a step (where a tower merges patches,
    /// merged tokens), `max_num_seqs` the most items of one, and `capture_num_tokens` the budgets.
    ///
    /// # Errors
    /// When the folder has no tower that is known here, or a setting, the device or a weight is
    /// wrong.
    pub fn load(
        folder: &Path,
        layers: ConfigLayers,
        watch: impl FnMut(Notice<'_>) + Send + 'static,
    ) -> Result<Self, LoadError> {
        let config = VisionConfig::load(folder)?;
        let checkpoint = Checkpoint::open(folder)?;
        let (bounds, dtype) = bounds_and_dtype(&layers, config.stored_dtype())?;
        let graph = config.graph(&checkpoint, dtype, &bounds)?;
        check_weights(&graph, &checkpoint)?;
        Ok(Self::new(VisionModel { config }, graph, checkpoint, bounds, layers, watch)?)
    }
}

impl VisionModel {
    /// What the folder's configuration says.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }
}

impl ItemEncoder for VisionModel {
    type Item = ImageItem;

    fn rows(&self, item: &ImageItem) -> Result<u64, ItemError> {
        self.config.rows_of(item).map_err(|reason| ItemError::Invalid { reason })
    }

    fn fill(&self, items: &[&ImageItem]) -> Vec<(&'static str, Values)> {
        self.config.fill(items)
    }

    fn outputs(&self) -> Vec<OutputRows> {
        self.config.outputs()
    }

    fn assemble(&self, item: &ImageItem, outputs: &mut [Vec<f32>]) {
        self.config.assemble(item, outputs);
    }
}
