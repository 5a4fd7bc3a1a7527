//! MiniMax M3's calls: arguments are elements, which nest.

use std::pin::Pin;

use serde_json::Value;

use super::reader::{NoCall, Read, Reader};
use super::typed::{self, Types};

pub(super) const MARKS: [&str; 1] = ["]<]minimax[>[<tool_call>"];
/// How deep elements nest at most.
const DEPTH: usize = 64;

/// `<invoke name="..">` with `<key>value</key>` for each argument; before each tag is a mark.
pub(super) async fn calls(reader: &mut Reader) -> Read {
    reader.space().await;
    reader.expect("]<]minimax[>[<invoke").await?;
    loop {
        call(reader).await?;
        reader.space().await;
        match reader.choose(&["]<]minimax[>[</tool_call>", "]<]minimax[>[<invoke"]).await? {
            Some(0) => return Ok(()),
            Some(_) => {}
            None => return Err(NoCall),
        }
    }
}

async fn call(reader: &mut Reader) -> Read {
    reader.space().await;
    reader.expect("name=\"").await?;
    let name = reader.word().await;
    reader.expect("\"").await?;
    reader.space().await;
    reader.expect(">").await?;
    let schema = reader.parameters(&name)?;
    let arguments = element(reader, "invoke".to_owned(), schema, true, 0).await?;
    reader.call(&name, &arguments)
}

/// The JSON of an element that was opened.
fn element(
    reader: &mut Reader,
    name: String,
    schema: Value,
    is_object: bool,
    depth: usize,
) -> Pin<Box<dyn Future<Output = Read<String>> + Send + '_>> {
    Box::pin(async move {
        let types = Types::of(&schema);
        let end = format!("]<]minimax[>[</{name}>");
        let (mut text, mut children) = (String::new(), Vec::<(String, Vec<String>)>::new());
        while !reader.skip(&end).await {
            if reader.is_at("]<]minimax[>[</").await {
                // An empty list or object may lack its end.
                let may = types.has("array") || types.has("object");
                (may && children.is_empty() && text.trim().is_empty())
                    .then_some(())
                    .ok_or(NoCall)?;
                break;
            }
            if !reader.skip("]<]minimax[>[<").await {
                text.push(reader.next().await?);
                continue;
            }
            let child = reader.word().await;
            reader.expect(">").await?;
            if depth == DEPTH || child.is_empty() {
                return Err(NoCall);
            }
            let of_child = match types.has("array") {
                true => schema["items"].clone(),
                false => typed::field(&schema, &child).clone(),
            };
            let value = element(reader, child.clone(), of_child, false, depth + 1).await?;
            match children.iter_mut().find(|(known, _)| *known == child) {
                Some((_, values)) => values.push(value),
                None => children.push((child, vec![value])),
            }
        }
        let is_list = types.has("array") || children.iter().all(|(child, _)| child == "item");
        if is_object && children.is_empty() {
            return Ok("{}".to_owned());
        }
        if children.is_empty() {
            return Ok(types.json(&text));
        }
        if !is_object && is_list {
            let items: Vec<String> = children.into_iter().flat_map(|(_, values)| values).collect();
            return Ok(format!("[{}]", items.join(",")));
        }
        if !text.trim().is_empty() && !is_object {
            children.push(("$text".to_owned(), vec![typed::string(&text)]));
        }
        let fields = children.into_iter().map(|(child, values)| {
            let value = match values.as_slice() {
                [one] => one.clone(),
                several => format!("[{}]", several.join(",")),
            };
            format!("{}:{value}", typed::string(&child))
        });
        Ok(format!("{{{}}}", fields.collect::<Vec<_>>().join(",")))
    })
}
