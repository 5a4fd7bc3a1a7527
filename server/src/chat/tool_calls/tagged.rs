//! Families that put each argument between tags. Each function reads what follows a mark.

use serde_json::Value;

use super::json;
use super::reader::{NoCall, Read, Reader};
use super::typed::{self, Types};

/// Where the value of an argument ends.
#[derive(Debug, Default)]
struct End<'a> {
    mark: &'a str,
    /// Marks that end it as well, and stay: models forget the first.
    before: &'a [&'a str],
    /// Whether a line break at either end is the tags'.
    on_lines: bool,
}

/// The arguments of a call that grow by one and one.
#[derive(Debug)]
struct Arguments {
    schema: Value,
    count: usize,
}

impl Arguments {
    fn begin(reader: &mut Reader, name: &str) -> Read<Self> {
        Ok(Self { schema: reader.begin_object(name)?, count: 0 })
    }

    /// Reads the value of an argument. That of a string goes out as it comes.
    async fn add(
        &mut self,
        reader: &mut Reader,
        name: &str,
        types: Option<Types>,
        end: &End<'_>,
    ) -> Read {
        let types = types.unwrap_or_else(|| Types::of(typed::field(&self.schema, name)));
        let comma = if self.count > 0 { "," } else { "" };
        self.count += 1;
        let mut head = format!("{comma}{}:", typed::string(name));
        let is_text = types.is_text();
        if is_text {
            reader.argue(&std::mem::take(&mut head));
            reader.argue("\"");
        }
        let mut text = String::new();
        each(reader, end, |reader, character| match is_text {
            true => reader.argue(&typed::inside(character)),
            false => text.push_str(character),
        })
        .await?;
        if is_text {
            reader.argue("\"");
        } else {
            reader.argue(&head);
            reader.argue(&types.json(&text));
        }
        Ok(())
    }

    fn end(self, reader: &mut Reader) {
        reader.argue("}");
        reader.end();
    }
}

/// Reads a value, and hands on each of its characters.
async fn each(reader: &mut Reader, end: &End<'_>, mut take: impl FnMut(&mut Reader, &str)) -> Read {
    let mut line_break = "";
    if end.on_lines && !reader.skip("\r\n").await {
        let _ = reader.skip("\n").await;
    }
    'text: while reader.choose(&[end.mark]).await?.is_none() {
        for mark in end.before {
            if reader.is_at(mark).await {
                break 'text;
            }
        }
        if !line_break.is_empty() {
            take(reader, std::mem::take(&mut line_break));
        }
        if end.on_lines && reader.skip("\r\n").await {
            line_break = "\r\n";
        } else if end.on_lines && reader.skip("\n").await {
            line_break = "\n";
        } else {
            let character = reader.next().await?;
            take(reader, character.encode_utf8(&mut [0; 4]));
        }
    }
    Ok(())
}

pub(super) const QWEN: [&str; 2] = ["<tool_call>", "<function="];

/// `<function=name>`, `<parameter=key>value</parameter>` for each argument, `</function>`. Some
/// models forget the `<tool_call>` before it.
pub(super) async fn qwen(reader: &mut Reader, mark: usize) -> Read {
    const ENDS: [&str; 2] = ["</function>", "<parameter="];
    let value_end =
        End { mark: "</parameter>", before: &["\n<parameter=", "\n</function>"], on_lines: true };
    if mark == 0 {
        reader.space().await;
        reader.expect("<function=").await?;
    }
    loop {
        let name = reader.word().await;
        reader.expect(">").await?;
        reader.space().await;
        let mut next = reader.choose(&ENDS).await?.ok_or(NoCall)?;
        let mut arguments = Arguments::begin(reader, &name)?;
        while next == 1 {
            let key = reader.word().await;
            reader.expect(">").await?;
            arguments.add(reader, &key, None, &value_end).await?;
            reader.space().await;
            next = reader.choose(&ENDS).await?.ok_or(NoCall)?;
        }
        arguments.end(reader);
        reader.space().await;
        match reader.choose(&["</tool_call>", "<function="]).await? {
            Some(0) => return Ok(()),
            Some(_) => {}
            None => return Err(NoCall),
        }
    }
}

pub(super) const GLM: [&str; 1] = ["<tool_call>"];

