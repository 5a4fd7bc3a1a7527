//! What the engine can serve, whoever wrote it: what is known of a decoder before it has a graph, and
//! the graph that settings make of it.

use super::checkpoint::{Checkpoint, CheckpointError};
use super::config::fields::Fields;
use super::config::{ConfigError, DecoderConfig, Quantization, read_dtype};
use super::decoder::{DecoderBounds, decoder};
use super::few_bits::CheckedWeights;
use piecewise_backend::weights::WeightSource;
use piecewise_ir::builder::BuildErrors;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_runtime::words::Quantize;
use std::sync::Arc;

/// What a checkpoint stores a tensor as, by its name; `None` of a tensor that it does not have.
pub type StoredDTypes = Box<dyn Fn(&str) -> Option<DType>>;

/// What commands ask of a decoder before its graph is built. What a model leaves at its default is
/// read from the usual keys of its `config.json`, where it comes from a folder.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct DecoderFacts {
    /// Ids are below this; 0 is not known (`vocab_size`).
    pub vocab_size: usize,
    /// Layers, for reports (`num_hidden_layers`).
    pub num_layers: Option<usize>,
    /// The dtype of activations where no setting says another (`dtype`, `torch_dtype`).
    pub dtype: Option<DType>,
    /// The most tokens of a sequence, prompt and reply together, and the key of `config.json` that
    /// says so (`max_position_embeddings`).
    pub longest_sequence: Option<(usize, &'static str)>,
    /// The ids that end a text (`eos_token_id`, there or in `generation_config.json`).
    pub eos_token_ids: Vec<u32>,
    /// What whoever runs the model should hear of.
    pub warnings: Vec<String>,
}

impl DecoderFacts {
    /// With the usual keys of a `config.json` in the place of what is not known.
    pub(super) fn or(mut self, fields: &Fields<'_>) -> Result<Self, ConfigError> {
        if self.vocab_size == 0 {
            self.vocab_size = fields.required_count("vocab_size", 1..=1 << 24)?;
        }
        self.num_layers = match self.num_layers {
            None => fields.count("num_hidden_layers", 1..=1 << 12)?,
            known => known,
        };
        self.dtype = match self.dtype {
            None => read_dtype(fields)?,
            known => known,
        };
        if self.longest_sequence.is_none() {
            let key = "max_position_embeddings";
            self.longest_sequence = fields.count(key, 1..=1 << 31)?.map(|longest| (longest, key));
        }
        if self.eos_token_ids.is_empty() {
            let ids = fields.token_ids("eos_token_id", self.vocab_size)?;
            self.eos_token_ids = ids.unwrap_or_default();
        }
        Ok(self)
    }
}

/// A decoder whose graph follows the settings: bounds, dtype, and whether requests may control
/// sampling. A function of [`DecoderBounds`] is one too.
///
/// ```
/// use piecewise::prelude::*;
///
/// fn bigram(bounds: &DecoderBounds) -> Result<Graph, BuildErrors> {
///     let b = Builder::new("bigram").weight_dtype(DType::F32);
///     let step = StepInputs::declare(&b, &bounds.step());
///     let logits = b.weight("table", [64, 64]).gather(step.ids).gather(step.logit_rows);
///     b.finish(step.outputs(&b, logits, bounds.sampling_controls))
/// }
///
/// let assembly = Assembly::model(bigram).max_num_tokens(16).max_num_seqs(2).max_seq_len(64);
/// let planned = assembly.no_cache().plan()?;
/// let symbols = planned.module().graph().symbols().values();
/// let most = Vec::from_iter(symbols.map(|symbol| (symbol.name.as_str(), symbol.max)));
/// // Tokens, rows that are sampled from, sequences, and keys and values of two times 64 positions.
/// assert_eq!(most[..4], [("T", 16), ("R", 2), ("S", 2), ("P", 128)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait DecoderModel: Send + Sync {
    /// What is known of it without a graph; nothing beyond what the usual keys of `config.json` say, unless
    /// it is told here.
    fn facts(&self) -> DecoderFacts {
        DecoderFacts::default()
    }

    /// From the inputs of a step to what [`StepInputs::outputs`](super::StepInputs::outputs) gives, for
    /// these bounds. A bound that the graph does not keep is an error of whoever set it.
    ///
    /// # Errors
    /// Mistakes of this function.
    fn graph(&self, bounds: &DecoderBounds, stored: StoredDTypes) -> Result<Graph, BuildErrors>;

    /// Holds against a checkpoint what the model relies on without reading it into a weight.
    ///
    /// # Errors
    /// The first tensor that holds something else.
    fn check_tensors(&self, _checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        Ok(())
    }

    /// The same model with its linear layers rounded to `format` when they are loaded: its graph reads what
    /// a checkpoint would have that was stored so, `weight` in e4m3 or `weight_packed`, and `weight_scale`
    /// in f32, in the place of each layer's `weight`.
    ///
    /// # Errors
    /// Why it can't be.
    fn quantized(&self, _format: Quantize) -> Result<Arc<dyn DecoderModel>, String> {
        Err("this model does not say which of its layers can be kept in few bits".to_owned())
    }

    /// What the graph's weights are read from: the checkpoint, or what looks at its tensors first.
    fn weights(&self, checkpoint: Checkpoint) -> Box<dyn WeightSource> {
        Box::new(checkpoint)
    }

    /// Whether a tensor of the checkpoint that neither the graph reads nor [`Self::is_inert`] names is an
    /// error, and no warning.
    fn reads_every_tensor(&self) -> bool {
        false
    }

    /// Whether a tensor of the checkpoint is known to be without use, so that nobody is warned of it.
    fn is_inert(&self, _tensor: &str) -> bool {
        false
    }
}

