//! The text of a grammar to its rules.

use super::rules::{Class, Node, Rules};
use std::collections::BTreeMap;

/// Where a text begins.
const ROOT: &str = "root";
const DEFINES: &str = "::=";
/// The most that a repetition may count.
const MOST_TIMES: u32 = i32::MAX as u32;
/// The longest text that a grammar may demand; no context has room for it.
const MOST_CHARACTERS: u64 = 1 << 24;

/// Whether the first thing of a text is a definition.
pub(super) fn begins_with_definition(grammar: &str) -> bool {
    let mut reader = Reader { rest: grammar, line: 1 };
    reader.skip_space();
    reader.is_at_definition()
}

pub(super) fn read(grammar: &str) -> Result<Rules, String> {
    let mut reader = Reader { rest: grammar, line: 1 };
    let mut names = Names::default();
    loop {
        reader.skip_space();
        if reader.rest.is_empty() {
            return names.finish();
        }
        let line = reader.line;
        let name = reader.name();
        if name.is_empty() || !reader.takes_after_space(DEFINES) {
            return Err(reader.wrong("a rule is wanted, as `name ::= ..`"));
        }
        let rule = names.number(name, line);
        let body = reader.choice(&mut names)?;
        if let Some((other, _)) = names.rules[rule].body.replace((line, body)) {
            return Err(format!("line {line}: `{name}` has been defined in line {other}"));
        }
    }
}

/// The rules by their names, as they come up.
#[derive(Default)]
struct Names<'g> {
    numbers: BTreeMap<&'g str, usize>,
    rules: Vec<Named<'g>>,
}

struct Named<'g> {
    name: &'g str,
    /// Where it came up first.
    line: usize,
    body: Option<(usize, Node)>,
}

impl<'g> Names<'g> {
    fn number(&mut self, name: &'g str, line: usize) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            self.rules.push(Named { name, line, body: None });
            self.rules.len() - 1
        })
    }

    fn finish(self) -> Result<Rules, String> {
        let root = self.numbers.get(ROOT);
        let root =
            *root.ok_or_else(|| format!("no rule is called `{ROOT}`: a text begins there"))?;
        let (mut bodies, mut named) = (Vec::new(), Vec::new());
        for Named { name, line, body } in self.rules {
            let (line, body) =
                body.ok_or_else(|| format!("line {line}: no rule is called `{name}`"))?;
            bodies.push(body);
            named.push((line, name));
        }
        let rules = Rules { bodies, root };
        let least = rules.least();
        let endless = least.iter().zip(&named).find(|(least, _)| least.is_none());
        if let Some((_, (line, name))) = endless {
            let why = "whichever way it goes on, it comes to itself again";
            return Err(format!("line {line}: `{name}` never ends: {why}"));
        }
        if let Some(least) = least[root].filter(|least| *least > MOST_CHARACTERS) {
            let line = named[root].0;
            return Err(format!(
                "line {line}: the shortest text of `{ROOT}` has {least} characters, and \
                 {MOST_CHARACTERS} at most can be asked for"
            ));
        }
        Ok(rules)
    }
}

/// What is left of a grammar.
#[derive(Clone, Copy)]
struct Reader<'g> {
    rest: &'g str,
    line: usize,
}

