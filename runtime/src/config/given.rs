//! Settings as texts outside of files: environment variables, `--set` and JSON on the command line.

use super::error::ConfigError;
use super::layers::{ConfigLayers, Source, checked, flatten};
use super::values::RuntimeConfig;
use toml::{Table, Value};

/// What those of all keys begin with.
const PREFIX: &str = "PIECEWISE_";

/// What the environment variable of a key is called: `PIECEWISE_CACHE_MAX_BYTES` of `cache.max_bytes`.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_uppercase())
}

/// Variables that begin as those of keys do and are none.
const NO_KEYS: [&str; 5] = [
    "PIECEWISE_CACHE_CHECKSUM_KEY",
    "PIECEWISE_CUDA_LIBRARY_DIRS",
    "PIECEWISE_LOG",
    "PIECEWISE_PACK_DIR",
    "PIECEWISE_SOURCE_DIGEST",
];

/// Edits by which a name is taken for another one that was meant.
const NEAR: usize = 2;

impl ConfigLayers {
    /// Puts environment variables on top: `PIECEWISE_MAX_NUM_TOKENS` is `max_num_tokens`, and
    /// `PIECEWISE_SERVER_PORT` is `server.port`. Others, and empty ones, are passed over; what orchestrators call a service
    /// of that name (`tcp://10.0.0.1:8000`) is no port, and passed over, too.
    ///
    /// # Errors
    /// When a value is not one of its key.
    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        for (name, text) in variables.into_iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            let is_called = |key: &&str| variable(key) == name;
            let Some(key) = RuntimeConfig::keys().find(is_called) else { continue };
            if text.is_empty() || (key == "server.port" && text.contains("://")) {
                continue;
            }
            self.put_text(key, &text, Source::Environment(name))?;
        }
        Ok(self)
    }

    /// Names of variables that set nothing and are nearly those of keys, each with the one that was
    /// probably meant.
    pub fn misspelt_variables<'v>(
        names: impl IntoIterator<Item = &'v str>,
    ) -> Vec<(&'v str, String)> {
        let near = |name: &&'v str| {
            let known = RuntimeConfig::keys().map(variable).collect::<Vec<_>>();
            if NO_KEYS.contains(name) || known.iter().any(|known| known == name) {
                return None;
            }
            let edits = |known: &String| strsim::damerau_levenshtein(name, known);
            known.into_iter().find(|known| edits(known) <= NEAR)
        };
        let ours = names.into_iter().filter(|name| name.starts_with(PREFIX));
        ours.filter_map(|name| Some((name, near(&name)?))).collect()
    }

    /// Puts `KEY=VALUE` on top, as `flag` has it. The value is TOML, JSON, or text as it is.
    ///
    /// # Errors
    /// When there is no `=`, the key does not exist, or the value is not one of it.
    pub fn assignment(mut self, text: &str, flag: &str) -> Result<Self, ConfigError> {
        let from = Source::Flag(flag.to_owned());
        let Some((key, value)) = text.split_once('=') else {
            let reason = format!("`{text}` has no `=`; write KEY=VALUE, such as graph_mode=none");
            return Err(ConfigError::Syntax { file: flag.to_owned(), reason });
        };
        self.put_text(key.trim(), value.trim(), from)?;
        Ok(self)
    }

    /// Puts a JSON object on top, as `flag` has it.
    ///
    /// # Errors
    /// When it is none, or keys or values are none.
    pub fn json(mut self, text: &str, flag: &str) -> Result<Self, ConfigError> {
        let failed = |error: serde_json::Error| ConfigError::Syntax {
            file: flag.to_owned(),
            reason: format!("this is no JSON object of settings: {error}"),
        };
        let table: Table = serde_json::from_str(text).map_err(failed)?;
        for (key, value) in flatten(table) {
            self.put(&key, value, Source::Flag(flag.to_owned()))?;
        }
        Ok(self)
    }

    /// Sets a key, or the keys of a table, to what a text means: what it is as JSON or TOML, or the text
    /// itself, or a list with commas between its parts; the first of them that the key takes.
    fn put_text(&mut self, key: &str, text: &str, from: Source) -> Result<(), ConfigError> {
        let one = |text: &str| meant(text).unwrap_or_else(|| Value::from(text));
        if let Some(Value::Table(table)) = meant(text)
            && !RuntimeConfig::keys().any(|known| known == key)
        {
            let leaves = flatten(Table::from_iter([(key.to_owned(), Value::Table(table))]));
            return leaves
                .into_iter()
                .try_for_each(|(key, value)| self.put(&key, value, from.clone()));
        }
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let (list, texts): (Vec<_>, Vec<_>) =
            parts.map(|part| (one(part), Value::from(part))).unzip();
        let ways = [one(text), Value::from(text), Value::Array(list), Value::Array(texts)];
        let taken = ways.iter().find(|value| checked(key, (*value).clone(), &from).is_ok());
        let [first, ..] = &ways;
        self.put(key, taken.unwrap_or(first).clone(), from)
    }
}

