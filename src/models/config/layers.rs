//! What layers of decoders differ in.

use strum::Display;

/// How a layer attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerAttention {
    /// How many keys a token sees, the last of which is its own; `None` of one that sees all before it.
    pub window: Option<u32>,
    /// What turns queries and keys.
    pub rope: LayerRope,
}

/// Which rope turns the queries and keys of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LayerRope {
    /// That of the model.
    #[default]
    Main,
    /// That of layers with a window.
    Sliding,
    /// None: positions are not told.
    None,
}

/// What the gate of a feed-forward goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Display)]
pub enum Activation {
    /// `silu`, which is `swish` too.
    #[default]
    Silu,
    /// `gelu_pytorch_tanh`.
    GeluTanh,
}

/// What parts of a model are multiplied by; 1 where a family has no such factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Multipliers {
    /// The rows of the embedding.
    pub embedding: f64,
    /// What attention and feed-forward add to the residual stream.
    pub residual: f64,
    /// What the head gives, before it is capped.
    pub logits: f64,
}

impl Default for Multipliers {
    fn default() -> Self {
        Self { embedding: 1.0, residual: 1.0, logits: 1.0 }
    }
}
