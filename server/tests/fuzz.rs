//! Random bodies, templates, structures and replies: whatever comes is answered or refused.

use crate::client::{ask, bind_as, serve_at};
use crate::encoder;
use crate::fuzzing::fuzz;
use crate::tiny_engine::{folder, tiny_engine};
use crate::tool_call_replies::replies;
use piecewise::models::TextTokenizer;
use piecewise_server::ServedModel;
use piecewise_server::chat::{ChatPrompt, ChatTemplate, ReplyFormat, Tools};
use piecewise_server::structured::{Structure, Structures};
use piecewise_testing::DeviceFaults;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

/// Any JSON, small, and now and then at the borders of numbers.
fn any_json() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3..40_i64).prop_map(Value::from),
        select(vec![json!(0.5), json!(1e300), json!(-1e-300), json!(u64::MAX), json!(1_u64 << 53)]),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        ".{0,12}".prop_map(Value::from),
        select(words(WORDS)).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let name = prop_oneof![select(words(WORDS)).prop_map(str::to_owned), ".{0,6}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name, inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// What means something to somebody who reads a body.
const WORDS: &str = "\
    type object string integer number array boolean null properties required items enum \
    const anyOf allOf oneOf not $ref $defs # #/$defs/a a pattern format minLength maxLength \
    minimum maximum minItems maxItems uniqueItems additionalProperties patternProperties \
    role user assistant system tool content text name arguments function tool_calls \
    tool_use tool_result tool_use_id input_schema thinking tool_call_id id parameters description json_schema schema regex choice grammar json \
    json_object include_usage auto none date-time";

fn words(text: &'static str) -> Vec<&'static str> {
    text.split(' ').collect()
}

/// What is between broken bars, as some of it has spaces.
fn pieces(text: &'static str) -> Vec<&'static str> {
    text.split('¦').collect()
}

/// Fields that somebody takes, on some path.
const FIELDS: &str = "\
    prompt messages max_tokens max_completion_tokens n echo stream stream_options stop \
    stop_token_ids temperature top_p top_k min_p seed presence_penalty frequency_penalty \
    repetition_penalty logit_bias logprobs top_logprobs priority deadline_seconds min_tokens \
    allowed_token_ids bad_words ignore_eos response_format structured_outputs guided_json \
    guided_regex guided_choice guided_grammar tools tool_choice parallel_tool_calls \
    documents chat_template_kwargs reasoning_effort continue_final_message \
    add_generation_prompt add_special_tokens skip_special_tokens return_token_ids \
    prompt_logprobs truncate_prompt_tokens return_token_strs tokens input model best_of \
    suffix system stop_sequences thinking output_config cache_salt include_reasoning \
    encoding_format dimensions query top_n return_documents use_activation text_1 text_2 queries \
    max_tokens_per_doc rank_fields chat_template kv_transfer_params";

/// What a server of embeddings is asked.
fn asked_of_embeddings() -> Vec<(&'static str, Value)> {
    vec![
        ("/v1/embeddings", json!({"input": "one two"})),
        ("/v1/embeddings", json!({"input": ["one", "two three"], "encoding_format": "base64"})),
        ("/v1/embeddings", json!({"input": [[7, 8], [9]], "dimensions": 5})),
        ("/v1/embeddings", json!({"input": [7, 8], "add_special_tokens": false})),
        ("/v1/score", json!({"text_1": "one", "text_2": ["two", "three"]})),
        ("/tokenize", json!({"prompt": "one", "return_token_strs": true})),
        ("/detokenize", json!({"tokens": [7, 8]})),
    ]
}

/// What a server of a cross-encoder is asked.
fn asked_of_scores() -> Vec<(&'static str, Value)> {
    let documents = json!(["two", {"text": "three one"}]);
    vec![
        ("/v1/score", json!({"text_1": "one", "text_2": ["two", "three"]})),
        ("/v1/score", json!({"queries": ["one", "two"], "documents": ["two", "?"]})),
        ("/v1/rerank", json!({"query": "one two", "documents": documents, "top_n": 1})),
        ("/v2/rerank", json!({"query": "one", "documents": documents, "return_documents": false})),
        ("/v1/rerank", json!({"query": "one", "documents": ["two"], "use_activation": false})),
    ]
}

fn asked() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]);
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}});
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    vec![
        ("/v1/completions", json!({"prompt": "def f(", "max_tokens": 2})),
        (
            "/v1/completions",
            json!({"prompt": [5, 6], "max_tokens": 2, "n": 2, "logprobs": 2, "echo": true}),
        ),
        (
            "/v1/completions",
            json!({"prompt": ["a", "b"], "max_tokens": 2, "stop": ["x"], "bad_words": ["y"]}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "max_tokens": 2, "structured_outputs": {"json": schema}}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "max_tokens": 2, "structured_outputs": {"regex": "a+b?"}}),
        ),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2})),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 2, "tools": [tool], "tool_choice": "required"}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 2, "stream": true, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}),
        ),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "y"}], "system": "x", "max_tokens": 2, "stream": true, "thinking": {"type": "disabled"}}),
        ),
        (
            "/v1/messages",
            json!({"messages": [
                {"role": "user", "content": [{"type": "text", "text": "y"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "z"}]},
            ], "max_tokens": 2, "tools": [{"name": "f", "input_schema": schema}]}),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"messages": [{"role": "user", "content": "y"}], "system": [{"type": "text", "text": "x"}]}),
        ),
        ("/tokenize", json!({"prompt": "x", "return_token_strs": true})),
        ("/tokenize", json!({"messages": messages})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
        ("/v1/embeddings", json!({"input": ["x"]})),
    ]
}

