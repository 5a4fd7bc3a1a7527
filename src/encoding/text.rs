//! Texts to embeddings, many in a step.

use super::packing::pack;
use crate::assembly::{Assembly, AssemblyError, Notice};
use crate::models::encoder::{EncoderBounds, EncoderError, TextEncoderConfig, TextOutput};
use crate::models::tokenizer::check_token_ids;
use crate::models::{
    Checkpoint, CheckpointError, ConfigError as FolderError, TextTokenizer, TokenizerError,
    check_weights,
};
use crate::session::{Session, SessionError};
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::{ConfigError, ConfigLayers};
use piecewise_runtime::stats::Statistics;
use std::path::Path;

/// Why there is no encoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The folder's configuration.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its weights.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The graph.
    #[error(transparent)]
    Graph(#[from] EncoderError),
    /// What the graph is put together with.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
}

/// Why an item has no outputs. Others of the same call have theirs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ItemError {
    /// It has no tokens, or one that the model does not know, or can't be encoded.
    #[error(transparent)]
    Tokens(#[from] TokenizerError),
    /// The model has no positions for it.
    #[error("{tokens} tokens, but the model reads at most {longest}; cut the text")]
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// The most.
        longest: usize,
    },
    /// No step is large enough.
    #[error(
        "{tokens} tokens, but a step has at most {max_num_tokens} (max_num_tokens); raise it or cut \
         the text"
    )]
    LargerThanAStep {
        /// Its tokens.
        tokens: usize,
        /// The most.
        max_num_tokens: u64,
    },
    /// It brings token types of another number than its tokens, or that the model does not have.
    #[error("{reason}")]
    TokenTypes {
        /// What is wrong.
        reason: String,
    },
    /// The step that it was in failed.
    #[error("the step failed: {0}")]
    Step(std::sync::Arc<SessionError>),
}

/// A text as the model takes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TextItem {
    /// Its ids, special ones among them.
    pub ids: Vec<u32>,
    /// The type of each token, for models that have types; empty for all 0.
    pub token_types: Vec<u32>,
}

/// An encoder of text, its weights loaded and its graphs captured.
#[derive(Debug)]
pub struct TextEncoder {
    session: Session,
    config: TextEncoderConfig,
    tokenizer: Option<TextTokenizer>,
    outputs: Vec<TextOutput>,
    bounds: EncoderBounds,
    /// The sizes of captured graphs, ascending.
    budgets: Vec<u64>,
    one_by_one: bool,
}

/// What submitting a step costs, in rows.
const STEP_ROWS: f64 = 32.0;
/// The smallest budget where none are given.
const SMALLEST_BUDGET: u64 = 64;

/// Powers of two from 64 on, and `most`.
pub fn default_budgets(most: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(SMALLEST_BUDGET), |budget| budget.checked_mul(2));
    powers.take_while(|&budget| budget < most).chain([most]).collect()
}

