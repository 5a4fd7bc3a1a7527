//! Layers: later ones override earlier ones, and every value remembers its layer.

use super::error::ConfigError;
use super::values::RuntimeConfig;
use super::words::{TheirWord, in_our_words, their_word};
use crate::dispatch::Dispatcher;
use piecewise_cache::without_secrets;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// Bytes that a configuration file may have.
const LARGEST_FILE: u64 = 1 << 20;

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug, derive_more::Display, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Nobody set it: it has the value that the documentation gives as its default.
    #[display("default")]
    Default,
    /// The TOML file of this path.
    File(String),
    /// The environment variable of this name.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
    /// The program that uses the library.
    #[display("set by the program")]
    Program,
    /// Nobody set it, and it follows from this.
    #[display("from {_0}")]
    Derived(String),
}

/// Layers put on each other.
#[derive(Clone, Debug, Default)]
pub struct ConfigLayers {
    merged: Table,
    sources: BTreeMap<&'static str, Source>,
    /// The line of each key that a file sets, from 1.
    lines: BTreeMap<&'static str, usize>,
}

/// A configuration and where its values came from.
#[derive(Clone, PartialEq, Debug)]
pub struct Configured {
    /// A value for every setting, defaults included.
    pub config: RuntimeConfig,
    sources: BTreeMap<&'static str, Source>,
    lines: BTreeMap<&'static str, usize>,
}

/// One key with its value.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct ConfigEntry {
    /// The key; those of tables with a dot.
    pub key: &'static str,
    /// The value; `None` where it is unset.
    pub value: Option<Value>,
    /// Which layer set it, if any did.
    pub source: Source,
}

impl ConfigLayers {
    /// Layers in which nobody has set anything: the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a file's text on top; `name` is what errors call it.
    ///
    /// # Errors
    /// When it is not TOML, or keys or values are none: all of them, each with its line.
    pub fn file(mut self, name: &str, text: &str) -> Result<Self, ConfigError> {
        let wrong = self.take_file(name, text)?;
        let wrong = wrong.into_iter().map(|(_, error)| error).collect();
        ConfigError::of_all(wrong).map_or(Ok(self), Err)
    }

    /// A file by itself, and all that is wrong with it in the order of its lines: keys, values, and
    /// what does not go together. What is wrong has its default in the configuration.
    ///
    /// # Errors
    /// When it can't be read or is not TOML.
    pub fn check(path: &Path) -> Result<(Configured, Vec<ConfigError>), ConfigError> {
        let (name, text) = text_of(path)?;
        let mut layers = Self::new();
        let mut wrong = layers.take_file(&name, &text)?;
        let configured = layers.finish()?;
        let of_key = |error: ConfigError| {
            let line = error.key_out_of_place().and_then(|key| configured.lines.get(key));
            (line.copied().unwrap_or(0), configured.placed(error))
        };
        wrong.extend(configured.config.all_wrong().into_iter().map(of_key));
        wrong.sort_by_key(|(line, _)| *line);
        Ok((configured, wrong.into_iter().map(|(_, error)| error).collect()))
    }

    /// Puts what is right of a file on top, and says what is wrong, with its line.
    fn take_file(
        &mut self,
        name: &str,
        text: &str,
    ) -> Result<Vec<(usize, ConfigError)>, ConfigError> {
        let failed = |error: toml::de::Error| ConfigError::Syntax {
            file: name.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        };
        let table: Table = text.parse().map_err(failed)?;
        let lines = lines(text).map_err(failed)?;
        let mut leaves: Vec<_> = flatten(table)
            .into_iter()
            .map(|(key, value)| (lines.get(&key).copied().unwrap_or(1), key, value))
            .collect();
        leaves.sort_by_key(|(line, ..)| *line);
        let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
        for (line, key, value) in leaves {
            let from = Source::File(format!("{name}:{line}"));
            let checked = checked(&key, value, &from).and_then(|(known, value)| {
                let is_new = seen.insert(known);
                is_new.then_some((known, value)).ok_or(ConfigError::Twice { from, key, known })
            });
            match checked {
                Ok((known, value)) => {
                    self.insert(known, value, Source::File(name.to_owned()));
                    self.lines.insert(known, line);
                }
                Err(error) => wrong.push((line, error)),
            }
        }
        Ok(wrong)
    }

    /// Puts a flag on top: `key` as in a file, `flag` as it was written.
    ///
    /// # Errors
    /// When the key does not exist or the value is not one of it.
    pub fn flag(
        mut self,
        key: &str,
        value: impl Into<Value>,
        flag: &str,
    ) -> Result<Self, ConfigError> {
        self.put(key, value.into(), Source::Flag(flag.to_owned()))?;
        Ok(self)
    }

    /// Puts a value of a program's own on top: `key` as in a file.
    ///
    /// # Errors
    /// When the key does not exist or the value is not one of it.
    pub fn set(mut self, key: &str, value: impl serde::Serialize) -> Result<Self, ConfigError> {
        let from = Source::Program;
        let value = Value::try_from(value).map_err(|error| ConfigError::Value {
            from: from.clone(),
            key: key.to_owned(),
            value: "what was given".to_owned(),
            reason: error.to_string(),
        })?;
        self.put(key, value, from)?;
        Ok(self)
    }