/// Puts `value` at a place of `whole` that `at` chooses: of a field, an element, or in place of all.
fn put(whole: &mut Value, at: &[Index], value: Value) {
    let inner = match (at.split_first(), &mut *whole) {
        (Some((at, rest)), Value::Array(list)) if !list.is_empty() => {
            Some((at.get_mut(&mut list[..]), rest))
        }
        (Some((at, rest)), Value::Object(fields)) if !fields.is_empty() => {
            let name = fields.keys().nth(at.index(fields.len())).unwrap().clone();
            fields.get_mut(&name).map(|field| (field, rest))
        }
        _ => None,
    };
    match inner {
        Some((inner, rest)) => put(inner, rest, value),
        None => *whole = value,
    }
}

#[test]
fn every_body_is_answered_or_refused() {
    let server = bind_as(|options| options.limits.priorities = true);
    let template =
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";
    let model = ServedModel {
        tokenizer: Some(Arc::new(TextTokenizer::load(&folder(), 2048).unwrap())),
        template: Some(ChatTemplate::parse(template, Map::new()).unwrap()),
        format: ReplyFormat::new(Some("qwen3"), Some("hermes"), "").unwrap(),
        // Without one no answer keeps to a structure.
        end_ids: vec![0],
        ..ServedModel::default()
    };
    let address = serve_at(server, tiny_engine(DeviceFaults::default(), 4), model).0;
    bodies("bodies", &Vec::from_iter(asked().into_iter().map(|asked| (address, asked))));
    // It serves as before.
    let plain = json!({"prompt": [5, 6], "max_tokens": 1}).to_string();
    assert!(ask(address, "POST /v1/completions", &plain).starts_with("HTTP/1.1 200"));
}

#[test]
fn every_body_of_an_encoder_is_answered_or_refused() {
    let of = |address: SocketAddr, asked: Vec<(&'static str, Value)>| {
        let plain = |(path, body): &(&str, Value)| {
            let answer = ask(address, &format!("POST {path}"), &body.to_string());
            assert!(answer.starts_with("HTTP/1.1 200"), "{path} {body}\n{answer}");
        };
        asked.iter().for_each(plain);
        asked.into_iter().map(move |asked| (address, asked))
    };
    let (embeds, scores) = (encoder::embeds(), encoder::scores());
    let asked = || of(embeds, asked_of_embeddings()).chain(of(scores, asked_of_scores()));
    bodies("bodies of encoders", &Vec::from_iter(asked()));
    // They serve as before.
    assert!(asked().count() > 0);
}

