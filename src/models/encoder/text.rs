//! Encoders of text: from token ids to rows and embeddings.

use super::super::checkpoint::Checkpoint;
use super::super::config::fields::Fields;
use super::super::config::{ConfigError, DecoderConfig, parse_json, read};
use super::bert::{self, BertConfig};
use super::inputs::{EncoderBounds, PackedRows};
use super::layers::{NormNames, linear};
use super::modernbert::{self, ModernBertConfig};
use super::pooling::{Pooling, normalize};
use super::qwen3;
use super::sentence::SentenceModules;
use piecewise_ir::builder::{BuildErrors, Builder, Tensor};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use std::path::Path;

/// What is read of a text: a vector, its rows or scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextOutput {
    /// `f32 [items, hidden]`: pooled, and divided by the Euclidean norm where the model does so.
    Embedding,
    /// `[T, hidden]` in the dtype of activations: every row after the last layer and, where there is
    /// one, its norm.
    Rows,
    /// `f32 [items, hidden]`: the first row through the pooler of a BERT.
    Pooler,
    /// `f32 [items, labels]`: what a cross-encoder's head makes of the first row, before any
    /// sigmoid or softmax.
    Scores,
}

/// An encoder of text, by its architecture.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum TextArchitecture {
    /// `bert`, and `xlm-roberta` with its shifted positions.
    Bert(BertConfig),
    /// `modernbert`
    ModernBert(ModernBertConfig),
    /// `qwen3`: causal, pooled at the last token.
    Qwen3(Box<DecoderConfig>),
}

/// An encoder of text with its way to pool.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct TextEncoderConfig {
    /// The network and its sizes.
    pub architecture: TextArchitecture,
    /// Which rows make an embedding.
    pub pooling: Pooling,
    /// Whether embeddings are divided by their Euclidean norm.
    pub normalize: bool,
    /// The longest text in tokens by a folder of sentence-transformers, where that is less than the
    /// network's positions.
    pub max_seq_length: Option<usize>,
}

/// Why there is no graph of an encoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncoderError {
    /// Only a BERT has one.
    #[error(
        "the output `pooler` is asked for, but only bert and xlm-roberta have a pooler; ask for the \
         embedding"
    )]
    NoPooler,
    /// The checkpoint has no head for them.
    #[error(
        "the output `scores` is asked for, but the checkpoint has neither `classifier.weight` nor \
         `classifier.out_proj.weight`; take a cross-encoder, or ask for the embedding"
    )]
    NoScores,
    /// The graph does not fit its own configuration.
    #[error(transparent)]
    Build(#[from] BuildErrors),
}

/// How the tensors of a checkpoint are called.
struct Names {
    /// Before every name; empty, or without the last dot.
    prefix: &'static str,
    norms: NormNames,
}

impl TextEncoderConfig {
    /// Reads `config.json` of `folder` and, where it is one of sentence-transformers, how that
    /// pools and normalizes and which texts are too long; without that, embeddings are normalized means, of a Qwen3 normalized
    /// last rows.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the file and the field.
    pub fn load(folder: &Path) -> Result<Self, ConfigError> {
        let file = folder.join("config.json");
        let mut config = Self::parse(&read(&file)?, &file)?;
        if let Some(modules) = SentenceModules::read(folder)? {
            config.pooling = modules.pooling.unwrap_or(config.pooling);
            config.normalize = modules.normalize;
            config.max_seq_length = modules.longest;
        }
        Ok(config)
    }

