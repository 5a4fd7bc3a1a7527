//! Which ids may come next, by a structure.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::{Logger, Matcher, ParserFactory};
use piecewise::models::Vocabulary;
use piecewise_runtime::engine::TokenConstraint;
use serde_json::json;
use toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use super::bounds::{self, Wanted, still_wanted};
use super::ebnf;
use super::structure::{FieldError, Structure};
use super::thoughts::{AfterThoughts, MarkIds, Thoughts};

/// White space between the parts of a JSON value. Without a bound, a model may write nothing else
/// for ever.
const WHITE_SPACE: &str = r"[ \t\n]{1,20}";
/// Characters of an error that are shown; grammars can be long.
const LONGEST_ERROR: usize = 400;
/// The stack of the thread that a structure is read on: what refers to what is followed as deep as it
/// goes, and the bounds of what is written bound that. Only what is used of it takes memory.
const STACK: usize = 512 << 20;
/// How much may be built of a grammar or an expression before it is used, and how many states it may
/// have then: some kilobytes each.
const GRAMMAR_FUEL: u64 = 50_000;
const MOST_STATES: usize = 20_000;

/// Why a model can't keep to structures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StructureError {
    /// No id could end a reply that keeps to a structure.
    #[error("the model has no ids that end a reply, and a structure needs one to end by")]
    NoEnd,
    /// An id is not one of the model's.
    #[error("the id {id} is said to end a reply, but the model has {ids} ids")]
    EndOutOfRange {
        /// The token that was said to end replies.
        id: u32,
        /// How many ids the model has.
        ids: usize,
    },
    /// The tokenizer can't be used.
    #[error("masks can't be made from this tokenizer: {0}")]
    Tokenizer(String),
}

/// Makes constraints of structures for one model.
#[derive(derive_more::Debug)]
#[debug("Structures {{ .. }}")]
pub struct Structures {
    factory: ParserFactory,
    vocabulary: Vocabulary,
    end_ids: Arc<[u32]>,
    /// Those of the marks that were asked for last: a model has one kind.
    marks: Mutex<Option<Arc<MarkIds>>>,
}

