//! Flags that show what the passes do, and files of what they make.

mod captured;
mod dot;
mod files;
mod kernels;

use super::say;
use anyhow::bail;
use files::DumpFolder;
use piecewise::assembly::{Assembly, Planned};
use piecewise_ir::entity::UniquePieceId;
use piecewise_ir::module::{Module, Stitch};
use piecewise_ir::text::{print_graph, print_module};
use piecewise_passes::manager::{BisectLog, DumpDir, PrintAfter, PrintChanged, StopAfter};
use piecewise_passes::pipeline::nearest;
use piecewise_passes::{Observer, Registry};
use piecewise_runtime::config::DumpConfig;
use std::io::Write;
use std::path::PathBuf;

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
    /// Print the module to standard error after this pass, or after `all`.
    #[arg(long, value_name = "PASS")]
    print_after: Option<String>,
    /// Stop after this pass.
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
}

impl DumpArgs {
    /// Sets what the flags say over the configuration.
    pub(crate) fn over(&self, mut assembly: Assembly) -> Assembly {
        if let Some(dir) = &self.dump_dir {
            assembly = assembly.flag("dump.dir", dir.display().to_string(), "--dump-dir");
        }
        let lists = [
            ("dump.passes", &self.dump_passes, "--dump-passes"),
            ("dump.pieces", &self.dump_pieces, "--dump-pieces"),
        ];
        for (key, names, flag) in lists.into_iter().filter(|(_, names, _)| !names.is_empty()) {
            assembly = assembly.flag(key, names.clone(), flag);
        }
        assembly
    }

    /// What the flags say, where there is no configuration.
    pub(crate) fn config(&self) -> DumpConfig {
        DumpConfig {
            dir: self.dump_dir.clone(),
            passes: self.dump_passes.clone(),
            pieces: self.dump_pieces.clone(),
        }
    }

    /// The observers that the flags and the configuration ask for.
    pub(crate) fn observers(&self, config: &DumpConfig) -> anyhow::Result<Vec<Box<dyn Observer>>> {
        let mut observers: Vec<Box<dyn Observer>> = Vec::new();
        if let Some(dir) = &config.dir {
            check_pass_names(&config.passes)?;
            let dump = DumpDir::new(dir.join("passes"), print_module)?.only(config.passes.clone());
            observers.push(Box::new(dump));
        }
        if let Some(pass) = &self.print_after {
            observers.push(Box::new(PrintAfter {
                pass: (pass != "all").then(|| pass.clone()),
                print: print_module,
                sink: |name: &'static str, text: String| say(&format!(";; after {name}\n{text}")),
            }));
        }
        if let Some(pass) = &self.stop_after {
            observers.push(Box::new(StopAfter(pass.clone())));
        }
        Ok(observers)
    }

    /// A flag that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--dump-dir", self.dump_dir.is_some()),
            ("--dump-passes", !self.dump_passes.is_empty()),
            ("--dump-pieces", !self.dump_pieces.is_empty()),
            ("--print-after", self.print_after.is_some()),
            ("--stop-after", self.stop_after.is_some()),
        ];
        flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    /// Whether the pipeline ends early, so that there is no plan.
    pub(crate) fn stops(&self) -> bool {
        self.stop_after.is_some()
    }

    /// Dumps a module after its last pass, as far as it was planned.
    pub(crate) fn write_module(&self, module: &Module, config: &DumpConfig) -> anyhow::Result<()> {
        let Some(dir) = &config.dir else { return Ok(()) };
        let folder = DumpFolder::new(dir)?;
        folder.write("graph.dot", &dot::graph(module.graph()))?;
        let Some(stitch) = module.stitch() else { return Ok(()) };
        folder.write("plan.pw", &print_module(module))?;
        folder.write("plan.dot", &dot::plan(module, stitch))?;
        for unique in chosen(stitch, config)? {
            let piece = &stitch.unique[unique];
            folder.write(&format!("pieces/{unique}.pw"), &print_graph(&piece.graph))?;
        }
        Ok(())
    }

    /// Plans, and dumps what the passes did, what they made, and what becomes of the pieces on the
    /// target.
    pub(crate) fn plan(&self, mut assembly: Assembly) -> anyhow::Result<Planned> {
        let config = assembly.settings()?.config.dump;
        for observer in self.observers(&config)? {
            assembly = assembly.observe(observer);
        }
        let planned = assembly.plan()?;
        self.write_module(planned.module(), &config)?;
        let (Some(dir), Some(stitch)) = (&config.dir, planned.module().stitch()) else {
            return Ok(planned);
        };
        let chosen = chosen(stitch, &config)?;
        // What runs between pieces says which graphs can be captured at all.
        let between = stitch.unique_pieces();
        let lowered = planned.lower(|u| chosen.contains(&u) || !between.contains(&u))?;
        let folder = DumpFolder::new(dir)?;
        let pieces = kernels::Pieces { planned: &planned, stitch, lowered: &lowered };
        pieces.write(&folder, &chosen)?;
        captured::write(&folder, &pieces, &chosen)?;
        drop(lowered);
        Ok(planned)
    }
}

/// The unique pieces that the filter lets through.
fn chosen(stitch: &Stitch, config: &DumpConfig) -> anyhow::Result<Vec<UniquePieceId>> {
    let wanted = &config.pieces;
    let all: Vec<String> = stitch.unique.keys().map(|unique| unique.to_string()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("there is no unique piece {unknown:?} to dump; there are {}", all.join(", "));
    }
    let is_wanted = |unique: &UniquePieceId| wanted.contains(&unique.to_string());
    Ok(stitch.unique.keys().filter(|u| wanted.is_empty() || is_wanted(u)).collect())
}

/// Shows on standard output what each pass changes.
pub(crate) fn print_changed() -> impl Observer {
    PrintChanged::new(print_module, |diff: String| {
        // A closed standard output leaves nobody to show it to.
        let _ = write!(std::io::stdout(), "{diff}");
    })
}

/// Says on standard error which passes a bisection runs, which it leaves out, and which change
/// something.
pub(crate) fn bisect_log() -> impl Observer {
    BisectLog::new(print_module, |line: String| say(&line))
}

fn check_pass_names(names: &[String]) -> anyhow::Result<()> {
    let registry = Registry::standard();
    for name in names {
        if !registry.names().any(|known| known == name) {
            let near = nearest(name, registry.names());
            let near = near.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
            let known = registry.names().collect::<Vec<_>>().join(", ");
            bail!("there is no pass `{name}` to dump after{near}; known passes: {known}");
        }
    }
    Ok(())
}
