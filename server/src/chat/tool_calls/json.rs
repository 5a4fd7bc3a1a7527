//! Calls that are written as JSON.

use serde_json::Value;

use super::reader::{NoCall, Read, Reader};

/// How the object of a call names its parts.
#[derive(Debug)]
pub(super) struct Fields {
    pub(super) name: &'static [&'static str],
    pub(super) arguments: &'static [&'static str],
    /// Without a mark before it: an object is a call only where all of it says so.
    pub(super) is_bare: bool,
}

/// What beside a name and arguments a bare call may have.
const BARE: [&str; 4] = ["type", "id", "index", "tool_call_id"];

/// A call, or a list of calls.
pub(super) async fn calls(reader: &mut Reader, fields: &Fields) -> Read {
    reader.space().await;
    if !reader.skip("[").await {
        reader.expect("{").await?;
        return call(reader, fields).await;
    }
    list(reader, fields).await
}

/// The calls of a list that was opened.
pub(super) async fn list(reader: &mut Reader, fields: &Fields) -> Read {
    loop {
        reader.space().await;
        reader.expect("{").await?;
        call(reader, fields).await?;
        reader.space().await;
        if !reader.skip(",").await {
            return reader.expect("]").await;
        }
    }
}

/// A call whose object was opened.
pub(super) async fn call(reader: &mut Reader, fields: &Fields) -> Read {
    let mut name: Option<String> = None;
    let mut arguments: Option<String> = None;
    let mut is_begun = false;
    reader.space().await;
    while !reader.skip("}").await {
        let key = string(reader).await?;
        reader.space().await;
        reader.expect(":").await?;
        reader.space().await;
        if name.is_none() && fields.name.contains(&key.as_str()) {
            name = Some(string(reader).await?).filter(|name| reader.knows(name));
            name.as_ref().ok_or(NoCall)?;
        } else if fields.arguments.contains(&key.as_str()) && !is_begun && arguments.is_none() {
            match &name {
                Some(name) => {
                    self::arguments(reader, name).await?;
                    is_begun = true;
                }
                None => arguments = Some(value(reader).await?),
            }
        } else if fields.is_bare && !BARE.contains(&key.as_str()) {
            return Err(NoCall);
        } else {
            value(reader).await?;
        }
        reader.space().await;
        if !reader.skip(",").await {
            // Models forget the last brace behind those of the arguments.
            if !reader.skip("}").await && !is_begun {
                return Err(NoCall);
            }
            break;
        }
        reader.space().await;
    }
    if !is_begun {
        if arguments.is_none() && fields.is_bare {
            return Err(NoCall);
        }
        let arguments = object(arguments.as_deref().unwrap_or("null"))?;
        reader.begin(&name.ok_or(NoCall)?)?;
        reader.argue(&arguments);
    }
    reader.end();
    Ok(())
}

/// Begins a call of which the arguments follow; they go out as they come.
pub(super) async fn arguments(reader: &mut Reader, name: &str) -> Read {
    if reader.peek().await == Some('{') {
        if !matches!(reader.peek_behind().await, Some('"' | '}')) {
            return Err(NoCall);
        }
        reader.begin(name)?;
        each(reader, Reader::argue).await?;
    } else {
        let text = value(reader).await?;
        let arguments = object(&text)?;
        reader.begin(name)?;
        reader.argue(&arguments);
    }
    reader.end();
    Ok(())
}

/// The object that arguments are: none is an empty one, and some models write it into a string.
fn object(text: &str) -> Read<String> {
    match serde_json::from_str(text).map_err(|_| NoCall)? {
        Value::Null => Ok("{}".to_owned()),
        Value::Object(_) => Ok(text.to_owned()),
        Value::String(inner) if inner.trim().is_empty() => Ok("{}".to_owned()),
        Value::String(inner) => match serde_json::from_str(&inner) {
            Ok(Value::Object(_)) => Ok(inner),
            _ => Err(NoCall),
        },
        _ => Err(NoCall),
    }
}

async fn string(reader: &mut Reader) -> Read<String> {
    if reader.peek().await != Some('"') {
        return Err(NoCall);
    }
    serde_json::from_str(&value(reader).await?).map_err(|_| NoCall)
}

/// The text of a value.
async fn value(reader: &mut Reader) -> Read<String> {
    let mut text = String::new();
    each(reader, |_, piece| text.push_str(piece)).await?;
    Ok(text)
}

/// Reads a value, and hands on each of its characters.
async fn each(reader: &mut Reader, mut take: impl FnMut(&mut Reader, &str)) -> Read {
    let mut closers = Vec::new();
    let (mut in_string, mut is_escaped, mut is_begun) = (false, false, false);
    loop {
        let next = reader.peek().await;
        let ends = |c: char| c.is_whitespace() || matches!(c, ',' | '}' | ']' | '<' | '[');
        if is_begun && closers.is_empty() && !in_string && next.is_none_or(ends) {
            return Ok(());
        }
        let character = reader.next().await?;
        take(reader, character.encode_utf8(&mut [0; 4]));
        is_begun = true;
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if in_string => is_escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => continue,
            '{' => closers.push('}'),
            '[' => closers.push(']'),
            '}' | ']' if closers.pop() != Some(character) => return Err(NoCall),
            '}' | ']' => {}
            _ => continue,
        }
        if closers.is_empty() && !in_string && !is_escaped {
            return Ok(());
        }
    }
}
