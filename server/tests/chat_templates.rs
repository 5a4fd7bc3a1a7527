//! Chat templates against what transformers' `apply_chat_template` makes of them.

use crate::skip::skipped;
use piecewise_server::chat::{ChatPrompt, ChatTemplate, TemplateError};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The same time is written into the fixtures.
fn on_the_day_of(fixture: &Value, mut text: String) -> String {
    let then: chrono::NaiveDate = fixture["date"].as_str().unwrap().parse().unwrap();
    let today = chrono::Local::now();
    for format in ["%Y-%m-%d", "%d %b %Y", "%B %d, %Y"] {
        let (today, then) = (today.format(format).to_string(), then.format(format).to_string());
        text = text.replace(&today, &then);
    }
    text
}

fn list(case: &Value, field: &str) -> Option<Vec<Value>> {
    case[field].as_array().cloned()
}

fn prompt(case: &Value) -> ChatPrompt {
    ChatPrompt {
        messages: list(case, "messages").unwrap(),
        tools: list(case, "tools"),
        documents: list(case, "documents"),
        add_generation_prompt: case["add_generation_prompt"] == true,
        continue_final_message: case["continue_final_message"] == true,
        kwargs: case["kwargs"].as_object().cloned().unwrap_or_default(),
    }
}

fn unescaped(text: &str) -> String {
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    entities
        .iter()
        .fold(text.to_owned(), |text, (entity, character)| text.replace(entity, character))
}

