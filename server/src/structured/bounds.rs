//! What a structure may be at most.
//!
//! A text of a few lines can ask for a machine of more states than there is memory, and one derivative
//! of an intersection of expressions can take hours: neither can be stopped once it is begun. So what
//! could come to that is refused by what is written.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::ebnf;
use super::structure::Structure;

/// Bytes of a schema, or of all choices.
const LONGEST: usize = 128 << 10;
/// Bytes of a grammar.
const LONGEST_GRAMMAR: usize = 32 << 10;
/// Bytes of a regular expression, in a schema or a grammar too.
const LONGEST_REGEX: usize = 4 << 10;
/// Patterns of names of properties: each is held against each other one.
const MOST_PROPERTY_PATTERNS: usize = 64;
/// Ways in which the patterns that a text must match all at once may go on together.
const MOST_WAYS: u64 = 1 << 16;
/// How often a value of a schema, or a byte of a reference, is looked at to tell what meets: some tenths
/// of a second.
const MOST_STEPS: usize = 1 << 21;
/// After about so many it is asked whether somebody still waits.
const STEPS_AT_ONCE: usize = 1 << 12;

/// Keywords by which a schema is more than one of its parts.
const JOINED: [&str; 13] = [
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "pattern",
    "properties",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "items",
    "prefixItems",
    "format",
    "not",
];

/// Whether somebody still waits for a structure; what nobody waits for is given up.
pub type Wanted<'a> = &'a (dyn Fn() -> bool + Sync);

/// Refuses a structure that could take too long or too much.
pub(super) fn check(structure: &Structure, wanted: Wanted<'_>) -> Result<(), String> {
    match structure {
        Structure::JsonSchema(schema) => {
            bounded("the schema", schema.to_string().len(), LONGEST)?;
            check_schema(schema, &mut Steps::new(wanted))
        }
        Structure::Regex(regex) => bounded("the regular expression", regex.len(), LONGEST_REGEX),
        Structure::Grammar(grammar) => {
            bounded("the grammar", grammar.len(), LONGEST_GRAMMAR)?;
            if ebnf::is_ebnf(grammar) {
                return Ok(());
            }
            check_grammar(grammar, &mut Steps::new(wanted))
        }
        Structure::Choice(texts) => {
            bounded("the choices together", texts.iter().map(String::len).sum(), LONGEST)
        }
    }
}

fn bounded(what: &str, bytes: usize, most: usize) -> Result<(), String> {
    match bytes > most {
        true => Err(format!("{what} has {bytes} bytes; at most {most} are taken")),
        false => Ok(()),
    }
}

/// What there is left to look at.
struct Steps<'a> {
    left: usize,
    wanted: Wanted<'a>,
}

impl<'a> Steps<'a> {
    fn new(wanted: Wanted<'a>) -> Self {
        Self { left: MOST_STEPS, wanted }
    }

    fn take(&mut self, count: usize) -> Result<(), String> {
        let too_many = "too many parts of the schema refer to too much of it by `allOf`, `anyOf`, \
                        `oneOf` or `$ref`, with patterns among it; use fewer of either";
        let left = self.left.checked_sub(count).ok_or(too_many)?;
        if left / STEPS_AT_ONCE < self.left / STEPS_AT_ONCE {
            still_wanted(self.wanted)?;
        }
        self.left = left;
        Ok(())
    }
}

/// An error where nobody waits any more.
pub(super) fn still_wanted(wanted: Wanted<'_>) -> Result<(), String> {
    wanted().then_some(()).ok_or_else(|| "who asked for it has left".to_owned())
}

fn check_schema(schema: &Value, steps: &mut Steps<'_>) -> Result<(), String> {
    let mut ways = BTreeMap::new();
    let (mut open, mut property_patterns) = (vec![schema], 0);
    while let Some(value) = open.pop() {
        open.extend(children(value));
        let Some(node) = value.as_object() else { continue };
        let by_name = node.get("patternProperties").and_then(Value::as_object);
        property_patterns += by_name.map_or(0, Map::len);
        if property_patterns > MOST_PROPERTY_PATTERNS {
            return Err(format!(
                "`patternProperties` has more than {MOST_PROPERTY_PATTERNS} patterns in all"
            ));
        }
        let whitespace = node.get("whitespace_pattern").and_then(Value::as_str);
        for pattern in own_patterns(node).chain(whitespace) {
            bounded("a pattern", pattern.len(), LONGEST_REGEX)?;
        }
        ways.extend(own_patterns(node).map(|pattern| (pattern, ways_of(pattern))));
    }
    // Most schemas could have all of their patterns meet, and need no closer look.
    if !are_too_many(ways.values()) {
        return Ok(());
    }
    open.push(schema);
    while let Some(value) = open.pop() {
        steps.take(1)?;
        open.extend(children(value));
        if let Some(node) = value.as_object() {
            check_joined(schema, node, &ways, steps)?;
        }
    }
    Ok(())
}

