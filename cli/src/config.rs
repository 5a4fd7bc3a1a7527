//! `piecewise config`: the settings that there are, for editors and for people.

use super::flags::Flags;
use super::load::print_entries;
use super::logs::warn;
use super::model_args::ConfigSource;
use super::print::print_line;
use anyhow::bail;
use piecewise::device::DeviceSpec;
use piecewise_runtime::config::{ConfigLayers, KeyDoc, RuntimeConfig};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise config schema > piecewise.schema.json
  piecewise config reference
  piecewise config show --set graph_mode=none
  piecewise config check piecewise.toml")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Print the JSON schema of a configuration file: an editor completes keys by it.
    Schema,
    /// Print every key with its flag, its default and what it is for, as Markdown.
    Reference,
    /// Show every key with its value and where that came from: the file, the environment, or a flag.
    /// What follows from a model is not known here; the commands that take one show it by
    /// --print-config.
    Show {
        #[command(flatten)]
        source: ConfigSource,
        /// A JSON object by key.
        #[arg(long)]
        json: bool,
    },
    /// Check a configuration file without a model.
    Check {
        /// A TOML file of settings.
        file: PathBuf,
    },
}

/// `flags` are those of the commands that take settings.
pub(crate) fn run(args: ConfigArgs, flags: &Flags) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Schema => {
            print_line(&serde_json::to_string_pretty(&RuntimeConfig::json_schema())?)?;
        }
        ConfigCommand::Reference => print_line(reference(flags).trim_end())?,
        ConfigCommand::Show { source, json } => {
            let configured = source.layers()?.finish()?;
            configured.dispatcher()?;
            return print_entries(configured.entries(), json, |_| true);
        }
        ConfigCommand::Check { file } => check(&file)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Says all that is wrong with a file, or that nothing is.
fn check(file: &Path) -> anyhow::Result<()> {
    let (configured, wrong) = ConfigLayers::check(file)?;
    let mut wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    if let Err(reason) = configured.config.device.parse::<DeviceSpec>() {
        let from = configured.place("device").map_or_else(String::new, |from| format!("{from}: "));
        wrong.push(format!("{from}device: {reason}"));
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    for warning in configured.config.warnings(&configured.dispatcher()?) {
        warn(&format!("{}: {warning}", file.display()));
    }
    print_line(&format!("{}: ok", file.display()))
}

const HEAD: &str = "\
# Settings

Every key of `piecewise.toml`, with the environment variable and the flag that set it. This page is made by
`piecewise config reference` from the definitions that files are read by; how files, variables and flags
go together is in [configuration.md](configuration.md).
";

/// The keys as a page of Markdown.
fn reference(flags: &Flags) -> String {
    let mut page = HEAD.to_owned();
    for doc in RuntimeConfig::key_docs() {
        // Writing to a string does not fail.
        let _ = write_key(&mut page, &doc, flags.of_key(doc.key));
    }
    page
}

fn write_key(page: &mut String, doc: &KeyDoc, flag: Option<String>) -> std::fmt::Result {
    let KeyDoc { key, variable, kind, choices, default, text } = doc;
    let default = default.as_ref().map_or("unset".to_owned(), |value| format!("`{value}`"));
    let flag = flag.map_or("no flag".to_owned(), |flag| format!("`{flag}`"));
    write!(page, "\n## `{key}`\n\n{kind}; default {default}; `{variable}`; {flag}\n\n{text}\n")?;
    if !choices.is_empty() {
        writeln!(page)?;
    }
    for (choice, meaning) in choices {
        let meaning = if meaning.is_empty() { String::new() } else { format!(": {meaning}") };
        writeln!(page, "- `{choice}`{meaning}")?;
    }
    Ok(())
}
