//! The fields of a request's body: each is taken by name and type, and what is left over is refused
//! by name.

use super::body::{self, Held};
use super::client::Client;
use super::error::ApiError;
use super::passed::Passed;
use super::state::State;
pub(crate) use crate::field::{Field, field};
use axum::extract::Request;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The field that every request has.
pub(crate) const MODEL: Field = field("model", schema::TEXT, "A name of the served model.");

/// Schemas that several fields have.
pub(crate) mod schema {
    pub(crate) const TEXT: &str = r#"{"type":"string"}"#;
    pub(crate) const FLAG: &str = r#"{"type":"boolean"}"#;
    pub(crate) const FLAG_THAT_IS_SET: &str = r#"{"type":"boolean","default":true}"#;
    pub(crate) const TEXT_OR_TEXTS: &str =
        r#"{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]}"#;
    pub(crate) const OBJECT: &str = r#"{"type":"object"}"#;
    pub(crate) const OBJECTS: &str = r#"{"type":"array","items":{"type":"object"}}"#;
    pub(crate) const COUNT: &str = r#"{"type":"integer","minimum":1}"#;
    pub(crate) const LIKELIEST: &str = r#"{"type":"integer","minimum":0,"maximum":20}"#;
    pub(crate) const IDS: &str = r#"{"type":"array","items":{"type":"integer"}}"#;
    pub(crate) const WHOLE: &str = r#"{"type":"integer"}"#;
    pub(crate) const TEXTS_OR_IDS: &str = r#"{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"integer"}},{"type":"array","items":{"type":"array","items":{"type":"integer"}}}]}"#;
    pub(crate) const COUNT_OR_NONE: &str = r#"{"type":"integer","minimum":0}"#;
    pub(crate) const TEXTS: &str = r#"{"type":"array","items":{"type":"string"}}"#;
    pub(crate) const TEMPERATURE: &str = r#"{"type":"number","minimum":0,"maximum":100}"#;
    /// Of all that is likely.
    pub(crate) const SHARE: &str = r#"{"type":"number","minimum":0,"maximum":1}"#;
    /// -1 is no bound.
    pub(crate) const BOUND: &str = r#"{"type":"integer","minimum":-1}"#;
    pub(crate) const PENALTY: &str = r#"{"type":"number","minimum":-2,"maximum":2}"#;
}

/// Fields that nobody has taken yet.
#[derive(Debug)]
pub(crate) struct Fields {
    rest: Map<String, Value>,
    held: Held,
    /// The most values of its JSON.
    most: usize,
    /// Where what nobody knows is passed over.
    passed: Option<Passed>,
}

