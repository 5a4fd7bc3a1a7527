//! `%` behind a text, which Jinja leaves to Python: `'%s of %s' % (a, b)`.
//!
//! The engine has `%` for numbers alone, and lets nobody add to it. So before a template is read, each
//! `a % b` in it becomes a call of a function with both operands.

use std::borrow::Cow;
use std::ops::Range;

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value, context};

use super::python;

const FUNCTION: &str = "__percent__";
/// Its name and what its operands begin with.
const CALL: &str = "__percent__(";

/// Adds what templates that went through [`with_calls`] call.
pub(super) fn add_function(environment: &mut Environment<'_>) {
    environment.add_function(FUNCTION, percent);
}

fn percent(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let Some(format) = left.as_str() else {
        let numbers = state.env().compile_expression("left % right")?;
        return numbers.eval(context! { left, right });
    };
    let (format, arguments) = positional(format, &right)?;
    state.apply_filter("format", &[vec![Value::from(format)], arguments].concat())
}

fn wrong(what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// A format that takes its arguments one after the other, and these, written by Python's functions where
/// they are no numbers.
fn positional(format: &str, right: &Value) -> Result<(String, Vec<Value>), Error> {
    let mut given = match right.is_tuple() {
        true => Vec::from_iter(right.try_iter()?),
        false => vec![right.clone()],
    }
    .into_iter();
    let (mut out, mut arguments, mut names) = (String::new(), Vec::new(), false);
    let mut rest = format;
    while let Some((before, directive)) = rest.split_once('%') {
        out.push_str(before);
        out.push('%');
        rest = directive;
        if let Some(behind) = rest.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        let mut argument = None;
        if let Some((key, behind)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            let value = right.get_item(&Value::from(key))?;
            if value.is_undefined() {
                return Err(wrong(format!("the format names {key:?}, which there is not")));
            }
            (argument, rest, names) = (Some(value), behind, true);
        }
        let marks = |c: char| !"#0- +*.hlL".contains(c) && !c.is_ascii_digit();
        let end = rest.find(marks).unwrap_or(rest.len());
        let letter = rest[end..].chars().next().unwrap_or_default();
        let lacks = || wrong("not enough arguments for the format");
        for mark in rest[..end].chars() {
            match mark {
                '*' => out.push_str(&given.next().ok_or_else(lacks)?.to_string()),
                mark => out.push(mark),
            }
        }
        let value = argument.map_or_else(|| given.next().ok_or_else(lacks), Ok)?;
        let is_number = matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
        arguments.push(match letter {
            'r' | 'a' => python::repr(&value).into(),
            's' if !is_number => python::str(&value).into(),
            _ => value,
        });
        out.push(if "ra".contains(letter) { 's' } else { letter });
        rest = &rest[end + letter.len_utf8().min(rest.len() - end)..];
    }
    let may_be_left = names || right.kind() == ValueKind::Map;
    match given.next().is_some() && !may_be_left {
        true => Err(wrong("not all arguments are in the format")),
        false => Ok((out + rest, arguments)),
    }
}

/// A template with calls in the place of `%`.
pub(super) fn with_calls(source: &str) -> String {
    let mut edits = Vec::new();
    for expression in expressions(source) {
        calls(source, &expression, &mut edits);
    }
    // What begins at one place begins in the order in which it was found.
    edits.sort_by_key(|(place, _)| place.start);
    let (mut out, mut end) = (String::with_capacity(source.len()), 0);
    for (place, text) in edits {
        out.push_str(&source[end..place.start]);
        out.push_str(text);
        end = place.end;
    }
    out + &source[end..]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The name of the tag that a block begins with.
    Tag,
    Word,
    Literal,
    Open,
    Close,
    Operator,
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    place: Range<usize>,
}

/// The tokens within each `{{ .. }}` and `{% .. %}`.
fn expressions(source: &str) -> Vec<Vec<Token>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = source[at..].find('{').map(|start| at + start) {
        let rest = &source[start..];
        at = match rest.as_bytes().get(1) {
            Some(b'#') => end_of(source, start + 2, "#}"),
            Some(b'{') => {
                let (tokens, end) = tokens(source, start + 2, "}}");
                found.push(tokens);
                end
            }
            Some(b'%') => {
                let (mut tokens, end) = tokens(source, start + 2, "%}");
                let tag = tokens.iter_mut().find(|token| token.kind == Kind::Word);
                let is_raw = tag.as_ref().is_some_and(|tag| source[tag.place.clone()] == *"raw");
                if let Some(tag) = tag {
                    tag.kind = Kind::Tag;
                }
                found.push(tokens);
                if is_raw { end_of_raw(source, end) } else { end }
            }
            _ => start + 1,
        };
    }
    found
}

