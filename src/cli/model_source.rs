//! What is compiled without being run: a model folder, a preset, or a textual graph.

use super::dumps::DumpArgs;
use super::load::{Folder, plan_graph, read_config, stored_dtypes};
use super::model_args::BoundArgs;
use super::run::read_module;
use super::settings::{Settings, Workload};
use anyhow::bail;
use piecewise::models::{Checkpoint, Preset};
use piecewise_ir::module::{Module, Stitch};
use piecewise_passes::RunReport;
use piecewise_runtime::config::Purpose;
use std::path::PathBuf;

/// Where a graph comes from and what it is compiled for; no weights are read.
#[derive(Debug, clap::Args)]
#[group(id = "source", required = true, multiple = false, args = ["file", "model", "preset"])]
pub(crate) struct SourceArgs {
    /// A textual graph, as a dump after any pass has it.
    file: Option<PathBuf>,
    /// A Hugging Face model folder; config.json is enough.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// A published model: qwen3-0.6b, llama-3.2-1b, qwen3-8b or llama-3.1-8b.
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
    #[command(flatten)]
    pub bounds: BoundArgs,
}

/// A planned module with the settings that choose its sizes.
pub(crate) struct Planned {
    pub settings: Settings,
    pub module: Module,
    /// What the passes did; none run over a graph that is planned already.
    pub passes: RunReport,
    /// The decoder layers, where the configuration says how many there are.
    pub layers: Option<usize>,
}

impl Planned {
    /// The pieces.
    pub(crate) fn stitch(&self) -> anyhow::Result<&Stitch> {
        match self.module.stitch() {
            Some(stitch) => Ok(stitch),
            None => bail!("the pipeline made no pieces"),
        }
    }
}

impl SourceArgs {
    /// Plans the graph as a run would, or prints the settings if that is all that is asked for.
    pub(crate) fn plan(&self, json: bool) -> anyhow::Result<Option<Planned>> {
        let print_config = self.bounds.compile.print_config;
        if let Some(file) = &self.file {
            let module = read_module(file)?;
            let settings = Settings::of_graph(&self.bounds.compile, module.graph())?;
            if print_config {
                settings.print(json)?;
                return Ok(None);
            }
            settings.warn();
            let (module, passes) = match module.layout() {
                Some(_) => (module, RunReport::default()),
                None => plan_graph(&settings, module.into_graph(), Vec::new())?,
            };
            return Ok(Some(Planned { settings, module, passes, layers: None }));
        }
        let (config, checkpoint) = match (&self.model, self.preset) {
            (Some(folder), _) => (read_config(folder)?, Checkpoint::open(folder).ok()),
            (None, Some(preset)) => (preset.config(), None),
            (None, None) => bail!("there is nothing to compile"),
        };
        let workload = Workload { purpose: Purpose::Generate, sequences: None };
        let folder = Folder::of(config, &self.bounds, workload)?;
        if print_config {
            folder.settings.print(json)?;
            return Ok(None);
        }
        folder.warn();
        // Tensors of another type than the configuration's make other pieces.
        let dtypes = checkpoint.map(|checkpoint| stored_dtypes(&checkpoint)).unwrap_or_default();
        let graph = folder.graph(move |name| dtypes.get(name).copied())?;
        let (module, passes) = folder.plan(&DumpArgs::default(), graph)?;
        let layers = Some(folder.config.num_layers);
        Ok(Some(Planned { settings: folder.settings, module, passes, layers }))
    }
}
