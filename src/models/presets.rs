//! Published models by name: their shapes, without their weights.

use super::config::{
    Activation, DecoderConfig, ExpertsConfig, Family, Multipliers, RopeConfig, RopeScaling,
};
use piecewise_ir::dtype::DType;
use std::str::FromStr;
use strum::{Display, IntoStaticStr};

/// A published model whose configuration is known here: to compile or measure it without a folder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, IntoStaticStr)]
#[non_exhaustive]
pub enum Preset {
    /// `Qwen/Qwen3-0.6B`.
    #[strum(serialize = "qwen3-0.6b")]
    Qwen3_0_6B,
    /// `meta-llama/Llama-3.2-1B`.
    #[strum(serialize = "llama-3.2-1b")]
    Llama3_2_1B,
    /// `Qwen/Qwen3-8B`.
    #[strum(serialize = "qwen3-8b")]
    Qwen3_8B,
    /// `meta-llama/Llama-3.1-8B`.
    #[strum(serialize = "llama-3.1-8b")]
    Llama3_1_8B,
    /// `Qwen/Qwen3-30B-A3B`: 128 experts in each layer, 8 for a token.
    #[strum(serialize = "qwen3-30b-a3b")]
    Qwen3_30B,
}

/// A name that no preset has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "there is no preset `{name}`; the presets are {known}",
    known = Preset::ALL.map(Preset::name).join(", ")
)]
pub struct UnknownPreset {
    /// The name that was asked for.
    pub name: String,
}

impl Preset {
    /// Every preset, the smallest model first.
    pub const ALL: [Self; 5] =
        [Self::Qwen3_0_6B, Self::Llama3_2_1B, Self::Qwen3_8B, Self::Llama3_1_8B, Self::Qwen3_30B];

    /// What it is called: `qwen3-0.6b`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// What the published `config.json` and `generation_config.json` say.
    pub fn config(self) -> DecoderConfig {
        match self {
            Self::Qwen3_0_6B => DecoderConfig {
                hidden_size: 1024,
                intermediate_size: 3072,
                num_layers: 28,
                num_heads: 16,
                tie_word_embeddings: true,
                ..qwen3()
            },
            Self::Qwen3_8B => DecoderConfig {
                hidden_size: 4096,
                intermediate_size: 12_288,
                num_layers: 36,
                num_heads: 32,
                ..qwen3()
            },
            Self::Llama3_2_1B => DecoderConfig {
                hidden_size: 2048,
                intermediate_size: 8192,
                num_layers: 16,
                head_dim: 64,
                tie_word_embeddings: true,
                ..llama3(32.0)
            },
            Self::Llama3_1_8B => DecoderConfig {
                hidden_size: 4096,
                intermediate_size: 14_336,
                num_layers: 32,
                head_dim: 128,
                ..llama3(8.0)
            },
            Self::Qwen3_30B => DecoderConfig {
                family: Family::Qwen3Moe,
                hidden_size: 2048,
                intermediate_size: 6144,
                num_layers: 48,
                num_heads: 32,
                num_kv_heads: 4,
                experts: Some(ExpertsConfig {
                    count: 128,
                    per_token: 8,
                    intermediate_size: 768,
                    renormalize: true,
                    dense_layers: Vec::new(),
                }),
                ..qwen3()
            },
        }
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        let known = Self::ALL.into_iter().find(|preset| preset.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| UnknownPreset { name: name.to_owned() })
    }
}

/// What the Qwen3 presets have in common.
fn qwen3() -> DecoderConfig {
    DecoderConfig {
        family: Family::Qwen3,
        hidden_size: 0,
        intermediate_size: 0,
        num_layers: 0,
        num_heads: 0,
        num_kv_heads: 8,
        head_dim: 128,
        vocab_size: 151_936,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: false,
        max_position_embeddings: 40_960,
        attention: Vec::new(),
        score_scale: None,
        score_softcap: None,
        logit_softcap: None,
        activation: Activation::Silu,
        multipliers: Multipliers::default(),
        dtype: Some(DType::BF16),
        bos_token_id: Some(151_643),
        eos_token_ids: vec![151_645, 151_643],
        rope: RopeConfig::plain(1e6),
        sliding_rope: None,
        rope_sections: None,
        qk_norm: true,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        experts: None,
        quantization: None,
        ignored_keys: Vec::new(),
        towers: &[],
    }
}

/// What the Llama 3.1 and 3.2 presets have in common; their ropes are stretched by `factor`.
fn llama3(factor: f64) -> DecoderConfig {
    let scaling = RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    DecoderConfig {
        family: Family::Llama,
        num_heads: 32,
        vocab_size: 128_256,
        rms_norm_eps: 1e-5,
        max_position_embeddings: 131_072,
        bos_token_id: Some(128_000),
        eos_token_ids: vec![128_001],
        rope: RopeConfig { scaling, ..RopeConfig::plain(500_000.0) },
        qk_norm: false,
        ..qwen3()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameter counts as the models' cards state them, norms left out.
    #[test]
    fn presets_have_the_published_numbers_of_weights() {
        let counts = Preset::ALL.map(|preset| (preset.name(), preset.config().num_weights()));
        assert_eq!(
            counts,
            [
                ("qwen3-0.6b", 595_984_384),
                ("llama-3.2-1b", 1_235_746_816),
                ("qwen3-8b", 8_190_427_136),
                ("llama-3.1-8b", 8_029_995_008),
                ("qwen3-30b-a3b", 30_531_911_680),
            ]
        );
    }

    #[test]
    fn every_size_of_a_preset_is_stated() {
        for preset in Preset::ALL {
            let config = preset.config();
            let sizes = [
                config.hidden_size,
                config.intermediate_size,
                config.num_layers,
                config.num_heads,
                config.num_kv_heads,
                config.head_dim,
            ];
            assert!(sizes.iter().all(|&n| n > 0), "{preset}: {sizes:?}");
            assert!(config.num_heads.is_multiple_of(config.num_kv_heads), "{preset}");
            assert!(config.eos_token_ids.iter().all(|&id| (id as usize) < config.vocab_size));
        }
    }

    #[test]
    fn presets_come_back_by_their_names() {
        for preset in Preset::ALL {
            assert_eq!(preset.name().to_uppercase().parse(), Ok(preset));
        }
        let error = "qwen3-1b".parse::<Preset>().unwrap_err().to_string();
        assert!(error.contains("`qwen3-1b`") && error.contains("llama-3.2-1b"), "{error}");
    }
}