/// What a text is as JSON, or as a value of TOML.
fn meant(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().or_else(|| {
        let mut table: Table = format!("value = {text}").parse().ok()?;
        (table.len() == 1).then(|| table.remove("value")).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Configured;
    use std::collections::BTreeSet;

    fn of(variables: &[(&str, &str)]) -> Result<Configured, ConfigError> {
        let owned = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        ConfigLayers::new()
            .file("f", "max_num_tokens = 64\nmax_num_seqs = 3")?
            .environment(owned)?
            .finish()
    }

    #[test]
    fn every_key_has_a_variable_of_its_own() {
        let names: BTreeSet<_> = RuntimeConfig::keys().map(variable).collect();
        assert_eq!(names.len(), RuntimeConfig::keys().count());
        assert!(NO_KEYS.iter().all(|name| !names.contains(*name)));
    }

    #[test]
    fn variables_go_above_files_and_say_who_they_are() {
        let found = of(&[
            ("PIECEWISE_MAX_NUM_TOKENS", "128"),
            ("PIECEWISE_GRAPH_MODE", "FULL"),
            ("PIECEWISE_CAPTURE_NUM_TOKENS", "8,1"),
            ("PIECEWISE_SPLITTING_OPS", "a.b"),
            ("PIECEWISE_CACHE_DIR", "123"),
            ("PIECEWISE_SERVER_HOST", "0.0.0.0"),
            ("PIECEWISE_SERVER_PORT", "tcp://10.43.0.1:8000"),
            ("PIECEWISE_SERVER_SERVED_MODEL_NAME", "[\"a\", \"b\"]"),
            ("PIECEWISE_LOG", "debug"),
            ("PIECEWISE_DTYPE", ""),
            ("HOME", "/"),
        ])
        .unwrap();
        let set: Vec<_> =
            found.entries().into_iter().filter(|e| e.source != Source::Default).collect();
        let shown: Vec<_> = set
            .iter()
            .map(|entry| {
                format!("{} = {} # {}", entry.key, entry.value.as_ref().unwrap(), entry.source)
            })
            .collect();
        insta::assert_snapshot!(shown.join("\n"));
        assert_eq!(found.config.server.port, 8000, "a service's address is no port");
        let wrong = of(&[("PIECEWISE_GRAPH_MODE", "fast")]).unwrap_err().to_string();
        assert!(wrong.starts_with("PIECEWISE_GRAPH_MODE: graph_mode can't be \"fast\""), "{wrong}");
        let beyond = of(&[("PIECEWISE_MAX_NUM_SEQS", "100")]).unwrap().dispatcher().unwrap_err();
        assert!(
            beyond.to_string().starts_with("PIECEWISE_MAX_NUM_SEQS: max_num_seqs = 100"),
            "{beyond}"
        );
    }

    #[test]
    fn a_slip_of_the_finger_is_told_and_others_are_not() {
        let names =
            ["PIECEWISE_MAX_NUM_TOKNS", "PIECEWISE_LOG", "PIECEWISE_DTYPE", "PIECEWISE_ELSE", "X"];
        let meant = ("PIECEWISE_MAX_NUM_TOKNS", "PIECEWISE_MAX_NUM_TOKENS".to_owned());
        assert_eq!(ConfigLayers::misspelt_variables(names), [meant]);
    }

    #[test]
    fn texts_mean_what_their_key_takes() {
        let set = |text: &str| ConfigLayers::new().assignment(text, "--set")?.finish();
        assert_eq!(set("max_num_seqs=3").unwrap().config.max_num_seqs(), 3);
        assert_eq!(
            set("server.served_model_name=7").unwrap().config.server.served_model_name,
            ["7"]
        );
        assert!(set("checks={\"poison\": true}").unwrap().config.checks.poison, "a table as JSON");
        assert!(set("checks = {compare = true}").unwrap().config.checks.compare, "a table as TOML");
        assert!(set("capture_own_rows={\"rows.windows\": [4, 2]}").is_ok());
        assert_eq!(set("max-model-len=9").unwrap().config.max_seq_len, 9, "another server's word");
        for (text, said) in [
            ("padding", "--set: `padding` has no `=`"),
            ("paddng=true", "--set: there is no key `paddng`; did you mean `padding`?"),
            ("padding=maybe", "--set: padding can't be \"maybe\""),
            ("checks={\"poisn\": true}", "--set: there is no key `checks.poisn`"),
            ("padding=true\nstrict = true", "--set: padding can't be"),
        ] {
            let error = set(text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
        let json = |text: &str| ConfigLayers::new().json(text, "--config");
        let both =
            "{\"graph_mode\": \"none\", \"server\": {\"port\": 1, \"allowed_origins\": [\"*\"]}}";
        let found = json(both).unwrap().finish().unwrap();
        assert_eq!(
            (found.config.server.port, found.source("server.port").to_string()),
            (1, "--config".to_owned())
        );
        for wrong in ["{\"padding\": null}", "[1]", "{"] {
            let error = json(wrong).unwrap_err().to_string();
            assert!(error.starts_with("--config: this is no JSON object of settings"), "{error}");
        }
    }
}
