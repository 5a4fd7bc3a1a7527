//! What is compiled without being run: a model folder, a preset, or a textual graph.

use super::encoder_args::with_room;
use super::hub::folder_of;
use super::logs::warn;
use super::model_args::BoundArgs;
use super::preset_weights::WEIGHTS;
use super::progress::watcher;
use anyhow::{Context, bail};
use piecewise::assembly::{Assembly, Registries};
use piecewise::encoding::{LoadError, folder_assembly, other_assemblies, tower_assembly};
use piecewise::models::encoder::is_encoder;
use piecewise::models::{Checkpoint, Preset};
use piecewise_ir::module::Module;
use piecewise_ir::text::parse_module;
use std::path::{Path, PathBuf};

/// Where a graph comes from and what it is compiled for; no weights are read.
#[derive(Debug, clap::Args)]
#[group(id = "source", required = true, multiple = false, args = ["file", "model", "preset"])]
pub(crate) struct SourceArgs {
    /// A textual graph, as a dump after any pass has it.
    file: Option<PathBuf>,
    /// A Hugging Face model folder, of a decoder or an encoder; of a decoder config.json is enough. Or
    /// a model of the hub by its name, such as Qwen/Qwen3-0.6B, or a textual graph.
    #[arg(short, long, value_name = "DIR|NAME")]
    model: Option<PathBuf>,
    /// A published model: qwen3-0.6b, llama-3.2-1b, qwen3-8b, llama-3.1-8b or
    /// qwen3-30b-a3b.
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
    #[command(flatten)]
    pub bounds: BoundArgs,
}

impl SourceArgs {
    /// Has the folder of a model of the hub, downloaded where it is missing.
    pub(crate) fn bring(&mut self) -> anyhow::Result<()> {
        if let Some(model) = &mut self.model {
            *model = folder_of(model)?;
        }
        Ok(())
    }

    /// The graph with the configuration of the flags, as a run would have it.
    pub(crate) fn assembly(&self, registries: &Registries) -> anyhow::Result<Assembly> {
        let file = self.file.as_deref();
        let textual = file.or_else(|| self.model.as_deref().filter(|model| model.is_file()));
        let assembly = match (textual, &self.model, self.preset) {
            (Some(file), ..) => Assembly::file(file)?.registries(registries.clone()),
            (None, Some(folder), _) if is_encoder(folder).unwrap_or(false) => {
                let layers = with_room(self.bounds.layers()?, folder)?;
                return Ok(folder_assembly(folder, layers)?.watch(watcher()));
            }
            (None, Some(folder), _) => registries.folder(folder)?,
            (None, None, Some(preset)) => {
                Assembly::model(preset.config()).registries(registries.clone())
            }
            (None, None, None) => bail!("there is nothing to compile"),
        };
        Ok(assembly.configure(self.bounds.layers()?).watch(watcher()))
    }

    /// The same with weights to run it by: those of the folder, or random ones.
    pub(crate) fn weighted(&self, registries: &Registries) -> anyhow::Result<Assembly> {
        let assembly = self.assembly(registries)?;
        let folder = self.model.as_deref().filter(|model| model.is_dir());
        Ok(match folder.map(|folder| is_encoder(folder).unwrap_or(false)) {
            Some(true) => assembly,
            Some(false) => assembly.check_weights(),
            None => assembly.weights(WEIGHTS),
        })
    }

    /// The same with weights, for one sequence: those of `weights` for a text, of the folder, or random ones.
    pub(crate) fn tried(
        &self,
        registries: &Registries,
        weights: Option<&Path>,
    ) -> anyhow::Result<Assembly> {
        let assembly = match weights {
            Some(folder) => self.assembly(registries)?.checkpoint(Checkpoint::open(folder)?),
            None => self.weighted(registries)?,
        };
        Ok(assembly.sequences(1))
    }

    /// Another text, put together as this one is.
    pub(crate) fn tried_text(
        &self,
        file: &Path,
        registries: &Registries,
        weights: Option<&Path>,
    ) -> anyhow::Result<Assembly> {
        let assembly = Assembly::file(file)?.registries(registries.clone());
        let assembly = assembly.configure(self.bounds.layers()?).watch(watcher());
        let folder = weights.or_else(|| self.model.as_deref().filter(|model| model.is_dir()));
        Ok(match folder {
            Some(folder) => assembly.checkpoint(Checkpoint::open(folder)?),
            None => assembly.weights(WEIGHTS),
        })
    }

    /// The vision tower beside the decoder of a model folder, as `generate --image` runs it.
    pub(crate) fn tower(&self) -> anyhow::Result<Option<Assembly>> {
        let Some(folder) = self.model.as_deref().filter(|folder| folder.is_dir()) else {
            return Ok(None);
        };
        if is_encoder(folder)? {
            return Ok(None);
        }
        match tower_assembly(folder, self.bounds.layers()?) {
            // Of a decoder the configuration is enough.
            Err(LoadError::Checkpoint(error)) => {
                warn(&format!("the vision tower is left out, which needs its weights: {error}"));
                Ok(None)
            }
            tower => Ok(tower?.map(|tower| tower.watch(watcher()))),
        }
    }

    /// What commands make of a model folder beside [`Self::assembly`], each with what tells its pieces
    /// from others.
    pub(crate) fn beside(&self) -> anyhow::Result<Vec<(&'static str, Assembly)>> {
        let Some(folder) = self.model.as_deref().filter(|folder| folder.is_dir()) else {
            return Ok(Vec::new());
        };
        if !is_encoder(folder)? {
            return Ok(self.tower()?.map(|tower| ("images", tower)).into_iter().collect());
        }
        let others = other_assemblies(folder, &with_room(self.bounds.layers()?, folder)?)?;
        Ok(others.into_iter().map(|(name, other)| (name, other.watch(watcher()))).collect())
    }

    /// Whether the settings are all that is asked for.
    pub(crate) fn prints_settings(&self) -> bool {
        self.bounds.compile.shared.print_config
    }
}

/// A module, or why its text is none.
pub(crate) fn read_module(file: &Path) -> anyhow::Result<Module> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    parse_module(&text).with_context(|| format!("{} does not parse", file.display()))
}
