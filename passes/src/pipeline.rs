//! Pipelines as text: `canonicalize,fold,split{at=[ns.op]},plan`.
//!
//! ```text
//! pipeline := [pass ("," pass)*]
//! pass     := name ["{" [option ("," option)*] "}"]
//! option   := name ["=" value]
//! value    := word | "[" [word ("," word)*] "]"
//! word     := one or more of a-z A-Z 0-9 _ . : * - /  |  '"' any but '"' '"'
//! ```

use derive_more::Display;
use std::collections::BTreeMap;

/// The order in which a model is compiled unless configured otherwise.
pub const DEFAULT_PIPELINE: &str =
    "canonicalize,fold,merge_matmuls,cse,dce,fuse,split,destination,plan";

/// The value of a pass option.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Display)]
pub enum OptionValue {
    /// `name`: present without a value.
    #[display("")]
    Flag,
    /// `name=word`
    #[display("{}", quoted(_0))]
    Word(String),
    /// `name=[word, word]`
    #[display("[{}]", _0.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(","))]
    List(Vec<String>),
}

/// The options of one pass, by name.
pub type Options = BTreeMap<String, OptionValue>;

/// A pass by name, with its options.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Display)]
#[display("{name}{}", braced(options))]
pub struct PassSpec {
    /// The name under which the registry knows it.
    pub name: String,
    /// What stands in its braces, by key.
    pub options: Options,
}

/// Passes in the order in which they run. Its `Display` is its canonical text, which parses back.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Display, Default)]
#[display("{}", passes.iter().map(PassSpec::to_string).collect::<Vec<_>>().join(","))]
pub struct Pipeline {
    /// The passes with their options, the first to run first.
    pub passes: Vec<PassSpec>,
}

/// Why a pipeline text can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum PipelineError {
    /// The text does not follow the grammar.
    #[error("pipeline column {column}: expected {expected}, found {found}")]
    Syntax {
        /// 1-based column, in characters.
        column: usize,
        /// What would have been accepted.
        expected: &'static str,
        /// The word or sign that is there instead.
        found: String,
    },
    /// An option is given twice.
    #[error("pass `{pass}`: option `{option}` is given twice; keep one")]
    DuplicateOption { pass: String, option: String },
    /// No pass has this name.
    #[error("unknown pass `{name}`{}; known passes: {}", did_you_mean(.suggestion), .known.join(", "))]
    UnknownPass {
        name: String,
        /// The nearest known name, if one is near.
        suggestion: Option<String>,
        /// Every name that the registry has.
        known: Vec<String>,
    },
    /// Something is to stop, print or dump after a pass that is not one of those that run.
    #[error("nothing can be stopped, printed or dumped after `{name}`, since no such pass runs{}; {}", did_you_mean(.suggestion), running_passes(.running))]
    NotRun {
        name: String,
        /// The nearest name of a pass that runs, if one is near.
        suggestion: Option<String>,
        /// Every pass that runs, in order.
        running: Vec<String>,
    },
    /// A pass is to run after one that the pipeline does not have.
    #[error("pass `{pass}` is to run after `{after}`, which the pipeline does not have{}; {}", did_you_mean(.suggestion), running_passes(.running))]
    NoPlace {
        pass: String,
        after: String,
        /// The nearest name of a pass that runs, if one is near.
        suggestion: Option<String>,
        /// Every pass that runs, in order.
        running: Vec<String>,
    },
    /// A pass is to be left out that the pipeline does not have.
    #[error("there is no pass `{name}` to leave out{}; {}", did_you_mean(.suggestion), running_passes(.running))]
    NotThere {
        name: String,
        /// The nearest name of a pass that runs, if one is near.
        suggestion: Option<String>,
        /// Every pass that runs, in order.
        running: Vec<String>,
    },
    /// A pass is to be left out that a plan can't do without.
    #[error("pass `{name}` can't be left out, since what runs is made by it; these can: {}", .others.join(", "))]
    Required {
        name: String,
        /// Every pass of the pipeline that can be left out, in order.
        others: Vec<String>,
    },
    /// The pass has no such option.
    #[error("pass `{pass}` has no option `{option}`{}; {}", did_you_mean(.suggestion), known_options(.known))]
    UnknownOption {
        pass: String,
        option: String,
        /// The nearest known name, if one is near.
        suggestion: Option<String>,
        /// Every option of the pass.
        known: Vec<String>,
    },
    /// An option's value is of the wrong kind.
    #[error("pass `{pass}`: option `{option}` has the value `{value}`, expected {expected}")]
    BadValue {
        pass: String,
        option: String,
        /// As it was written.
        value: String,
        /// What would have been accepted.
        expected: String,
    },
}

