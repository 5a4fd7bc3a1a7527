//! Typed access to the fields of a JSON object, with errors that name the field.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::{ConfigError, shown};

/// A JSON object of a configuration file and where it stands in the file. What is wrong with a field
/// is an error that names it.
///
/// A field that is null counts as absent, as it does for transformers; where that differs, use
/// `is_present`.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    file: &'a Path,
    /// Path of the object from the root: the names of fields, empty ones of those that there are not.
    parents: [&'a str; 6],
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The root object of a file.
    pub(in crate::models) fn root(file: &'a Path, value: &'a Value) -> Result<Self, ConfigError> {
        match value {
            Value::Object(object) => Ok(Self { file, parents: [""; 6], object }),
            other => Err(ConfigError::Type {
                file: file.to_path_buf(),
                field: "(root)".to_owned(),
                found: shown(other),
                expected: "an object",
            }),
        }
    }

    /// The folder of the file.
    pub fn folder(&self) -> &'a Path {
        self.file.parent().unwrap_or(self.file)
    }

    /// The object in field `key`.
    pub fn child(&self, key: &'a str) -> Result<Option<Self>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self { object, ..self.within(key) })),
            Some(other) => Err(self.wrong_type(key, other, "an object or null")),
        }
    }

    /// The same, as what stands in field `key` of another object.
    pub(in crate::models) fn within(mut self, key: &'a str) -> Self {
        if let Some(place) = self.parents.iter_mut().find(|parent| parent.is_empty()) {
            *place = key;
        }
        self
    }

    /// The names and values of all fields, null ones included.
    pub(in crate::models) fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        self.object.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Whether no field holds anything.
    pub(in crate::models) fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// Whether the field is there, even if null.
    pub(in crate::models) fn is_present(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    /// The value of a field that is there and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// A whole number within `bounds`.
    pub fn count(
        &self,
        key: &str,
        bounds: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Some(float) = value.as_f64().filter(|float| float.fract() == 0.0) else {
            return Err(self.wrong_type(key, value, "a whole number"));
        };
        let exact_float = (0.0..=9e15).contains(&float).then_some(float as u64);
        let number = value.as_u64().or(exact_float).and_then(|number| usize::try_from(number).ok());
        match number.filter(|number| bounds.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                Err(self
                    .bad_value(key, format!("must be from {} to {}", bounds.start(), bounds.end())))
            }
        }
    }

    /// A list of whole numbers within `bounds`.
    pub fn counts(
        &self,
        key: &str,
        bounds: RangeInclusive<usize>,
    ) -> Result<Option<Vec<usize>>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = |item: &Value| item.as_u64().and_then(|number| usize::try_from(number).ok());
        let list = value.as_array().and_then(|list| list.iter().map(number).collect());
        let list: Vec<usize> =
            list.ok_or_else(|| self.wrong_type(key, value, "a list of whole numbers"))?;
        match list.iter().all(|number| bounds.contains(number)) {
            true => Ok(Some(list)),
            false => {
                let reason = format!("each must be from {} to {}", bounds.start(), bounds.end());
                Err(self.bad_value(key, reason))
            }
        }
    }

    /// A whole number within `bounds` that must be there.
    pub fn required_count(
        &self,
        key: &str,
        bounds: RangeInclusive<usize>,
    ) -> Result<usize, ConfigError> {
        self.count(key, bounds)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number within `bounds`.
    pub fn number(
        &self,
        key: &str,
        bounds: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Some(number) = value.as_f64() else {
            return Err(self.wrong_type(key, value, "a number"));
        };
        if !bounds.contains(&number) {
            return Err(self.bad_value(
                key,
                format!("must be from {:?} to {:?}", bounds.start(), bounds.end()),
            ));
        }
        Ok(Some(number))
    }

    /// A finite number within `bounds` that must be there.
    pub fn required_number(
        &self,
        key: &str,
        bounds: RangeInclusive<f64>,
    ) -> Result<f64, ConfigError> {
        self.number(key, bounds)?.ok_or_else(|| self.missing(key))
    }

    /// True or false; `None` where the key is absent or null.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong_type(key, other, "true or false")),
        }
    }

    /// `None` where the key is absent or null.
    pub fn string(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(key, other, "a string")),
        }
    }

    /// A list of strings; `None` where the key is absent or null.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_array()
            .and_then(|items| items.iter().map(Value::as_str).collect())
            .map(Some)
            .ok_or_else(|| self.wrong_type(key, value, "a list of strings"))
    }

    /// One token id below `vocab_size`, or a list of them.
    pub fn token_ids(&self, key: &str, vocab_size: usize) -> Result<Option<Vec<u32>>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let items = match value {
            Value::Array(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut ids = Vec::with_capacity(items.len());
        for item in items {
            if !item.is_i64() && !item.is_u64() {
                return Err(self.wrong_type(key, value, "a token id or a list of token ids"));
            }
            let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
            match id.filter(|id| (*id as usize) < vocab_size) {
                Some(id) if ids.contains(&id) => {}
                Some(id) => ids.push(id),
                None => {
                    return Err(self.bad_value(
                        key,
                        format!(
                            "token ids must be from 0 to {} (`vocab_size` - 1)",
                            vocab_size - 1
                        ),
                    ));
                }
            }
        }
        Ok(Some(ids))
    }

    /// The path of a field from the root of the file.
    pub(in crate::models) fn path(&self, key: &str) -> String {
        let parts = self.parents.into_iter().filter(|parent| !parent.is_empty());
        parts.chain([key]).collect::<Vec<_>>().join(".")
    }

    fn place(&self, key: &str) -> (PathBuf, String) {
        (self.file.to_path_buf(), self.path(key))
    }

    /// The error of a field that must be there.
    pub fn missing(&self, key: &str) -> ConfigError {
        let (file, field) = self.place(key);
        ConfigError::Missing { file, field }
    }

    pub(in crate::models) fn wrong_type(
        &self,
        key: &str,
        found: &Value,
        expected: &'static str,
    ) -> ConfigError {
        let (file, field) = self.place(key);
        ConfigError::Type { file, field, found: shown(found), expected }
    }

    /// The error of a field whose value makes no sense, for this reason.
    pub fn bad_value(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        let ((file, field), value) = (self.place(key), self.shown(key));
        ConfigError::Value { file, field, value, reason: reason.into() }
    }

    /// The error of a field that asks for what the model does not do; `supported` says what it does.
    pub fn unsupported(&self, key: &str, supported: impl Into<String>) -> ConfigError {
        let ((file, field), value) = (self.place(key), self.shown(key));
        ConfigError::Unsupported { file, field, value, supported: supported.into() }
    }

    /// `key` here and `other_key` of `other` contradict each other.
    pub(in crate::models) fn conflict(
        &self,
        key: &str,
        other: &Fields<'_>,
        other_key: &str,
    ) -> ConfigError {
        let ((file, field), value) = (self.place(key), self.shown(key));
        let (other, other_value) = (other.path(other_key), other.shown(other_key));
        ConfigError::Conflict { file, field, value, other, other_value }
    }

    fn shown(&self, key: &str) -> String {
        self.object.get(key).map_or_else(|| "absent".to_owned(), shown)
    }
}