/// Holds that bodies like these, changed at random, are answered or refused.
fn bodies(name: &str, asked: &[(SocketAddr, (&'static str, Value))]) {
    let changes =
        prop::collection::vec((prop::collection::vec(any::<Index>(), 1..4), any_json()), 0..3);
    let more = prop::collection::vec((select(words(FIELDS)), any_json()), 0..3);
    let bytes =
        prop::option::weighted(0.2, prop::collection::vec((any::<Index>(), any::<char>()), 1..4));
    let strategy = (select(asked.to_vec()), changes, more, bytes);
    fuzz(name, &strategy, |((address, (path, mut body)), changes, more, characters)| {
        changes.into_iter().for_each(|(at, value)| put(&mut body, &at, value));
        if let Value::Object(fields) = &mut body {
            fields.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
            // What it asks for is to end soon.
            if !matches!(fields.get("max_tokens"), Some(Value::Number(n)) if n.as_f64() < Some(64.0))
            {
                fields.remove("max_completion_tokens");
                fields.insert("max_tokens".to_owned(), json!(2));
            }
        }
        let mut text = body.to_string();
        for (at, character) in characters.unwrap_or_default() {
            let places = Vec::from_iter(text.char_indices().map(|(at, _)| at));
            text.insert(*at.get(&places), character);
        }
        let answer = ask(address, &format!("POST {path}"), &text);
        let status = answer.get(9..12).and_then(|status| status.parse::<u16>().ok());
        let is_answered =
            status.is_some_and(|status| status == 200 || (400..500).contains(&status));
        assert!(is_answered, "{path} {text}\n{answer}");
        if status == Some(200) && answer.contains("text/event-stream") {
            for kind in ["\"server_error\"", "\"api_error\""] {
                assert!(!answer.contains(kind), "{path} {text}\n{answer}");
            }
        }
    });
}

/// Pieces of templates as models have them, and what may stand in one.
const TEMPLATE_PIECES: &str = "\
    {% for message in messages %}¦{% endfor %}¦{%- if tools -%}¦{% else %}¦{% endif %}¦\
    {{ message.content }}¦{{ message['role'] }}¦{{ messages[0].content | trim }}¦\
    {{ bos_token }}¦{{ tools | tojson }}¦\
    {{ message.tool_calls[0].function.arguments | tojson(indent=2) }}¦\
    {% set ns = namespace(last=0) %}¦{% set ns.last = loop.index %}¦{{ ns.last }}¦\
    {{ loop.first }}¦{% if message.content is string %}¦{% elif message.role == 'user' %}¦\
    {{ raise_exception('no') }}¦{{ strftime_now('%d %b %Y') }}¦\
    {{ 'a' ~ message.content ~ 3 }}¦{{ message.content.split('\n')[-1] }}¦\
    {{ message.content[1:] }}¦{{ (messages | length) % 2 }}¦{{ '%s-%05d' % ('a', 3) }}¦\
    {% macro m(x, y=1) %}¦{% endmacro %}¦{{ m(message) }}¦\
    {{ messages | map(attribute='content') | list }}¦{{ message.items() }}¦\
    {{ message.get('content', '') }}¦{% generation %}¦{% endgeneration %}¦\
    {{ messages[-1:][0] }}¦{{ messages[::-1] }}¦{{ message.content.replace('a', 'b') }}¦\
    {# x #}¦{% continue %}¦{% break %}¦{{ range(3) | join(',') }}¦{{ '' | int(default=2) }}¦\
    \n  ¦text é🦀¦{{¦}}¦{%¦%}¦{{ 1 // 0 }}¦{{ 2 ** 62 * 4 }}¦{{ 'x' * 1000 }}¦{{ x.y.z }}¦\
    {{ [1,2][9] }}";

#[test]
fn every_template_renders_every_conversation_or_says_why_not() {
    let message = prop_oneof![
        any_json(),
        (select(vec!["user", "assistant", "system", "tool"]), any_json(), prop::option::of(any_json()))
            .prop_map(|(role, content, calls)| json!({"role": role, "content": content, "tool_calls": calls})),
    ];
    let strategy = (
        prop::collection::vec(select(pieces(TEMPLATE_PIECES)), 0..14),
        prop::collection::vec(message, 0..4),
        prop::option::of(prop::collection::vec(any_json(), 0..3)),
        any::<[bool; 2]>(),
    );
    fuzz("templates", &strategy, |(pieces, messages, tools, [continues, begins])| {
        let Ok(template) = ChatTemplate::parse(&pieces.concat(), Map::new()) else { return };
        let prompt = ChatPrompt {
            messages,
            tools,
            continue_final_message: continues,
            add_generation_prompt: begins,
            ..ChatPrompt::default()
        };
        if let Err(error) = template.render(prompt) {
            assert!(!error.to_string().is_empty());
        }
    });
}

/// Schemas that say something as a rule.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any_json(),
        select(vec!["string", "integer", "number", "boolean", "null"])
            .prop_map(|kind| json!({"type": kind})),
        ("[ab(|)*+?{}0-9.\\[\\]^$-]{0,12}")
            .prop_map(|pattern| json!({"type": "string", "pattern": pattern})),
        (any::<i16>(), any::<i16>())
            .prop_map(|(a, b)| json!({"type": "integer", "minimum": a, "maximum": b})),
        (0..9_u64, 0..9_u64)
            .prop_map(|(a, b)| json!({"type": "string", "minLength": a, "maxLength": b})),
        Just(json!({"$ref": "#/$defs/a"})),
        Just(json!({"$ref": "#"})),
    ];
    let schema = leaf.prop_recursive(4, 20, 4, |inner| {
        let several = prop::collection::vec(inner.clone(), 0..4);
        let fields = prop::collection::vec(("[a-c]", inner.clone()), 0..4);
        prop_oneof![
            (fields, prop::collection::vec("[a-d]", 0..3)).prop_map(|(fields, required)| {
                let fields: Map<_, _> = fields.into_iter().collect();
                json!({"type": "object", "properties": fields, "required": required})
            }),
            (inner.clone(), 0..4_u64, 0..4_u64).prop_map(|(items, a, b)| {
                json!({"type": "array", "items": items, "minItems": a, "maxItems": b})
            }),
            (select(vec!["anyOf", "allOf", "oneOf"]), several)
                .prop_map(|(name, of)| json!({name: of})),
            inner.prop_map(|not| json!({"not": not})),
        ]
    });
    (schema, any_json()).prop_map(|(mut schema, defined)| {
        if let Value::Object(fields) = &mut schema {
            fields.insert("$defs".to_owned(), json!({"a": defined}));
        }
        schema
    })
}

const GRAMMAR_PIECES: &str = "\
    start: ¦root ::= ¦A¦b¦A: ¦b: ¦A ::= ¦\n¦ | ¦(¦)¦*¦+¦?¦{2,5}¦\"a\"¦\"¦/a+b/¦/[^x]*/¦/(¦\
    [a-z]¦[^¦~3¦%ignore /\\s/¦%json {\"type\": \"integer\"}¦%json {¦<|im_end|>¦ & ¦~¦//c\n¦\
    # c\n¦start¦root¦: ¦::= ¦\\¦é¦%llguidance {}¦[max_tokens=3]: ";

#[test]
fn every_structure_is_kept_to_or_refused() {
    let tokenizer = TextTokenizer::load(&folder(), 2048).unwrap();
    let structures = Structures::new(&tokenizer.vocabulary(), &[0]).unwrap();
    let strategy = prop_oneof![
        schemas().prop_map(|schema| json!({"structured_outputs": {"json": schema}})),
        any_json().prop_map(|any| json!({"response_format": any})),
        any_json().prop_map(|any| json!({"structured_outputs": any})),
        prop::collection::vec(".{0,9}", 0..5)
            .prop_map(|of| json!({"structured_outputs": {"choice": of}})),
        "([ab.()|?*+^$-]|\\[[a-c^-]{0,3}\\]|\\{[0-9]{0,2},?[0-9]{0,2}\\}|\\\\[dwsbpPx]){0,14}"
            .prop_map(|regex| json!({"structured_outputs": {"regex": regex}})),
        prop::collection::vec(select(pieces(GRAMMAR_PIECES)), 0..24)
            .prop_map(|pieces| json!({"structured_outputs": {"grammar": pieces.concat()}})),
    ];
    fuzz("structures", &(strategy, any::<[Index; 8]>()), |(request, taken)| {
        let read = Structure::read(request.as_object().unwrap());
        let Ok(Some((field, structure))) = read else { return };
        let Ok(mut constraint) = structures.constraint(&structure, &field, None, &|| true) else {
            return;
        };
        for at in taken {
            let mut mask = vec![0_u32; 2048 / 32];
            if constraint.allowed(&mut mask).is_err() {
                return;
            }
            let is_allowed = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
            let allowed = Vec::from_iter((0..2048).filter(is_allowed));
            if allowed.is_empty() || constraint.accept(*at.get(&allowed)) != Ok(false) {
                return;
            }
        }
    });
}

/// What replies are made of.
const MARKS: &str = "\
    <think>¦</think>¦<tool_call>¦</tool_call>¦{\"name\": \"add\", \"arguments\": {\"a\": 1}}¦\
    {¦}¦[¦]¦\"¦\\¦\\u00e9¦\\ud83e¦add(a=1)¦(¦)¦<function=add>¦</function>¦<parameter=a>¦\
    </parameter>¦[TOOL_CALLS]¦<|python_tag|>¦<arg_key>¦</arg_key>¦<arg_value>¦</arg_value>¦\
    add¦1¦-1e5¦null¦,¦:¦'¦\n¦ ¦é🦀¦<¦>¦<|¦|>¦｜¦```json\n¦```¦true¦\"\"\"";

#[test]
fn every_reply_is_read_and_alike_however_it_is_cut() {
    let tools = json!({"tools": [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}}},
        {"type": "function", "function": {"name": "clock"}},
    ]});
    let tools = Tools::read(tools.as_object().unwrap().clone()).unwrap();
    let known = replies();
    let parsers = Vec::from_iter(known.iter().map(|(parser, ..)| *parser));
    let mut thinking = crate::thoughts::parsers();
    thinking.push("none".to_owned());
    let random =
        prop::collection::vec(select(pieces(MARKS)), 0..16).prop_map(|pieces| pieces.concat());
    let strategy = (
        any::<[Index; 3]>(),
        any::<[Index; 2]>(),
        random,
        prop::collection::vec(any::<Index>(), 0..10),
    );
    fuzz("replies", &strategy, |(which, broken, middle, cuts)| {
        let places =
            |text: &str| Vec::from_iter(text.char_indices().map(|(at, _)| at).chain([text.len()]));
        let [before, behind] = [which[0].get(&known).1, which[1].get(&known).1];
        let (end, begin) = (*broken[0].get(&places(before)), *broken[1].get(&places(behind)));
        let reply = [&before[..end], &middle, &behind[begin..]].concat();
        let mut borders = Vec::from_iter(cuts.iter().map(|cut| *cut.get(&places(&reply))));
        borders.extend([0, reply.len()]);
        borders.sort_unstable();
        let read = |thoughts: &str, pieces: &[&str]| {
            let format = ReplyFormat::new(Some(thoughts), Some(*which[2].get(&parsers)), "");
            let format = format.unwrap();
            let mut parser = format.parser(&tools, "").unwrap();
            let mut deltas = Vec::new();
            for piece in pieces {
                deltas.push(parser.push(piece).unwrap());
            }
            deltas.push(parser.finish().unwrap());
            let texts = |part: fn(&piecewise_server::chat::ReplyDelta) -> &str| {
                deltas.iter().map(part).collect::<String>()
            };
            let calls = crate::replies::calls_of(&deltas);
            (texts(|delta| &delta.reasoning), texts(|delta| &delta.content), calls)
        };
        let pieces = Vec::from_iter(borders.windows(2).map(|range| &reply[range[0]..range[1]]));
        let parser = which[2].get(&thinking);
        let found = read(parser, &pieces);
        assert_eq!(found, read(parser, &[&reply]), "{which:?} {parser} {pieces:?}");
        let (thoughts, content, calls) = found;
        assert!(thoughts.len() + content.len() <= reply.len() || !calls.is_empty());
    });
}
