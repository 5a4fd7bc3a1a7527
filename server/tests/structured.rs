//! Structures: what is refused, and that whatever a mask lets through parses.

use crate::byte_fallback;
use piecewise::models::TextTokenizer;
use piecewise_server::structured::{Structure, Structures};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A generator of numbers without a library's word for its stability.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn tokenizer() -> TextTokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny-qwen3");
    TextTokenizer::load(&folder, 2048).unwrap()
}

/// Ids that a sampler with random logits takes, up to the end or `most`.
fn sampled(
    structures: &Structures,
    structure: &Structure,
    (vocab, end): (usize, u32),
    random: &mut Random,
    most: usize,
) -> Result<(Vec<u32>, bool), String> {
    let mut constraint = structures
        .constraint(structure, "response_format", None, &|| true)
        .map_err(|e| e.to_string())?;
    let mut ids = Vec::new();
    for step in 0..most {
        let mut mask = vec![0_u32; vocab.div_ceil(32)];
        constraint.allowed(&mut mask)?;
        let allowed: Vec<u32> =
            (0..vocab as u32).filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1).collect();
        assert!(!allowed.is_empty(), "nothing is allowed");
        // What closes is taken more often as the text grows, as a model with something to say would.
        let mut id = allowed[random.below(allowed.len())];
        if allowed.contains(&end) && random.below(3) == 0 {
            id = end;
        } else if step > most / 4 {
            let short = allowed.iter().min_by_key(|id| (closing(structures, **id), **id));
            id = *short.unwrap();
        }
        let is_over = constraint.accept(id)?;
        if id == end {
            assert!(is_over);
            return Ok((ids, true));
        }
        ids.push(id);
        if is_over {
            let mut mask = vec![0_u32; vocab.div_ceil(32)];
            constraint.allowed(&mut mask)?;
            assert_eq!(mask.iter().map(|word| word.count_ones()).sum::<u32>(), 1, "only the end");
            return Ok((ids, true));
        }
    }
    Ok((ids, false))
}

thread_local! {
    static BYTES: std::cell::RefCell<Vec<Vec<u8>>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// How far an id is from closing what is open.
fn closing(_: &Structures, id: u32) -> usize {
    BYTES.with_borrow(|bytes| match bytes[id as usize].as_slice() {
        [] => 0,
        b"}" | b"]" | b"\"" | b"\"}" | b"\"]" => 1,
        b"," | b":" | b"0" | b"1" => 2,
        _ => 3,
    })
}

fn remember(tokenizer: &TextTokenizer, end: u32) {
    let vocabulary = tokenizer.vocabulary();
    let bytes = |id| if id == end { Vec::new() } else { vocabulary.bytes(id).to_vec() };
    let all = (0..vocabulary.len() as u32).map(bytes).collect();
    BYTES.with_borrow_mut(|remembered| *remembered = all);
}

/// A random schema, and what holds a value against it.
fn schema(random: &mut Random, depth: usize) -> Value {
    let kinds = if depth == 0 { 7 } else { 10 };
    match random.below(kinds) {
        0 => json!({"type": "string"}),
        1 => {
            json!({"type": "string", "maxLength": random.below(6) + 1, "minLength": random.below(2)})
        }
        2 => {
            json!({"type": "integer", "minimum": -(random.below(50) as i64), "maximum": random.below(500)})
        }
        3 => json!({"type": "boolean"}),
        4 => {
            let values = [json!("a \"q\" é"), json!(3), json!(null), json!("b\\n")];
            json!({"enum": values[..random.below(4) + 1].to_vec()})
        }
        5 => json!({"type": "number", "minimum": 0, "maximum": 10}),
        6 => json!({"type": ["null", "boolean"]}),
        7 => {
            let most = random.below(3);
            json!({"type": "array", "items": schema(random, depth - 1), "minItems": most.min(1), "maxItems": most})
        }
        8 => {
            let options: Vec<Value> =
                (0..random.below(2) + 2).map(|_| schema(random, depth - 1)).collect();
            json!({"anyOf": options})
        }
        _ => {
            let names = ["name", "a b", "é", "list", "x\"y"];
            let count = random.below(4);
            let properties: Map<String, Value> = names[..count]
                .iter()
                .map(|n| ((*n).to_owned(), schema(random, depth - 1)))
                .collect();
            let required: Vec<&str> =
                names[..count].iter().filter(|_| random.below(3) > 0).copied().collect();
            json!({"type": "object", "properties": properties, "required": required,
                "additionalProperties": false})
        }
    }
}

/// Whether a value keeps to a schema of the kind that [`schema`] makes.
fn keeps_to(value: &Value, schema: &Value) -> bool {
    if let Some(options) = schema["anyOf"].as_array() {
        return options.iter().any(|option| keeps_to(value, option));
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    let within = |n: f64| {
        schema["minimum"].as_f64().is_none_or(|m| n >= m)
            && schema["maximum"].as_f64().is_none_or(|m| n <= m)
    };
    let counted = |n: usize, least: &str, most: &str| {
        schema[least].as_u64().is_none_or(|m| n as u64 >= m)
            && schema[most].as_u64().is_none_or(|m| n as u64 <= m)
    };
    let is_a = |kind: &str| match kind {
        "string" => {
            value.as_str().is_some_and(|s| counted(s.chars().count(), "minLength", "maxLength"))
        }
        // JSON's -0 is a whole number, if not one of this reader's.
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0 && within(n)),
        "number" => value.as_f64().is_some_and(within),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.as_array().is_some_and(|items| {
            counted(items.len(), "minItems", "maxItems")
                && items.iter().all(|item| keeps_to(item, &schema["items"]))
        }),
        "object" => value.as_object().is_some_and(|fields| {
            let required = schema["required"].as_array().into_iter().flatten();
            required.into_iter().all(|name| fields.contains_key(name.as_str().unwrap()))
                && fields.iter().all(|(name, value)| {
                    schema["properties"].get(name).is_some_and(|schema| keeps_to(value, schema))
                })
        }),
        other => panic!("no such type: {other}"),
    };
    match &schema["type"] {
        Value::String(kind) => is_a(kind),
        Value::Array(kinds) => kinds.iter().any(|kind| is_a(kind.as_str().unwrap())),
        _ => panic!("{schema} has no type"),
    }
}

fn schemas_parse(tokenizer: &TextTokenizer, end: u32, cases: u64) {
    let vocabulary = tokenizer.vocabulary();
    let structures = Structures::new(&vocabulary, &[end]).unwrap();
    remember(tokenizer, end);
    let mut finished = 0;
    for seed in 0..cases {
        let mut random = Random(seed);
        let schema = schema(&mut random, 3);
        let structure = Structure::JsonSchema(schema.clone());
        let sizes = (vocabulary.len(), end);
        let (ids, is_over) = sampled(&structures, &structure, sizes, &mut random, 400)
            .unwrap_or_else(|error| panic!("seed {seed}, {schema}: {error}"));
        if !is_over {
            continue;
        }
        finished += 1;
        let bytes: Vec<u8> = ids.iter().flat_map(|id| vocabulary.bytes(*id)).copied().collect();
        let text = String::from_utf8(bytes).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let value: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("seed {seed}, {schema}: {text:?}: {error}"));
        assert!(keeps_to(&value, &schema), "seed {seed}: {text} is not of {schema}");
    }
    assert!(finished * 100 >= cases * 99, "only {finished} of {cases} replies came to their end");
}