    /// Reads the text of a `config.json`; `file` is only named in errors.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, ConfigError> {
        let value = parse_json(text, file)?;
        let root = Fields::root(file, &value)?;
        let architecture = match root.string("model_type")? {
            Some("bert") => TextArchitecture::Bert(BertConfig::read(&root, false)?),
            Some("xlm-roberta" | "roberta") => {
                TextArchitecture::Bert(BertConfig::read(&root, true)?)
            }
            Some("modernbert") => TextArchitecture::ModernBert(ModernBertConfig::read(&root)?),
            Some("qwen3") => {
                TextArchitecture::Qwen3(Box::new(DecoderConfig::parse_trunk(text, file)?))
            }
            Some(_) => {
                let supported = "encoders of text are bert, xlm-roberta, modernbert and qwen3";
                return Err(root.unsupported("model_type", supported));
            }
            None => return Err(root.missing("model_type")),
        };
        let classes = root.strings("architectures")?.unwrap_or_default();
        let scores = classes.iter().any(|class| class.ends_with("ForSequenceClassification"));
        if scores && !matches!(architecture, TextArchitecture::Bert(_)) {
            let supported = "heads that score are known of bert and xlm-roberta";
            return Err(root.unsupported("architectures", supported));
        }
        let pooling = match architecture {
            TextArchitecture::Bert(_) | TextArchitecture::ModernBert(_) => Pooling::Mean,
            TextArchitecture::Qwen3(_) => Pooling::Last,
        };
        Ok(Self { architecture, pooling, normalize: true, max_seq_length: None })
    }

    /// Width of a row and of an embedding.
    pub fn hidden_size(&self) -> usize {
        match &self.architecture {
            TextArchitecture::Bert(config) => config.hidden_size,
            TextArchitecture::ModernBert(config) => config.hidden_size,
            TextArchitecture::Qwen3(config) => config.hidden_size,
        }
    }

    /// The longest text, in tokens.
    pub fn longest(&self) -> usize {
        let positions = match &self.architecture {
            TextArchitecture::Bert(config) => config.longest(),
            TextArchitecture::ModernBert(config) => config.positions,
            TextArchitecture::Qwen3(config) => config.max_position_embeddings,
        };
        self.max_seq_length.map_or(positions, |longest| longest.min(positions))
    }

    /// The row of the table of positions that the first token of a text takes.
    pub fn first_position(&self) -> usize {
        match &self.architecture {
            TextArchitecture::Bert(config) => config.first_position,
            TextArchitecture::ModernBert(_) | TextArchitecture::Qwen3(_) => 0,
        }
    }

    /// Ids are below this, special ones too.
    pub fn vocab_size(&self) -> usize {
        match &self.architecture {
            TextArchitecture::Bert(config) => config.vocab_size,
            TextArchitecture::ModernBert(config) => config.vocab_size,
            TextArchitecture::Qwen3(config) => config.vocab_size,
        }
    }

    /// The token types that it has a table of; 0 without one.
    pub fn token_types(&self) -> usize {
        match &self.architecture {
            TextArchitecture::Bert(config) => config.token_types,
            TextArchitecture::ModernBert(_) | TextArchitecture::Qwen3(_) => 0,
        }
    }

    /// The scores that a cross-encoder's `checkpoint` gives each item; 0 of another.
    pub fn labels(&self, checkpoint: &Checkpoint) -> usize {
        ScoreHead::of(checkpoint).map_or(0, |head| head.labels() as usize)
    }

    /// Every output that the tensors of `checkpoint` make, the embedding first.
    pub fn outputs(&self, checkpoint: &Checkpoint) -> Vec<TextOutput> {
        let is_bert = matches!(self.architecture, TextArchitecture::Bert(_));
        let prefix = self.names(checkpoint).prefix;
        let has = |name: &str| is_bert && checkpoint.dtype_of(name).is_some();
        let has_pooler =
            has("pooler.dense.weight") || has(&format!("{prefix}.pooler.dense.weight"));
        let has_scores = is_bert && ScoreHead::of(checkpoint).is_some();
        let outputs = [
            (TextOutput::Embedding, true),
            (TextOutput::Rows, true),
            (TextOutput::Pooler, has_pooler),
            (TextOutput::Scores, has_scores),
        ];
        outputs.into_iter().filter(|(_, is_there)| *is_there).map(|(output, _)| output).collect()
    }

    /// What the configuration says that weights are stored as.
    pub fn stored_dtype(&self) -> Option<DType> {
        match &self.architecture {
            TextArchitecture::Bert(config) => config.dtype,
            TextArchitecture::ModernBert(config) => config.dtype,
            TextArchitecture::Qwen3(config) => config.dtype,
        }
    }

    /// The names that `checkpoint` has for the tensors of this encoder.
    fn names(&self, checkpoint: &Checkpoint) -> Names {
        let (prefixes, probe): (&[&'static str], _) = match &self.architecture {
            TextArchitecture::Bert(_) => {
                (&["bert", "roberta"], "embeddings.word_embeddings.weight")
            }
            TextArchitecture::ModernBert(_) => (&["model"], "embeddings.tok_embeddings.weight"),
            TextArchitecture::Qwen3(_) => (&["model"], "embed_tokens.weight"),
        };
        let has = |name: String| checkpoint.dtype_of(&name).is_some();
        let prefix = prefixes.iter().find(|prefix| has(format!("{prefix}.{probe}")));
        let prefix = prefix.copied().unwrap_or_default();
        let old = "embeddings.LayerNorm.gamma";
        let is_old = has(old.to_owned()) || has(format!("{prefix}.{old}"));
        let norms = if is_old { NormNames::GammaAndBeta } else { NormNames::WeightAndBias };
        Names { prefix, norms }
    }

    /// The graph of the encoder over the tensors of `checkpoint`: from `ids`, `positions` and, of a
    /// BERT, `token_types`, each `i32 [T]`, and the `starts` and `lengths` of the items, to
    /// `outputs`, in their order.
    ///
    /// # Errors
    /// A pooler is asked for of an architecture that has none.
    pub fn graph(
        &self,
        checkpoint: &Checkpoint,
        activations: DType,
        bounds: &EncoderBounds,
        outputs: &[TextOutput],
    ) -> Result<Graph, EncoderError> {
        let has_pooler = matches!(self.architecture, TextArchitecture::Bert(_));
        if !has_pooler && outputs.contains(&TextOutput::Pooler) {
            return Err(EncoderError::NoPooler);
        }
        let head = ScoreHead::of(checkpoint);
        if outputs.contains(&TextOutput::Scores) && (head.is_none() || !has_pooler) {
            return Err(EncoderError::NoScores);
        }
        let names = self.names(checkpoint);
        let b = Builder::new("text_encoder")
            .weight_dtype(self.stored_dtype().unwrap_or(DType::F32))
            .weight_dtypes(checkpoint.dtypes());
        let packed = PackedRows::declare(&b, bounds);
        let scope = (!names.prefix.is_empty()).then(|| b.scope(names.prefix));
        let rows = match &self.architecture {
            TextArchitecture::Bert(config) => {
                bert::rows(&b, config, activations, &packed, names.norms)
            }
            TextArchitecture::ModernBert(config) => {
                modernbert::rows(&b, config, activations, &packed)
            }
            TextArchitecture::Qwen3(config) => qwen3::rows(&b, config, activations, &packed),
        };
        let first = Pooling::First.of(rows, packed.items);
        let hidden = self.hidden_size();
        let needs_pooler = outputs.contains(&TextOutput::Pooler)
            || (outputs.contains(&TextOutput::Scores)
                && head.is_some_and(|head| head.takes_pooled()));
        let pooled = needs_pooler.then(|| bert::pooler(&b, hidden, first));
        drop(scope);
        let outputs = outputs.iter().filter_map(|output| match output {
            // What leaves the device is half as much in 16 bits.
            TextOutput::Rows => Some(rows),
            TextOutput::Embedding => {
                let pooled = self.pooling.of(rows.cast(DType::F32), packed.items);
                Some(if self.normalize { normalize(pooled) } else { pooled })
            }
            TextOutput::Pooler => pooled.map(|pooled| pooled.cast(DType::F32)),
            TextOutput::Scores => {
                head.map(|head| head.scores(&b, hidden as u64, pooled.unwrap_or(first)))
            }
        });
        Ok(b.finish(Vec::from_iter(outputs))?)
    }
}

