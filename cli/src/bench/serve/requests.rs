//! What is asked: the prompts of a dataset, or made-up ones.

use super::args::{Range, ServeBenchArgs};
use super::client::{Body, Target};
use anyhow::{Context, bail};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};
use std::num::NonZeroUsize;
use std::path::Path;

/// The largest dataset that is read.
const LARGEST: u64 = 4 << 30;

/// Words that most tokenizers have a token of, with the space before them.
const WORDS: [&str; 16] = [
    "the", "of", "and", "to", "in", "is", "for", "that", "with", "as", "on", "by", "are", "this",
    "from", "not",
];

/// What a line of a dataset asks.
struct Ask {
    /// A text, or token ids.
    prompt: Option<Value>,
    messages: Option<Value>,
    max_tokens: Option<u64>,
}

/// The bodies of all requests, in their order.
pub(super) fn requests(args: &ServeBenchArgs, target: &Target) -> anyhow::Result<Vec<Body>> {
    let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
    let asks = args.dataset.as_deref().map(read).transpose()?.unwrap_or_default();
    let usual = if asks.is_empty() { 100 } else { asks.len() };
    let count = args.requests.map_or(usual, NonZeroUsize::get);
    let ask = |i: usize| asks.get(i.checked_rem(asks.len())?);
    (0..count).map(|i| body(args, target, ask(i), &mut rng)).collect()
}

fn body(
    args: &ServeBenchArgs,
    target: &Target,
    ask: Option<&Ask>,
    rng: &mut ChaCha8Rng,
) -> anyhow::Result<Body> {
    let of = |range: Range, rng: &mut ChaCha8Rng| rng.random_range(range.least..=range.most);
    let text = |rng: &mut ChaCha8Rng| {
        let count = of(args.input_tokens, rng);
        let words = (0..count).map(|_| WORDS[rng.random_range(0..WORDS.len())]);
        words.collect::<Vec<_>>().join(" ")
    };
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    let mut body = Map::new();
    let (key, prompt) = match (ask, args.chat) {
        (None, true) => ("messages", user(&text(rng))),
        (None, false) => match args.ids_below {
            Some(most) => {
                let count = of(args.input_tokens, rng);
                let ids = (0..count).map(|_| rng.random_range(0..most.max(1)));
                ("prompt", ids.collect())
            }
            None => ("prompt", text(rng).into()),
        },
        (Some(Ask { messages: Some(messages), .. }), true) => ("messages", messages.clone()),
        (Some(Ask { prompt: Some(Value::String(text)), .. }), true) => ("messages", user(text)),
        (Some(Ask { prompt: Some(prompt), .. }), false) => ("prompt", prompt.clone()),
        (Some(Ask { messages: Some(_), .. }), false) => {
            bail!("the dataset has `messages`, which are asked of a chat: give --chat")
        }
        (Some(_), _) => {
            bail!("the dataset has prompts of token ids, which no chat takes: leave out --chat")
        }
    };
    body.insert("model".to_owned(), target.model.clone().into());
    body.insert(key.to_owned(), prompt);
    let most = ask.and_then(|ask| ask.max_tokens).unwrap_or_else(|| of(args.output_tokens, rng));
    body.insert("max_tokens".to_owned(), most.into());
    body.insert("temperature".to_owned(), args.temperature.into());
    body.insert("stream".to_owned(), true.into());
    body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    if args.ignore_eos {
        body.insert("ignore_eos".to_owned(), true.into());
    }
    body.extend(args.extra_body.clone().unwrap_or_default());
    Ok(body)
}

fn read(file: &Path) -> anyhow::Result<Vec<Ask>> {
    let name = file.display();
    let bytes = std::fs::metadata(file).with_context(|| format!("can't read {name}"))?.len();
    if bytes > LARGEST {
        bail!("{name} has {bytes} bytes, and at most {LARGEST} are read; take a part of it");
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("can't read {name}"))?;
    let asks = asks(&text).with_context(|| format!("{name} is no dataset"))?;
    if asks.is_empty() {
        bail!("{name} asks nothing");
    }
    Ok(asks)
}

fn asks(text: &str) -> anyhow::Result<Vec<Ask>> {
    if text.trim_start().starts_with('[') {
        let conversations: Vec<Value> = serde_json::from_str(text)?;
        // As vLLM does: those with a question and an answer.
        let asked = conversations.iter().filter_map(|one| {
            let turn = |i: usize| one["conversations"][i]["value"].as_str();
            let (question, answer) = (turn(0)?, turn(1)?);
            // Half of a word more than words: what a tokenizer makes of most texts.
            let tokens = answer.split_whitespace().count() as u64 * 3 / 2;
            let prompt = Some(question.into());
            Some(Ask { prompt, messages: None, max_tokens: Some(tokens.max(1)) })
        });
        return Ok(asked.collect());
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let ask = |(number, line): (usize, &str)| -> anyhow::Result<Ask> {
        let at = || format!("line {}", number + 1);
        let mut value: Map<String, Value> = serde_json::from_str(line).with_context(at)?;
        let (prompt, messages) = (value.remove("prompt"), value.remove("messages"));
        let names = ["max_tokens", "output_tokens"];
        let max_tokens = names.iter().find_map(|name| value.get(*name)).and_then(Value::as_u64);
        if prompt.is_none() && messages.is_none() {
            bail!("{}: there is neither `prompt` nor `messages`", at());
        }
        Ok(Ask { prompt, messages, max_tokens })
    };
    lines.map(ask).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_are_lines_or_conversations() {
        let lines = "{\"prompt\": \"a\", \"max_tokens\": 3}\n\n{\"messages\": [{}], \"output_tokens\": 4}\n";
        let found = asks(lines).unwrap();
        let tokens: Vec<_> = found.iter().map(|ask| ask.max_tokens).collect();
        assert_eq!((found.len(), tokens), (2, vec![Some(3), Some(4)]));
        let shared = json!([
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "one two"}]},
            {"conversations": [{"from": "human", "value": "alone"}]},
        ]);
        let found = asks(&shared.to_string()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].prompt, found[0].max_tokens), (&Some("hi".into()), Some(3)));
        let said = |text: &str| format!("{:#}", asks(text).err().unwrap());
        assert!(said("{\"prompt\": \"a\"}\n{}").contains("line 2: there is neither"));
        assert!(said("{\"prompt\": \"a\"}\nx").contains("line 2"));
    }
}
