//! Flags that show what the passes do, and files of what they make.

use super::logs::say;
use piecewise::assembly::{Assembly, Planned};
use piecewise_ir::text::print_module;
use piecewise_passes::Observer;
use piecewise_passes::manager::{PrintAfter, StopAfter};
use piecewise_runtime::config::{ConfigError, ConfigLayers, DumpConfig};
use std::path::PathBuf;
use toml::Value;

/// What to show of the passes.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct DumpArgs {
    /// Write into this folder what each pass changed and why, the pieces, the plan, the kernels of
    /// each piece at each size, and what each captured graph launches.
    #[arg(long, value_name = "DIR")]
    dump_dir: Option<PathBuf>,
    /// Dump after these passes only.
    #[arg(long, value_name = "PASS,..", value_delimiter = ',')]
    dump_passes: Vec<String>,
    /// Dump these unique pieces only.
    #[arg(long, value_name = "PIECE,..", value_delimiter = ',')]
    dump_pieces: Vec<String>,
    /// Dump PTX and machine code of kernels, too, and its disassembly where nvdisasm or cuobjdump is found.
    #[arg(long)]
    dump_code: bool,
    /// Print the module to standard error after this pass, or after `all`.
    #[arg(long, value_name = "PASS")]
    print_after: Option<String>,
    /// Stop after this pass.
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
}

impl DumpArgs {
    /// Sets what the flags say over the configuration.
    pub(crate) fn over(&self, assembly: Assembly) -> Assembly {
        self.settings().fold(assembly, |on, (key, value, flag)| on.flag(key, value, flag))
    }

    /// The same where there is no assembly yet.
    pub(crate) fn over_layers(&self, layers: ConfigLayers) -> Result<ConfigLayers, ConfigError> {
        self.settings().try_fold(layers, |on, (key, value, flag)| on.flag(key, value, flag))
    }

    /// Keys, values and flags of what is given.
    fn settings(&self) -> impl Iterator<Item = (&'static str, Value, &'static str)> {
        let dir = self.dump_dir.as_ref().map(|dir| Value::from(dir.display().to_string()));
        let list = |names: &[String]| (!names.is_empty()).then(|| Value::from(names.to_vec()));
        let all = [
            ("dump.dir", dir, "--dump-dir"),
            ("dump.passes", list(&self.dump_passes), "--dump-passes"),
            ("dump.pieces", list(&self.dump_pieces), "--dump-pieces"),
            ("dump.code", self.dump_code.then_some(Value::Boolean(true)), "--dump-code"),
        ];
        all.into_iter().filter_map(|(key, value, flag)| Some((key, value?, flag)))
    }

    /// What the flags say, where there is no configuration.
    pub(crate) fn config(&self) -> DumpConfig {
        DumpConfig {
            dir: self.dump_dir.clone(),
            passes: self.dump_passes.clone(),
            pieces: self.dump_pieces.clone(),
            code: self.dump_code,
        }
    }

    /// The observers that the flags ask for besides files.
    pub(crate) fn observers(&self) -> Vec<Box<dyn Observer>> {
        let mut observers: Vec<Box<dyn Observer>> = Vec::new();
        if let Some(pass) = &self.print_after {
            observers.push(Box::new(PrintAfter {
                pass: (pass != "all").then(|| pass.clone()),
                print: print_module,
                sink: |name: &str, text: String| say(&format!(";; after {name}\n{text}")),
            }));
        }
        if let Some(pass) = &self.stop_after {
            observers.push(Box::new(StopAfter(pass.clone())));
        }
        observers
    }

    /// A flag that was given and shows the passes on standard error, or stops them.
    pub(crate) fn looks_on(&self) -> Option<&'static str> {
        let flags = [
            ("--print-after", self.print_after.is_some()),
            ("--stop-after", self.stop_after.is_some()),
        ];
        flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    /// Whether the pipeline ends early, so that there is no plan.
    pub(crate) fn stops(&self) -> bool {
        self.stop_after.is_some()
    }

    /// Plans, and shows on the way what the flags ask for.
    pub(crate) fn plan(&self, assembly: Assembly) -> anyhow::Result<Planned> {
        Ok(self.observers().into_iter().fold(assembly, Assembly::observe).plan()?)
    }
}