impl<'g> Reader<'g> {
    fn wrong(&self, what: &str) -> String {
        let found: String = self.rest.chars().take(12).take_while(|c| *c != '\n').collect();
        let line = self.line;
        match self.rest.is_empty() {
            true => format!("line {line}: {what}, but the grammar ends"),
            false => format!("line {line}: {what}, not {found:?}"),
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = &self.rest[next.len_utf8()..];
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn takes(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn takes_after_space(&mut self, text: &str) -> bool {
        self.skip_space();
        self.takes(text)
    }

    /// White space and comments.
    fn skip_space(&mut self) {
        while let Some(next) = self.peek() {
            match next {
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                space if space.is_whitespace() => drop(self.next()),
                _ => return,
            }
        }
    }

    /// A name, empty where there is none.
    fn name(&mut self) -> &'g str {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let starts = self.peek().is_some_and(|first| is_of_name(first) && !"-.".contains(first));
        let end = self.rest.find(|c| !is_of_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(if starts { end } else { 0 });
        self.rest = rest;
        name
    }

    fn is_at_definition(mut self) -> bool {
        !self.name().is_empty() && self.takes_after_space(DEFINES)
    }

    fn choice(&mut self, names: &mut Names<'g>) -> Result<Node, String> {
        let mut alternatives = vec![self.sequence(names)?];
        while self.takes("|") {
            alternatives.push(self.sequence(names)?);
        }
        Ok(Node::choice(alternatives))
    }

    fn sequence(&mut self, names: &mut Names<'g>) -> Result<Node, String> {
        let mut parts = Vec::new();
        loop {
            self.skip_space();
            let part = match self.peek() {
                Some('"') => Node::Text(self.text()?),
                Some('[') => Node::Class(self.class()?),
                Some('.') => {
                    self.next();
                    Node::Class(Class { is_not: false, ranges: vec![('\0', char::MAX)] })
                }
                Some('(') => self.group(names)?,
                None | Some('|' | ')') => break,
                Some(_) if self.is_at_definition() => break,
                Some(_) => {
                    let line = self.line;
                    match self.name() {
                        "" => {
                            return Err(self.wrong("a text, a class, a group or a rule is wanted"));
                        }
                        name => Node::Rule(names.number(name, line)),
                    }
                }
            };
            parts.push(self.repeated(part)?);
        }
        match parts.is_empty() {
            true => Err(self.wrong("something to come is wanted (`\"\"` is an empty text)")),
            false => Ok(Node::sequence(parts)),
        }
    }

    fn group(&mut self, names: &mut Names<'g>) -> Result<Node, String> {
        let begun = self.line;
        self.next();
        if self.rest.starts_with('=') {
            return Err(format!("line {begun}: what follows can't be asked for: `(= ..)`"));
        }
        let inner = self.choice(names)?;
        match self.takes(")") {
            true => Ok(inner),
            false => Err(self.wrong(&format!("a `)` is wanted for the `(` of line {begun}"))),
        }
    }

    fn repeated(&mut self, part: Node) -> Result<Node, String> {
        self.skip_space();
        let (least, most) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted(part),
            _ => return Ok(part),
        };
        self.next();
        Ok(Node::Repeat(Box::new(part), least, most))
    }

    fn counted(&mut self, part: Node) -> Result<Node, String> {
        self.next();
        let least = self.times()?;
        self.skip_space();
        let most = match self.takes(",") {
            false => Some(least),
            true if self.is_before_brace() => None,
            true => Some(self.times()?),
        };
        if most.is_some_and(|most| most < least) {
            return Err(format!("line {}: a repetition ends below its beginning", self.line));
        }
        match self.takes_after_space("}") {
            true => Ok(Node::Repeat(Box::new(part), least, most)),
            false => Err(self.wrong("a `}` is wanted")),
        }
    }

    fn is_before_brace(mut self) -> bool {
        self.takes_after_space("}")
    }

    fn times(&mut self) -> Result<u32, String> {
        self.skip_space();
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let number = self.rest[..end].parse().ok().filter(|times| *times <= MOST_TIMES);
        let number = number.ok_or_else(|| self.wrong("a number of times is wanted"))?;
        self.rest = &self.rest[end..];
        Ok(number)
    }

    fn text(&mut self) -> Result<String, String> {
        let begun = self.line;
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escaped()?),
                Some(other) => text.push(other),
                None => return Err(format!("line {begun}: a text has no end: `\"` is wanted")),
            }
        }
    }

    fn class(&mut self) -> Result<Class, String> {
        let begun = self.line;
        self.next();
        let is_not = self.takes("^");
        let mut ranges = Vec::new();
        while !self.takes("]") {
            let no_end = || format!("line {begun}: a class has no end: `]` is wanted");
            let first = self.of_class()?.ok_or_else(no_end)?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let last = match is_range {
                true => {
                    self.next();
                    self.of_class()?.ok_or_else(no_end)?
                }
                false => first,
            };
            if last < first {
                return Err(format!("line {begun}: {first:?} to {last:?} is no range of a class"));
            }
            ranges.push((first, last));
        }
        match ranges.is_empty() {
            true => Err(format!("line {begun}: a class has no character")),
            false => Ok(Class { is_not, ranges }),
        }
    }

    fn of_class(&mut self) -> Result<Option<char>, String> {
        match self.next() {
            Some('\\') => self.escaped().map(Some),
            other => Ok(other),
        }
    }

    /// The character that follows a backslash.
    fn escaped(&mut self) -> Result<char, String> {
        let at = *self;
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('a') => return Ok('\x07'),
            Some('b') => return Ok('\x08'),
            Some('v') => return Ok('\x0b'),
            Some('f') => return Ok('\x0c'),
            Some('e') => return Ok('\x1b'),
            Some('0') => return Ok('\0'),
            Some(itself) if itself.is_ascii_punctuation() => return Ok(itself),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(at.wrong("a backslash has an escape behind it")),
        };
        let number = self.rest.get(..digits).filter(|it| it.bytes().all(|b| b.is_ascii_hexdigit()));
        let character =
            number.and_then(|it| u32::from_str_radix(it, 16).ok()).and_then(char::from_u32);
        let character =
            character.ok_or_else(|| at.wrong("an escape is the number of a character"))?;
        self.rest = &self.rest[digits..];
        Ok(character)
    }
}