#[test]
fn a_thousand_random_schemas_always_parse() {
    schemas_parse(&tokenizer(), 0, 1_000);
}

#[test]
fn schemas_parse_with_a_tokenizer_that_falls_back_to_bytes() {
    schemas_parse(&byte_fallback::tokenizer(), byte_fallback::END, 150);
}

fn text_of(structure: &Structure, seed: u64) -> String {
    let tokenizer = tokenizer();
    let vocabulary = tokenizer.vocabulary();
    let structures = Structures::new(&vocabulary, &[0]).unwrap();
    remember(&tokenizer, 0);
    let (ids, is_over) =
        sampled(&structures, structure, (2048, 0), &mut Random(seed), 200).unwrap();
    assert!(is_over);
    tokenizer.decode(&ids).unwrap()
}

#[test]
fn regexes_choices_and_grammars_hold() {
    for seed in 0..20 {
        let text = text_of(&Structure::Regex("[a-c]{2,4}-(é|🦀)".to_owned()), seed);
        let (letters, rest) = text.split_once('-').unwrap();
        assert!(
            (2..=4).contains(&letters.len()) && letters.chars().all(|c| ('a'..='c').contains(&c))
        );
        assert!(["é", "🦀"].contains(&rest), "{text}");
        let choice = ["yes", "no \"way\"", "🦀\n"];
        let structure = Structure::Choice(choice.map(str::to_owned).to_vec());
        assert!(choice.contains(&text_of(&structure, seed).as_str()));
        let grammar = "start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[1-9]/\n".to_owned();
        let text = text_of(&Structure::Grammar(grammar), seed);
        assert!(text.split('+').all(|n| n.len() == 1 && n != "0"), "{text}");
        let object = text_of(&Structure::json_object(), seed);
        assert!(serde_json::from_str::<Map<String, Value>>(&object).is_ok(), "{object}");
    }
}

fn read(request: Value) -> Result<Option<Structure>, String> {
    let found = Structure::read(request.as_object().unwrap()).map_err(|error| error.to_string())?;
    Ok(found.map(|(_, structure)| structure))
}

