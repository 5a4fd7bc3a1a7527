//! Image files, and images in prompts.

use super::encoder_args::room_for;
use super::progress::watcher;
use anyhow::{Context, bail};
use piecewise::assembly::Assembly;
use piecewise::device::{OpenDevice, all_threads};
use piecewise::encoding::{ImageItem, ImageProcessor, JoinedTower};
use piecewise::models::ImagePrompts;
use piecewise::models::encoder::VisionConfig;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::engine::{Engine, GivenRows, Request};
use piecewise_runtime::memory::RowsId;
use piecewise_runtime::observe::Statistics;
use piecewise_runtime::words::Ledger;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes that an image file may have.
const LARGEST_FILE: u64 = 256 << 20;

/// The item of an image file.
pub(super) fn item_of_file(processor: &ImageProcessor, file: &Path) -> anyhow::Result<ImageItem> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|f| f.take(LARGEST_FILE + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("can't read {}", file.display()))?;
    if bytes.len() as u64 > LARGEST_FILE {
        anyhow::bail!("{}: larger than {LARGEST_FILE} bytes", file.display());
    }
    processor.item(&bytes).with_context(|| file.display().to_string())
}

/// Images that every prompt of a run is about.
pub(super) struct PromptImages {
    prompts: ImagePrompts,
    items: Vec<ImageItem>,
    /// How many tokens stand for each of them.
    tokens: Vec<u64>,
    device: OpenDevice,
    rows: Vec<RowsId>,
    /// What the tower did, once it has.
    tower: Option<TowerReport>,
}

/// What a tower was and did, which is gone once its rows are with the decoder.
#[derive(Serialize)]
pub(super) struct TowerReport {
    pub(super) graphs: usize,
    pub(super) graph_mode: &'static str,
    pub(super) memory: Ledger,
    pub(super) statistics: Statistics,
}

impl PromptImages {
    /// Reads the files for the model in `folder`, which `assembly` is to run.
    pub(super) fn read(
        folder: &Path,
        files: &[PathBuf],
        assembly: &Assembly,
    ) -> anyhow::Result<Self> {
        let Some(prompts) = ImagePrompts::load(folder)? else {
            bail!("{} reads text alone: --image takes a Qwen2.5-VL", folder.display());
        };
        let (tower, processor) = (VisionConfig::load(folder)?, ImageProcessor::load(folder)?);
        let items = files.iter().map(|file| item_of_file(&processor, file));
        let items = items.collect::<anyhow::Result<Vec<_>>>()?;
        let tokens = items.iter().map(|item| tower.tokens_of(item));
        let tokens = tokens.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
        let device = assembly.settings()?.device.open(all_threads())?;
        Ok(Self { prompts, items, tokens, device, rows: Vec::new(), tower: None })
    }

    /// The decoder on the device of the images, with room for them.
    pub(super) fn decoder(&self, assembly: Assembly) -> Assembly {
        assembly.on(&self.device).embedding_rows(self.tokens.iter().sum())
    }

    /// Encodes them into rows of `decoder`; the tower is gone after that.
    pub(super) fn encode(
        &mut self,
        folder: &Path,
        layers: ConfigLayers,
        decoder: &mut Engine,
    ) -> anyhow::Result<()> {
        let largest = self.tokens.iter().max().copied().unwrap_or(1);
        let most = room_for(&layers, folder, largest)?;
        // Most budgets are not those of the images at hand.
        let layers = layers.derived("capture", "lazy", "a run about a few images")?;
        let mut tower = JoinedTower::load(folder, layers, most, &self.device, watcher())?;
        self.rows = tower.add_all(&self.items, decoder)?;
        let model = tower.model();
        self.tower = Some(TowerReport {
            graphs: model.captured_graphs(),
            graph_mode: model.dispatcher().mode.name(),
            memory: model.ledger(),
            statistics: model.statistics().clone(),
        });
        Ok(())
    }

    /// What the tower did, once it has encoded.
    pub(super) fn tower(&self) -> Option<&TowerReport> {
        self.tower.as_ref()
    }

    /// A request whose prompt has the images in their places.
    pub(super) fn place(&self, request: Request) -> anyhow::Result<Request> {
        let grids = Vec::from_iter(self.items.iter().map(|item| item.grid));
        let placed = self.prompts.place(&request.prompt, &grids)?;
        let rows = placed.positions.iter().zip(&self.rows);
        let rows = rows.map(|(&position, &rows)| GivenRows { position, rows }).collect();
        Ok(Request { prompt: placed.ids.into(), rows, values: vec![placed.coordinates], ..request })
    }
}
