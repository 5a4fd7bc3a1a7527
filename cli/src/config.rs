//! `piecewise config`: the settings that there are, for editors and for people.

use anyhow::bail;
use clap::CommandFactory;
use piecewise::device::DeviceSpec;
use piecewise_runtime::config::{ConfigLayers, KeyDoc, RuntimeConfig};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise config schema > piecewise.schema.json
  piecewise config reference
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
    /// Check a configuration file without a model.
    Check {
        /// A TOML file of settings.
        file: PathBuf,
    },
}

pub(crate) fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ConfigCommand::Schema => {
            super::print_line(&serde_json::to_string_pretty(&RuntimeConfig::json_schema())?)?;
        }
        ConfigCommand::Reference => super::print_line(reference().trim_end())?,
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
        super::warn(&format!("{}: {warning}", file.display()));
    }
    super::print_line(&format!("{}: ok", file.display()))
}

const HEAD: &str = "\
# Settings

Every key of `piecewise.toml`, with the flag that sets it. This page is made by
`piecewise config reference` from the definitions that files are read by; how files and flags go
together is in [configuration.md](configuration.md).
";

/// The keys as a page of Markdown.
fn reference() -> String {
    let flags = flags();
    let mut page = HEAD.to_owned();
    for doc in RuntimeConfig::key_docs() {
        // Writing to a string does not fail.
        let _ = write_key(&mut page, &doc, flag_of(doc.key, &flags));
    }
    page
}

fn write_key(page: &mut String, doc: &KeyDoc, flag: Option<String>) -> std::fmt::Result {
    let KeyDoc { key, kind, choices, default, text } = doc;
    let default = default.as_ref().map_or("unset".to_owned(), |value| format!("`{value}`"));
    let flag = flag.map_or("no flag".to_owned(), |flag| format!("`{flag}`"));
    write!(page, "\n## `{key}`\n\n{kind}; default {default}; {flag}\n\n{text}\n")?;
    if !choices.is_empty() {
        writeln!(page)?;
    }
    for (choice, meaning) in choices {
        let meaning = if meaning.is_empty() { String::new() } else { format!(": {meaning}") };
        writeln!(page, "- `{choice}`{meaning}")?;
    }
    Ok(())
}

/// The flag that sets a key, if one does.
pub(crate) fn flag_of_key(key: &str) -> Option<String> {
    flag_of(key, &flags())
}

/// The flags of the commands that take settings.
fn flags() -> BTreeSet<String> {
    let program = super::Arguments::command();
    let takes_settings = ["generate", "bench", "embed"];
    let commands = program.get_subcommands().filter(|c| takes_settings.contains(&c.get_name()));
    let flags = commands.flat_map(|command| command.get_arguments().filter_map(|a| a.get_long()));
    flags.map(str::to_owned).collect()
}

/// The flag that sets a key, if one does. Most are called as the key; what is true by default has a
/// flag that says no.
fn flag_of(key: &str, flags: &BTreeSet<String>) -> Option<String> {
    let flag = match key {
        "cache.enabled" => "no-cache".to_owned(),
        "cache.max_bytes" => "cache-max-size".to_owned(),
        "stats_interval_seconds" => "stats-interval".to_owned(),
        "cache.remote_url" => "cache-remote".to_owned(),
        _ => key.replace(['_', '.'], "-"),
    };
    if let Some(check) = key.strip_prefix("checks.") {
        return Some(format!("--check {check}"));
    }
    let flag =
        [flag.clone(), format!("no-{flag}")].into_iter().find(|flag| flags.contains(flag))?;
    Some(format!("--{flag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_find_their_flags() {
        let flags = flags();
        let flag = |key| flag_of(key, &flags);
        assert_eq!(flag("graph_mode").as_deref(), Some("--graph-mode"));
        assert_eq!(flag("padding").as_deref(), Some("--no-padding"));
        assert_eq!(flag("cache.enabled").as_deref(), Some("--no-cache"));
        assert_eq!(flag("checks.poison").as_deref(), Some("--check poison"));
        assert_eq!(flag("tune").as_deref(), Some("--tune"));
        assert_eq!(flag("max_num_rows").as_deref(), Some("--max-num-rows"));
        assert_eq!(flag("cache.shared").as_deref(), Some("--cache-shared"));
        assert_eq!(flag("splitting_op"), None);
    }
}
