//! The folders of sentence-transformers: which rows make an embedding, and what is done to it.

use super::super::config::fields::Fields;
use super::super::config::{ConfigError, parse_json, read};
use super::pooling::Pooling;
use std::path::Path;

/// What the modules of a folder do after the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SentenceModules {
    pub(super) pooling: Option<Pooling>,
    pub(super) normalize: bool,
    /// The longest text in tokens, where the folder says.
    pub(super) longest: Option<usize>,
}

/// The ways to pool, by the older name (a field of its own that is true) and the newer one (the
/// value of `pooling_mode`).
const POOLINGS: [(&str, &str, Option<Pooling>); 6] = [
    ("pooling_mode_cls_token", "cls", Some(Pooling::First)),
    ("pooling_mode_mean_tokens", "mean", Some(Pooling::Mean)),
    ("pooling_mode_lasttoken", "lasttoken", Some(Pooling::Last)),
    ("pooling_mode_max_tokens", "max", None),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", None),
    ("pooling_mode_weightedmean_tokens", "weightedmean", None),
];
/// The names of what sentence-transformers keeps of the Transformer module.
const NETWORKS: [&str; 7] =
    ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"];
const SUPPORTED: &str = "one of cls, mean and lasttoken is";

impl SentenceModules {
    /// Reads `modules.json` of `folder` and the files that it names; `None` where there is none.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, ConfigError> {
        let file = folder.join("modules.json");
        if !file.exists() {
            return Ok(None);
        }
        let list = parse_json(&read(&file)?, &file)?;
        // Errors name the field of an object, so the list becomes one.
        let modules = serde_json::json!({ "modules": list });
        let root = Fields::root(&file, &modules)?;
        let Some(list) = modules["modules"].as_array() else {
            return Err(root.wrong_type("modules", &modules["modules"], "a list of modules"));
        };
        refuse_default_prompt(folder)?;
        let longest = read_longest(folder)?;
        let mut found = Self { pooling: None, normalize: false, longest };
        for module in list {
            let module = Fields::root(&file, module)?;
            let kind = module.string("type")?.ok_or_else(|| module.missing("type"))?;
            match kind.rsplit('.').next() {
                Some("Transformer") => {
                    if !matches!(module.string("path")?, None | Some("")) {
                        return Err(
                            module.unsupported("path", "the network lies in the folder itself")
                        );
                    }
                }
                Some("Pooling") => {
                    let path = module.string("path")?.unwrap_or_default();
                    found.pooling = Some(read_pooling(&folder.join(path).join("config.json"))?);
                }
                Some("Normalize") => found.normalize = true,
                _ => {
                    let supported = "Transformer, Pooling and Normalize are";
                    return Err(module.unsupported("type", supported));
                }
            }
        }
        Ok(Some(found))
    }
}

/// The longest text of the network's module.
fn read_longest(folder: &Path) -> Result<Option<usize>, ConfigError> {
    let files = NETWORKS.map(|name| folder.join(format!("sentence_{name}_config.json")));
    let Some(file) = files.iter().find(|file| file.exists()) else { return Ok(None) };
    let value = parse_json(&read(file)?, file)?;
    let root = Fields::root(file, &value)?;
    if root.boolean("do_lower_case")? == Some(true) {
        return Err(root.unsupported("do_lower_case", "what the tokenizer itself lowers is"));
    }
    root.count("max_seq_length", 1..=1 << 24)
}

/// A text that is embedded without a word of its prompt would become another embedding.
fn refuse_default_prompt(folder: &Path) -> Result<(), ConfigError> {
    let file = folder.join("config_sentence_transformers.json");
    if !file.exists() {
        return Ok(());
    }
    let value = parse_json(&read(&file)?, &file)?;
    let root = Fields::root(&file, &value)?;
    match root.get("default_prompt_name") {
        Some(_) => {
            let supported = "texts are taken as they are; null, with the prompt in the texts, is";
            Err(root.unsupported("default_prompt_name", supported))
        }
        None => Ok(()),
    }
}

fn read_pooling(file: &Path) -> Result<Pooling, ConfigError> {
    let value = parse_json(&read(file)?, file)?;
    let root = Fields::root(file, &value)?;
    if let Some(mode) = root.string("pooling_mode")? {
        let known = POOLINGS.iter().find(|(_, newer, _)| *newer == mode);
        return known
            .and_then(|(_, _, pooling)| *pooling)
            .ok_or_else(|| root.unsupported("pooling_mode", SUPPORTED));
    }
    let mut chosen = None;
    for (key, _, pooling) in POOLINGS {
        if root.boolean(key)? == Some(true) {
            // Several are concatenated by sentence-transformers.
            if chosen.is_some() || pooling.is_none() {
                return Err(root.unsupported(key, SUPPORTED));
            }
            chosen = pooling;
        }
    }
    chosen.ok_or_else(|| root.missing("pooling_mode_mean_tokens"))
}
