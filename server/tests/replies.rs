//! Thoughts and tool calls in replies, whole and streamed.

use piecewise_server::chat::{ReplyDelta, ReplyFormat, ToolChoice, Tools};
use piecewise_server::structured::{Structure, Structures};
use proptest::prelude::*;
use serde_json::{Value, json};

fn tools(choice: Value) -> Tools {
    let parameters = json!({"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]});
    let request = json!({"tool_choice": choice, "tools": [
        {"type": "function", "function": {"name": "weather", "parameters": parameters}},
        {"type": "function", "function": {"name": "clock", "description": "The time"}},
    ]});
    Tools::read(request.as_object().unwrap().clone()).unwrap()
}

/// Thoughts, content, and calls with their arguments as JSON.
type Read = (String, String, Vec<(String, Value)>);

/// Calls by name, each with the text of its arguments, which came in their order and with an id.
pub(crate) fn calls_of(deltas: &[ReplyDelta]) -> Vec<(String, String)> {
    let mut calls: Vec<(String, String)> = Vec::new();
    for call in deltas.iter().flat_map(|delta| &delta.tool_calls) {
        if let Some(name) = &call.name {
            assert_eq!(call.index, calls.len());
            assert!(call.id.as_ref().is_some_and(|id| !id.is_empty()));
            calls.push((name.clone(), String::new()));
        }
        calls[call.index].1.push_str(&call.arguments);
    }
    calls
}

fn read(format: &ReplyFormat, tools: &Tools, prompt: &str, pieces: &[&str]) -> Read {
    let mut parser = format.parser(tools, prompt).unwrap();
    let mut deltas: Vec<ReplyDelta> =
        pieces.iter().map(|piece| parser.push(piece).unwrap()).collect();
    deltas.push(parser.finish().unwrap());
    let calls = calls_of(&deltas);
    assert_eq!(parser.called_tools(), !calls.is_empty());
    let arguments =
        |text: &str| serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
    let calls = calls.into_iter().map(|(name, text)| (name, arguments(&text))).collect();
    let texts = |part: fn(&ReplyDelta) -> &str| deltas.iter().map(part).collect();
    (texts(|delta| &delta.reasoning), texts(|delta| &delta.content), calls)
}

fn format(reasoning: &str, tools: &str) -> ReplyFormat {
    ReplyFormat::new(Some(reasoning), Some(tools), "").unwrap()
}

fn cut<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
    let mut borders: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    borders.retain(|border| text.is_char_boundary(*border));
    borders.extend([0, text.len()]);
    borders.sort_unstable();
    borders.windows(2).map(|range| &text[range[0]..range[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn however_it_comes_a_reply_is_read_alike(cuts in prop::collection::vec(0..1000_usize, 0..40)) {
        let thoughts = "<think>\nIs 2 < 3? é🦀\n</think>\n\nYes, a<b> & <i>c</i>.";
        let read_thoughts = |pieces: &[&str]| read(&format("qwen3", "none"), &Tools::default(), "", pieces);
        let expected = ("\nIs 2 < 3? é🦀\n".to_owned(), "\n\nYes, a<b> & <i>c</i>.".to_owned(), vec![]);
        prop_assert_eq!(read_thoughts(&[thoughts]), expected.clone());
        prop_assert_eq!(read_thoughts(&cut(thoughts, &cuts)), expected);

        let calls = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Bern é\"}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>";
        let expected = vec![("weather".to_owned(), json!({"place": "Bern é"})), ("clock".to_owned(), json!({}))];
        let (_, _, read_calls) = read(&format("none", "hermes"), &tools(json!("auto")), "", &cut(calls, &cuts));
        prop_assert_eq!(read_calls, expected);
    }
}

#[test]
fn a_prompt_that_begins_a_thought_is_gone_on_from() {
    let read = |prompt, reply| read(&format("qwen3", "none"), &Tools::default(), prompt, &[reply]);
    let thought = ("Hm.".to_owned(), "Yes.".to_owned(), vec![]);
    assert_eq!(read("...<think>\n", "Hm.</think>Yes."), thought);
    assert_eq!(
        read("...<think>\n\n</think>\n\n", "Yes."),
        (String::new(), "Yes.".to_owned(), vec![])
    );
    assert_eq!(read("...<think>\n", "Hm."), ("Hm.".to_owned(), String::new(), vec![]));
    assert_eq!(
        read("", "No thought < all."),
        (String::new(), "No thought < all.".to_owned(), vec![])
    );
}

#[test]
fn what_is_no_call_stays_content() {
    let read = |reply: &str| read(&format("none", "hermes"), &tools(json!("auto")), "", &[reply]);
    for reply in ["Plain.", "a < b", "<tool", "{\"name\": 3}"] {
        assert_eq!(read(reply), (String::new(), reply.to_owned(), vec![]), "{reply}");
    }
}

#[test]
fn required_and_named_calls_keep_to_a_structure() {
    let named = tools(json!({"type": "function", "function": {"name": "weather"}}));
    let Some(Structure::JsonSchema(schema)) = named.structure() else { panic!("no structure") };
    assert_eq!(schema["required"], json!(["place"]));
    let pieces = ["{\"place\":", " \"Bern\"}"];
    let expected = vec![("weather".to_owned(), json!({"place": "Bern"}))];
    assert_eq!(read(&format("none", "none"), &named, "", &pieces).2, expected);

    let required = tools(json!("required"));
    let structure = required.structure().unwrap();
    let reply = "[ {\"name\" : \"weather\", \"parameters\":\n {\"place\": \"Bern: \\\"]}[\\\"\"}} ,\n {\"name\": \"clock\", \"parameters\": {}\n}\n]";
    let pieces = Vec::from_iter(reply.split_inclusive(|_| true));
    let expected = [("weather", json!({"place": "Bern: \"]}[\""})), ("clock", json!({}))];
    let expected = expected.map(|(name, arguments)| (name.to_owned(), arguments)).to_vec();
    for pieces in [&[reply][..], &pieces] {
        let (_, content, calls) = read(&format("none", "none"), &required, "", pieces);
        assert_eq!((content.as_str(), &calls), ("", &expected));
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny-qwen3");
    let tokenizer = piecewise::models::TextTokenizer::load(&folder, 2048).unwrap();
    let structures = Structures::new(&tokenizer.vocabulary(), &[0]).unwrap();
    let mut constraint = structures.constraint(&structure, "tools", None, &|| true).unwrap();
    for id in tokenizer.encode(reply).unwrap() {
        constraint.accept(id).unwrap();
    }
    let mut constraint = structures.constraint(&structure, "tools", None, &|| true).unwrap();
    let other = tokenizer.encode("[{\"name\": \"other\"").unwrap();
    other.into_iter().try_for_each(|id| constraint.accept(id).map(drop)).unwrap_err();
}

#[test]
fn a_template_says_how_its_model_writes() {
    let fixture = |name: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat");
        let text = std::fs::read_to_string(folder.join(name).with_extension("json")).unwrap();
        let fixture: Value = serde_json::from_str(&text).unwrap();
        fixture["template"].as_str().unwrap().to_owned()
    };
    for (name, reasoning, tools) in [
        ("qwen3", Some("qwen3"), Some("qwen")),
        ("qwen2_5", None, Some("qwen")),
        ("deepseek_r1_distill", Some("qwen3"), Some("deepseek")),
        ("glm4moe", Some("qwen3"), Some("glm45_moe")),
        ("gemma4_v5", Some("gemma4"), Some("gemma4")),
        ("phi3_5", None, None),
    ] {
        let format = ReplyFormat::new(None, None, &fixture(name)).unwrap();
        assert_eq!((format.reasoning(), format.tools()), (reasoning, tools), "{name}");
    }
    let told = r#"{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}"#;
    assert_eq!(ReplyFormat::new(None, None, told).unwrap().tools(), Some("llama"));
    let off = ReplyFormat::new(Some("none"), Some("none"), &fixture("qwen3")).unwrap();
    assert_eq!(off, ReplyFormat::default());
    let error = ReplyFormat::new(Some("nobody"), None, "").unwrap_err().to_string();
    assert!(error.contains("no reasoning parser \"nobody\"; there are base, "), "{error}");
    let error = ReplyFormat::new(None, Some("nobody"), "").unwrap_err().to_string();
    assert!(error.contains("hermes") && error.contains("pythonic"), "{error}");
}

#[test]
fn tools_that_are_none_are_refused_by_their_field() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    for (request, says) in [
        (json!({"tools": 3}), "tools: it must be a list"),
        (json!({"tools": [{"type": "search"}]}), "tools[0].type: only tools"),
        (
            json!({"tools": [tool, {"type": "function"}]}),
            "tools[1].function.name: a function needs",
        ),
        (json!({"tools": [tool], "tool_choice": "some"}), "tool_choice: `some` is none of"),
        (json!({"tool_choice": "required"}), "tool_choice: a call is required"),
        (
            json!({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice: there is no tool `g`",
        ),
        (
            json!({"tools": [tool], "tool_choice": {"type": "allowed_tools"}}),
            "tool_choice: the type `allowed_tools`",
        ),
    ] {
        let error = Tools::read(request.as_object().unwrap().clone()).unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
    let none = json!({"tools": [tool], "tool_choice": "none"});
    let none = Tools::read(none.as_object().unwrap().clone()).unwrap();
    assert_eq!((none.choice(), none.for_template()), (&ToolChoice::None, None));
    let auto = Tools::read(json!({"tools": [tool]}).as_object().unwrap().clone()).unwrap();
    assert_eq!((auto.choice(), auto.for_template()), (&ToolChoice::Auto, Some(vec![tool])));
    let nothing = Tools::read(serde_json::Map::new()).unwrap();
    assert_eq!(nothing.choice(), &ToolChoice::None);
}
