//! Tool calls as each family writes them, whole and however they are cut.

use piecewise_server::chat::{ReplyFormat, Tools};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

use crate::replies::calls_of;
use crate::tool_call_replies::replies;

/// Content, and calls with the text of their arguments.
type Read = (String, Vec<(String, String)>);

fn tools() -> Tools {
    let function = |name: &str, properties: Value| {
        let parameters = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let add = json!({
        "a": {"type": "integer"}, "note": {"type": "string"}, "exact": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "list": {"type": "array", "items": {"type": "integer"}},
        "of": {"type": "object", "properties": {"x": {"type": "integer"}}}, "ratio": {"type": "float"},
    });
    let list = [
        function("add", add),
        function("weather", json!({"city": {"type": "string"}})),
        json!({"type": "function", "function": {"name": "clock"}}),
    ];
    Tools::read(json!({"tools": list}).as_object().unwrap().clone()).unwrap()
}

fn read<'a>(parser: &str, pieces: impl IntoIterator<Item = &'a str>) -> Read {
    let format = ReplyFormat::new(Some("none"), Some(parser), "").unwrap();
    let mut parser = format.parser(&tools(), "").unwrap();
    let mut deltas = Vec::from_iter(pieces.into_iter().map(|piece| parser.push(piece).unwrap()));
    deltas.push(parser.finish().unwrap());
    let calls = calls_of(&deltas);
    assert_eq!(parser.called_tools(), !calls.is_empty());
    (deltas.iter().map(|delta| delta.content.as_str()).collect(), calls)
}

fn values((content, calls): Read) -> (String, Vec<(String, Value)>) {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    (content, calls.into_iter().map(|(name, text)| (name, value(&text))).collect())
}

#[test]
fn every_family_takes_all_its_forms_wherever_they_are_cut() {
    for (parser, reply, content, calls) in replies() {
        let whole = read(parser, [reply]);
        let calls = calls.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(values(whole.clone()), (content.to_owned(), calls), "{parser}: {reply}");
        for (cut, _) in reply.char_indices() {
            let (before, behind) = reply.split_at(cut);
            assert_eq!(read(parser, [before, behind]), whole, "{parser}: {before} / {behind}");
        }
        let each = reply.split_inclusive(|_| true);
        assert_eq!(read(parser, each), whole, "{parser}: {reply}");
    }
}

/// Whatever name an operator may give, its own or vLLM's, leads to a parser that replies here are read by.
#[test]
fn every_name_of_a_family_has_a_reply_here() {
    let family =
        |name: &str| ReplyFormat::new(None, Some(name), "").map(|it| it.tools().map(str::to_owned));
    let covered: BTreeSet<_> = replies().iter().map(|reply| family(reply.0).unwrap()).collect();
    let error = family("nobody's").unwrap_err().to_string();
    let (_, names) = error.split_once("; there are ").unwrap();
    let names = Vec::from_iter(names.split(", "));
    assert!(names.contains(&"hermes") && names.contains(&"passthrough"), "{error}");
    for name in names.into_iter().filter(|name| !["none", "passthrough"].contains(name)) {
        let family = family(name).unwrap();
        assert!(
            family.is_some() && covered.contains(&family),
            "no reply of {name}, which is {family:?}"
        );
    }
}

