//! Methods of Python's texts that templates call, beside those that `minijinja_contrib` has.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// What `value.method(arguments)` is where the engine does not know.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let in_order;
    let arguments = match (value.as_str(), method) {
        (Some(_), "split" | "rsplit") => {
            in_order = of_split(arguments)?;
            &in_order[..]
        }
        _ => arguments,
    };
    let own = value.as_str().and_then(|text| of_text(text, method, arguments));
    own.unwrap_or_else(|| pycompat::unknown_method_callback(state, value, method, arguments))
}

/// The arguments of `split` one after the other, some of which may be named.
fn of_split(arguments: &[Value]) -> Result<[Value; 2], Error> {
    let (separator, most, named) = from_args::<(Option<Value>, Option<Value>, Kwargs)>(arguments)?;
    let separator = separator.or(named.get("sep")?).unwrap_or_else(|| ().into());
    let most = most.or(named.get("maxsplit")?).unwrap_or_else(|| ().into());
    named.assert_all_used()?;
    Ok([separator, most])
}

/// `value.name` of a name that Python's maps have a method of: it goes before a key, which
/// `value['name']` is. What `namespace` holds has no methods.
pub(super) fn bound(value: Value, name: String) -> Result<Value, Error> {
    let own = value.get_attr(&name)?;
    let is_namespace =
        value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace"));
    match value.kind() == ValueKind::Map && !is_namespace {
        true => Ok(Value::from_object(Bound { value, name })),
        false => Ok(own),
    }
}

/// A method that has not been called.
#[derive(Debug)]
struct Bound {
    value: Value,
    name: String,
}

impl Object for Bound {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        method(state, &self.value, &self.name, arguments)
    }

    fn render(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "<built-in method {}>", self.name)
    }
}

fn of_text(text: &str, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    let with_text = |of: &dyn Fn(&str) -> Result<Value, Error>| {
        from_args::<(String,)>(arguments).and_then(|(other,)| of(&other))
    };
    let padded = |of: fn(&str, i64, char) -> String| {
        let (width, fill) = from_args::<(i64, Option<char>)>(arguments)?;
        Ok(Value::from(of(text, width, fill.unwrap_or(' '))))
    };
    let plain = |of: fn(&str) -> Value| from_args::<()>(arguments).map(|()| of(text));
    Some(match method {
        "removeprefix" => with_text(&|other| Ok(text.strip_prefix(other).unwrap_or(text).into())),
        "removesuffix" => with_text(&|other| Ok(text.strip_suffix(other).unwrap_or(text).into())),
        "partition" => with_text(&|other| parted(text, other, text.split_once(other), true)),
        "rpartition" => with_text(&|other| parted(text, other, text.rsplit_once(other), false)),
        "index" => with_text(&|other| place(text, other, text.find(other))),
        "rindex" => with_text(&|other| place(text, other, text.rfind(other))),
        "rsplit" => from_args::<(Option<String>, Option<i64>)>(arguments)
            .map(|(separator, most)| split_from_end(text, separator.as_deref(), most)),
        "center" => padded(centered),
        "ljust" => padded(|text, width, fill| text.to_owned() + &lacking(text, width, fill)),
        "rjust" => padded(|text, width, fill| lacking(text, width, fill) + text),
        "zfill" => from_args::<(i64,)>(arguments).map(|(width,)| {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            Value::from(format!("{sign}{}{digits}", lacking(text, width, '0')))
        }),
        "casefold" => plain(|text| text.to_lowercase().into()),
        "swapcase" => plain(|text| {
            let swapped = |c: char| match c.is_uppercase() {
                true => c.to_lowercase().to_string(),
                false => c.to_uppercase().to_string(),
            };
            text.chars().map(swapped).collect::<String>().into()
        }),
        _ => return None,
    })
}

fn parted(
    text: &str,
    separator: &str,
    found: Option<(&str, &str)>,
    from_start: bool,
) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let parts = match found {
        Some((before, behind)) => [before, separator, behind],
        None if from_start => [text, "", ""],
        None => ["", "", text],
    };
    Ok(Tuple::new(parts.map(Value::from).to_vec()).into())
}

fn place(text: &str, other: &str, found: Option<usize>) -> Result<Value, Error> {
    let lacking = || Error::new(ErrorKind::InvalidOperation, format!("{other:?} is no part of it"));
    found.map(|at| Value::from(text[..at].chars().count())).ok_or_else(lacking)
}

fn split_from_end(text: &str, separator: Option<&str>, most: Option<i64>) -> Value {
    let most = most.and_then(|most| usize::try_from(most).ok());
    let mut parts: Vec<&str> = match (separator, most) {
        (Some(separator), Some(most)) => text.rsplitn(most + 1, separator).collect(),
        (Some(separator), None) => text.rsplit(separator).collect(),
        (None, most) => {
            let (mut parts, mut rest) = (Vec::new(), text.trim_end());
            while !rest.is_empty() {
                let word = rest.rfind(char::is_whitespace).filter(|_| most != Some(parts.len()));
                let start =
                    word.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end();
            }
            parts
        }
    };
    parts.reverse();
    Value::from_iter(parts)
}

fn lacking(text: &str, width: i64, fill: char) -> String {
    let width = usize::try_from(width).unwrap_or(0).min(1 << 16);
    String::from(fill).repeat(width.saturating_sub(text.chars().count()))
}

/// As Python centers: of an odd number of places the one that is left over is on the left where the width
/// is odd.
pub(super) fn centered(text: &str, width: i64, fill: char) -> String {
    let all = lacking(text, width, fill).chars().count();
    let left = all / 2 + (all & usize::try_from(width).unwrap_or(0) & 1);
    let fill = |count: usize| String::from(fill).repeat(count);
    fill(left) + text + &fill(all - left)
}