impl<F> DecoderModel for F
where
    F: Fn(&DecoderBounds) -> Result<Graph, BuildErrors> + Send + Sync,
{
    fn graph(&self, bounds: &DecoderBounds, _: StoredDTypes) -> Result<Graph, BuildErrors> {
        self(bounds)
    }
}

impl DecoderModel for DecoderConfig {
    fn facts(&self) -> DecoderFacts {
        let mut warnings = Vec::new();
        for key in &self.ignored_keys {
            warnings.push(format!("config.json: `{key}` is not known here and is ignored"));
        }
        if !self.towers.is_empty() && self.rope_sections.is_none() {
            let what = "images of this model are not read: its decoder of text alone runs";
            warnings.push(format!("config.json: {what}"));
        }
        DecoderFacts {
            vocab_size: self.vocab_size,
            num_layers: Some(self.num_layers),
            dtype: self.dtype,
            longest_sequence: Some((self.max_position_embeddings, "max_position_embeddings")),
            eos_token_ids: self.eos_token_ids.clone(),
            warnings,
        }
    }

    fn graph(&self, bounds: &DecoderBounds, stored: StoredDTypes) -> Result<Graph, BuildErrors> {
        match &self.quantization {
            Some(how) if !how.is_stored => {
                let how = how.clone();
                decoder(self, bounds, move |name| {
                    how.dtype_when_loaded(name).or_else(|| stored(name))
                })
            }
            _ => decoder(self, bounds, stored),
        }
    }

    fn quantized(&self, format: Quantize) -> Result<Arc<dyn DecoderModel>, String> {
        if self.quantization.is_some() {
            let why = "its layers are in few bits already, by `quantization_config` of config.json";
            return Err(why.to_owned());
        }
        if self.family.description().is_fused {
            let why = "projections of this family stand in one tensor, and such are not rounded when they are \
                       loaded";
            return Err(why.to_owned());
        }
        if self.experts.is_some() {
            return Err("experts are not rounded when they are loaded".to_owned());
        }
        let quantization = Some(Quantization::when_loaded(format, self.linears()));
        Ok(Arc::new(Self { quantization, ..self.clone() }))
    }

    fn weights(&self, checkpoint: Checkpoint) -> Box<dyn WeightSource> {
        match &self.quantization {
            Some(how) if how.is_stored => Box::new(CheckedWeights::new(checkpoint, how.clone())),
            _ => Box::new(checkpoint),
        }
    }

    fn reads_every_tensor(&self) -> bool {
        true
    }

    fn check_tensors(&self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.quantization.iter().try_for_each(|how| how.check_orders(checkpoint))
    }

    fn is_inert(&self, tensor: &str) -> bool {
        let of_a_tower = self.towers.iter().any(|tower| tensor.starts_with(tower));
        // Heads that guess tokens ahead.
        let of_guesses = ["mtp.", "model.mtp."].iter().any(|head| tensor.starts_with(head));
        let of_quantization = |q: &Quantization| q.is_inert(tensor);
        self.quantization.as_ref().is_some_and(of_quantization)
            || ["lm_head.weight", "language_model.lm_head.weight"].contains(&tensor)
            || of_guesses
            || of_a_tower
    }
}