    /// Puts a file on top.
    ///
    /// # Errors
    /// As for [`Self::file`], and when it can't be read.
    pub fn read(self, path: &Path) -> Result<Self, ConfigError> {
        let (name, text) = text_of(path)?;
        self.file(&name, &text)
    }

    /// Puts layers beneath what the program and flags set here, and above the rest.
    pub fn beneath_what_was_set(mut self, layers: Self) -> Self {
        for (key, value) in flatten(layers.merged) {
            let Some((&key, from)) = layers.sources.get_key_value(&*key) else { continue };
            if !matches!(self.sources.get(key), Some(Source::Program | Source::Flag(_))) {
                self.insert(key, value, from.clone());
                self.lines.extend(layers.lines.get(key).map(|&line| (key, line)));
            }
        }
        self
    }

    /// What a file, a flag or the program set a key to, and which of them; tables' keys have none.
    pub fn asked(&self, key: &str) -> Option<(&Value, &Source)> {
        let source = self.sources.get(key).filter(|source| !matches!(source, Source::Derived(_)));
        self.merged.get(key).zip(source)
    }

    /// Whether a file, a flag or the program set a key.
    pub fn is_set(&self, key: &str) -> bool {
        self.sources.contains_key(key)
    }

    /// Who set a key, if anybody did.
    pub fn source(&self, key: &str) -> Option<&Source> {
        self.sources.get(key)
    }

    /// Sets a key that nobody has set to what follows `from` something else.
    ///
    /// # Errors
    /// As for [`Self::flag`].
    pub fn derived(
        self,
        key: &str,
        value: impl Into<Value>,
        from: &str,
    ) -> Result<Self, ConfigError> {
        if self.is_set(key) { Ok(self) } else { self.imposed(key, value, from) }
    }

    /// Sets a key to what `from` something else leaves no choice about, whoever set it.
    ///
    /// # Errors
    /// As for [`Self::flag`].
    pub fn imposed(
        mut self,
        key: &str,
        value: impl Into<Value>,
        from: &str,
    ) -> Result<Self, ConfigError> {
        self.put(key, value.into(), Source::Derived(from.to_owned()))?;
        Ok(self)
    }

    /// The result.
    ///
    /// # Errors
    /// When the values do not make a configuration; every value alone was accepted before.
    pub fn finish(self) -> Result<Configured, ConfigError> {
        let config = self.merged.try_into().map_err(|e: toml::de::Error| ConfigError::Syntax {
            file: "configuration".to_owned(),
            reason: e.message().to_owned(),
        })?;
        Ok(Configured { config, sources: self.sources, lines: self.lines })
    }

    pub(super) fn put(&mut self, key: &str, value: Value, from: Source) -> Result<(), ConfigError> {
        let (known, value) = checked(key, value, &from)?;
        self.insert(known, value, from);
        Ok(())
    }

    fn insert(&mut self, key: &'static str, value: Value, from: Source) {
        match key.split_once('.') {
            None => {
                self.merged.insert(key.to_owned(), value);
            }
            Some((table, leaf)) => {
                let table = self.merged.entry(table).or_insert_with(|| Table::new().into());
                if let Value::Table(table) = table {
                    table.insert(leaf.to_owned(), value);
                }
            }
        }
        self.sources.insert(key, from);
        self.lines.remove(key);
    }
}

/// The text of a file of settings, with the name that errors have for it.
fn text_of(path: &Path) -> Result<(String, String), ConfigError> {
    let name = path.display().to_string();
    let failed = |reason: String| ConfigError::Read { file: name.clone(), reason };
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(LARGEST_FILE + 1).read_to_string(&mut text))
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > LARGEST_FILE {
        let reason = format!("it is larger than any configuration ({LARGEST_FILE} bytes)");
        return Err(failed(reason));
    }
    Ok((name, text))
}

/// The key that is meant, and its value in the words of the configuration.
pub(super) fn checked(
    key: &str,
    value: Value,
    from: &Source,
) -> Result<(&'static str, Value), ConfigError> {
    let is_written = |known: &&'static str| *known == key;
    let known = match (RuntimeConfig::keys().find(is_written), their_word(key)) {
        (Some(known), _) | (None, Some(TheirWord::Same(known))) => known,
        (None, Some(TheirWord::Instead(answer))) => {
            let (from, key) = (from.clone(), key.to_owned());
            return Err(ConfigError::TheirKey { from, key, answer });
        }
        (None, None) => {
            let (from, name) = (from.clone(), key.to_owned());
            return Err(match renamed_key(key) {
                Some(now) => ConfigError::RenamedKey { from, key: name, now },
                None => ConfigError::UnknownKey { from, key: name, nearest: nearest_key(key) },
            });
        }
    };
    let (given, shown) = (value.clone(), shown(known, &value));
    let refused = |reason: String| {
        let now =
            renamed(known, &given).map_or(String::new(), |now| format!("; it is `{now}` now"));
        let (from, key, value) = (from.clone(), key.to_owned(), shown.clone());
        ConfigError::Value { from, key, value, reason: format!("{reason}{now}") }
    };
    let value = in_our_words(known, value).map_err(refused)?;
    let mut alone = ConfigLayers::default();
    alone.insert(known, value.clone(), from.clone());
    let alone = alone.merged.try_into::<RuntimeConfig>();
    alone.map_err(|error| refused(error.message().to_owned()))?;
    Ok((known, value))
}