fn end_of(source: &str, from: usize, mark: &str) -> usize {
    source[from..].find(mark).map_or(source.len(), |end| from + end + mark.len())
}

fn end_of_raw(source: &str, mut from: usize) -> usize {
    while let Some(start) = source[from..].find("{%").map(|start| from + start) {
        let end = end_of(source, start, "%}");
        let tag = source[start + 2..end].trim_end_matches("%}");
        if tag.trim_matches(|c: char| "-+".contains(c) || c.is_whitespace()) == "endraw" {
            return end;
        }
        from = start + 2;
    }
    source.len()
}

/// The tokens up to the mark that ends them, and where what follows begins.
fn tokens(source: &str, from: usize, mark: &str) -> (Vec<Token>, usize) {
    let (mut tokens, mut at, mut depth) = (Vec::new(), from, 0_usize);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        if depth == 0 && rest.starts_with(mark) {
            return (tokens, at + mark.len());
        }
        let (kind, length) = match first {
            space if space.is_whitespace() => {
                at += space.len_utf8();
                continue;
            }
            quote @ ('"' | '\'') => (Kind::Literal, length_of_text(rest, quote)),
            digit if digit.is_ascii_digit() => (Kind::Literal, length_of_number(rest)),
            word if word.is_alphanumeric() || word == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                (Kind::Word, end.unwrap_or(rest.len()))
            }
            '(' | '[' | '{' => {
                depth += 1;
                (Kind::Open, 1)
            }
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                (Kind::Close, 1)
            }
            other => {
                let is_double = ["**", "//"].iter().any(|double| rest.starts_with(double));
                (Kind::Operator, if is_double { 2 } else { other.len_utf8() })
            }
        };
        tokens.push(Token { kind, place: at..at + length });
        at += length;
    }
    (tokens, source.len())
}