/// Compares every case of the fixtures in `folder`, and gives how many templates and texts that were.
fn compare(folder: &Path) -> (usize, usize) {
    let (mut templates, mut texts, mut failures) = (0, 0, Vec::new());
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let fixture: Value =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let special_tokens = fixture["special_tokens"].as_object().unwrap().clone();
        let template =
            match ChatTemplate::parse(fixture["template"].as_str().unwrap(), special_tokens) {
                Ok(template) => template,
                Err(error) => {
                    failures.push(format!("{name}: {error}"));
                    continue;
                }
            };
        templates += 1;
        let cases = fixture["cases"].as_array().unwrap();
        for case in cases {
            let ours = template.render(prompt(case));
            let ours = ours.map(|text| on_the_day_of(&fixture, text));
            let which = format!("{name}, {}", case["case"]);
            if let Some(expected) = case["text"].as_str() {
                texts += 1;
                // Arguments that come as text are given as the object that they are.
                let of_objects = match case["case"] == "a call with written arguments" {
                    true => cases.iter().find(|other| other["case"] == "a call").unwrap(),
                    false => case,
                };
                // Jinja escapes what is added to a text that is `safe`.
                let texts = [expected, of_objects["text"].as_str().unwrap_or_default()];
                let fits = |ours: &str| {
                    texts.iter().any(|text| {
                        *text == ours || (text.contains("&#34;") && unescaped(text) == ours)
                    })
                };
                match &ours {
                    Ok(ours) if fits(ours) => {}
                    Ok(ours) => {
                        failures.push(format!("{which}:\n ours {ours:?}\n them {expected:?}"))
                    }
                    Err(error) => failures.push(format!("{which}: {error}")),
                }
                continue;
            }
            // What fails there by a lapse of the template's may have a text here: arguments of a call
            // are objects or text, as it wants them, and a message without content has an empty one.
            let error = case["error"].as_str().unwrap();
            let is_lapse = ["TypeError", "UndefinedError", "SecurityError"]
                .iter()
                .any(|kind| error.starts_with(kind));
            // What is not there has no items here, and what makes values has their JSON.
            let is_no_list = ["'NoneType' object is not iterable", "generator is not JSON"]
                .iter()
                .any(|what| error.contains(what));
            let of_arguments =
                ["a call", "calls and replies", "a call with written arguments"].map(Value::from);
            let may_be_better = match is_lapse {
                true => {
                    is_no_list
                        || of_arguments.contains(&case["case"])
                        || case["case"] == "content is null"
                }
                false => case["case"] == "a call with written arguments",
            };
            match ours {
                Err(TemplateError::Refused(_)) if !is_lapse => {}
                Err(TemplateError::Field { field, .. }) if error.contains(field) => {}
                Err(TemplateError::Template(_)) if is_lapse => {}
                Ok(_) if may_be_better => {}
                ours => failures.push(format!("{which}: {ours:?} instead of {error}")),
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    (templates, texts)
}

#[test]
fn templates_of_six_families_render_as_in_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat");
    let (templates, texts) = compare(&folder);
    assert_eq!(templates, 8);
    assert!(texts >= 8 * 12, "{texts}");
    let families = ["qwen", "deepseek", "glm", "gptoss", "phi", "gemma"];
    for family in families {
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let of_family =
            |file: &PathBuf| file.file_name().unwrap().to_string_lossy().starts_with(family);
        let files = Vec::from_iter(files.filter(of_family));
        assert!(!files.is_empty(), "{family}");
        for file in files {
            let fixture: Value =
                serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
            let text = |wanted: &str| {
                let cases = fixture["cases"].as_array().unwrap().iter();
                let mut found = cases.filter(|case| case["case"] == wanted);
                let text = found.next().and_then(|case| case["text"].as_str());
                text.unwrap_or_else(|| panic!("{}: no text of `{wanted}`", file.display()))
            };
            assert!(text("user") != text("no generation prompt"), "{}", file.display());
            assert!(text("system").contains("You are terse."), "{}", file.display());
            // Those of two families know no tools.
            let knows_tools = !["deepseek", "phi"].contains(&family);
            assert_eq!(text("tools").contains("get_weather"), knows_tools, "{}", file.display());
        }
    }
}

/// Every template of a folder that `tests/server/make_chat_fixtures.py` wrote, as `.ci/install-templates`
/// has it write one.
#[test]
fn many_more_templates_render_as_in_transformers() {
    let Ok(folder) = std::env::var("PIECEWISE_CHAT_FIXTURES") else {
        let reason = "PIECEWISE_CHAT_FIXTURES names no folder of fixtures";
        return skipped("PIECEWISE_REQUIRE_CHAT_FIXTURES", reason);
    };
    let (templates, texts) = compare(Path::new(&folder));
    println!("{templates} templates, {texts} texts");
    assert!(templates > 60 && texts > 14 * templates, "{templates} templates, {texts} texts");
}

fn rendered(template: &str, messages: Value) -> Result<String, TemplateError> {
    let template = ChatTemplate::parse(template, Map::new()).unwrap();
    let messages = messages.as_array().unwrap().clone();
    template.render(ChatPrompt { messages, ..ChatPrompt::default() })
}

const TEXTS: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";

#[test]
fn parts_are_joined_unless_the_template_walks_them() {
    let parts = json!([{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}
    ]}]);
    assert_eq!(rendered(TEXTS, parts.clone()).unwrap(), "[user]ab");
    let walks = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                 {% for part in m.content %}{{ part.text }}{% if not loop.last %}|{% endif %}\
                 {% endfor %}{% endif %}{% endfor %}";
    assert_eq!(rendered(walks, parts).unwrap(), "a|b");
}

#[test]
fn what_no_template_takes_is_refused_by_its_field() {
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let error = rendered(TEXTS, image).unwrap_err();
    assert_eq!(error.field(), "messages");
    assert!(error.to_string().contains("message 0: a content part of type `image_url`"), "{error}");
    for (messages, what) in [
        (json!([]), "at least one message"),
        (json!([3]), "message 0: it is not an object"),
        (json!([{"content": "a"}]), "has no role"),
        (json!([{"role": "user", "content": 3}]), "neither a text nor a list"),
        (json!([{"role": "assistant", "tool_calls": [{}]}]), "a tool call has no function"),
    ] {
        let error = rendered(TEXTS, messages).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    let refuses = "{{ raise_exception('only ' ~ messages[0].role) }}";
    let error = rendered(refuses, json!([{"role": "user", "content": ""}])).unwrap_err();
    assert_eq!(error.to_string(), "the model's chat template refuses these messages: only user");
    let error = rendered("{{ 1 + messages[0].role }}", json!([{"role": "user"}])).unwrap_err();
    assert!(matches!(error, TemplateError::Template(_)), "{error}");
}

#[test]
fn arguments_of_calls_are_objects_unless_the_template_wants_text() {
    let call = json!([{"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, \"é\"]}"}}
    ]}]);
    let names = "{{ messages[0].tool_calls[0].function.arguments.keys() | list | join }}";
    assert_eq!(rendered(names, call.clone()).unwrap(), "a");
    let text = "{{ '!' + messages[0].tool_calls[0].function.arguments }}";
    assert_eq!(rendered(text, call).unwrap(), "!{\"a\": [1, \"é\"]}");
}