#[test]
fn requests_ask_for_structures_in_openai_s_and_vllm_s_words() {
    let schema = json!({"type": "integer"});
    let expected = Some(Structure::JsonSchema(schema.clone()));
    for request in [
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}}}),
        json!({"structured_outputs": {"json": schema, "regex": null, "disable_any_whitespace": false}}),
        json!({"structured_outputs": {"json": schema.to_string()}}),
        json!({"guided_json": schema, "guided_regex": null}),
    ] {
        assert_eq!(read(request.clone()).unwrap(), expected, "{request}");
    }
    let object = Some(Structure::json_object());
    assert_eq!(read(json!({"response_format": {"type": "json_object"}})).unwrap(), object);
    assert_eq!(read(json!({"structured_outputs": {"json_object": true}})).unwrap(), object);
    assert_eq!(read(json!({"response_format": {"type": "text"}})).unwrap(), None);
    assert_eq!(read(json!({"response_format": null})).unwrap(), None);
    assert_eq!(
        read(json!({"guided_choice": ["a", "b"]})).unwrap(),
        Some(Structure::Choice(vec!["a".to_owned(), "b".to_owned()]))
    );
    assert_eq!(
        read(json!({"guided_regex": "a+"})).unwrap(),
        Some(Structure::Regex("a+".to_owned()))
    );
}

#[test]
fn what_can_t_be_kept_to_is_refused_by_its_field() {
    for (request, says) in [
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type: `xml` is not supported",
        ),
        (json!({"response_format": {}}), "response_format.type: one of"),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "response_format.json_schema.schema: a schema",
        ),
        (json!({"structured_outputs": 3}), "structured_outputs: it must be an object"),
        (
            json!({"structured_outputs": {"structural_tag": "x"}}),
            "structured_outputs.structural_tag: `structural_tag` is not",
        ),
        (
            json!({"structured_outputs": {"choice": []}}),
            "structured_outputs.choice: it must be a list",
        ),
        (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json: not JSON"),
        (
            json!({"structured_outputs": {"json": format!("[{}0]", "0,".repeat(300_000))}}),
            "structured_outputs.json: the schema has 600003 bytes",
        ),
        (json!({"guided_regex": ""}), "guided_regex: it must be a text"),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice: only one structure"),
    ] {
        let error = read(request).unwrap_err();
        assert!(error.starts_with(says), "{error}");
    }
    let structures = Structures::new(&tokenizer().vocabulary(), &[0]).unwrap();
    for (structure, says) in [
        (Structure::Regex("(".to_owned()), ""),
        (Structure::Grammar("start: missing".to_owned()), "missing"),
        (Structure::JsonSchema(json!({"type": "nothing"})), "nothing"),
        (Structure::JsonSchema(json!({"$ref": "#/none"})), ""),
        (Structure::JsonSchema(json!(false)), ""),
    ] {
        let error = structures.constraint(&structure, "guided", None, &|| true).unwrap_err();
        assert!(error.field == "guided" && error.message.contains(says), "{error}");
    }
    let vocabulary = tokenizer().vocabulary();
    assert!(Structures::new(&vocabulary, &[]).unwrap_err().to_string().contains("no ids"));
    assert!(Structures::new(&vocabulary, &[2048]).unwrap_err().to_string().contains("2048 ids"));
}

/// Parts of which each refers to all of them.
fn of_parts(part: &Value, count: usize, more: &Value) -> Structure {
    Structure::JsonSchema(json!({"anyOf": vec![part; count], "$defs": more}))
}

#[test]
fn a_schema_takes_a_bounded_number_of_steps_to_check() {
    let structures = Structures::new(&tokenizer().vocabulary(), &[0]).unwrap();
    let made = |structure: &Structure, wanted: &(dyn Fn() -> bool + Sync)| {
        structures.constraint(structure, "response_format", None, wanted).map_err(|e| e.message)
    };
    // Without patterns nothing can meet.
    let part = json!({"$ref": "#", "not": 1});
    let error = made(&of_parts(&part, 6200, &json!({})), &|| true).unwrap_err();
    assert!(!error.contains("too many"), "{error}");
    // With them, what each part reaches is looked at, but not without an end.
    let patterns = json!({"a": {"pattern": "a+"}, "b": {"pattern": "b{99999}"}});
    let part = json!({"$ref": "#/$defs/a", "not": {}});
    let filled =
        json!({"a": {"pattern": "a+"}, "b": {"pattern": "b{99999}"}, "c": {"enum": vec![1; 9000]}});
    let far = json!({"$ref": "#/$defs/c", "not": {}});
    let error = made(&of_parts(&far, 3000, &filled), &|| true).unwrap_err();
    assert!(error.starts_with("too many parts of the schema refer"), "{error}");
    // What nobody waits for any more is given up on the way.
    let asked = AtomicUsize::new(0);
    let leaves = || asked.fetch_add(1, Ordering::Relaxed) < 3;
    let error = made(&of_parts(&far, 3000, &filled), &leaves).unwrap_err();
    assert!(error.contains("has left") && asked.into_inner() == 4, "{error}");
    // What is within the bounds is taken as before, and what meets in too many ways is not.
    let few = Structure::JsonSchema(json!({"anyOf": [part], "$defs": patterns}));
    let error = made(&few, &|| true).err();
    assert!(error.is_none_or(|error| !error.contains("patterns")));
    let meets =
        json!({"allOf": [{"pattern": "a{999}"}, {"pattern": "b{999}"}], "$ref": "#/$defs/a"});
    let meets = Structure::JsonSchema(json!({"anyOf": [meets], "$defs": patterns}));
    assert!(made(&meets, &|| true).unwrap_err().contains("patterns could apply to one text"));
}

