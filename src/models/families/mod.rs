//! The families of decoders: what a configuration of each says, and what its layers compute.
//!
//! A family is a [`Description`] in a file of its own, of parts that [`layers`](super::layers) has.
//! `docs/adding-a-family.md` walks through one.

mod description;
mod gemma;
mod granite;
mod llama;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen3_moe;
mod reader;
mod smollm3;

use super::config::Family;
use description::Description;

impl Family {
    pub(super) fn description(self) -> &'static Description {
        match self {
            Self::Qwen3 => &llama::QWEN3,
            Self::Qwen2 => &llama::QWEN2,
            Self::Llama => &llama::LLAMA,
            Self::Mistral => &llama::MISTRAL,
            Self::Gemma2 => &gemma::GEMMA2,
            Self::Gemma3 => &gemma::GEMMA3,
            Self::Olmo2 => &olmo2::OLMO2,
            Self::Phi3 => &phi3::PHI3,
            Self::Granite => &granite::GRANITE,
            Self::SmolLM3 => &smollm3::SMOLLM3,
            Self::Qwen3Moe => &qwen3_moe::QWEN3_MOE,
            Self::Mixtral => &mixtral::MIXTRAL,
        }
    }
}
