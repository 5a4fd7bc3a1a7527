//! Checkpoints whose linear layers are kept in 8 or 4 bits.
//!
//! [`Quantization`] is what `quantization_config` of a `config.json` says: which linear layers are
//! kept how. [`Stored`] is one such way, and knows the tensors of a layer and the recipes that make
//! of them what every packing comes to here: codes `[out, in]` of a narrow dtype, scales in f32, and
//! zero points for some. So a graph does not know where its weights came from.

mod compressed_tensors;
mod read;
mod stored;

use super::error::ConfigError;
use super::fields::Fields;
pub(in crate::models) use stored::Stored;
use stored::ZeroPoints;

/// What a configuration says of how its linear layers are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// Modules that are kept as they are, whatever `groups` says.
    skipped: Vec<Modules>,
    /// The ways, each with the modules that it is of; the first that names a module counts.
    groups: Vec<(Modules, Stored)>,
}

impl Quantization {
    /// Reads the field `quantization_config`, where there is one.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field which asks for what is not done here.
    pub(in crate::models) fn read(root: &Fields<'_>) -> Result<Option<Self>, ConfigError> {
        root.child(read::KEY)?.as_ref().map(read::quantization).transpose()
    }

    /// How the linear layer of a path such as `model.layers.0.mlp.up_proj` is kept; `None` of one that
    /// is not quantized.
    pub(in crate::models) fn stored(&self, module: &str) -> Option<Stored> {
        if self.skipped.iter().any(|skipped| skipped.name(module)) {
            return None;
        }
        self.groups.iter().find(|(modules, _)| modules.name(module)).map(|(_, stored)| *stored)
    }

    /// Whether a tensor belongs to a quantized layer and is of no use here: activations are not
    /// quantized, and shapes are known.
    pub(in crate::models) fn is_inert(&self, tensor: &str) -> bool {
        tensor.rsplit_once('.').is_some_and(|(module, leaf)| {
            self.stored(module).is_some_and(|stored| stored.inert().contains(&leaf))
        })
    }
}

/// Modules by name.
#[derive(Clone, Debug)]
enum Modules {
    /// Every linear layer of the layers; the head is none.
    Linear,
    /// Every linear layer, and the head.
    LinearAndHead,
    /// Those of this path, or below it: `lm_head`, `model.layers.0`, `mlp.gate`.
    Path(String),
    /// Those that an expression fits from the start of their path.
    Expression(regex::Regex),
}

impl PartialEq for Modules {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Linear, Self::Linear) | (Self::LinearAndHead, Self::LinearAndHead) => true,
            (Self::Path(a), Self::Path(b)) => a == b,
            (Self::Expression(a), Self::Expression(b)) => a.as_str() == b.as_str(),
            _ => false,
        }
    }
}

impl Modules {
    fn name(&self, module: &str) -> bool {
        match self {
            Self::Linear => module != "lm_head",
            Self::LinearAndHead => true,
            Self::Path(path) => format!(".{module}.").contains(&format!(".{path}.")),
            // Files name modules with and without the wrapper that a multimodal model puts around.
            Self::Expression(expression) => {
                let bare = module.replacen("model.language_model.", "model.", 1);
                expression.is_match(module) || expression.is_match(&bare)
            }
        }
    }
}

#[cfg(test)]
mod tests;
