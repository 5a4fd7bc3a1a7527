//! `%` behind a text, which Jinja leaves to Python: `'%s of %s' % (a, b)`.

use std::borrow::Cow;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value, context};

use super::python;

/// `left % right`: the engine's own of numbers, and the text of a format.
pub(super) fn percent(
    state: &mut State<'_, '_>,
    left: Value,
    right: Value,
) -> Result<Value, Error> {
    let Some(format) = left.as_str() else {
        let numbers = state.env().compile_expression("left % right")?;
        return numbers.eval(context! { left, right });
    };
    let (format, arguments) = positional(format, &right)?;
    state.apply_filter("format", &[vec![Value::from(format)], arguments].concat())
}

fn wrong(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// A format that takes its arguments one after the other, and these, written by Python's functions where
/// they are no numbers.
fn positional(format: &str, right: &Value) -> Result<(String, Vec<Value>), Error> {
    let mut given = match right.is_tuple() {
        true => Vec::from_iter(right.try_iter()?),
        false => vec![right.clone()],
    }
    .into_iter();
    let (mut out, mut arguments, mut names) = (String::new(), Vec::new(), false);
    let mut rest = format;
    while let Some((before, directive)) = rest.split_once('%') {
        out.push_str(before);
        out.push('%');
        rest = directive;
        if let Some(behind) = rest.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        let mut argument = None;
        if let Some((key, behind)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            let value = right.get_item(&Value::from(key))?;
            if value.is_undefined() {
                return Err(wrong(format!("the format names {key:?}, which there is not")));
            }
            (argument, rest, names) = (Some(value), behind, true);
        }
        let marks = |c: char| !"#0- +*.hlL".contains(c) && !c.is_ascii_digit();
        let end = rest.find(marks).unwrap_or(rest.len());
        let letter = rest[end..].chars().next().unwrap_or_default();
        let lacks = || wrong("not enough arguments for the format");
        for mark in rest[..end].chars() {
            match mark {
                '*' => out.push_str(&given.next().ok_or_else(lacks)?.to_string()),
                mark => out.push(mark),
            }
        }
        let value = argument.map_or_else(|| given.next().ok_or_else(lacks), Ok)?;
        let is_number = matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
        arguments.push(match letter {
            'r' | 'a' => python::repr(&value).into(),
            's' if !is_number => python::str(&value).into(),
            _ => value,
        });
        out.push(if "ra".contains(letter) { 's' } else { letter });
        rest = &rest[end + letter.len_utf8().min(rest.len() - end)..];
    }
    let may_be_left = names || right.kind() == ValueKind::Map;
    match given.next().is_some() && !may_be_left {
        true => Err(wrong("not all arguments are in the format")),
        false => Ok((out + rest, arguments)),
    }
}