impl TextEncoder {
    /// The encoder in a model folder. Of the configuration, `max_num_tokens` is the most tokens of
    /// a step, `max_num_seqs` the most items of one, and `capture_num_tokens` the budgets: by
    /// default [`default_budgets`]. The folder may lack a tokenizer; then items are ids.
    ///
    /// # Errors
    /// When the folder is of no encoder that is known here, or a setting, the device or a weight
    /// is wrong.
    pub fn load(
        folder: &Path,
        layers: ConfigLayers,
        outputs: &[TextOutput],
        watch: impl FnMut(Notice<'_>) + Send + 'static,
    ) -> Result<Self, LoadError> {
        let config = TextEncoderConfig::load(folder)?;
        let checkpoint = Checkpoint::open(folder)?;
        let tokenizer = match folder.join("tokenizer.json").exists() {
            true => Some(TextTokenizer::load(folder, config.vocab_size())?),
            false => None,
        };
        let given = layers.clone().finish()?.config;
        let bounds =
            EncoderBounds { max_rows: given.max_num_tokens, max_items: given.max_num_seqs() };
        let budgets = default_budgets(bounds.max_rows);
        let dtype = given.dtype.or(config.stored_dtype()).unwrap_or(DType::F32);
        let graph = config.graph(&checkpoint, dtype, &bounds, outputs)?;
        // Heads that are not asked for may be in the checkpoint.
        check_weights(&graph, &checkpoint)?;
        let list = budgets.iter().map(|&n| toml::Value::Integer(n.cast_signed())).collect();
        let from = "powers of two up to max_num_tokens";
        let layers = layers.derived("capture_num_tokens", toml::Value::Array(list), from)?;
        let planned =
            Assembly::graph(graph).configure(layers).checkpoint(checkpoint).watch(watch).plan()?;
        let budgets = planned.settings().dispatcher.tokens.sizes().to_vec();
        let session = planned.session()?;
        let outputs = outputs.to_vec();
        Ok(Self { session, config, tokenizer, outputs, bounds, budgets, one_by_one: false })
    }

    /// Runs each item in a step of its own.
    pub fn one_by_one(&mut self, alone: bool) {
        self.one_by_one = alone;
    }

    /// The tokenizer, where the folder has one.
    pub fn tokenizer(&self) -> Option<&TextTokenizer> {
        self.tokenizer.as_ref()
    }

    /// What the folder's configuration says.
    pub fn config(&self) -> &TextEncoderConfig {
        &self.config
    }

    /// What was counted so far: steps, budgets hit and missed, padding.
    pub fn statistics(&self) -> &Statistics {
        self.session.statistics()
    }

    /// The outputs of each item, in the order of the items and, within one, in that of the outputs
    /// asked for, row-major.
    pub fn encode(&mut self, items: &[TextItem]) -> Vec<Result<Vec<Vec<f32>>, ItemError>> {
        let checked = Vec::from_iter(items.iter().map(|item| self.check(item)));
        let mut results: Vec<Option<Result<Vec<Vec<f32>>, ItemError>>> =
            checked.into_iter().map(|checked| checked.err().map(Err)).collect();
        let taken = Vec::from_iter((0..items.len()).filter(|&i| results[i].is_none()));
        let rows = Vec::from_iter(taken.iter().map(|&i| vec![items[i].ids.len() as u64]));
        let packing = pack(&rows, &|rows: &[u64], items: usize| self.step_cost(rows[0], items));
        for step in packing.steps {
            let places = Vec::from_iter(step.into_iter().map(|i| taken[i]));
            match self.run(items, &places) {
                Ok(outputs) => {
                    for (place, outputs) in places.into_iter().zip(outputs) {
                        results[place] = Some(Ok(outputs));
                    }
                }
                Err(error) => {
                    let error = std::sync::Arc::new(error);
                    for place in places {
                        results[place] = Some(Err(ItemError::Step(std::sync::Arc::clone(&error))));
                    }
                }
            }
        }
        let larger = |i: usize| ItemError::LargerThanAStep {
            tokens: items[i].ids.len(),
            max_num_tokens: self.bounds.max_rows,
        };
        let results = results.into_iter().enumerate();
        results.map(|(i, result)| result.unwrap_or_else(|| Err(larger(i)))).collect()
    }

    /// The embedding of each text, where the embedding is the first output.
    pub fn embed(&mut self, texts: &[impl AsRef<str>]) -> Vec<Result<Vec<f32>, ItemError>> {
        let mut items = Vec::with_capacity(texts.len());
        let mut failed = Vec::with_capacity(texts.len());
        for text in texts {
            let ids = match &self.tokenizer {
                Some(tokenizer) => tokenizer.encode(text.as_ref()),
                None => Err(TokenizerError::NoTokenizer),
            };
            let (item, error) = match ids {
                Ok(ids) => (TextItem { ids, token_types: Vec::new() }, None),
                Err(error) => (TextItem::default(), Some(error)),
            };
            items.push(item);
            failed.push(error);
        }
        let outputs = self.encode(&items).into_iter().zip(failed);
        outputs
            .map(|(outputs, failed)| match failed {
                Some(error) => Err(error.into()),
                None => outputs.map(|outputs| outputs.into_iter().next().unwrap_or_default()),
            })
            .collect()
    }

    /// The cost of a step in rows: those of the smallest budget that holds it, or its own where it
    /// is launched.
    fn step_cost(&self, rows: u64, items: usize) -> Option<f64> {
        let most = if self.one_by_one { 1 } else { self.bounds.max_items };
        let fits = rows <= self.bounds.max_rows && items as u64 <= most;
        let budget = self.budgets.iter().find(|&&budget| budget >= rows);
        fits.then_some(*budget.unwrap_or(&rows) as f64 + STEP_ROWS)
    }

    fn check(&self, item: &TextItem) -> Result<(), ItemError> {
        check_token_ids(&item.ids, self.config.vocab_size())?;
        let (tokens, longest) = (item.ids.len(), self.config.longest());
        if tokens > longest {
            return Err(ItemError::TooLong { tokens, longest });
        }
        let (types, known) = (&item.token_types, self.config.token_types());
        let reason = if !types.is_empty() && types.len() != tokens {
            format!("{} token types for {tokens} tokens", types.len())
        } else if let Some(unknown) = types.iter().find(|&&ty| ty as usize >= known.max(1)) {
            format!("token type {unknown}, but the model has {known}")
        } else {
            return Ok(());
        };
        Err(ItemError::TokenTypes { reason })
    }

    /// Runs these items in one step: the outputs of each.
    fn run(
        &mut self,
        items: &[TextItem],
        places: &[usize],
    ) -> Result<Vec<Vec<Vec<f32>>>, SessionError> {
        let (mut ids, mut types, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        let (mut starts, mut lengths) = (Vec::new(), Vec::new());
        let first = self.config.first_position() as i32;
        for &place in places {
            let TextItem { ids: own, token_types } = &items[place];
            let tokens = own.len();
            starts.push(ids.len() as i32);
            lengths.push(tokens as i32);
            ids.extend(own.iter().map(|&id| id as i32));
            match token_types.is_empty() {
                true => types.resize(types.len() + tokens, 0),
                false => types.extend(token_types.iter().map(|&ty| ty as i32)),
            }
            positions.extend(first..first + tokens as i32);
        }
        let has_types = self.config.token_types() > 0;
        let step = self.session.step().input("ids", &ids).input("positions", &positions);
        let step = step.input("starts", &starts).input("lengths", &lengths);
        let step = if has_types { step.input("token_types", &types) } else { step };
        let outputs = step.run()?;
        let values = (0..self.outputs.len()).map(|i| outputs.get::<f32>(i));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let width = self.config.hidden_size();
        let of_item = |i: usize| {
            let parts = self.outputs.iter().zip(&values).map(|(output, values)| {
                let rows = match output {
                    TextOutput::Rows => starts[i] as usize..(starts[i] + lengths[i]) as usize,
                    TextOutput::Embedding | TextOutput::Pooler => i..i + 1,
                };
                values[rows.start * width..rows.end * width].to_vec()
            });
            parts.collect()
        };
        Ok((0..places.len()).map(of_item).collect())
    }
}