impl Fields {
    /// What `take` takes of the fields of a request to a model of the server. Those of a large body are read,
    /// taken and dropped off the threads that others wait for.
    pub(crate) async fn read<R: Send + 'static>(
        request: Request,
        state: &Arc<State>,
        take: impl FnOnce(&State, Self) -> Result<R, ApiError> + Send + 'static,
    ) -> Result<R, ApiError> {
        let passed = request.extensions().get::<Passed>().cloned();
        let (body, held) = body::read(request, state).await?;
        let (is_large, shared) = (held.is_large(), Arc::clone(state));
        let client = held.client().clone();
        let work = move || {
            let mut fields = Self::parse(&body, shared.limits.body_values, held)?;
            fields.passed = passed;
            shared.check_name(fields.text("model")?)?;
            take(&shared, fields)
        };
        match is_large {
            true => state.text_turns.run(&client, move |_| work()).await,
            false => work(),
        }
    }

    /// The fields of an object.
    #[cfg(test)]
    pub(crate) fn of(object: &Value) -> Self {
        let (body, held) = (object.to_string(), body::BodyMemory::new(0).hold(Client::default()));
        Self::parse(body.as_bytes(), 1 << 20, held).unwrap()
    }

    /// Reads at most so many values.
    fn parse(body: &[u8], most: usize, mut held: Held) -> Result<Self, ApiError> {
        body::check_values(body, most, &mut held)?;
        let value = serde_json::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("the body is no JSON: {error}")))?;
        match value {
            Value::Object(rest) => Ok(Self { rest, held, most, passed: None }),
            _ => Err(ApiError::bad_request("the body must be a JSON object")),
        }
    }

    /// Who asks.
    pub(crate) fn client(&self) -> &Client {
        self.held.client()
    }

    /// Takes memory for the values of a text of the body that is JSON itself, and is read later.
    pub(crate) fn take_json(&mut self, text: &str) -> Result<(), ApiError> {
        body::check_values(text.as_bytes(), self.most, &mut self.held)
    }

    /// Takes memory for so many copies of values of the body.
    pub(crate) fn take_copies(&mut self, values: &[Value], copies: usize) -> Result<(), ApiError> {
        self.held.grow(body::memory(values).saturating_mul(copies))
    }

    /// Takes memory for a copy of each of these fields.
    pub(crate) fn take_copies_of(&mut self, names: &[&str]) -> Result<(), ApiError> {
        let of = |name: &&str| self.rest.get(*name).map(std::slice::from_ref).map(body::memory);
        self.held.grow(names.iter().filter_map(of).sum())
    }

    /// The fields that nobody has taken.
    pub(crate) fn object(&self) -> &Map<String, Value> {
        &self.rest
    }

    /// A field; null is the same as none.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.rest.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field if it has this value; whether it had.
    pub(crate) fn take_if(&mut self, name: &str, value: &Value) -> bool {
        let has = self.rest.get(name) == Some(value);
        has && self.rest.remove(name).is_some()
    }

    /// Takes a field by another name that it has too.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        if let Some(value) = self.take(from) {
            self.rest.insert(to.to_owned(), value);
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        self.flag_or(name, false)
    }

    pub(crate) fn flag_or(&mut self, name: &str, usual: bool) -> Result<bool, ApiError> {
        Ok(self.typed(name, "must be true or false")?.unwrap_or(usual))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "must be a string")
    }

    /// A field that has to be of this type, as `must` says.
    pub(crate) fn typed<T: DeserializeOwned>(
        &mut self,
        name: &str,
        must: &str,
    ) -> Result<Option<T>, ApiError> {
        let typed = |value| serde_json::from_value(value).map_err(|_| ApiError::field(name, must));
        self.take(name).map(typed).transpose()
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn whole(
        &mut self,
        name: &str,
        least: i64,
        most: i64,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let found = whole(&value).filter(|number| (least..=most).contains(number));
        let bad =
            || ApiError::field(name, format!("must be a whole number from {least} to {most}"));
        found.map(Some).ok_or_else(bad)
    }

    /// A number from `least` to `most`.
    pub(crate) fn number(
        &mut self,
        name: &str,
        least: f64,
        most: f64,
    ) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let found = value.as_f64().filter(|number| (least..=most).contains(number));
        let bad = || ApiError::field(name, format!("must be a number from {least} to {most}"));
        found.map(Some).ok_or_else(bad)
    }

    /// Drops fields that ask for nothing of a model.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.rest.remove(*name)));
    }

    /// Refuses fields that are known and not supported, unless they ask for what happens anyway.
    pub(crate) fn refuse(&mut self, refused: &[(&str, Value, &str)]) -> Result<(), ApiError> {
        for (name, usual, instead) in refused {
            if self.take(name).is_some_and(|value| value != *usual) {
                return Err(ApiError::unsupported(name, instead));
            }
        }
        Ok(())
    }

    /// Where unknown fields are passed over: leaves those of the object `name` alone that somebody knows.
    pub(crate) fn pass_within(&mut self, name: &str, known: &[&str]) {
        let Some(passed) = &self.passed else { return };
        let Some(Value::Object(inner)) = self.rest.get_mut(name) else { return };
        inner.retain(|field, _| {
            let is_known = known.contains(&field.as_str());
            if !is_known {
                passed.add(&[name, ".", field]);
            }
            is_known
        });
    }

    /// Other fields in the place of these, of which what is left over is refused or passed over.
    pub(crate) fn become_others(mut self, others: Map<String, Value>) -> Result<Self, ApiError> {
        let rest = std::mem::replace(&mut self.rest, others);
        self.refuse_rest(&rest)?;
        Ok(self)
    }

    fn refuse_rest(&self, rest: &Map<String, Value>) -> Result<(), ApiError> {
        match (&self.passed, rest.keys().next()) {
            (None, Some(name)) => Err(ApiError::unknown(name)),
            (None, None) => Ok(()),
            (Some(passed), _) => {
                rest.keys().for_each(|name| passed.add(&[name]));
                Ok(())
            }
        }
    }

    /// Refuses what is left over, or passes over it. What the body takes of memory is held as long as what was taken is
    /// needed.
    pub(crate) fn finish(self) -> Result<Held, ApiError> {
        self.refuse_rest(&self.rest)?;
        Ok(self.held)
    }
}

/// A number without a fraction, however it is written.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    let exact = |number: &f64| number.fract() == 0.0 && number.abs() < 9e15;
    value.as_i64().or_else(|| value.as_f64().filter(exact).map(|number| number as i64))
}

/// Ids of tokens.
pub(crate) fn ids(name: &str, values: &[Value]) -> Result<Vec<u32>, ApiError> {
    let id = |value| whole(value).and_then(|id| u32::try_from(id).ok());
    let bad = || ApiError::field(name, "token ids must be whole numbers from 0 to 2^32 - 1");
    values.iter().map(|value| id(value).ok_or_else(bad)).collect()
}
