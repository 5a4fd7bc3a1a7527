//! What templates write of Python's and Jinja's own, against what Jinja renders as transformers sets it up.
//! `tests/server/make_chat_fixtures.py` has the list.

use piecewise_server::chat::{ChatPrompt, ChatTemplate};
use serde_json::{Map, Value, json};

#[test]
fn idioms_of_templates_render_as_in_jinja() {
    let fixture: Value = serde_json::from_str(include_str!("fixtures/idioms.json")).unwrap();
    let known = fixture["known"].as_object().unwrap();
    let messages = vec![json!({"role": "user", "content": ""})];
    let prompt = ChatPrompt { messages, kwargs: known.clone(), ..ChatPrompt::default() };
    let (mut texts, mut failures) = (0, Vec::new());
    for idiom in fixture["idioms"].as_array().unwrap() {
        let template = idiom["template"].as_str().unwrap();
        let ours = ChatTemplate::parse(template, Map::new()).map_err(|error| error.to_string());
        let ours =
            ours.and_then(|made| made.render(prompt.clone()).map_err(|error| error.to_string()));
        let expected = idiom["text"].as_str();
        texts += usize::from(expected.is_some());
        if ours.as_deref().ok() != expected {
            failures
                .push(format!("{template}\n ours {ours:?}\n them {expected:?} {}", idiom["error"]));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(texts > 200, "{texts}");
}
