//! Flags that show what the passes do.

use piecewise_ir::text::print_module;
use piecewise_passes::Observer;
use piecewise_passes::manager::{DumpDir, PrintAfter, StopAfter};
use piecewise_runtime::config::DumpConfig;
use std::io::Write;
use std::path::PathBuf;

/// What to show of the passes.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct DumpArgs {
    /// Write the module and the remarks after each pass into this folder.
    #[arg(long, value_name = "DIR")]
    pub dump_dir: Option<PathBuf>,
    /// Print the module to standard error after this pass, or after `all`.
    #[arg(long, value_name = "PASS")]
    print_after: Option<String>,
    /// Stop after this pass.
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
}

impl DumpArgs {
    /// The observers that the flags and the configuration ask for.
    pub(crate) fn observers(&self, config: &DumpConfig) -> anyhow::Result<Vec<Box<dyn Observer>>> {
        let mut observers: Vec<Box<dyn Observer>> = Vec::new();
        if let Some(dir) = self.dump_dir.as_ref().or(config.dir.as_ref()) {
            let dump = DumpDir::new(dir, print_module)?.only(config.passes.clone());
            observers.push(Box::new(dump));
        }
        if let Some(pass) = &self.print_after {
            observers.push(Box::new(PrintAfter {
                pass: (pass != "all").then(|| pass.clone()),
                print: print_module,
                sink: |name: &'static str, text: String| {
                    // A closed standard error leaves nobody to show it to.
                    let _ = writeln!(std::io::stderr(), ";; after {name}\n{text}");
                },
            }));
        }
        if let Some(pass) = &self.stop_after {
            observers.push(Box::new(StopAfter(pass.clone())));
        }
        Ok(observers)
    }

    /// Whether the pipeline ends early, so that there is no plan.
    pub(crate) fn stops(&self) -> bool {
        self.stop_after.is_some()
    }
}
