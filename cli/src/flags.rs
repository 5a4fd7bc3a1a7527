//! The flags that set keys of the configuration.

use std::collections::BTreeSet;

/// The flags of the commands that take settings.
pub(crate) struct Flags(BTreeSet<String>);

impl Flags {
    pub(crate) fn of(program: &clap::Command) -> Self {
        let takes_settings = ["generate", "bench", "embed", "serve"];
        let commands = program.get_subcommands().filter(|c| takes_settings.contains(&c.get_name()));
        let flags =
            commands.flat_map(|command| command.get_arguments().filter_map(|a| a.get_long()));
        Self(flags.map(str::to_owned).collect())
    }

    /// The flag that sets a key, if one does. Most are called as the key; what is true by default
    /// has a flag that says no.
    pub(crate) fn of_key(&self, key: &str) -> Option<String> {
        let name = key.strip_prefix("server.").unwrap_or(key);
        let flag = match name {
            "cache.enabled" => "no-cache".to_owned(),
            "cache.max_bytes" => "cache-max-size".to_owned(),
            "stats_interval_seconds" => "stats-interval".to_owned(),
            "cache.remote_url" => "cache-remote".to_owned(),
            // It is for where no flag names one.
            "model" => return None,
            _ => name.replace(['_', '.'], "-"),
        };
        if let Some(check) = key.strip_prefix("checks.") {
            return Some(format!("--check {check}"));
        }
        let flag =
            [flag.clone(), format!("no-{flag}")].into_iter().find(|flag| self.0.contains(flag))?;
        Some(format!("--{flag}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn keys_find_their_flags() {
        let flags = Flags::of(&crate::Arguments::command());
        let flag = |key| flags.of_key(key);
        assert_eq!(flag("graph_mode").as_deref(), Some("--graph-mode"));
        assert_eq!(flag("padding").as_deref(), Some("--no-padding"));
        assert_eq!(flag("cache.enabled").as_deref(), Some("--no-cache"));
        assert_eq!(flag("checks.poison").as_deref(), Some("--check poison"));
        assert_eq!(flag("tune").as_deref(), Some("--tune"));
        assert_eq!(flag("max_num_rows").as_deref(), Some("--max-num-rows"));
        assert_eq!(flag("cache.shared").as_deref(), Some("--cache-shared"));
        assert_eq!(flag("server.max_texts").as_deref(), Some("--max-texts"));
        assert_eq!(flag("server.access_log").as_deref(), Some("--no-access-log"));
        assert_eq!((flag("splitting_op"), flag("server.model")), (None, None));
    }
}
