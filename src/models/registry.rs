//! Which models a folder may hold: readers of `config.json` by its `model_type`.

use super::config::fields::Fields;
use super::config::vision_language::MODEL_TYPE;
use super::config::wrappers::WRAPPERS;
use super::config::{ConfigError, DecoderConfig, Family, eos_of_generation, parse_json, read};
use super::decoder_model::{DecoderFacts, DecoderModel};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

type Read = dyn Fn(&Fields<'_>) -> Result<Arc<dyn DecoderModel>, ConfigError> + Send + Sync;

#[derive(Clone)]
struct Entry {
    read: Arc<Read>,
    /// What `architectures` calls it, for a file without `model_type`.
    architecture: Option<String>,
}

/// The decoders that a model folder may hold, by the `model_type` of its `config.json`.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("{:?}", entries.keys().collect::<Vec<_>>())]
pub struct ModelRegistry {
    entries: BTreeMap<String, Entry>,
}

impl ModelRegistry {
    /// The ready families.
    pub fn standard() -> Self {
        let mut registry = Self::default();
        let read = |fields: &Fields<'_>| DecoderConfig::load(fields.folder());
        for family in Family::ALL {
            registry.add(family.model_type(), read);
            if let Some(entry) = registry.entries.get_mut(&family.model_type()) {
                entry.architecture = Some(family.architecture());
            }
        }
        registry.add(MODEL_TYPE, read);
        for (wrapper, _) in WRAPPERS {
            registry.add(wrapper, read);
        }
        registry
    }

    /// Has `read` make a model of every `config.json` with this `model_type`. One of the same name is
    /// replaced, a ready family too.
    pub fn add<M: DecoderModel + 'static>(
        &mut self,
        model_type: impl Into<String>,
        read: impl Fn(&Fields<'_>) -> Result<M, ConfigError> + Send + Sync + 'static,
    ) {
        let read = Arc::new(move |fields: &Fields<'_>| {
            Ok(Arc::new(read(fields)?) as Arc<dyn DecoderModel>)
        });
        self.entries.insert(model_type.into(), Entry { read, architecture: None });
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The model in `folder`, and what is known of it; ids that end a text are those of
    /// `generation_config.json` where it has some.
    ///
    /// # Errors
    /// When there is no `config.json`, or it is of no model that is known here or not one that the
    /// model's reader takes.
    pub fn read(
        &self,
        folder: &Path,
    ) -> Result<(Arc<dyn DecoderModel>, DecoderFacts), ConfigError> {
        let file = folder.join("config.json");
        let value = parse_json(&read(&file)?, &file)?;
        let fields = Fields::root(&file, &value)?;
        let model = (self.find(&fields)?.read)(&fields)?;
        let mut facts = model.facts().or(&fields)?;
        if let Some(ids) = eos_of_generation(folder, facts.vocab_size)? {
            facts.eos_token_ids = ids;
        }
        Ok((model, facts))
    }

    fn find(&self, fields: &Fields<'_>) -> Result<&Entry, ConfigError> {
        let known = || Vec::from_iter(self.names()).join(", ");
        if let Some(name) = fields.string("model_type")? {
            let unknown =
                || fields.unsupported("model_type", format!("the models are {}", known()));
            return self.entries.get(name).ok_or_else(unknown);
        }
        let architectures = fields.strings("architectures")?.unwrap_or_default();
        let [name] = *architectures else {
            return Err(match architectures.is_empty() {
                true => fields.missing("model_type"),
                false => fields.unsupported("architectures", "one architecture is"),
            });
        };
        let named = self.entries.values().find(|entry| entry.architecture.as_deref() == Some(name));
        named.ok_or_else(|| {
            let known =
                Vec::from_iter(self.entries.values().filter_map(|e| e.architecture.clone()));
            let known = format!("without `model_type` the architectures are {}", known.join(", "));
            fields.unsupported("architectures", known)
        })
    }
}
