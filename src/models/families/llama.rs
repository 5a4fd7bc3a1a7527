//! Llama and its kin: Mistral with a window, Qwen2 with biases, Qwen3 with norms of q and k.

use super::super::config::fields::Fields;
use super::super::config::options::{self, refuse_true};
use super::super::config::{ConfigError, DecoderConfig, LayerAttention};
use super::description::{Defaults, Description, PLAIN};

const QWEN: Defaults = Defaults { kv_heads: Some(32), positions: 32_768, ..Defaults::STATED };

pub(super) const QWEN3: Description = Description {
    defaults: Defaults { head_dim: Some(128), ..QWEN },
    read: |config, root| {
        refuse_true(root, "mlp_bias", "Qwen3 has no such biases")?;
        config.qk_norm = true;
        read_attention_biases(config, root)?;
        read_qwen_windows(config, root)
    },
    ..PLAIN
};

pub(super) const QWEN2: Description = Description {
    defaults: QWEN,
    read: |config, root| {
        refuse_true(root, "mlp_bias", "Qwen2 has no such biases")?;
        root.boolean("attention_bias")?;
        // q, k and v always have biases, whatever the configuration says.
        config.qkv_bias = true;
        read_qwen_windows(config, root)
    },
    ..PLAIN
};

pub(super) const LLAMA: Description = Description {
    defaults: Defaults { bos: Some(1), eos: Some(2), ..Defaults::STATED },
    read: |config, root| {
        read_attention_biases(config, root)?;
        config.mlp_bias = root.boolean("mlp_bias")?.unwrap_or(false);
        refuse_windows(config, root)
    },
    ..PLAIN
};

pub(super) const MISTRAL: Description = Description {
    defaults: Defaults {
        kv_heads: Some(8),
        positions: 131_072,
        bos: Some(1),
        eos: Some(2),
        ..Defaults::STATED
    },
    read: |config, root| {
        refuse_true(root, "mlp_bias", "Mistral has no such biases")?;
        refuse_true(root, "attention_bias", "Mistral has no such biases")?;
        let default = (!root.is_present("sliding_window")).then_some(4096);
        let window = options::window(root)?.or(default);
        let listed = options::sliding_layers(root, config.num_layers)?;
        if window.is_none() && listed.is_some_and(|layers| layers.contains(&true)) {
            return Err(
                root.unsupported("layer_types", "no `sliding_window` says how much layers see")
            );
        }
        let of_layer = LayerAttention { window, ..LayerAttention::default() };
        config.attention = vec![of_layer; config.num_layers];
        Ok(())
    },
    ..PLAIN
};

/// Biases of q, k and v, and of what is made of them, that a configuration asks for together.
pub(super) fn read_attention_biases(
    config: &mut DecoderConfig,
    root: &Fields<'_>,
) -> Result<(), ConfigError> {
    let has_biases = root.boolean("attention_bias")?.unwrap_or(false);
    config.qkv_bias = has_biases;
    config.output_bias = has_biases;
    Ok(())
}

/// A window in the layers that `layer_types` names, or else from `max_window_layers` on, where
/// `use_sliding_window` is set.
fn read_qwen_windows(config: &mut DecoderConfig, root: &Fields<'_>) -> Result<(), ConfigError> {
    let is_on = root.boolean("use_sliding_window")?.unwrap_or(false);
    let stated = options::window(root)?;
    let default = (!root.is_present("sliding_window")).then_some(4096);
    let window = stated.or(default).filter(|_| is_on);
    let first = root.count("max_window_layers", 0..=usize::MAX >> 1)?.unwrap_or(28);
    config.attention = options::windows(root, config.num_layers, window, |layer| layer >= first)?;
    Ok(())
}

/// Of a family whose code has no windows.
pub(super) fn refuse_windows(config: &DecoderConfig, root: &Fields<'_>) -> Result<(), ConfigError> {
    let family = config.family;
    let is_off = root.boolean("use_sliding_window")? == Some(false);
    let window = options::window(root)?.filter(|_| !is_off);
    if window.is_some_and(|window| (window as usize) < config.max_position_embeddings) {
        return Err(root.unsupported("sliding_window", format!("{family} has no windows; null is")));
    }
    let listed = options::sliding_layers(root, config.num_layers)?;
    if listed.is_some_and(|layers| layers.contains(&true)) {
        let supported = format!("{family} has no windows: every layer must be full_attention");
        return Err(root.unsupported("layer_types", supported));
    }
    Ok(())
}
