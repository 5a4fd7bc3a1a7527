//! Images, as patches, to rows.

use super::protocol::{ItemEncoder, ItemError, PathSize, TokenRange};
use super::runner::{Encoder, EncoderPath};
use super::text::{LoadError, bounds_and_dtype};
use crate::assembly::Notice;
use crate::models::encoder::{ImageItem, OutputRows, Values, VisionConfig};
use crate::models::{Checkpoint, check_weights};
use piecewise_runtime::config::ConfigLayers;
use std::path::Path;

/// The configuration of a vision tower.
#[derive(Clone, Debug)]
pub struct VisionModel {
    config: VisionConfig,
}

/// An encoder whose items are images.
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
        let (model, path) = VisionModel::read(folder, layers)?;
        Ok(Self::of_only(model, path, watch)?)
    }
}

impl VisionModel {
    /// The tower in a folder, and its path before it is compiled.
    pub(super) fn read(
        folder: &Path,
        layers: ConfigLayers,
    ) -> Result<(Self, EncoderPath), LoadError> {
        let checkpoint = Checkpoint::open(folder)?;
        let model = Self { config: VisionConfig::load(folder)?.of_checkpoint(&checkpoint) };
        let config = &model.config;
        let (bounds, dtype) = bounds_and_dtype(&layers, config.stored_dtype(), model.range(0))?;
        // As they are computed: what leaves the device is half as much in 16 bits.
        let graph = config.graph(&checkpoint, dtype, dtype, &bounds)?;
        check_weights(&graph, &checkpoint)?;
        Ok((model, EncoderPath::only(graph, checkpoint, bounds, layers)))
    }

    /// What the folder's configuration says, and its checkpoint.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }
}

impl ItemEncoder for VisionModel {
    type Item = ImageItem;

    fn sizes(&self, item: &ImageItem) -> Result<Vec<PathSize>, ItemError> {
        let tokens = self.config.tokens_of(item).map_err(|reason| ItemError::Invalid { reason })?;
        let [frames, rows, columns] = item.grid.map(|n| n as u64);
        Ok(vec![PathSize { rows: frames * rows * columns, tokens, frames }])
    }

    fn range(&self, _path: usize) -> TokenRange {
        match self.config.fixed_tokens() {
            Some(tokens) => TokenRange::always(tokens),
            None => TokenRange::up_to(u64::MAX),
        }
    }

    fn fill<'a>(&self, _path: usize, items: &[&'a ImageItem]) -> Vec<(&'static str, Values<'a>)> {
        self.config.fill(items)
    }

    fn outputs(&self, _path: usize) -> Vec<OutputRows> {
        self.config.outputs()
    }

    fn order(&self, _path: usize, item: &ImageItem) -> Option<Vec<u32>> {
        let keeps_order = self.config.fixed_tokens().is_some();
        (!keeps_order).then(|| self.config.raster_rows(item.grid))
    }
}
