//! Gemma 4's calls, in which a token of its own quotes strings.

use std::pin::Pin;

use serde_json::Value;

use super::reader::{NoCall, Read, Reader};
use super::typed::{self, Types};

pub(super) const MARKS: [&str; 1] = ["<|tool_call>"];
const QUOTE: &str = "<|\"|>";
/// How deep values nest at most.
const DEPTH: usize = 64;

/// `call:name{key:<|"|>text<|"|>,..}<tool_call|>`, or with parentheses; models that wait for the
/// answer say so by marks of its own.
pub(super) async fn call(reader: &mut Reader) -> Read {
    reader.space().await;
    let _ = reader.skip("call").await;
    reader.expect(":").await?;
    let name = reader.word().await;
    let end = match reader.next().await? {
        '{' => '}',
        '(' => ')',
        _ => return Err(NoCall),
    };
    let schema = reader.parameters(&name)?;
    let arguments = object(reader, schema, end, 0).await?;
    reader.call(&name, &arguments)?;
    reader.space().await;
    while reader.choose(&["<tool_call|>", "<turn|>", "<|tool_response>"]).await?.is_some() {
        reader.space().await;
    }
    Ok(())
}

type Json<'a> = Pin<Box<dyn Future<Output = Read<String>> + Send + 'a>>;

/// The fields of an object that was opened, up to its end.
fn object(reader: &mut Reader, schema: Value, end: char, depth: usize) -> Json<'_> {
    Box::pin(async move {
        let mut fields = Vec::new();
        while !separator(reader, end).await? {
            let key = match reader.skip(QUOTE).await {
                true => reader.until(QUOTE).await?,
                false => reader.while_is(|c| !":{}[]()<,".contains(c)).await,
            };
            let key = key.trim();
            reader.space().await;
            reader.expect(":").await?;
            if key.is_empty() {
                return Err(NoCall);
            }
            let value = value(reader, typed::field(&schema, key).clone(), depth).await?;
            fields.push(format!("{}:{value}", typed::string(key)));
        }
        Ok(format!("{{{}}}", fields.join(",")))
    })
}

async fn value(reader: &mut Reader, schema: Value, depth: usize) -> Read<String> {
    reader.space().await;
    if depth == DEPTH {
        return Err(NoCall);
    }
    if reader.skip(QUOTE).await {
        return Ok(typed::string(&reader.until(QUOTE).await?));
    }
    if reader.skip("{").await {
        return object(reader, schema, '}', depth + 1).await;
    }
    if reader.skip("[").await {
        return list(reader, schema["items"].clone(), depth + 1).await;
    }
    let text = reader.while_is(|c| !",}])<".contains(c)).await;
    let text = text.trim();
    if text.is_empty() || reader.peek().await == Some('<') {
        return Err(NoCall);
    }
    Ok(Types::of(&schema).json(text))
}

fn list(reader: &mut Reader, items: Value, depth: usize) -> Json<'_> {
    Box::pin(async move {
        let mut values = Vec::new();
        while !separator(reader, ']').await? {
            values.push(value(reader, items.clone(), depth).await?);
        }
        Ok(format!("[{}]", values.join(",")))
    })
}

/// Reads what is between two values. Whether it is the end of them.
async fn separator(reader: &mut Reader, end: char) -> Read<bool> {
    reader.while_is(|c| c.is_whitespace() || c == ',').await;
    match reader.peek().await {
        None => Err(NoCall),
        Some(character) if character == end => reader.next().await.map(|_| true),
        Some(_) => Ok(false),
    }
}