/// The head of a cross-encoder.
#[derive(Clone, Copy)]
enum ScoreHead {
    /// One layer over the pooled first row: BERT.
    Linear { labels: u64 },
    /// A layer with tanh and another over the first row: XLM-RoBERTa.
    Dense { labels: u64 },
}

impl ScoreHead {
    fn of(checkpoint: &Checkpoint) -> Option<Self> {
        let labels = |name| Some(*checkpoint.tensor(name)?.shape.first()? as u64);
        let linear = labels("classifier.weight").map(|labels| Self::Linear { labels });
        let dense = || labels("classifier.out_proj.weight").map(|labels| Self::Dense { labels });
        linear.or_else(dense)
    }

    fn labels(self) -> u64 {
        match self {
            Self::Linear { labels } | Self::Dense { labels } => labels,
        }
    }

    fn takes_pooled(self) -> bool {
        match self {
            Self::Linear { .. } => true,
            Self::Dense { .. } => false,
        }
    }

    /// `f32 [items, labels]` of `row [items, hidden]`.
    fn scores<'b>(self, b: &'b Builder, hidden: u64, row: Tensor<'b>) -> Tensor<'b> {
        let _scope = b.scope("classifier");
        let [weight, bias, row] = match self {
            Self::Linear { labels } => {
                [b.weight("weight", [labels, hidden]), b.weight("bias", [labels]), row]
            }
            Self::Dense { labels } => {
                let row = linear(b, "dense", row, [hidden, hidden]).tanh();
                let weight = b.weight("out_proj.weight", [labels, hidden]);
                [weight, b.weight("out_proj.bias", [labels]), row]
            }
        };
        row.matmul_transposed(weight, DType::F32) + bias.cast(DType::F32)
    }
}
