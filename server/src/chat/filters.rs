//! Filters and tests as Jinja has them, where the engine has them another way or not at all.

use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::methods::centered;
use super::python;

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter("string", |value: Value| python::str(&value));
    environment
        .add_filter("tojson", |value: Value, options: Kwargs| python::tojson(&value, options));
    // What is not there is empty, whichever of its values they take.
    for name in ["length", "count"] {
        environment.add_filter(name, |value: Value| match value.is_undefined() {
            true => Ok(0),
            false => filters::length(&value),
        });
    }
    environment.add_filter("first", |value: Value| match value.is_undefined() {
        true => Ok(value),
        false => filters::first(&value),
    });
    environment.add_filter("last", |value: Value| match value.kind() {
        ValueKind::Undefined => Ok(value),
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or_default()),
        _ => filters::last(value),
    });
    environment.add_filter("items", |value: Value| match value.is_undefined() {
        true => Ok(Value::from(Tuple::default())),
        false => filters::items(&value),
    });
    for name in ["default", "d"] {
        environment.add_filter(name, default);
    }
    environment.add_filter("truncate", truncate);
    environment.add_filter("indent", indent);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("center", |text: String, width: Option<i64>| {
        centered(&text, width.unwrap_or(80), ' ')
    });
    environment.add_filter("wordcount", |text: String| {
        let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
        text.split(|c| !is_of_word(c)).filter(|word| !word.is_empty()).count()
    });
    // A text is both, none is neither.
    environment.add_test("iterable", |value: Value| {
        !value.is_none() && (value.as_str().is_some() || value.try_iter().is_ok())
    });
    environment.add_test("sequence", |value: Value| {
        let kinds = [ValueKind::Undefined, ValueKind::String, ValueKind::Seq, ValueKind::Map];
        kinds.contains(&value.kind())
    });
}

fn default(
    value: Value,
    otherwise: Option<Value>,
    falsy_too: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let otherwise = otherwise.or(options.get("default_value")?);
    let falsy_too = falsy_too.or(options.get("boolean")?).is_some_and(|flag| flag.is_true());
    options.assert_all_used()?;
    let is_there = !value.is_undefined() && (!falsy_too || value.is_true());
    Ok(if is_there { value } else { otherwise.unwrap_or_else(|| "".into()) })
}

/// Indents lines, the first of them if it is asked for; an end of the last line stays.
fn indent(
    text: String,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or_else(|| 4.into());
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let by = match width.as_str() {
        Some(by) => by.to_owned(),
        None => " ".repeat(usize::try_from(width)?.min(1 << 10)),
    };
    let ends = [
        '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}',
        '\u{2029}',
    ];
    let text = text.replace("\r\n", "\n");
    let mut out = String::new();
    for (number, line) in text.split(ends).enumerate() {
        out.push_str(if number > 0 { "\n" } else { "" });
        let is_indented = if number > 0 { blank || !line.is_empty() } else { first };
        out.push_str(if is_indented { &by } else { "" });
        out.push_str(line);
    }
    Ok(out)
}

/// Cuts a text that is longer than asked for by more than some places, behind a word unless told not to.
fn truncate(
    text: String,
    length: Option<usize>,
    kills_words: Option<bool>,
    end: Option<String>,
    options: Kwargs,
) -> Result<String, Error> {
    let length = length.or(options.get("length")?).unwrap_or(255);
    let kills_words = kills_words.or(options.get("killwords")?).unwrap_or(false);
    let end = end.or(options.get("end")?).unwrap_or_else(|| "...".to_owned());
    let leeway = options.get::<Option<usize>>("leeway")?.unwrap_or(5);
    options.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept = length.saturating_sub(end.chars().count());
    let kept: String = text.chars().take(kept).collect();
    let word = kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words);
    Ok(if kills_words { kept + &end } else { word.to_owned() + &end })
}

/// A whole number, or what is asked for instead of one.
fn int(
    state: &State<'_, '_>,
    value: Value,
    otherwise: Option<Value>,
    base: Option<u32>,
    options: Kwargs,
) -> Result<Value, Error> {
    let value = number_or_text(value)?;
    let otherwise = otherwise.or(options.get("default")?).unwrap_or(0.into());
    filters::int(state, &value, Some(otherwise), base, options)
}

fn float(
    state: &State<'_, '_>,
    value: Value,
    otherwise: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let value = number_or_text(value)?;
    let otherwise = otherwise.or(options.get("default")?).unwrap_or(0.0.into());
    filters::float(state, &value, Some(otherwise), options)
}

/// What Python makes a number of: there is white space around none of it.
fn number_or_text(value: Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "what is not there is no number"));
    }
    let trimmed = value.as_str().map(|text| Value::from(text.trim()));
    Ok(trimmed.unwrap_or(value))
}
