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
    /// `MistralForCausalLM`.
    Mistral,
}

impl Family {
    pub(in crate::models) const ALL: [Family; 4] =
        [Self::Qwen3, Self::Qwen2, Self::Llama, Self::Mistral];

    /// The name of the architecture in the list `architectures`.
    pub fn architecture(self) -> String {
        format!("{self}ForCausalLM")
    }

    /// What a `config.json` has as `model_type`: `qwen3`.
    pub fn model_type(self) -> String {
        self.to_string().to_lowercase()
    }
}