/// `name`, `<arg_key>key</arg_key><arg_value>value</arg_value>` for each argument, `</tool_call>`.
/// Some checkpoints put a suffix on each tag.
pub(super) async fn glm(reader: &mut Reader, suffix: &str) -> Read {
    let tag = |name: &str| format!("<{name}{suffix}>");
    let (key_begin, key_end) = (tag("arg_key"), tag("/arg_key"));
    let (value_begin, value_mark) = (tag("arg_value"), tag("/arg_value"));
    let call_end = tag("/tool_call");
    let value_end = End { mark: &value_mark, ..End::default() };
    let ends = [call_end.as_str(), key_begin.as_str()];
    let name = reader.word().await;
    let mut next = reader.choose(&ends).await?.ok_or(NoCall)?;
    let mut arguments = Arguments::begin(reader, &name)?;
    while next == 1 {
        let key = reader.while_is(|c| c != '<').await;
        reader.expect(&key_end).await?;
        reader.space().await;
        reader.expect(&value_begin).await?;
        arguments.add(reader, key.trim(), None, &value_end).await?;
        reader.space().await;
        next = reader.choose(&ends).await?.ok_or(NoCall)?;
    }
    arguments.end(reader);
    Ok(())
}

pub(super) const HY: [&str; 1] = ["<tool_calls"];

/// Calls as those of GLM between `<tool_calls>` and its end.
pub(super) async fn hy(reader: &mut Reader) -> Read {
    let suffix = reader.word().await;
    reader.expect(">").await?;
    if !suffix.is_empty() && !suffix.starts_with(':') {
        return Err(NoCall);
    }
    let ends = [format!("<tool_call{suffix}>"), format!("</tool_calls{suffix}>")];
    reader.space().await;
    reader.expect(&ends[0]).await?;
    loop {
        glm(reader, &suffix).await?;
        reader.space().await;
        match reader.choose(&[&ends[0], &ends[1]]).await? {
            Some(0) => {}
            Some(_) => return Ok(()),
            None => return Err(NoCall),
        }
    }
}

/// Tags whose attributes have the names.
#[derive(Debug)]
struct Invokes<'a> {
    call: &'a str,
    call_end: &'a str,
    argument: &'a str,
    argument_end: End<'a>,
}

/// Attributes up to the end of a tag: `name="value"`.
async fn attributes(reader: &mut Reader, end: &str) -> Read<Vec<(String, String)>> {
    let mut attributes = Vec::new();
    reader.space().await;
    while !reader.skip(end).await {
        let name = reader.word().await;
        reader.expect("=").await?;
        reader.expect("\"").await?;
        let value = reader.while_is(|c| !matches!(c, '"' | '\n')).await;
        reader.expect("\"").await?;
        attributes.push((name, value));
        reader.space().await;
    }
    Ok(attributes)
}

