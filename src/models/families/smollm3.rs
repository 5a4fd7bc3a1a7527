//! SmolLM 3: Llama's layers, some of which no rope turns.

use super::super::config::fields::Fields;
use super::super::config::options;
use super::super::config::rope::RopeForm;
use super::super::config::{ConfigError, DecoderConfig, LayerRope};
use super::description::{Defaults, Description, PLAIN};
use super::llama::read_attention_biases;

pub(super) const SMOLLM3: Description = Description {
    defaults: Defaults {
        vocab_size: Some(128_256),
        hidden_size: Some(2048),
        intermediate_size: Some(11_008),
        layers: Some(36),
        heads: Some(16),
        kv_heads: Some(4),
        positions: 32_768,
        is_tied: true,
        bos: Some(128_000),
        eos: Some(128_001),
        ..Defaults::STATED
    },
    keys: &[TURNED, INTERVAL],
    rope: RopeForm { theta: 2_000_000.0, is_partial: false, is_by_kind: false },
    read: |config, root| {
        read_attention_biases(config, root)?;
        config.mlp_bias = root.boolean("mlp_bias")?.unwrap_or(false);
        read_layers(config, root)
    },
    ..PLAIN
};

/// Despite its name, 1 stands for a layer with a rope.
const TURNED: &str = "no_rope_layers";
const INTERVAL: &str = "no_rope_layer_interval";

fn read_layers(config: &mut DecoderConfig, root: &Fields<'_>) -> Result<(), ConfigError> {
    let layers = config.num_layers;
    let interval = root.count(INTERVAL, 1..=1 << 12)?.unwrap_or(4);
    let turned = root.counts(TURNED, 0..=1)?.unwrap_or_else(|| {
        (1..=layers).map(|number| usize::from(!number.is_multiple_of(interval))).collect()
    });
    if turned.len() < layers {
        let reason =
            format!("has {} entries for {layers} layers (`num_hidden_layers`)", turned.len());
        return Err(root.bad_value(TURNED, reason));
    }
    let is_on = root.boolean("use_sliding_window")?.unwrap_or(false);
    let window = options::window(root)?.filter(|_| is_on);
    // Layers without a rope are those with a window, where there is one.
    config.attention = options::windows(root, layers, window, |layer| turned[layer] == 0)?;
    for (of_layer, turned) in config.attention.iter_mut().zip(turned) {
        of_layer.rope = if turned == 1 { LayerRope::Main } else { LayerRope::None };
    }
    Ok(())
}