#[test]
fn developers_are_systems_where_a_template_does_not_know_them() {
    let messages = json!([{"role": "developer", "content": "x"}]);
    assert_eq!(rendered(TEXTS, messages.clone()).unwrap(), "[system]x");
    let knows = format!("{{# developer #}}{TEXTS}");
    assert_eq!(rendered(&knows, messages).unwrap(), "[developer]x");
}

#[test]
fn json_is_written_as_python_writes_it() {
    let value =
        json!({"b": [1, 2.5, 1e16, 1e-5, true, null, {}], "a": "é\"\\\n\u{1}🦀\u{7f}", "<": []});
    let rendered = |options: &str| {
        let template = format!("{{{{ messages[0].value | tojson({options}) }}}}");
        rendered(&template, json!([{"role": "user", "value": value}]))
    };
    assert_eq!(
        rendered("").unwrap(),
        "{\"b\": [1, 2.5, 1e+16, 1e-05, true, null, {}], \"a\": \"é\\\"\\\\\\n\\u0001🦀\u{7f}\", \"<\": []}"
    );
    assert_eq!(
        rendered("indent=2, ensure_ascii=true, sort_keys=true").unwrap(),
        "{\n  \"<\": [],\n  \"a\": \"\\u00e9\\\"\\\\\\n\\u0001\\ud83e\\udd80\\u007f\",\n  \"b\": [\n    1,\n    \
         2.5,\n    1e+16,\n    1e-05,\n    true,\n    null,\n    {}\n  ]\n}"
    );
    assert!(rendered("separators=(',', ':')").unwrap().starts_with("{\"b\":[1,2.5,1e+16"));
    assert!(rendered("default=1").is_err());
}

#[test]
fn a_folder_s_templates_are_found_where_transformers_finds_them() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    let render = |tools: Option<Vec<Value>>| {
        let template = ChatTemplate::load(folder.path(), None).unwrap().unwrap();
        let messages = vec![json!({"role": "user", "content": "x"})];
        template.render(ChatPrompt { messages, tools, ..ChatPrompt::default() })
    };
    assert!(ChatTemplate::load(folder.path(), None).unwrap().is_none());
    write("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(render(None).unwrap(), "json");
    write(
        "tokenizer_config.json",
        r#"{"bos_token": {"content": "<b>"}, "chat_template": "{{ bos_token }}config"}"#,
    );
    assert_eq!(render(None).unwrap(), "<b>config");
    write(
        "tokenizer_config.json",
        r#"{"eos_token": "<e>", "chat_template": [
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "one{{ eos_token }}"}]}"#,
    );
    assert_eq!(render(None).unwrap(), "one<e>");
    assert_eq!(render(Some(Vec::new())).unwrap(), "tools");
    write("chat_template.jinja", "jinja{{ eos_token }}\n");
    write("additional_chat_templates/tool_use.jinja", "more");
    assert_eq!(render(None).unwrap(), "jinja<e>");
    assert_eq!(render(Some(Vec::new())).unwrap(), "more");
    write("own.jinja", "own");
    let own = folder.path().join("own.jinja");
    let own = ChatTemplate::load(folder.path(), Some(&own)).unwrap().unwrap();
    assert!(own.file().ends_with("own.jinja"));

    write("chat_template.jinja", "{% if %}");
    let error = ChatTemplate::load(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja: not a chat template"), "{error}");
    write("tokenizer_config.json", r#"{"chat_template": 3}"#);
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let error = ChatTemplate::load(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains("`chat_template` is a text or a list"), "{error}");
}

#[test]
fn a_tag_that_never_ends_is_an_error() {
    for template in ["{%}}", "{%}", "{%", "{%-%}", "{% generation"] {
        assert!(ChatTemplate::parse(template, Map::new()).is_err(), "{template}");
    }
}