impl Structures {
    /// For a model of such ids, of which `end_ids` end a reply. Takes up to a second for a large
    /// vocabulary.
    ///
    /// # Errors
    /// When there are no such ids, or the vocabulary is none to make masks from.
    pub fn new(vocabulary: &Vocabulary, end_ids: &[u32]) -> Result<Self, StructureError> {
        let ids = vocabulary.len();
        let Some(&first_end) = end_ids.first() else { return Err(StructureError::NoEnd) };
        if let Some(&id) = end_ids.iter().find(|id| **id as usize >= ids) {
            return Err(StructureError::EndOutOfRange { id, ids });
        }
        let count = u32::try_from(ids).unwrap_or(u32::MAX);
        let words: Vec<Vec<u8>> = (0..count)
            .map(|id| {
                let bytes = vocabulary.bytes(id);
                let is_text = !vocabulary.is_special(id) && !end_ids.contains(&id);
                let marker: &[u8] = if is_text { &[] } else { &[TokTrie::SPECIAL_TOKEN_MARKER] };
                // An id without text is never allowed.
                if bytes.is_empty() { Vec::new() } else { [marker, bytes].concat() }
            })
            .collect();
        let factory = catch_unwind(std::panic::AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(count, first_end), &words);
            let environment: TokEnv =
                Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(end_ids)));
            let mut factory = ParserFactory::new_simple(&environment)?;
            let limits = factory.quiet().limits_mut();
            limits.verbose_errors = false;
            limits.max_lexer_states = MOST_STATES;
            Ok(factory)
        }));
        factory
            .map(|factory| Self {
                factory,
                vocabulary: vocabulary.clone(),
                end_ids: end_ids.into(),
                marks: Mutex::default(),
            })
            .map_err(|error| StructureError::Tokenizer(shortened(&error.to_string())))
    }

    /// The text of ids, with that of special ones.
    pub fn text(&self, ids: &[u32]) -> String {
        let bytes = ids.iter().flat_map(|id| self.vocabulary.bytes(*id)).copied();
        String::from_utf8_lossy(&Vec::from_iter(bytes)).into_owned()
    }

    /// The constraint of a request's reply, or of what comes after its thoughts where it may have
    /// some. Thoughts are free but for ids that end the reply, or that end the thoughts and say more:
    /// what follows is for the structure alone. Where a reply does not begin within them, its first id
    /// may begin them, if one id stands for their beginning.
    ///
    /// Takes milliseconds for a large schema, and a second for the worst that is taken; it is given up
    /// sooner where it is no longer `wanted`.
    ///
    /// # Errors
    /// When the structure is none, or asks for what can't be kept to, or nobody wants it any more;
    /// `field` is what the request calls it.
    pub fn constraint(
        &self,
        structure: &Structure,
        field: &str,
        thoughts: Option<Thoughts>,
        wanted: Wanted<'_>,
    ) -> Result<Box<dyn TokenConstraint>, FieldError> {
        let refused = |why: &str| FieldError::new(field, shortened(why));
        bounds::check(structure, wanted).map_err(|why| refused(&why))?;
        let thread = std::thread::Builder::new().name("structure".to_owned()).stack_size(STACK);
        let made = std::thread::scope(|scope| {
            let thread = thread.spawn_scoped(scope, || self.read(structure, wanted));
            let thread =
                thread.map_err(|error| format!("there is no thread to read it: {error}"))?;
            thread.join().map_err(|_| "it can't be read".to_owned())?
        });
        let made: Box<dyn TokenConstraint> = Box::new(made.map_err(|why| refused(&why))?);
        let Some(thoughts) = thoughts else { return Ok(made) };
        let vocabulary = self.vocabulary.clone();
        Ok(Box::new(AfterThoughts::new(thoughts.begun, self.marks_of(thoughts), vocabulary, made)))
    }

    fn marks_of(&self, thoughts: Thoughts) -> Arc<MarkIds> {
        let mut known = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = known.take().filter(|marks| marks.is_of(thoughts));
        let marks = fit
            .unwrap_or_else(|| Arc::new(MarkIds::find(thoughts, &self.vocabulary, &self.end_ids)));
        Arc::clone(known.insert(marks))
    }

    fn read(&self, structure: &Structure, wanted: Wanted<'_>) -> Result<GrammarConstraint, String> {
        still_wanted(wanted)?;
        let grammar = grammar(structure)?;
        let mut limits = self.factory.limits().clone();
        if matches!(structure, Structure::Regex(_) | Structure::Grammar(_)) {
            limits.initial_lexer_fuel = GRAMMAR_FUEL;
        }
        let create = || {
            let grammar = GrammarInit::Serialized(grammar);
            let capabilities = InferenceCapabilities::default();
            self.factory.create_parser_from_init_ext(
                grammar,
                Logger::new(0, 0),
                capabilities,
                limits,
            )
        };
        let parser = catch_unwind(std::panic::AssertUnwindSafe(create));
        let mut matcher = Matcher::new(parser);
        if let Some(error) = matcher.get_error() {
            return Err(error);
        }
        still_wanted(wanted)?;
        // Some have no text at all, which shows at the first mask.
        let first = matcher.compute_mask_or_eos().map_err(|_| {
            let why = matcher.get_error().unwrap_or_default();
            match why.contains("NoExtension") {
                true => "there is no text that keeps to it".to_owned(),
                false => why,
            }
        })?;
        Ok(GrammarConstraint { matcher, first: Some(first) })
    }
}

fn grammar(structure: &Structure) -> Result<TopLevelGrammar, String> {
    Ok(match structure {
        Structure::JsonSchema(schema) => {
            let mut schema = schema.clone();
            if let Some(fields) = schema.as_object_mut() {
                let options = json!({"whitespace_pattern": WHITE_SPACE});
                fields.entry("x-guidance").or_insert(options);
            }
            TopLevelGrammar::from_json_schema(schema)
        }
        Structure::Regex(regex) => TopLevelGrammar::from_regex(regex),
        Structure::Grammar(grammar) if ebnf::is_ebnf(grammar) => {
            TopLevelGrammar::from_lark(ebnf::to_lark(grammar)?)
        }
        Structure::Grammar(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
        Structure::Choice(texts) => {
            // One expression: as rules of their own, thousands take minutes.
            let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
            TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", texts.join(" | ")))
        }
    })
}

fn shortened(error: &str) -> String {
    let error = error.split("\n<backtrace>").next().unwrap_or(error).trim();
    match error.char_indices().nth(LONGEST_ERROR) {
        Some((end, _)) => format!("{}…", &error[..end]),
        None => error.to_owned(),
    }
}

#[derive(Clone, derive_more::Debug)]
#[debug("GrammarConstraint {{ stopped: {}, .. }}", matcher.is_stopped())]
struct GrammarConstraint {
    matcher: Matcher,
    /// The mask of the first id, until there is one.
    first: Option<SimpleVob>,
}

impl TokenConstraint for GrammarConstraint {
    fn duplicate(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }

    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        let set = match &self.first {
            Some(first) => first.clone(),
            None => self.matcher.compute_mask_or_eos().map_err(|e| shortened(&e.to_string()))?,
        };
        for (word, allowed) in mask.iter_mut().zip(set.as_slice()) {
            *word = *allowed;
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<bool, String> {
        self.first = None;
        if !self.matcher.is_stopped() {
            self.matcher.consume_token(id).map_err(|e| shortened(&e.to_string()))?;
        }
        Ok(self.matcher.is_stopped())
    }
}
