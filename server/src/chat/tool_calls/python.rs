//! Calls that are written as Python.

use std::pin::Pin;

use serde_json::Value;

use super::reader::{NoCall, Read, Reader};
use super::typed;

pub(super) const PYTHONIC: [&str; 3] = ["[", "<|python_start|>", "<|python_end|>"];
pub(super) const SARASHINA: [&str; 2] = ["[", "<|tool_calls|>"];
/// How deep values nest at most.
const DEPTH: usize = 64;

/// A list of calls, `[name(key=value), ..]`; it is one as a whole or not at all.
pub(super) async fn pythonic(reader: &mut Reader, mark: usize) -> Read {
    match mark {
        0 => {}
        1 => {
            reader.space().await;
            reader.expect("[").await?;
        }
        // Text may be between its begin and a list.
        _ => return Ok(()),
    }
    let mut calls = Vec::new();
    loop {
        reader.space().await;
        if !calls.is_empty() && reader.skip("]").await {
            break;
        }
        let name = reader.word().await;
        if !reader.knows(&name) {
            return Err(NoCall);
        }
        reader.expect("(").await?;
        calls.push((name, arguments(reader).await?));
        reader.space().await;
        if !reader.skip(",").await {
            reader.expect("]").await?;
            break;
        }
    }
    calls.iter().try_for_each(|(name, arguments)| reader.call(name, arguments))?;
    if mark == 1 {
        reader.space().await;
        reader.close("<|python_end|>").await?;
    }
    Ok(())
}

async fn arguments(reader: &mut Reader) -> Read<String> {
    let mut fields = Vec::new();
    loop {
        reader.space().await;
        if reader.skip(")").await {
            return Ok(format!("{{{}}}", fields.join(",")));
        }
        let key = reader.word().await;
        reader.expect("=").await?;
        if key.is_empty() {
            return Err(NoCall);
        }
        fields.push(format!("{}:{}", typed::string(&key), literal(reader, 0).await?));
        reader.space().await;
        if !reader.skip(",").await && reader.peek().await != Some(')') {
            return Err(NoCall);
        }
    }
}

/// A list of calls, `[{'name': .., 'arguments': {..}}]`, or one behind the mark.
pub(super) async fn sarashina(reader: &mut Reader, mark: usize) -> Read {
    reader.space().await;
    let text = match mark {
        0 if reader.peek().await == Some('{') => list(reader, "]", 0).await?,
        0 => return Err(NoCall),
        _ => literal(reader, 0).await?,
    };
    let calls = match serde_json::from_str(&text).map_err(|_| NoCall)? {
        Value::Array(calls) if !calls.is_empty() => calls,
        one @ Value::Object(_) => vec![one],
        _ => return Err(NoCall),
    };
    let read: Option<Vec<(&str, String)>> = calls
        .iter()
        .map(|call| {
            let name = call["name"].as_str().filter(|name| reader.knows(name))?;
            match call.get("arguments").or_else(|| call.get("parameters")) {
                None | Some(Value::Null) => Some((name, "{}".to_owned())),
                Some(arguments) => arguments.is_object().then(|| (name, arguments.to_string())),
            }
        })
        .collect();
    read.ok_or(NoCall)?.iter().try_for_each(|(name, arguments)| reader.call(name, arguments))
}

/// The JSON of a literal.
fn literal(
    reader: &mut Reader,
    depth: usize,
) -> Pin<Box<dyn Future<Output = Read<String>> + Send + '_>> {
    Box::pin(async move {
        reader.space().await;
        match reader.peek().await.ok_or(NoCall)? {
            _ if depth == DEPTH => Err(NoCall),
            '\'' | '"' => {
                let mut text = String::new();
                // Strings beside each other are one.
                while let Some(quote @ ('\'' | '"')) = reader.peek().await {
                    text.push_str(&string(reader, quote).await?);
                    reader.space().await;
                }
                Ok(typed::string(&text))
            }
            '[' => {
                reader.next().await?;
                list(reader, "]", depth + 1).await
            }
            '(' => {
                reader.next().await?;
                list(reader, ")", depth + 1).await
            }
            '{' => {
                reader.next().await?;
                dictionary(reader, depth + 1).await
            }
            _ => {
                let word = reader.while_is(|c| c.is_alphanumeric() || "_.+-".contains(c)).await;
                plain(&word)
            }
        }
    })
}

async fn list(reader: &mut Reader, end: &str, depth: usize) -> Read<String> {
    let mut items = Vec::new();
    loop {
        reader.space().await;
        if reader.skip(end).await {
            return Ok(format!("[{}]", items.join(",")));
        }
        items.push(literal(reader, depth).await?);
        reader.space().await;
        if !reader.skip(",").await && !reader.is_at(end).await {
            return Err(NoCall);
        }
    }
}

async fn dictionary(reader: &mut Reader, depth: usize) -> Read<String> {
    let mut fields = Vec::new();
    loop {
        reader.space().await;
        if reader.skip("}").await {
            return Ok(format!("{{{}}}", fields.join(",")));
        }
        let key = literal(reader, depth).await?;
        let key = if key.starts_with('"') { key } else { typed::string(&key) };
        reader.space().await;
        reader.expect(":").await?;
        fields.push(format!("{key}:{}", literal(reader, depth).await?));
        reader.space().await;
        if !reader.skip(",").await && !reader.is_at("}").await {
            return Err(NoCall);
        }
    }
}

/// Numbers and names.
fn plain(word: &str) -> Read<String> {
    match word {
        "True" | "true" => return Ok("true".to_owned()),
        "False" | "false" => return Ok("false".to_owned()),
        "None" | "null" => return Ok("null".to_owned()),
        _ => {}
    }
    let word = word.replace('_', "");
    let number = word.strip_prefix('+').unwrap_or(&word);
    let is_json = serde_json::from_str::<Value>(number).is_ok_and(|value| value.is_number());
    let starts = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-');
    match number.parse::<f64>() {
        _ if is_json => Ok(number.to_owned()),
        // `.5` and `1.` are Python's alone, `inf` and `nan` no one's.
        Ok(value) if value.is_finite() && number.starts_with(starts) => {
            Ok(Value::from(value).to_string())
        }
        _ => Err(NoCall),
    }
}

/// The text of a string.
async fn string(reader: &mut Reader, quote: char) -> Read<String> {
    let triple = quote.to_string().repeat(3);
    let end = match reader.skip(&triple).await {
        true => triple,
        false => {
            reader.next().await?;
            quote.to_string()
        }
    };
    let mut text = String::new();
    while !reader.skip(&end).await {
        let character = reader.next().await?;
        if character != '\\' {
            text.push(character);
            continue;
        }
        match reader.next().await? {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            '0' => text.push('\0'),
            '\n' => {}
            'x' => text.push(code(reader, 2).await?),
            'u' => text.push(code(reader, 4).await?),
            'U' => text.push(code(reader, 8).await?),
            same @ ('\\' | '\'' | '"') => text.push(same),
            other => text.extend(['\\', other]),
        }
    }
    Ok(text)
}

async fn code(reader: &mut Reader, digits: usize) -> Read<char> {
    let mut code = 0;
    for _ in 0..digits {
        code = code * 16 + reader.next().await?.to_digit(16).ok_or(NoCall)?;
    }
    char::from_u32(code).ok_or(NoCall)
}