/// All places where a text can be cut.
fn places(text: &str) -> Vec<usize> {
    text.char_indices().map(|(place, _)| place).chain([text.len()]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn a_broken_reply_is_the_same_whole_and_in_pieces(
        replies_at in any::<[prop::sample::Index; 2]>(),
        broken_at in any::<[prop::sample::Index; 2]>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let replies = replies();
        let [(parser, before, ..), (_, behind, ..)] = replies_at.map(|at| at.get(&replies));
        let end = *broken_at[0].get(&places(before));
        let begin = *broken_at[1].get(&places(behind));
        let reply = [&before[..end], &behind[begin..]].concat();
        let mut borders: Vec<usize> = cuts.iter().map(|cut| *cut.get(&places(&reply))).collect();
        borders.extend([0, reply.len()]);
        borders.sort_unstable();
        let pieces = borders.windows(2).map(|range| &reply[range[0]..range[1]]);
        prop_assert_eq!(read(parser, pieces), read(parser, [reply.as_str()]));
    }
}

#[test]
fn what_only_looks_like_a_call_comes_through_as_it_came() {
    let texts = [
        "{\"result\": 1}",
        "{\"result\": {\"name\": \"x\"}} and more",
        "[1, 2, 3]",
        "Use {\"name\": \"add\"} like so.",
        "{\"name\": \"Ada\", \"age\": 36}",
        "[{\"name\": \"Ada\"}, {\"name\": \"Bob\"}]",
        "a < b and c > d",
        "<tool",
        "x <tool_call",
        "The tag <tool_call> begins a call.",
        "ends with <tool_call>",
        "```json\n{\"a\": 1}\n```",
        "a\n\nb\n",
        "see [TOOL_CALLS] here",
        "[TOOL_CALLS]",
        "[TOOL",
        "<|python_tag|>print(1)",
        "<|python_",
        "add(a=1)",
        "<function=add>",
        "<function",
        "{",
        "{\"",
        "\"}",
        "}{",
        "{\"name\": \"nope\", \"parameters\": {}}",
        "text ; {\"a\": 1}; more",
        "{\"a\": 1}\n{\"b\": 2}",
        "{'name': 'add'}",
        "é🙂 {\"x\": \"ü\"} 日本",
        "[]",
        "{}",
        "[[",
        "<|",
        "</tool_call>",
        "one </tool_call> two",
        ", {\"a\": 1}",
        "]",
        "; x",
        " ",
        "\n\n",
        "[nope(a=1)]",
        "[add]",
        "[add(a=b)]",
        "[add(a=1) for a in b]",
        "[{'name': 'nope', 'arguments': {}}]",
        "[TOOL_CALLS]nope[ARGS]{}",
        "<tool_call>\n{\"name\": \"nope\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>add",
        "<tool_calls>",
        "<tool_call>\n<function=nope>\n</function>\n</tool_call>",
        "<tool_call>nope</tool_call>",
        "]<]minimax[>[<tool_call>",
        "]]]<]minimax[>[",
        "<minimax:tool_call>\n<invoke name=\"nope\">\n</invoke>",
        "<｜tool▁calls▁begin｜>",
        "<|tool_call>call:add{a:}",
        "<|tool_call>call:nope{}<tool_call|>",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"nope\">\n</｜DSML｜invoke>",
        "<|open|>nothing<|sep|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.nope:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "{\"name\": \"add\", \"parameters\": {a: 1}}",
        "<tool_call>{\"name\": \"add\", \"arguments\": {'a': 1}}</tool_call>",
        "[TOOL_CALLS]add[ARGS]{a}",
        "<|START_ACTION|>[]<|END_ACTION|>",
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function",
        "<|tool_call>call:add{a:1",
        "[add(a=1",
        "<|tool_calls|>[",
    ];
    let names = ReplyFormat::new(None, Some("nobody"), "").unwrap_err().to_string();
    let (_, names) = names.split_once("there are ").unwrap();
    let names: Vec<&str> = names.split(", ").collect();
    assert!(names.len() > 30, "{names:?}");
    for parser in names {
        for text in texts {
            let whole = read(parser, [text]);
            assert_eq!(whole, (text.to_owned(), Vec::new()), "{parser}");
            assert_eq!(read(parser, text.split_inclusive(|_| true)), whole, "{parser}");
        }
    }
}

#[test]
fn arguments_go_out_as_they_come() {
    let sent = |parser: &str, reply: &str| {
        let format = ReplyFormat::new(Some("none"), Some(parser), "").unwrap();
        let mut parser = format.parser(&tools(), "").unwrap();
        let delta = parser.push(reply).unwrap();
        delta.tool_calls.into_iter().map(|call| (call.name, call.arguments)).collect::<Vec<_>>()
    };
    for (parser, reply, arguments) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ber",
            "{\"city\": \"Ber",
        ),
        ("mistral", "[TOOL_CALLS]weather[ARGS]{\"city\": \"Ber", "{\"city\": \"Ber"),
        (
            "llama3_json",
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Ber",
            "{\"city\": \"Ber",
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\nBer \"",
            "{\"city\":\"Ber \\\"",
        ),
        ("glm45", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ber", "{\"city\":\"Ber"),
    ] {
        assert_eq!(sent(parser, reply), [(Some("weather".to_owned()), arguments.to_owned())]);
    }
}

#[test]
fn a_call_that_breaks_off_before_the_reply_does_is_ended() {
    let reply = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n<arg_key>b\n</tool_call> So.";
    let expected =
        ("</tool_call> So.".to_owned(), vec![("add".to_owned(), "{\"a\":3}".to_owned())]);
    assert_eq!(read("glm45", [reply]), expected);
    assert_eq!(read("glm45", reply.split_inclusive(|_| true)), expected);
}

#[test]
fn arguments_between_tags_have_the_types_of_their_schema() {
    let reply = "<tool_call>\n<function=add>\n<parameter=note>\n3\n</parameter>\n<parameter=a>\n12345678901234567890123\n</parameter>\n<parameter=exact>\nmaybe\n</parameter>\n<parameter=maybe>\n1e5\n</parameter>\n<parameter=ratio>\n1.5\n</parameter>\n<parameter=other>\n{\"b\": [null]}\n</parameter>\n</function>\n</tool_call>";
    let (content, calls) = read("qwen3_coder", [reply]);
    let arguments = "{\"note\":\"3\",\"a\":\"12345678901234567890123\",\"exact\":\"maybe\",\"maybe\":1e5,\"ratio\":1.5,\"other\":{\"b\": [null]}}";
    assert_eq!((content.as_str(), calls), ("", vec![("add".to_owned(), arguments.to_owned())]));
}
