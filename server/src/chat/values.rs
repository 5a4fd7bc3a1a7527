//! JSON as what a template sees: made of it by value, so that no second copy of a request stands beside it.

use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, ObjectExt};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

/// Whether somebody still waits for a text.
pub type StillWanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// An object of JSON, in the order in which it came. Its fields are an error once nobody waits for the text:
/// a loop over what a client sent, which may be long, looks at some in each round.
#[derive(Clone, derive_more::Debug)]
pub(super) struct JsonObject {
    fields: IndexMap<Value, Value>,
    #[debug(skip)]
    wanted: StillWanted,
}

impl JsonObject {
    pub(super) fn new(
        fields: impl IntoIterator<Item = (String, Json)>,
        wanted: &StillWanted,
    ) -> Self {
        let field = |(name, value)| (Value::from(name), value_of(value, wanted));
        let fields = fields.into_iter().map(field).collect();
        Self { fields, wanted: Arc::clone(wanted) }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(&Value::from(name))
    }

    pub(super) fn insert(&mut self, name: &str, value: Value) {
        self.fields.insert(name.into(), value);
    }

    /// The same with another value of a field; `None` where the object has no such field, or `change` has no
    /// other value for it.
    pub(super) fn with(
        &self,
        name: &str,
        change: impl FnOnce(&Value) -> Option<Value>,
    ) -> Option<Value> {
        let changed = change(self.get(name)?)?;
        let mut object = self.clone();
        object.insert(name, changed);
        Some(Value::from_object(object))
    }
}

impl Object for JsonObject {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (self.wanted)() {
            true => self.fields.get(key).cloned(),
            false => Some(Error::new(ErrorKind::InvalidOperation, "nobody waits for it").into()),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|object| Box::new(object.fields.keys().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.fields.len())
    }
}

/// A value of JSON as a template's; each part of it is given back once it is another.
pub(super) fn value_of(json: Json, wanted: &StillWanted) -> Value {
    match json {
        Json::Null => ().into(),
        Json::Bool(flag) => flag.into(),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => number.as_f64().into(),
        },
        Json::String(text) => text.into(),
        Json::Array(list) => list.into_iter().map(|value| value_of(value, wanted)).collect(),
        Json::Object(fields) => Value::from_object(JsonObject::new(fields, wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::Environment;
    use serde_json::json;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn objects_are_maps_until_nobody_waits() {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&is_wanted);
        let wanted: StillWanted = Arc::new(move || flag.load(Ordering::Relaxed));
        let json = json!({"b": [1, -2, 2.5, null, true], "a": {"": "x"}, "c": 1_u64 << 63});
        let value = value_of(json.clone(), &wanted);
        assert_eq!(serde_json::to_string(&value).unwrap(), json.to_string());
        assert_eq!(value, Value::from(minijinja::value::Serde(&json)));
        let environment = Environment::new();
        let shown = |source: &str| {
            environment.render_str(source, minijinja::context! { x => value.clone() })
        };
        let all = "{{ x|list|join }} {{ x|reverse|join }} {{ x|length }} {{ x.a[''] }}{{ x.d }} \
                   {{ x is mapping }}";
        assert_eq!(shown(all).unwrap(), "bac cab 3 x True");
        is_wanted.store(false, Ordering::Relaxed);
        for source in ["{{ x.d }}", "{{ x['a'] }}", "{% for k, v in x|items %}{% endfor %}"] {
            let error = shown(source).unwrap_err().to_string();
            assert!(error.contains("nobody waits"), "{source}: {error}");
        }
    }
}
