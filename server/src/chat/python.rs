//! What Python's own functions write, where a template shows it.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// `json.dumps` of a value with `ensure_ascii` off, as transformers gives it to templates.
///
/// # Errors
/// For arguments that it does not know, and values that have no JSON.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() || value.is_undefined() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(value).map_err(|_| bad("indent"))?.min(64)),
        }),
    };
    let separators = match options.get::<Option<Value>>("separators")? {
        Some(value) if !value.is_none() => {
            let parts: Vec<Value> = value.try_iter()?.collect();
            match parts.as_slice() {
                [item, key] => Some((text(item)?, text(key)?)),
                _ => return Err(bad("separators")),
            }
        }
        _ => None,
    };
    let (item, key) = separators.unwrap_or_else(|| {
        let item = if indent.is_some() { "," } else { ", " };
        (item.to_owned(), ": ".to_owned())
    });
    let writer = JsonWriter {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item,
        key,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(out)
}

/// `json.dumps` of a value with `ensure_ascii` off.
pub(super) fn dumps(value: &Value) -> String {
    // Without options there is nothing to refuse, and all that is JSON has JSON.
    tojson(value, Kwargs::from_iter::<[(&str, Value); 0]>([])).unwrap_or_default()
}

fn bad(argument: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson can't take this `{argument}`"))
}

fn text(value: &Value) -> Result<String, Error> {
    value.as_str().map(str::to_owned).ok_or_else(|| bad("separators"))
}

struct JsonWriter {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl JsonWriter {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.quote(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(&items, ['[', ']'], depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    let name = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                    entries.push((name, value.get_item(&key)?));
                }
                if self.sorted {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.list(&entries, ['{', '}'], depth, out, |(name, value), out| {
                    self.quote(name, out);
                    out.push_str(&self.key);
                    self.write(value, depth + 1, out)
                })?;
            }
            kind => {
                let what = format!("a value of the kind {kind} has no JSON");
                return Err(Error::new(ErrorKind::BadSerialization, what));
            }
        }
        Ok(())
    }

    fn list<T>(
        &self,
        items: &[T],
        [open, close]: [char; 2],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            self.line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn quote(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing into a string can't fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `str` of a value: what a template prints.
pub(super) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => repr(value),
        ValueKind::Seq | ValueKind::Map => repr(value),
        _ => value.to_string(),
    }
}

/// `repr` of a value: what it is in a list that is printed.
pub(super) fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let mut out = String::from(quote);
            for character in text.chars() {
                match character {
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c if c == quote || c == '\\' => out.extend(['\\', c]),
                    // Writing into a string can't fail.
                    c if c.is_control() => drop(write!(out, "\\x{:02x}", u32::from(c))),
                    c => out.push(c),
                }
            }
            out.push(quote);
            out
        }
        ValueKind::Seq => {
            let items: Vec<_> = value.try_iter().into_iter().flatten().map(|v| repr(&v)).collect();
            match (value.is_tuple(), &*items) {
                (true, [one]) => format!("({one},)"),
                (true, many) => format!("({})", many.join(", ")),
                (false, many) => format!("[{}]", many.join(", ")),
            }
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            let item = |key| {
                let value = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&value))
            };
            format!("{{{}}}", keys.map(item).collect::<Vec<_>>().join(", "))
        }
        _ => value.to_string(),
    }
}

/// A float as Python's `repr` writes it.
fn float(value: f64) -> String {
    if !value.is_finite() {
        // JSON has none of these, so that no message brings one.
        return value.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}
