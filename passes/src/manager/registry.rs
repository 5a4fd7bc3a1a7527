//! The registry: which passes a pipeline may name, and how they are made from options.

use super::pass::Pass;
use crate::pipeline::{OptionValue, PassSpec, Pipeline, PipelineError, nearest};
use std::collections::BTreeMap;
use std::sync::Arc;

type Make = dyn Fn(&mut OptionReader<'_>) -> Result<Box<dyn Pass>, PipelineError> + Send + Sync;

#[derive(Clone)]
struct Entry {
    options: Vec<String>,
    make: Arc<Make>,
}

/// The passes that a pipeline's text can name, with the options that each takes.
#[derive(Clone, Default, derive_more::Debug)]
#[debug("{:?}", entries.keys().collect::<Vec<_>>())]
pub struct Registry {
    entries: BTreeMap<String, Entry>,
}

impl Registry {
    /// Adds a pass under `name`, with the names of the options it takes; what else it needs, `make`
    /// may bring. A pass of the same name is replaced.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        options: &[&str],
        make: impl Fn(&mut OptionReader<'_>) -> Result<Box<dyn Pass>, PipelineError>
        + Send
        + Sync
        + 'static,
    ) {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        self.entries.insert(name.into(), Entry { options, make: Arc::new(make) });
    }

    /// The names of the passes, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Makes the pass that `spec` names.
    ///
    /// # Errors
    /// When no pass has that name, or the pass refuses an option.
    pub fn make(&self, spec: &PassSpec) -> Result<Box<dyn Pass>, PipelineError> {
        let Some(entry) = self.entries.get(spec.name.as_str()) else {
            return Err(PipelineError::UnknownPass {
                name: spec.name.clone(),
                suggestion: nearest(&spec.name, self.names()),
                known: self.names().map(str::to_owned).collect(),
            });
        };
        for option in spec.options.keys() {
            if !entry.options.contains(option) {
                return Err(PipelineError::UnknownOption {
                    pass: spec.name.clone(),
                    option: option.clone(),
                    suggestion: nearest(option, entry.options.iter().map(String::as_str)),
                    known: entry.options.clone(),
                });
            }
        }
        (entry.make)(&mut OptionReader { spec })
    }

    /// What is left of a pipeline without the passes of these names.
    ///
    /// # Errors
    /// [`PipelineError::NotThere`], [`PipelineError::Required`] of those that [say
    /// so](Pass::is_required), and when the registry lacks a pass.
    pub fn without(
        &self,
        mut pipeline: Pipeline,
        names: &[String],
    ) -> Result<Pipeline, PipelineError> {
        for name in names {
            let passes = || pipeline.passes.iter();
            let Some(spec) = passes().find(|spec| spec.name == *name) else {
                let running = || passes().map(|spec| spec.name.as_str());
                return Err(PipelineError::NotThere {
                    name: name.clone(),
                    suggestion: nearest(name, running()),
                    running: running().map(str::to_owned).collect(),
                });
            };
            if self.make(spec)?.is_required() {
                let can_go =
                    |spec: &&PassSpec| self.make(spec).is_ok_and(|pass| !pass.is_required());
                let others = passes().filter(can_go).map(|spec| spec.name.clone()).collect();
                return Err(PipelineError::Required { name: name.clone(), others });
            }
            pipeline.passes.retain(|spec| spec.name != *name);
        }
        Ok(pipeline)
    }
}

/// Reads the options of one pipeline entry with their types.
#[derive(Debug)]
pub struct OptionReader<'a> {
    spec: &'a PassSpec,
}

impl OptionReader<'_> {
    fn bad(&self, option: &str, value: &OptionValue, expected: &str) -> PipelineError {
        PipelineError::BadValue {
            pass: self.spec.name.clone(),
            option: option.to_owned(),
            value: value.to_string(),
            expected: expected.to_owned(),
        }
    }

    /// Whether the flag `option` is given: bare, or as `true` or `false`.
    ///
    /// # Errors
    /// [`PipelineError::BadValue`] for another value.
    pub fn flag(&self, option: &str) -> Result<bool, PipelineError> {
        match self.spec.options.get(option) {
            None => Ok(false),
            Some(OptionValue::Flag) => Ok(true),
            Some(OptionValue::Word(w)) if w == "true" => Ok(true),
            Some(OptionValue::Word(w)) if w == "false" => Ok(false),
            Some(value) => Err(self.bad(option, value, "no value, `true` or `false`")),
        }
    }

    /// The whole number `option`, if it is given; `_` may separate digits.
    ///
    /// # Errors
    /// [`PipelineError::BadValue`] when it is no number.
    pub fn number(&self, option: &str) -> Result<Option<u64>, PipelineError> {
        match self.spec.options.get(option) {
            None => Ok(None),
            Some(value @ OptionValue::Word(w)) => match w.replace('_', "").parse() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(self.bad(option, value, "a whole number")),
            },
            Some(value) => Err(self.bad(option, value, "a whole number")),
        }
    }

    /// The word `option`, if it is given.
    ///
    /// # Errors
    /// [`PipelineError::BadValue`] when it is no word.
    pub fn word(&self, option: &str) -> Result<Option<String>, PipelineError> {
        match self.spec.options.get(option) {
            None => Ok(None),
            Some(OptionValue::Word(w)) => Ok(Some(w.clone())),
            Some(value) => Err(self.bad(option, value, "one word")),
        }
    }

    /// The list `option`, if it is given; one word stands for a list of it.
    ///
    /// # Errors
    /// [`PipelineError::BadValue`] when it is a bare flag.
    pub fn list(&self, option: &str) -> Result<Option<Vec<String>>, PipelineError> {
        match self.spec.options.get(option) {
            None => Ok(None),
            Some(OptionValue::List(words)) => Ok(Some(words.clone())),
            Some(OptionValue::Word(w)) => Ok(Some(vec![w.clone()])),
            Some(value) => Err(self.bad(option, value, "a list such as `[a,b]`")),
        }
    }
}