impl Configured {
    /// Where a key's value came from.
    pub fn source(&self, key: &str) -> Source {
        self.sources.get(key).cloned().unwrap_or(Source::Default)
    }

    /// The sizes and bounds that follow from the settings.
    ///
    /// # Errors
    /// As for [`RuntimeConfig::dispatcher`], with where the value came from.
    pub fn dispatcher(&self) -> Result<Dispatcher, ConfigError> {
        self.config.dispatcher().map_err(|error| self.placed(error))
    }

    /// Where a file, with the line, a variable or a flag set a key; `None` where none did.
    pub fn place(&self, key: &str) -> Option<Source> {
        match (self.sources.get(key)?, self.lines.get(key)) {
            (Source::File(name), Some(line)) => Some(Source::File(format!("{name}:{line}"))),
            (source @ (Source::File(_) | Source::Environment(_) | Source::Flag(_)), _) => {
                Some(source.clone())
            }
            _ => None,
        }
    }

    /// An error with where its value came from.
    fn placed(&self, wrong: ConfigError) -> ConfigError {
        match wrong.key_out_of_place().and_then(|key| self.place(key)) {
            Some(from) => ConfigError::Of { from, wrong: Box::new(wrong) },
            None => wrong,
        }
    }

    /// Every key with its value and where it came from.
    pub fn entries(&self) -> Vec<ConfigEntry> {
        let values: BTreeMap<_, _> =
            Table::try_from(&self.config).map(flatten).unwrap_or_default().into_iter().collect();
        let entry =
            |key| ConfigEntry { key, value: values.get(key).cloned(), source: self.source(key) };
        RuntimeConfig::keys().map(entry).collect()
    }
}

impl std::fmt::Display for Configured {
    /// Writes TOML that gives the same configuration, each line with its source.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.entries().iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

impl std::fmt::Display for ConfigEntry {
    /// Writes the line of TOML that sets it, and where it came from.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, value, source } = self;
        match value {
            Some(value) => write!(f, "{key} = {value}  # {source}"),
            None => write!(f, "# {key} is unset  # {source}"),
        }
    }
}

/// A value in an error: of an address only what authorizes nobody.
fn shown(key: &str, value: &Value) -> String {
    match value {
        Value::String(url) if key == "cache.remote_url" => {
            Value::from(without_secrets(url)).to_string()
        }
        value => value.to_string(),
    }
}

/// Leaves by dotted key: keys that there are, one whose value is a table among them, and what is no
/// table.
pub(super) fn flatten(table: Table) -> Vec<(String, Value)> {
    fn under(prefix: &str, table: Table, leaves: &mut Vec<(String, Value)>) {
        for (name, value) in table {
            let key = format!("{prefix}{name}");
            match value {
                Value::Table(inner) if !RuntimeConfig::keys().any(|known| known == key) => {
                    under(&format!("{key}."), inner, leaves);
                }
                value => leaves.push((key, value)),
            }
        }
    }
    let mut leaves = Vec::new();
    under("", table, &mut leaves);
    leaves
}

/// The lines of the leaves that [`flatten`] finds, from 1.
fn lines(text: &str) -> Result<BTreeMap<String, usize>, toml::de::Error> {
    fn under(prefix: &str, table: &DeTable<'_>, text: &str, found: &mut BTreeMap<String, usize>) {
        for (name, value) in table {
            let key = format!("{prefix}{}", name.get_ref());
            match value.get_ref() {
                DeValue::Table(inner) if !RuntimeConfig::keys().any(|known| known == key) => {
                    under(&format!("{key}."), inner, text, found);
                }
                _ => {
                    let before = text.get(..name.span().start).unwrap_or_default();
                    found.insert(key, 1 + before.matches('\n').count());
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    under("", DeTable::parse(text)?.get_ref(), text, &mut found);
    Ok(found)
}

/// What a value is called that had another name once.
fn renamed(key: &str, value: &Value) -> Option<&'static str> {
    (key == "on_capture_failure" && value.as_str() == Some("eager")).then_some("launch")
}

/// What a key is called that had another name once.
fn renamed_key(key: &str) -> Option<&'static str> {
    (key == "target").then_some("device")
}

fn nearest_key(key: &str) -> &'static str {
    let inside = |known: &&str| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
    // Names are short; a longer one is cut so that the work stays bounded.
    let start: String = key.chars().take(64).collect();
    let edits = |known: &&str| strsim::damerau_levenshtein(&start, known);
    let nearest = || RuntimeConfig::keys().min_by_key(edits);
    RuntimeConfig::keys().find(inside).or_else(nearest).unwrap_or("")
}
