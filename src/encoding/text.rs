//! Texts to embeddings, many in a step.

use super::protocol::{ItemEncoder, ItemError, PathSize, TokenRange};
use super::runner::{Encoder, EncoderBuildError, EncoderPath};
use crate::assembly::Notice;
use crate::models::encoder::{EncoderBounds, EncoderError, TextEncoderConfig, TextOutput};
use crate::models::encoder::{OutputRows, Values};
use crate::models::tokenizer::check_token_ids;
use crate::models::{
    Checkpoint, CheckpointError, ConfigError as FolderError, TextTokenizer, TokenizerError,
    check_weights,
};
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::{ConfigError, ConfigLayers};
use std::path::Path;

/// Why there is no encoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The folder's configuration is missing, wrong, or of no encoder that is known here.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The weights are missing, damaged, or not what the configuration says.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// `tokenizer.json` is missing or can't be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A setting is unknown or wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The encoder's layers can't be built.
    #[error(transparent)]
    Graph(#[from] EncoderError),
    /// What the graph is put together with.
    #[error(transparent)]
    Build(#[from] EncoderBuildError),
}

/// A text as the model takes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TextItem {
    /// Its ids, special ones among them.
    pub ids: Vec<u32>,
    /// The type of each token, for models that have types; empty for all 0.
    pub token_types: Vec<u32>,
}

/// The configuration of a text encoder and its tokenizer, if it has one.
#[derive(Clone, Debug)]
pub struct TextModel {
    config: TextEncoderConfig,
    tokenizer: Option<TextTokenizer>,
    outputs: Vec<TextOutput>,
    labels: usize,
}

/// Texts in, vectors or scores out.
pub type TextEncoder = Encoder<TextModel>;

impl TextModel {
    /// The model in a folder, and its path before it is compiled.
    pub(super) fn read(
        folder: &Path,
        layers: ConfigLayers,
        outputs: &[TextOutput],
    ) -> Result<(Self, EncoderPath), LoadError> {
        let config = TextEncoderConfig::load(folder)?;
        let checkpoint = Checkpoint::open(folder)?;
        let tokenizer = match folder.join("tokenizer.json").exists() {
            true => Some(TextTokenizer::load(folder, config.vocab_size())?),
            false => None,
        };
        let range = TokenRange::up_to(config.longest() as u64);
        let (bounds, dtype) = bounds_and_dtype(&layers, config.stored_dtype(), range)?;
        let graph = config.graph(&checkpoint, dtype, &bounds, outputs)?;
        // Heads that are not asked for may be in the checkpoint.
        check_weights(&graph, &checkpoint)?;
        let labels = config.labels(&checkpoint);
        let model = Self { config, tokenizer, outputs: outputs.to_vec(), labels };
        Ok((model, EncoderPath::only(graph, checkpoint, bounds, layers)))
    }

    /// The tokenizer, where the folder has one.
    pub fn tokenizer(&self) -> Option<&TextTokenizer> {
        self.tokenizer.as_ref()
    }

    /// What the folder's configuration says.
    pub fn config(&self) -> &TextEncoderConfig {
        &self.config
    }
}

impl ItemEncoder for TextModel {
    type Item = TextItem;

    fn sizes(&self, item: &TextItem) -> Result<Vec<PathSize>, ItemError> {
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
            let tokens = tokens as u64;
            return Ok(vec![PathSize { rows: tokens, tokens, frames: 0 }]);
        };
        Err(ItemError::Invalid { reason })
    }

    fn range(&self, _path: usize) -> TokenRange {
        TokenRange::up_to(self.config.longest() as u64)
    }

    fn fill<'a>(&self, _path: usize, items: &[&'a TextItem]) -> Vec<(&'static str, Values<'a>)> {
        let (mut ids, mut types, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        let (mut starts, mut lengths) = (Vec::new(), Vec::new());
        let first = self.config.first_position() as i32;
        for TextItem { ids: own, token_types } in items {
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
        let inputs = [
            ("ids", ids),
            ("positions", positions),
            ("starts", starts),
            ("lengths", lengths),
            ("token_types", types),
        ];
        // Not every model has token types.
        let count = if self.config.token_types() > 0 { 5 } else { 4 };
        inputs.into_iter().take(count).map(|(name, values)| (name, Values::I32(values))).collect()
    }

    fn outputs(&self, _path: usize) -> Vec<OutputRows> {
        let width = self.config.hidden_size();
        let rows = |output: &TextOutput| match output {
            TextOutput::Rows => OutputRows::PerRow(width),
            TextOutput::Embedding | TextOutput::Pooler => OutputRows::PerItem(width),
            TextOutput::Scores => OutputRows::PerItem(self.labels),
        };
        self.outputs.iter().map(rows).collect()
    }
}

impl Encoder<TextModel> {
    /// The encoder in a model folder. Of the configuration, `max_num_tokens` is the most tokens of
    /// a step, `max_num_seqs` the most items of one, and `capture_num_tokens` the budgets. The
    /// folder may lack a tokenizer; then items are ids.
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
        let (model, path) = TextModel::read(folder, layers, outputs)?;
        Ok(Self::of_only(model, path, watch)?)
    }

    /// The embedding of each text, where the embedding is the first output.
    pub fn embed(&mut self, texts: &[impl AsRef<str>]) -> Vec<Result<Vec<f32>, ItemError>> {
        let tokenizer = self.model().tokenizer();
        let ids = |text: &str| tokenizer.ok_or(TokenizerError::NoTokenizer)?.encode(text);
        let encoded = texts.iter().map(|text| match ids(text.as_ref()) {
            Ok(ids) => (TextItem { ids, token_types: Vec::new() }, None),
            Err(error) => (TextItem::default(), Some(error)),
        });
        let (items, failed): (Vec<_>, Vec<_>) = encoded.unzip();
        let outputs = self.encode(&items).into_iter().zip(failed);
        outputs
            .map(|(outputs, failed)| match failed {
                Some(error) => Err(error.into()),
                None => outputs.map(|outputs| outputs.into_iter().next().unwrap_or_default()),
            })
            .collect()
    }
}

/// The bounds that a configuration makes for items of this range, and the dtype of activations: its
/// own, or the one that weights are stored as. Where nothing is said, the largest item fits, and no
/// row is kept that items can't fill.
pub(super) fn bounds_and_dtype(
    layers: &ConfigLayers,
    stored: Option<DType>,
    range: TokenRange,
) -> Result<(EncoderBounds, DType), ConfigError> {
    let given = layers.clone().finish()?.config;
    let least = if layers.is_set("max_num_tokens") { 1 } else { range.least };
    let mut bounds = EncoderBounds {
        max_rows: given.max_num_tokens.max(least),
        max_items: given.max_num_seqs(),
        max_frames: given.max_num_frames.unwrap_or(u64::MAX),
    };
    if !layers.is_set("capture_num_tokens") {
        bounds.max_rows = bounds.largest_step(range);
    }
    Ok((bounds, given.dtype.or(stored).unwrap_or(DType::F32)))
}
