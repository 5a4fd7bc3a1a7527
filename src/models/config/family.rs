//! The architectures of decoders.

/// An architecture, by the name of its code in transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display)]
#[non_exhaustive]
pub enum Family {
    /// `Qwen3ForCausalLM`: q and k are normalized per head.
    Qwen3,
    /// `Qwen2ForCausalLM`, Qwen2.5 too: q, k and v have biases.
    Qwen2,
    /// `LlamaForCausalLM`: Llama 2 and 3 and the many models of the same shape.
    Llama,
    /// `MistralForCausalLM`: a window in all layers, or in none.
    Mistral,
    /// `Gemma2ForCausalLM`: norms before and after, caps of scores and of logits, windows in every other layer.
    Gemma2,
    /// `Gemma3ForCausalLM`, the text of Gemma 3: two ropes, windows in five of six layers.
    Gemma3,
    /// `Olmo2ForCausalLM`: norms after attention and feed-forward alone.
    Olmo2,
    /// `Phi3ForCausalLM`, Phi 4 too: q, k and v in one tensor, gate and up in another.
    Phi3,
    /// `GraniteForCausalLM`: factors at the embedding, the residual stream, scores and logits.
    Granite,
    /// `SmolLM3ForCausalLM`: some layers without rope.
    SmolLM3,
    /// `Qwen3MoeForCausalLM`: Qwen3 with experts in all layers or in some.
    Qwen3Moe,
    /// `MixtralForCausalLM`: Mistral with experts in all layers.
    Mixtral,
}

impl Family {
    pub(in crate::models) const ALL: [Family; 12] = [
        Self::Qwen3,
        Self::Qwen2,
        Self::Llama,
        Self::Mistral,
        Self::Gemma2,
        Self::Gemma3,
        Self::Olmo2,
        Self::Phi3,
        Self::Granite,
        Self::SmolLM3,
        Self::Qwen3Moe,
        Self::Mixtral,
    ];

    /// The name of the architecture in the list `architectures`.
    pub fn architecture(self) -> String {
        format!("{self}ForCausalLM")
    }

    /// What a `config.json` has as `model_type`: `qwen3`.
    pub fn model_type(self) -> String {
        match self {
            Self::Gemma3 => "gemma3_text".to_owned(),
            Self::Qwen3Moe => "qwen3_moe".to_owned(),
            _ => self.to_string().to_lowercase(),
        }
    }
}