fn did_you_mean(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|s| format!(", did you mean `{s}`?")).unwrap_or_default()
}

fn running_passes(running: &[String]) -> String {
    match running.is_empty() {
        true => "no pass runs at all".to_owned(),
        false => format!("what runs: {}", running.join(", ")),
    }
}

fn known_options(known: &[String]) -> String {
    if known.is_empty() { "it has none".into() } else { format!("it has: {}", known.join(", ")) }
}

/// The name among `known` that `name` was probably meant to be: the most similar one, if it is
/// similar at all.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let similarity = |other: &str| similar::TextDiff::from_chars(name, other).ratio();
    known
        .into_iter()
        .map(|other| (similarity(other), other))
        .filter(|(ratio, _)| *ratio >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)))
        .map(|(_, other)| other.to_owned())
}

impl Pipeline {
    /// Parses a pipeline. Names are checked against a registry only when it is run.
    ///
    /// # Errors
    /// [`PipelineError::Syntax`] and [`PipelineError::DuplicateOption`].
    pub fn parse(text: &str) -> Result<Self, PipelineError> {
        let mut parser = Parser { chars: text.chars().collect(), at: 0 };
        let mut passes = Vec::new();
        if parser.peek().is_none() {
            return Ok(Self { passes });
        }
        loop {
            passes.push(parser.pass()?);
            match parser.peek() {
                None => return Ok(Self { passes }),
                Some(',') => parser.at += 1,
                Some(_) => return Err(parser.expected("`,` or the end")),
            }
        }
    }

    /// Has `pass` run right after the first pass that is called `after`.
    ///
    /// # Errors
    /// [`PipelineError::NoPlace`] where there is none.
    pub fn insert_after(&mut self, after: &str, pass: PassSpec) -> Result<(), PipelineError> {
        let Some(at) = self.passes.iter().position(|there| there.name == after) else {
            let running = || self.passes.iter().map(|there| there.name.as_str());
            return Err(PipelineError::NoPlace {
                pass: pass.name,
                after: after.to_owned(),
                suggestion: nearest(after, running()),
                running: running().map(str::to_owned).collect(),
            });
        };
        self.passes.insert(at + 1, pass);
        Ok(())
    }
}

/// What follows a pass's name.
fn braced(options: &Options) -> String {
    if options.is_empty() {
        return String::new();
    }
    let options = options.iter().map(|(name, value)| match value {
        OptionValue::Flag => name.clone(),
        _ => format!("{name}={value}"),
    });
    format!("{{{}}}", options.collect::<Vec<_>>().join(","))
}

fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.:*-/".contains(c)
}

