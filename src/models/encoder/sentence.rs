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
        let mut found = Self { pooling: None, normalize: false };
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
