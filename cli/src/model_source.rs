//! What is compiled without being run: a model folder, a preset, or a textual graph.

use super::dumps::DumpArgs;
use super::load::{Folder, plan_dumped, read_config, stored_dtypes};
use super::model_args::BoundArgs;
use super::settings::{Settings, Workload};
use anyhow::{Context, bail};
use piecewise::models::{Checkpoint, DecoderConfig, Preset};
use piecewise_ir::module::{Module, Stitch};
use piecewise_ir::text::{parse_module, render};
use piecewise_ir::verify::verify_graph;
use piecewise_passes::RunReport;
use piecewise_passes::check::check_plan;
use piecewise_runtime::config::Purpose;
use std::path::{Path, PathBuf};

/// Where a graph comes from and what it is compiled for; no weights are read.
#[derive(Debug, clap::Args)]
#[group(id = "source", required = true, multiple = false, args = ["file", "model", "preset"])]
pub(crate) struct SourceArgs {
    /// A textual graph, as a dump after any pass has it.
    file: Option<PathBuf>,
    /// A Hugging Face model folder, of which config.json is enough; or a textual graph.
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
        self.plan_dumped(json, &DumpArgs::default())
    }

    /// As [`SourceArgs::plan`], and shows what the passes do and make.
    pub(crate) fn plan_dumped(
        &self,
        json: bool,
        dumps: &DumpArgs,
    ) -> anyhow::Result<Option<Planned>> {
        match (self.textual(), &self.model, self.preset) {
            (Some(file), ..) => self.plan_text(file, json, dumps),
            (None, Some(folder), _) => {
                let config = read_config(folder)?;
                self.plan_model(config, Checkpoint::open(folder).ok(), json, dumps)
            }
            (None, None, Some(preset)) => self.plan_model(preset.config(), None, json, dumps),
            (None, None, None) => bail!("there is nothing to compile"),
        }
    }

    /// The textual graph, under whichever flag it was given.
    fn textual(&self) -> Option<&Path> {
        self.file.as_deref().or_else(|| self.model.as_deref().filter(|model| model.is_file()))
    }

    fn plan_text(
        &self,
        file: &Path,
        json: bool,
        dumps: &DumpArgs,
    ) -> anyhow::Result<Option<Planned>> {
        self.refuse_bounds_for(file)?;
        let module = read_module(file)?;
        let settings = Settings::of_graph(&self.bounds.compile, module.graph())?;
        if self.bounds.compile.print_config {
            settings.print(json)?;
            return Ok(None);
        }
        settings.warn();
        let (module, passes) = if module.layout().is_some() {
            check_brought_plan(&module, file)?;
            dumps.write_planned(&settings, &module)?;
            (module, RunReport::default())
        } else {
            plan_dumped(&settings, module.into_graph(), dumps)?
        };
        Ok(Some(Planned { settings, module, passes, layers: None }))
    }

    /// Refuses a bound that the text of a graph states itself.
    fn refuse_bounds_for(&self, file: &Path) -> anyhow::Result<()> {
        let flags = [
            ("--dtype", self.bounds.dtype.is_some()),
            ("--max-num-tokens", self.bounds.max_num_tokens.is_some()),
            ("--max-num-seqs", self.bounds.max_num_seqs.is_some()),
            ("--max-seq-len", self.bounds.max_seq_len.is_some()),
            ("--memory-budget", self.bounds.memory_budget.is_some()),
        ];
        match flags.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => {
                let file = file.display();
                bail!("{flag} is for model folders; the bounds of {file} are in its own text")
            }
            None => Ok(()),
        }
    }

    fn plan_model(
        &self,
        config: DecoderConfig,
        checkpoint: Option<Checkpoint>,
        json: bool,
        dumps: &DumpArgs,
    ) -> anyhow::Result<Option<Planned>> {
        let workload = Workload { purpose: Purpose::Generate, sequences: None };
        let folder = Folder::of(config, &self.bounds, workload)?;
        if self.bounds.compile.print_config {
            folder.settings.print(json)?;
            return Ok(None);
        }
        folder.warn();
        // Tensors of another type than the configuration's make other pieces.
        let dtypes = checkpoint.map(|checkpoint| stored_dtypes(&checkpoint)).unwrap_or_default();
        let graph = folder.graph(move |name| dtypes.get(name).copied())?;
        let (module, passes) = folder.plan(dumps, graph)?;
        let layers = Some(folder.config.num_layers);
        Ok(Some(Planned { settings: folder.settings, module, passes, layers }))
    }
}

/// Reads a textual module.
pub(crate) fn read_module(file: &Path) -> anyhow::Result<Module> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    parse_module(&text).with_context(|| format!("{} does not parse", file.display()))
}

/// Holds a plan that the text in `file` brings against its graph.
pub(crate) fn check_brought_plan(module: &Module, file: &Path) -> anyhow::Result<()> {
    verify_graph(module.graph())
        .map_err(|found| anyhow::anyhow!("{}", render(module.graph(), &found)))
        .with_context(|| format!("the graph in {} is not valid", file.display()))?;
    check_plan(module)
        .map_err(|found| anyhow::anyhow!("{}", render(module, &found)))
        .with_context(|| format!("the plan in {} can't be used", file.display()))
}