fn quoted(word: &str) -> String {
    if !word.is_empty() && word.chars().all(is_word_char) {
        word.to_owned()
    } else {
        format!("\"{word}\"")
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
}

impl Parser {
    fn peek(&mut self) -> Option<char> {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
        self.chars.get(self.at).copied()
    }

    fn expected(&self, expected: &'static str) -> PipelineError {
        let found = self.chars.get(self.at).map_or("the end".into(), |c| format!("`{c}`"));
        PipelineError::Syntax { column: self.at + 1, expected, found }
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, expected: &'static str) -> Result<String, PipelineError> {
        if self.eat('"') {
            let start = self.at;
            while self.chars.get(self.at).is_some_and(|&c| c != '"') {
                self.at += 1;
            }
            let word = self.chars[start..self.at].iter().collect();
            if self.at == self.chars.len() {
                return Err(self.expected("a closing `\"`"));
            }
            self.at += 1;
            return Ok(word);
        }
        self.peek();
        let start = self.at;
        while self.chars.get(self.at).is_some_and(|&c| is_word_char(c)) {
            self.at += 1;
        }
        if start == self.at {
            return Err(self.expected(expected));
        }
        Ok(self.chars[start..self.at].iter().collect())
    }

    /// Items with commas between them, up to `close`, whose opening is read.
    fn items(
        &mut self,
        close: char,
        expected: &'static str,
        mut item: impl FnMut(&mut Self) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        if self.eat(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.eat(close) {
                return Ok(());
            }
            if !self.eat(',') {
                return Err(self.expected(expected));
            }
        }
    }

    fn pass(&mut self) -> Result<PassSpec, PipelineError> {
        let name = self.word("a pass name")?;
        let mut options = Options::new();
        if self.eat('{') {
            self.items('}', "`,` or `}`", |p| {
                let option = p.word("an option name")?;
                let value = if p.eat('=') { p.value()? } else { OptionValue::Flag };
                if options.insert(option.clone(), value).is_some() {
                    return Err(PipelineError::DuplicateOption { pass: name.clone(), option });
                }
                Ok(())
            })?;
        }
        Ok(PassSpec { name, options })
    }

    fn value(&mut self) -> Result<OptionValue, PipelineError> {
        if !self.eat('[') {
            return Ok(OptionValue::Word(self.word("a value")?));
        }
        let mut words = Vec::new();
        self.items(']', "`,` or `]`", |p| {
            words.push(p.word("a list element")?);
            Ok(())
        })?;
        Ok(OptionValue::List(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_parses() {
        let text = "canonicalize,split{at=[ns.op,\"a b\"],cap=4,quiet},plan{at=[]}";
        let pipeline = Pipeline::parse(text).unwrap();
        assert_eq!(pipeline.to_string(), text);
        assert_eq!(pipeline.passes[1].options["cap"], OptionValue::Word("4".into()));
        assert_eq!(pipeline.passes[2].options["at"], OptionValue::List(vec![]));
        let spaced = Pipeline::parse(" canonicalize , split { at = [ ns.op ] } ").unwrap();
        assert_eq!(spaced.to_string(), "canonicalize,split{at=[ns.op]}");
        assert_eq!(Pipeline::parse("  ").unwrap(), Pipeline::default());
        assert_eq!(Pipeline::parse(DEFAULT_PIPELINE).unwrap().to_string(), DEFAULT_PIPELINE);
    }

    #[test]
    fn says_where_the_text_breaks() {
        let error = |text: &str| Pipeline::parse(text).unwrap_err().to_string();
        assert_eq!(error("a,"), "pipeline column 3: expected a pass name, found the end");
        assert_eq!(error("a b"), "pipeline column 3: expected `,` or the end, found `b`");
        assert_eq!(error("a{x=}"), "pipeline column 5: expected a value, found `}`");
        assert_eq!(error("a{x=[b"), "pipeline column 7: expected `,` or `]`, found the end");
        assert_eq!(error("a{x=\"b"), "pipeline column 7: expected a closing `\"`, found the end");
        assert_eq!(error("a{x,x}"), "pass `a`: option `x` is given twice; keep one");
    }

    #[test]
    fn suggests_only_what_is_near() {
        let known = ["canonicalize", "fold", "fuse", "split"];
        assert_eq!(nearest("canonicalise", known), Some("canonicalize".into()));
        assert_eq!(nearest("fues", known), Some("fuse".into()));
        assert_eq!(nearest("zzz", known), None);
    }
}