/// Whether patterns that go on in so many ways each do so in too many together.
fn are_too_many<'w>(ways: impl ExactSizeIterator<Item = &'w u64>) -> bool {
    ways.len() > 1 && ways.fold(1_u64, |all, ways| all.saturating_mul(*ways)) > MOST_WAYS
}

/// Refuses a part of a schema whose patterns could meet in one text, if there are too many ways in
/// which they go on together. What meets is taken to be all that the part reaches.
fn check_joined(
    root: &Value,
    node: &Map<String, Value>,
    ways: &BTreeMap<&str, u64>,
    steps: &mut Steps<'_>,
) -> Result<(), String> {
    let parts = |name: &str| match node.get(name) {
        Some(Value::Array(list)) if name == "allOf" => list.len(),
        Some(_) => 1,
        None => 0,
    };
    if JOINED.iter().map(|name| parts(name)).sum::<usize>() < 2 {
        return Ok(());
    }
    let joins = ["$ref", "allOf", "anyOf", "oneOf"];
    if !joins.iter().any(|name| node.contains_key(*name)) {
        return Ok(());
    }
    let mut patterns = BTreeSet::new();
    let mut seen: HashSet<*const Value> = HashSet::new();
    let mut open = Vec::from_iter(node.values());
    open.extend(reference(root, node, steps)?);
    while let Some(value) = open.pop() {
        steps.take(1)?;
        if !seen.insert(value) {
            continue;
        }
        open.extend(children(value));
        if let Some(node) = value.as_object() {
            patterns.extend(own_patterns(node));
            open.extend(reference(root, node, steps)?);
        }
    }
    patterns.extend(own_patterns(node));
    let ways = Vec::from_iter(patterns.iter().filter_map(|pattern| ways.get(pattern)));
    match are_too_many(ways.into_iter()) {
        true => Err(format!(
            "{} patterns could apply to one text by `allOf`, `anyOf`, `oneOf` or `$ref`; use fewer \
             or simpler ones there",
            patterns.len()
        )),
        false => Ok(()),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn own_patterns(node: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = node.get("patternProperties").and_then(Value::as_object);
    let names = names.into_iter().flat_map(|names| names.keys().map(String::as_str));
    node.get("pattern").and_then(Value::as_str).into_iter().chain(names)
}

/// What a reference refers to; what it can't be told of is the whole schema.
fn reference<'a>(
    root: &'a Value,
    node: &Map<String, Value>,
    steps: &mut Steps<'_>,
) -> Result<Option<&'a Value>, String> {
    let Some(reference) = node.get("$ref").and_then(Value::as_str) else { return Ok(None) };
    steps.take(reference.len())?;
    let pointer = reference.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
    Ok(Some(pointer.and_then(|pointer| root.pointer(pointer)).unwrap_or(root)))
}

/// About how many ways a text has to go on within a pattern: one for each repetition and alternative,
/// and for each of the times that something is counted to come.
fn ways_of(pattern: &str) -> u64 {
    let operators = pattern.chars().filter(|c| "|*+?{".contains(*c)).count() as u64;
    let counts = pattern.split('{').skip(1).map(|rest| {
        let numbers = rest.split('}').next().unwrap_or_default().split(',');
        numbers.filter_map(|number| number.trim().parse().ok()).max().unwrap_or(0)
    });
    2 + counts.fold(operators, u64::saturating_add)
}

/// Refuses intersections, which have no bound, and checks schemas and expressions within a grammar.
fn check_grammar(grammar: &str, steps: &mut Steps<'_>) -> Result<(), String> {
    let mut rest = grammar;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => 1 + until(&rest[1..], '"'),
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' => {
                let length = 1 + until(&rest[1..], '/');
                bounded("a regular expression", length, LONGEST_REGEX)?;
                length
            }
            '<' => match rest.find(|c: char| c == '>' || c.is_whitespace()) {
                Some(end) if rest[end..].starts_with('>') => end + 1,
                _ => 1,
            },
            '&' => {
                return Err("intersections (`&`) are not supported in grammars".to_owned());
            }
            '%' => match ["%json", "%llguidance", "%regex"]
                .iter()
                .find_map(|name| rest.strip_prefix(name))
            {
                Some(after) => {
                    let mut values = serde_json::Deserializer::from_str(after).into_iter();
                    let value: Option<Value> = values.next().and_then(Result::ok);
                    value.as_ref().map_or(Ok(()), |schema| check_schema(schema, steps))?;
                    rest.len() - after.len() + values.byte_offset()
                }
                None => 1,
            },
            other => other.len_utf8(),
        };
        rest = &rest[length.min(rest.len())..];
    }
    Ok(())
}

/// Bytes up to and with an end that no backslash stands before.
fn until(text: &str, end: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == end => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}