fn attribute(attributes: &[(String, String)], name: &str) -> Option<String> {
    attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

/// A call behind the begin of its tag.
async fn invoke(reader: &mut Reader, tags: &Invokes<'_>) -> Read {
    let name = attribute(&attributes(reader, ">").await?, "name").ok_or(NoCall)?;
    reader.space().await;
    if reader.peek().await == Some('{') {
        json::arguments(reader, &name).await?;
        reader.space().await;
        return reader.close(tags.call_end).await;
    }
    let ends = [tags.call_end, tags.argument];
    let mut next = reader.choose(&ends).await?.ok_or(NoCall)?;
    let mut arguments = Arguments::begin(reader, &name)?;
    while next == 1 {
        let attributes = attributes(reader, ">").await?;
        let key = attribute(&attributes, "name").ok_or(NoCall)?;
        let types = match attribute(&attributes, "string").as_deref() {
            Some("true") => Some(Types::text()),
            Some(_) => Some(Types::default()),
            None => None,
        };
        arguments.add(reader, &key, types, &tags.argument_end).await?;
        reader.space().await;
        next = reader.choose(&ends).await?.ok_or(NoCall)?;
    }
    arguments.end(reader);
    Ok(())
}

/// Calls up to the end of their block.
async fn invokes(reader: &mut Reader, tags: &Invokes<'_>, block_end: &str) -> Read {
    loop {
        invoke(reader, tags).await?;
        reader.space().await;
        match reader.choose(&[block_end, tags.call]).await? {
            Some(0) => return Ok(()),
            Some(_) => {}
            None => return Err(NoCall),
        }
    }
}

pub(super) const MINIMAX_M2: [&str; 1] = ["<minimax:tool_call>"];

/// `<invoke name="..">` with `<parameter name="..">value</parameter>` for each argument.
pub(super) async fn minimax_m2(reader: &mut Reader) -> Read {
    let tags = Invokes {
        call: "<invoke",
        call_end: "</invoke>",
        argument: "<parameter",
        argument_end: End { mark: "</parameter>", before: &[], on_lines: true },
    };
    reader.space().await;
    reader.expect(tags.call).await?;
    invokes(reader, &tags, "</minimax:tool_call>").await
}

pub(super) const DSML: [&str; 4] =
    ["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜ calls>", "<｜DSML｜ invoke"];

/// DeepSeek's since V3.2. The versions differ in the name of the block, and in a space.
pub(super) async fn dsml(reader: &mut Reader, mark: usize) -> Read {
    let spaced = Invokes {
        call: "<｜DSML｜ invoke",
        call_end: "</｜DSML｜ invoke>",
        argument: "<｜DSML｜ parameter",
        argument_end: End { mark: "</｜DSML｜ parameter>", ..End::default() },
    };
    let plain = Invokes {
        call: "<｜DSML｜invoke",
        call_end: "</｜DSML｜invoke>",
        argument: "<｜DSML｜parameter",
        argument_end: End { mark: "</｜DSML｜parameter>", ..End::default() },
    };
    let (tags, block_end) = match mark {
        0 => (plain, "</｜DSML｜function_calls>"),
        1 => (plain, "</｜DSML｜tool_calls>"),
        _ => (spaced, "</｜DSML｜ calls>"),
    };
    if mark < 3 {
        reader.space().await;
        reader.expect(tags.call).await?;
    }
    invokes(reader, &tags, block_end).await
}

pub(super) const STEP3: [&str; 2] = ["<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"];

/// `<steptml:invoke name="..">` with `<steptml:parameter name="..">value</steptml:parameter>`.
pub(super) async fn step3(reader: &mut Reader, mark: usize) -> Read {
    let tags = Invokes {
        call: "<steptml:invoke",
        call_end: "</steptml:invoke>",
        argument: "<steptml:parameter",
        argument_end: End { mark: "</steptml:parameter>", ..End::default() },
    };
    if mark == 0 {
        reader.space().await;
        reader.expect(STEP3[1]).await?;
    }
    loop {
        reader.word().await;
        reader.expect("<｜tool_sep｜>").await?;
        reader.space().await;
        reader.expect(tags.call).await?;
        invoke(reader, &tags).await?;
        reader.space().await;
        reader.close("<｜tool_call_end｜>").await?;
        reader.space().await;
        match reader.choose(&[STEP3[1], "<｜tool_calls_end｜>"]).await? {
            Some(0) => {}
            Some(_) => return Ok(()),
            None => return Err(NoCall),
        }
    }
}

pub(super) const KIMI_K3: [&str; 2] = ["<|open|>", "<|close|>"];

/// Channels: `<|open|>tools<|sep|>` has calls, each with its arguments; those around what else the
/// model says are dropped.
pub(super) async fn kimi_k3(reader: &mut Reader, mark: usize) -> Read {
    let name = reader.word().await;
    reader.expect("<|sep|>").await?;
    match (mark, name.as_str()) {
        (0, "response") | (1, "response" | "message" | "tools") => return Ok(()),
        (0, "tools") => {}
        _ => return Err(NoCall),
    }
    reader.space().await;
    reader.expect("<|open|>").await?;
    loop {
        reader.space().await;
        reader.expect("call").await?;
        kimi_k3_call(reader).await?;
        reader.space().await;
        if reader.choose(&KIMI_K3).await?.ok_or(NoCall)? == 1 {
            reader.space().await;
            reader.expect("tools").await?;
            reader.space().await;
            return reader.close("<|sep|>").await;
        }
    }
}

async fn kimi_k3_call(reader: &mut Reader) -> Read {
    let plain = |text: String| text.replace("&quot;", "\"").replace("&amp;", "&");
    let named = |attributes: &[(String, String)], name| attribute(attributes, name).map(plain);
    let value_end = End { mark: "<|close|>argument<|sep|>", ..End::default() };
    let name = named(&attributes(reader, "<|sep|>").await?, "tool").ok_or(NoCall)?;
    reader.space().await;
    let mut next = reader.choose(&KIMI_K3).await?.ok_or(NoCall)?;
    let mut arguments = Arguments::begin(reader, &name)?;
    while next == 0 {
        reader.space().await;
        reader.expect("argument").await?;
        let attributes = attributes(reader, "<|sep|>").await?;
        let key = named(&attributes, "key").ok_or(NoCall)?;
        let is_text = attribute(&attributes, "type").as_deref() == Some("string");
        let types = if is_text { Types::text() } else { Types::default() };
        arguments.add(reader, &key, Some(types), &value_end).await?;
        reader.space().await;
        next = reader.choose(&KIMI_K3).await?.ok_or(NoCall)?;
    }
    arguments.end(reader);
    reader.space().await;
    reader.expect("call").await?;
    reader.space().await;
    reader.close("<|sep|>").await
}