fn length_of_text(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            end if end == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn length_of_number(rest: &str) -> usize {
    let digits = |from: usize| {
        let end = rest[from..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        end.map_or(rest.len(), |end| from + end)
    };
    let whole = digits(0);
    let fraction = rest[whole..].strip_prefix('.');
    let has_fraction = fraction.is_some_and(|f| f.starts_with(|c: char| c.is_ascii_digit()));
    if has_fraction { digits(whole + 1) } else { whole }
}

/// What makes calls of every `%` of an expression that has operands.
fn calls(source: &str, tokens: &[Token], edits: &mut Vec<(Range<usize>, &'static str)>) {
    let text = |token: &Token| &source[token.place.clone()];
    for (at, token) in tokens.iter().enumerate() {
        if token.kind != Kind::Operator || text(token) != "%" {
            continue;
        }
        let reader = Reader { source, tokens };
        let (Some(start), Some(end)) = (reader.start_of_left(at), reader.end_of_unary(at + 1))
        else {
            continue;
        };
        let (start, end) = (tokens[start].place.start, tokens[end - 1].place.end);
        edits.push((start..start, CALL));
        edits.push((token.place.clone(), ","));
        edits.push((end..end, ")"));
    }
}

struct Reader<'s> {
    source: &'s str,
    tokens: &'s [Token],
}

/// Words that no operand has.
const KEYWORDS: [&str; 9] = ["and", "or", "not", "in", "is", "if", "else", "recursive", "elif"];

impl Reader<'_> {
    fn text(&self, at: usize) -> Option<&str> {
        Some(&self.source[self.tokens.get(at)?.place.clone()])
    }

    fn kind(&self, at: usize) -> Option<Kind> {
        let kind = self.tokens.get(at)?.kind;
        let is_keyword = kind == Kind::Word && KEYWORDS.contains(&self.text(at)?);
        Some(if is_keyword { Kind::Operator } else { kind })
    }

    /// Whether an operand ends with this token.
    fn ends_operand(&self, at: usize) -> bool {
        matches!(self.kind(at), Some(Kind::Word | Kind::Literal | Kind::Close))
    }

    /// The first token of what is left of an operator like `*`: all that binds as it does or tighter.
    fn start_of_left(&self, operator: usize) -> Option<usize> {
        let mut start = operator;
        while let Some(before) = start.checked_sub(1) {
            start = match self.kind(before)? {
                Kind::Word | Kind::Literal => before,
                Kind::Close => self.opening(before)?,
                Kind::Open | Kind::Tag => break,
                Kind::Operator => match self.text(before)? {
                    "." | "|" | "*" | "**" | "/" | "//" | "%" => before,
                    // Of one operand.
                    "-" | "+" if !before.checked_sub(1).is_some_and(|at| self.ends_operand(at)) => {
                        before
                    }
                    _ => break,
                },
            };
        }
        (start < operator && self.ends_operand(operator - 1)).then_some(start)
    }

    fn opening(&self, close: usize) -> Option<usize> {
        let mut depth = 0;
        for at in (0..=close).rev() {
            match self.kind(at)? {
                Kind::Close => depth += 1,
                Kind::Open if depth == 1 => return Some(at),
                Kind::Open => depth -= 1,
                _ => {}
            }
        }
        None
    }

    fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0;
        for at in open..self.tokens.len() {
            match self.kind(at)? {
                Kind::Open => depth += 1,
                Kind::Close if depth == 1 => return Some(at),
                Kind::Close => depth -= 1,
                _ => {}
            }
        }
        None
    }

    /// Behind the operand that begins with this token, with all that binds tighter than `%`.
    fn end_of_unary(&self, mut at: usize) -> Option<usize> {
        while matches!(self.text(at)?, "-" | "+") {
            at += 1;
        }
        let mut end = match self.kind(at)? {
            Kind::Word | Kind::Literal => at + 1,
            Kind::Open => self.closing(at)? + 1,
            Kind::Tag | Kind::Close | Kind::Operator => return None,
        };
        loop {
            end = match (self.kind(end), self.text(end)) {
                (Some(Kind::Open), Some("(" | "[")) => self.closing(end)? + 1,
                (Some(Kind::Operator), Some("." | "|")) => end + 2,
                (Some(Kind::Operator), Some("**")) => return self.end_of_unary(end + 1),
                // Texts side by side are one.
                (Some(Kind::Literal), _) => end + 1,
                _ => return (end <= self.tokens.len()).then_some(end),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_what_jinja_takes_for_them() {
        for (written, called) in [
            ("{{ 'a%s' % x }}", "{{ __percent__('a%s' , x) }}"),
            (
                "{{ a + b.c[0](1)|f(2) % -d.e|g + 1 }}",
                "{{ a + __percent__(b.c[0](1)|f(2) , -d.e|g) + 1 }}",
            ),
            ("{{ a * b % c ** d / e }}", "{{ __percent__(a * b , c ** d) / e }}"),
            ("{{ a % b % c }}", "{{ __percent__(__percent__(a , b) , c) }}"),
            ("{{ a % (b % c) }}", "{{ __percent__(a , (__percent__(b , c))) }}"),
            ("{{ (a % b)[c % d] }}", "{{ (__percent__(a , b))[__percent__(c , d)] }}"),
            ("{{ 2 - -a % 2 }}", "{{ 2 - __percent__(-a , 2) }}"),
            ("{{ 'x' ~ '%s' % (a, b) ~ 'y' }}", "{{ 'x' ~ __percent__('%s' , (a, b)) ~ 'y' }}"),
            ("{{ f(a, b=c % d) }}", "{{ f(a, b=__percent__(c , d)) }}"),
            ("{{ {'a': b % c}['a'] }}", "{{ {'a': __percent__(b , c)}['a'] }}"),
            ("{{ not a % 2 == 1.5 }}", "{{ not __percent__(a , 2) == 1.5 }}"),
            ("{%- if a % 2 %}%{% endif -%}", "{%- if __percent__(a , 2) %}%{% endif -%}"),
            ("{% set x = a % 2 if b else c %}", "{% set x = __percent__(a , 2) if b else c %}"),
            ("{% for x in a % b recursive %}", "{% for x in __percent__(a , b) recursive %}"),
            // No operators.
            ("100 % 3 {# a % b #} {{ '%' }}", "100 % 3 {# a % b #} {{ '%' }}"),
            ("{% raw %}{{ a % b }}{% endraw %}", "{% raw %}{{ a % b }}{% endraw %}"),
            ("{{ \"\\\"%\" }}{{ 'é % \\'' }}", "{{ \"\\\"%\" }}{{ 'é % \\'' }}"),
            // What is broken stays as it is.
            ("{{ % a }}{{ a % }}{{ (a % }}", "{{ % a }}{{ a % }}{{ (a % }}"),
            ("{{ a % b", "{{ __percent__(a , b)"),
        ] {
            assert_eq!(with_calls(written), called);
        }
    }
}