/// An id that the mask lacks is refused, and the constraint says so from then on.
#[test]
fn an_id_that_may_not_come_is_refused() {
    let tokenizer = tokenizer();
    let structures = Structures::new(&tokenizer.vocabulary(), &[0]).unwrap();
    let choice = Structure::Choice(vec!["yes".to_owned()]);
    let mut constraint = structures.constraint(&choice, "guided_choice", None, &|| true).unwrap();
    let wrong = tokenizer.encode("no").unwrap()[0];
    constraint.accept(wrong).unwrap_err();
    constraint.allowed(&mut [0; 64]).unwrap_err();
}

/// A BPE with as many ids as the large vocabularies of today: words, spaces before them, punctuation.
fn large(vocab: usize) -> TextTokenizer {
    let mut random = Random(3);
    let mut pieces: Map<String, Value> = Map::new();
    for byte in b' '..=b'~' {
        let id = pieces.len();
        pieces.insert(char::from(byte).to_string(), id.into());
    }
    while pieces.len() < vocab - 1 {
        let mut piece = String::new();
        if random.below(2) == 0 {
            piece.push(' ');
        }
        let alphabet: &[u8] = match random.below(8) {
            0 => b"0123456789",
            1 => b"{}[]\",:",
            _ => b"abcdefghijklmnopqrstuvwxyz",
        };
        for _ in 0..2 + random.below(8) {
            piece.push(char::from(alphabet[random.below(alphabet.len())]));
        }
        let id = pieces.len();
        pieces.entry(piece).or_insert(id.into());
    }
    let text = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{"id": vocab - 1, "content": "</s>", "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "byte_fallback": false, "fuse_unk": false, "unk_token": null,
            "vocab": pieces, "merges": []},
    });
    TextTokenizer::parse(text.to_string().as_bytes(), vocab, Path::new("tokenizer.json")).unwrap()
}

/// What a mask costs on a large vocabulary, printed: the time is nobody's promise.
#[test]
fn masks_of_a_large_vocabulary() {
    const VOCAB: usize = 150_000;
    let tokenizer = large(VOCAB);
    let end = VOCAB as u32 - 1;
    let since = |start: std::time::Instant| start.elapsed().as_secs_f64() * 1e3;
    let start = std::time::Instant::now();
    let structures = Structures::new(&tokenizer.vocabulary(), &[end]).unwrap();
    println!("{VOCAB} ids are made ready in {:.0} ms", since(start));
    remember(&tokenizer, end);
    let any = Structure::json_object();
    let fields = Structure::JsonSchema(json!({
        "type": "object", "additionalProperties": false, "required": ["name", "tags", "count"],
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 4},
            "count": {"type": "integer"},
        },
    }));
    let words = Structure::Regex("([a-z]{1,12} ){3,9}[a-z]+".to_owned());
    for (name, structure) in [("any object", any), ("a schema", fields), ("a regex", words)] {
        let mut times = Vec::new();
        for seed in 0..8 {
            let mut random = Random(seed);
            let mut constraint =
                structures.constraint(&structure, "response_format", None, &|| true).unwrap();
            let mut is_over = false;
            while !is_over && times.len() < (seed as usize + 1) * 60 {
                let mut mask = vec![0_u32; VOCAB.div_ceil(32)];
                let start = std::time::Instant::now();
                constraint.allowed(&mut mask).unwrap();
                times.push(since(start));
                let allowed: Vec<u32> = (0..VOCAB as u32)
                    .filter(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1)
                    .collect();
                is_over = constraint.accept(allowed[random.below(allowed.len())]).unwrap();
            }
        }
        times.sort_by(f64::total_cmp);
        let (median, most) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        println!("{name}: {median:.3} ms a mask, {most:.3} ms at p99, of {}", times.len());
        assert!(times.len() > 8, "{name}");
    }
}
