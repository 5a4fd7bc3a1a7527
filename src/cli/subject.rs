//! What is inspected: a model folder, or a textual graph.

use super::dumps::DumpArgs;
use super::load::{Folder, plan_dumped};
use super::model_args::ModelArgs;
use super::run::read_module;
use super::settings::{Settings, Workload};
use anyhow::{Context, bail};
use piecewise_ir::module::Module;
use piecewise_passes::check::check_plan;
use piecewise_runtime::config::Purpose;

/// A model folder or a textual graph, with the settings for it.
pub(crate) enum Subject {
    Folder(Box<Folder>),
    Text { module: Box<Module>, settings: Box<Settings> },
}

impl Subject {
    /// Opens what `--model` names.
    pub(crate) fn open(args: &ModelArgs) -> anyhow::Result<Self> {
        if !args.model.is_file() {
            let workload = Workload { purpose: Purpose::Generate, sequences: None };
            return Ok(Self::Folder(Box::new(Folder::open(args, workload)?)));
        }
        let flags = [
            ("--dtype", args.bounds.dtype.is_some()),
            ("--max-num-tokens", args.bounds.max_num_tokens.is_some()),
            ("--max-num-seqs", args.bounds.max_num_seqs.is_some()),
            ("--max-seq-len", args.bounds.max_seq_len.is_some()),
            ("--memory-budget", args.bounds.memory_budget.is_some()),
        ];
        if let Some((flag, _)) = flags.iter().find(|(_, is_given)| *is_given) {
            let file = args.model.display();
            bail!("{flag} is for model folders; the bounds of {file} are in its own text");
        }
        let module = Box::new(read_module(&args.model)?);
        let settings = Box::new(Settings::of_graph(&args.bounds.compile, module.graph())?);
        Ok(Self::Text { module, settings })
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> &Settings {
        match self {
            Self::Folder(folder) => &folder.settings,
            Self::Text { settings, .. } => settings,
        }
    }

    /// Says on standard error what deserves a second look.
    pub(crate) fn warn(&self) {
        match self {
            Self::Folder(folder) => folder.warn(),
            Self::Text { settings, .. } => settings.warn(),
        }
    }

    /// The planned module; a plan that a text brings is checked and kept.
    pub(crate) fn plan(&self, dumps: &DumpArgs) -> anyhow::Result<Module> {
        match self {
            Self::Folder(folder) => Ok(folder.plan(dumps, folder.graph(|_| None)?)?.0),
            Self::Text { module, settings } if module.layout().is_some() => {
                piecewise_ir::verify::verify_graph(module.graph())?;
                check_plan(module)
                    .map_err(|found| {
                        anyhow::anyhow!("{}", piecewise_ir::text::render(&**module, &found))
                    })
                    .context("the plan in the text can't be used")?;
                dumps.write_planned(settings, module)?;
                Ok(Module::clone(module))
            }
            Self::Text { module, settings } => {
                Ok(plan_dumped(settings, Module::clone(module).into_graph(), dumps)?.0)
            }
        }
    }
}
