//! Modules of a model, as a configuration names them.

/// Modules by name.
#[derive(Clone, Debug)]
pub(super) enum Modules {
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
    pub(super) fn name(&self, module: &str) -> bool {
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
