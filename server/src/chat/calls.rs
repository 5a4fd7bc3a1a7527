//! What Jinja leaves to Python, as calls of functions that do as Python does.
//!
//! The engine has `%` for numbers alone, knows no difference between `map.items` and `map['items']`, and
//! lets nobody add to either. So before a template is read, each `a % b` in it becomes
//! `__percent__(a , b)`, and each `a.items` of a name that Python's maps have a method of
//! `__method__(a,'items')`, also where it is called.

use std::cmp::Reverse;
use std::ops::Range;

use minijinja::Environment;

use super::{methods, percent};

/// The methods of Python's maps, which go before their keys.
const OF_MAPS: [&str; 9] =
    ["items", "keys", "values", "get", "pop", "copy", "update", "clear", "setdefault"];

/// Adds what templates that went through [`with_calls`] call.
pub(super) fn add_functions(environment: &mut Environment<'_>) {
    environment.add_function("__percent__", percent::percent);
    environment.add_function("__method__", methods::bound);
}

/// A template with calls in the place of what the engine does another way.
pub(super) fn with_calls(source: &str) -> String {
    let mut edits = Vec::<Edit>::new();
    for expression in expressions(source) {
        Reader { source, tokens: &expression }.edit(&mut edits);
    }
    // At one place calls end before others begin, of which the one that ends last holds the others.
    edits.sort_by_key(|Edit { place, end, .. }| {
        (place.start, !place.is_empty(), *end != place.start, Reverse(*end))
    });
    let (mut out, mut end) = (String::with_capacity(source.len()), 0);
    for Edit { place, text, .. } in edits {
        out.push_str(&source[end..place.start]);
        out.push_str(&text);
        end = place.end;
    }
    out + &source[end..]
}

/// What stands somewhere instead.
struct Edit {
    place: Range<usize>,
    text: String,
    /// Where the call ends that it is of.
    end: usize,
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

struct Reader<'s> {
    source: &'s str,
    tokens: &'s [Token],
}

/// Words that no operand has.
const KEYWORDS: [&str; 9] = ["and", "or", "not", "in", "is", "if", "else", "recursive", "elif"];

impl Reader<'_> {
    fn edit(&self, edits: &mut Vec<Edit>) {
        for (at, token) in self.tokens.iter().enumerate() {
            match self.text(at) {
                Some("%") if token.kind == Kind::Operator => self.edit_percent(at, edits),
                Some(".") if self.is_method(at + 1) => self.edit_method(at, edits),
                _ => {}
            }
        }
    }

    fn edit_percent(&self, at: usize, edits: &mut Vec<Edit>) {
        let (start, end) = (self.start_of_left(at), self.end_of_unary(at + 1));
        let (Some(start), Some(end)) = (start, end) else { return };
        let (start, end) = (self.tokens[start].place.start, self.tokens[end - 1].place.end);
        let edit = |place, text: &str| Edit { place, text: text.to_owned(), end };
        edits.push(edit(start..start, "__percent__("));
        edits.push(edit(self.tokens[at].place.clone(), ","));
        edits.push(edit(end..end, ")"));
    }

    /// Whether a token is a method of maps that is not set here.
    fn is_method(&self, at: usize) -> bool {
        let [next, one_more] = [at + 1, at + 2].map(|at| self.text(at));
        let is_set = next == Some("=") && one_more != Some("=");
        self.text(at).is_some_and(|name| OF_MAPS.contains(&name)) && !is_set
    }

    fn edit_method(&self, dot: usize, edits: &mut Vec<Edit>) {
        let Some(start) = self.start_of_primary(dot) else { return };
        let start = self.tokens[start].place.start;
        let (dot, name) = (&self.tokens[dot].place, &self.tokens[dot + 1].place);
        let edit = |place, text| Edit { place, text, end: name.end };
        edits.push(edit(start..start, "__method__(".to_owned()));
        edits.push(edit(dot.start..name.end, format!(",'{}')", &self.source[name.clone()])));
    }

    /// The first token of what a `.` is behind: a name, a value or a group with what is called and looked
    /// up of it.
    fn start_of_primary(&self, dot: usize) -> Option<usize> {
        let mut start = dot.checked_sub(1).filter(|at| self.ends_operand(*at))?;
        loop {
            let is_group = self.kind(start)? == Kind::Close;
            start = if is_group { self.opening(start)? } else { start };
            let before = start.checked_sub(1);
            start = match before {
                // Called or looked up.
                Some(before)
                    if is_group && self.text(start) != Some("{") && self.ends_operand(before) =>
                {
                    before
                }
                Some(before) if self.text(before) == Some(".") => {
                    before.checked_sub(1).filter(|at| self.ends_operand(*at))?
                }
                _ => return Some(start),
            };
        }
    }

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
    use proptest::prelude::*;

    #[test]
    fn operands_are_what_jinja_takes_for_them() {
        for (written, called) in [
            ("{{ 'a%s' % x }}", "{{ __percent__('a%s' , x) }}"),
            (
                "{{ a + b.c[0](1)|f(2) % -d.e|g + 1 }}",
                "{{ a + __percent__(b.c[0](1)|f(2) , -d.e|g) + 1 }}",
            ),
            ("{{ a * b % c ** d / e }}", "{{ __percent__(a * b , c ** d) / e }}"),
            ("{{a%b%c}}", "{{__percent__(__percent__(a,b),c)}}"),
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
            (
                "{% for k, v in a.b['c'].items() %}",
                "{% for k, v in __method__(a.b['c'],'items')() %}",
            ),
            (
                "{{ a.items.type ~ f(x).keys }}",
                "{{ __method__(a,'items').type ~ __method__(f(x),'keys') }}",
            ),
            ("{{ {'a': 1}.items() }}", "{{ __method__({'a': 1},'items')() }}"),
            (
                "{{ a.get(b.get('c')).get }}",
                "{{ __method__(__method__(a,'get')(__method__(b,'get')('c')),'get') }}",
            ),
            ("{{ a.items()|list % 2 }}", "{{ __percent__(__method__(a,'items')()|list , 2) }}"),
            (
                "{{ x in (a).values() and b.c.get == 1 }}",
                "{{ x in __method__((a),'values')() and __method__(b.c,'get') == 1 }}",
            ),
            ("{% set ns.items = 1 %}{{ ns.itemset }}", "{% set ns.items = 1 %}{{ ns.itemset }}"),
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

    proptest! {
        /// However broken a template is; and one that has nothing to call stays as it is.
        #[test]
        fn every_text_is_read_to_its_end(
            parts in prop::collection::vec(prop::sample::select(vec![
                "{{", "}}", "{%", "%}", "{#", "#}", "-", "raw", "endraw", "%", ".items", ".get", "(", ")", "[",
                "]", "{", "}", "'", "\"", "\\", "a", "é", "1", ".", "|", "*", "**", "=", " ", "\n", ",", "in",
            ]), 0..40),
        ) {
            let template = parts.concat();
            let called = with_calls(&template);
            let may_call = |part: &&str| [".", "%", ".items", ".get"].contains(part);
            if !parts.iter().any(may_call) {
                prop_assert_eq!(called, template);
            }
        }
    }
}
