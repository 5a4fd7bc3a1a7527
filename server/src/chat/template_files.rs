//! Where a model folder keeps its chat templates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use piecewise::models::files::{ReadError, read_text};
use serde_json::{Map, Value};

/// Bytes that a file with a template may have; the largest have about a megabyte.
const LARGEST_FILE: u64 = 64 << 20;

/// Why a model's chat template can't be used. Each error names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum TemplateFileError {
    /// The file can't be read.
    #[error("{}: {source}", file.display())]
    Io {
        file: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is far larger than any template.
    #[error("{}: {bytes} bytes, but a file with chat templates has at most {LARGEST_FILE}", file.display())]
    TooLarge { file: PathBuf, bytes: u64 },
    /// The file is no JSON, or not of the right shape.
    #[error("{}: {message}", file.display())]
    Shape { file: PathBuf, message: String },
    /// The template does not parse.
    #[error("{}: not a chat template: {message}", file.display())]
    Syntax { file: PathBuf, message: String },
}

/// Templates by name with the file of each, and the special tokens that they name.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) templates: BTreeMap<String, (PathBuf, String)>,
    pub(super) special_tokens: Map<String, Value>,
}

impl Sources {
    pub(super) fn one(template: &str, special_tokens: Map<String, Value>) -> Self {
        let mut sources = Self { special_tokens, ..Self::default() };
        sources.add("default", Path::new(""), template);
        sources
    }

    pub(super) fn read(
        folder: &Path,
        given: Option<&Path>,
    ) -> Result<Option<Self>, TemplateFileError> {
        let config_file = folder.join("tokenizer_config.json");
        let config = read_json(&config_file)?;
        let mut sources = Self::default();
        if let Some(map) = read_json(&folder.join("special_tokens_map.json"))? {
            sources.add_special_tokens(&map);
        }
        if let Some(config) = &config {
            sources.add_special_tokens(config);
        }
        if let Some(file) = given {
            let text = read(file)?.ok_or_else(|| TemplateFileError::Io {
                file: file.to_owned(),
                source: std::io::ErrorKind::NotFound.into(),
            })?;
            match file.extension().is_some_and(|e| e == "json") {
                true => sources.add_json(file, &parsed(file, &text)?)?,
                false => sources.add("default", file, &text),
            }
            return Ok(Some(sources));
        }
        let jinja = folder.join("chat_template.jinja");
        if let Some(text) = read(&jinja)? {
            sources.add("default", &jinja, &text);
            sources.add_folder(&folder.join("additional_chat_templates"))?;
            return Ok(Some(sources));
        }
        if let Some(config) = &config {
            sources.add_json(&config_file, config)?;
        }
        let json = folder.join("chat_template.json");
        if sources.templates.is_empty()
            && let Some(object) = read_json(&json)?
        {
            sources.add_json(&json, &object)?;
        }
        Ok(Some(sources).filter(|sources| !sources.templates.is_empty()))
    }

    fn add(&mut self, name: &str, file: &Path, template: &str) {
        self.templates.insert(name.to_owned(), (file.to_owned(), template.to_owned()));
    }

    fn add_folder(&mut self, folder: &Path) -> Result<(), TemplateFileError> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
        for entry in entries.flatten() {
            let file = entry.path();
            if file.extension().is_some_and(|e| e == "jinja")
                && let Some(text) = read(&file)?
                && let Some(name) = file.file_stem().and_then(|name| name.to_str())
            {
                self.add(name, &file, &text);
            }
        }
        Ok(())
    }

    /// The `chat_template` of an object: one text, or a list of named ones.
    fn add_json(
        &mut self,
        file: &Path,
        object: &Map<String, Value>,
    ) -> Result<(), TemplateFileError> {
        let shape = |message: &str| TemplateFileError::Shape {
            file: file.to_owned(),
            message: message.to_owned(),
        };
        match object.get("chat_template") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => self.add("default", file, text),
            Some(Value::Array(list)) => {
                for item in list {
                    let (Some(name), Some(text)) =
                        (item["name"].as_str(), item["template"].as_str())
                    else {
                        return Err(shape(
                            "each entry of a list `chat_template` has texts `name` and `template`",
                        ));
                    };
                    self.add(name, file, text);
                }
            }
            Some(_) => return Err(shape("`chat_template` is a text or a list of named texts")),
        }
        Ok(())
    }

    /// The fields that name tokens, such as `bos_token`: texts, or objects with a `content`.
    fn add_special_tokens(&mut self, object: &Map<String, Value>) {
        for (name, value) in object.iter().filter(|(name, _)| name.ends_with("_token")) {
            let text = value.get("content").unwrap_or(value);
            if text.is_string() {
                self.special_tokens.insert(name.clone(), text.clone());
            }
        }
    }
}

/// The text of a file; `None` where there is no such file.
fn read(file: &Path) -> Result<Option<String>, TemplateFileError> {
    read_text(file, LARGEST_FILE).map_err(|error| match error {
        ReadError::Io(source) => TemplateFileError::Io { file: file.to_owned(), source },
        ReadError::TooLarge { bytes } => {
            TemplateFileError::TooLarge { file: file.to_owned(), bytes }
        }
    })
}

fn read_json(file: &Path) -> Result<Option<Map<String, Value>>, TemplateFileError> {
    read(file)?.map(|text| parsed(file, &text)).transpose()
}

fn parsed(file: &Path, text: &str) -> Result<Map<String, Value>, TemplateFileError> {
    serde_json::from_str(text).map_err(|error| TemplateFileError::Shape {
        file: file.to_owned(),
        message: format!("not a JSON object: {error}"),
    })
}
