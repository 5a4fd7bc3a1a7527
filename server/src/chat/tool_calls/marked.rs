//! Families that put calls in JSON between marks. Each function reads what follows a mark.

use super::json::{self, Fields};
use super::reader::{NoCall, Read, Reader};

const PLAIN: Fields =
    Fields { name: &["name"], arguments: &["arguments", "parameters"], is_bare: false };
const BARE: Fields = Fields { is_bare: true, ..PLAIN };
const COHERE: Fields = Fields {
    name: &["tool_name", "name"],
    arguments: &["parameters", "arguments"],
    is_bare: false,
};
const INKLING: Fields =
    Fields { name: &["name"], arguments: &["args", "arguments"], is_bare: false };

pub(super) const HERMES: [&str; 1] = ["<tool_call>"];

/// `<tool_call>{"name": .., "arguments": ..}</tool_call>`.
pub(super) async fn hermes(reader: &mut Reader) -> Read {
    json::calls(reader, &PLAIN).await?;
    loop {
        reader.space().await;
        match reader.peek().await {
            Some('{') => json::calls(reader, &PLAIN).await?,
            // One too many.
            Some('}') => drop(reader.next().await?),
            _ => return reader.close("</tool_call>").await,
        }
    }
}

pub(super) const MISTRAL: [&str; 1] = ["[TOOL_CALLS]"];

/// A list of calls, or one call as `name[ARGS]{..}`, `name[CALL_ID]id[ARGS]{..}` or `name{..}`.
pub(super) async fn mistral(reader: &mut Reader) -> Read {
    reader.space().await;
    if matches!(reader.peek().await, Some('[' | '{')) {
        return json::calls(reader, &PLAIN).await;
    }
    let name = reader.word().await;
    if reader.skip("[CALL_ID]").await {
        reader.word().await;
    }
    let _ = reader.skip("[ARGS]").await;
    reader.space().await;
    json::arguments(reader, &name).await
}

pub(super) const JSON: [&str; 2] = ["{", "["];

/// A call, or a list of calls, without any mark.
pub(super) async fn bare(reader: &mut Reader, mark: usize) -> Read {
    match mark {
        0 => json::call(reader, &BARE).await,
        _ => json::list(reader, &BARE).await,
    }
}

pub(super) const LLAMA: [&str; 5] = ["{", "[", "<|python_tag|>", "<|python_start|>", "<function="];

/// `{"name": .., "parameters": ..}`, with `;` between several, where text may be as well; or, as of
/// Llama 3.1, `<function=name>{..}</function>`.
pub(super) async fn llama(reader: &mut Reader, mark: usize) -> Read {
    match mark {
        0 | 1 => bare(reader, mark).await?,
        2 | 3 => json::calls(reader, &PLAIN).await?,
        _ => {
            let name = reader.word().await;
            reader.expect(">").await?;
            reader.space().await;
            json::arguments(reader, &name).await?;
            reader.space().await;
            return reader.close("</function>").await;
        }
    }
    loop {
        reader.space().await;
        if reader.choose(&[";", "<|python_end|>"]).await?.ok_or(NoCall)? == 1 {
            return Ok(());
        }
        reader.space().await;
        let _ = reader.skip("<|python_tag|>").await;
        json::calls(reader, &BARE).await?;
    }
}

/// The first begins calls; the others are around what else the model says.
pub(super) const COHERE_MARKS: [&str; 5] = [
    "<|START_ACTION|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
];

/// A call, or a list of calls, up to `<|END_ACTION|>`.
pub(super) async fn cohere(reader: &mut Reader, mark: usize) -> Read {
    if mark > 0 {
        return Ok(());
    }
    json::calls(reader, &COHERE).await?;
    reader.space().await;
    reader.close("<|END_ACTION|>").await
}

pub(super) const DEEPSEEK: [&str; 2] = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"];

/// `function<｜tool▁sep｜>name` and a block of code, or, as of V3.1, `name<｜tool▁sep｜>{..}`.
pub(super) async fn deepseek(reader: &mut Reader, mark: usize) -> Read {
    let [_, begin] = DEEPSEEK;
    if mark == 0 {
        reader.space().await;
        reader.expect(begin).await?;
    }
    loop {
        let first = reader.word().await;
        reader.expect("<｜tool▁sep｜>").await?;
        let second = reader.word().await;
        if second.is_empty() && reader.peek().await == Some('{') {
            json::arguments(reader, &first).await?;
        } else {
            reader.expect("```").await?;
            let _ = reader.skip("json").await;
            reader.space().await;
            json::arguments(reader, &second).await?;
            reader.space().await;
            let _ = reader.skip("```").await;
        }
        reader.space().await;
        reader.close("<｜tool▁call▁end｜>").await?;
        reader.space().await;
        match reader.choose(&[begin, "<｜tool▁calls▁end｜>"]).await? {
            Some(0) => {}
            Some(_) => return Ok(()),
            None => return Err(NoCall),
        }
    }
}

/// The sections' marks come with and without their plural.
pub(super) const KIMI_K2: [&str; 3] =
    ["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>"];

/// `functions.name:0<|tool_call_argument_begin|>{..}<|tool_call_end|>`, several in a section.
pub(super) async fn kimi_k2(reader: &mut Reader, mark: usize) -> Read {
    let [.., begin] = KIMI_K2;
    if mark < 2 {
        reader.space().await;
        reader.expect(begin).await?;
    }
    loop {
        let id = reader.word().await;
        reader.expect("<|tool_call_argument_begin|>").await?;
        let id = id.as_str();
        let id = id.strip_prefix("functions.").unwrap_or(id);
        let numbered = id.rsplit_once(':').filter(|(_, number)| number.parse::<usize>().is_ok());
        reader.space().await;
        json::arguments(reader, numbered.map_or(id, |(name, _)| name)).await?;
        reader.space().await;
        reader.close("<|tool_call_end|>").await?;
        reader.space().await;
        let ends = ["<|tool_calls_section_end|>", "<|tool_call_section_end|>"];
        match reader.choose(&[begin, ends[0], ends[1]]).await? {
            Some(0) => {}
            Some(_) => return Ok(()),
            None => return Err(NoCall),
        }
    }
}

/// The first begins a call; the others are around what else the model says.
pub(super) const INKLING_MARKS: [&str; 5] = [
    "<|content_invoke_tool_json|>",
    "<|message_model|>",
    "<|content_text|>",
    "<|end_message|>",
    "<|content_model_end_sampling|>",
];

/// `<|message_model|>name<|content_invoke_tool_json|>{"name": .., "args": ..}<|end_message|>`.
pub(super) async fn inkling(reader: &mut Reader, mark: usize) -> Read {
    match mark {
        0 => {}
        1 => {
            // The name comes again in the call.
            reader.word().await;
            if reader.skip("<|content_text|>").await {
                return Ok(());
            }
            reader.expect("<|content_invoke_tool_json|>").await?;
        }
        _ => return Ok(()),
    }
    json::calls(reader, &INKLING).await?;
    reader.space().await;
    reader.close("<|end_message|>").await
}
