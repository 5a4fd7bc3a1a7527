//! Formats of one width, group and kind of zero point share what is compiled.

use piecewise::models::{DecoderBounds, DecoderConfig, DecoderModel, decoder};
use piecewise_ir::dtype::DType;
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::words::{CompileLevel, Quantize};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

const BOUNDS: DecoderBounds = DecoderBounds {
    activations: DType::F32,
    max_tokens: 16,
    max_rows: 4,
    max_sequences: 4,
    max_length: 64,
    kv_rows: 256,
    state_slots: 0,
    embedding_rows: 0,
    sampling_controls: false,
};

/// A decoder whose layers are kept so.
fn config_of(quantization: &Value, layers: usize, heads: [usize; 2]) -> DecoderConfig {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32",
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": layers,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": 32,
        "vocab_size": 64, "max_position_embeddings": 64, "quantization_config": quantization,
    });
    DecoderConfig::parse(config.to_string().as_bytes(), Path::new("config.json")).unwrap()
}

/// What the passes make of it.
fn planned(quantization: &Value, layers: usize, heads: [usize; 2]) -> Module {
    // As files store them: scales of compressed-tensors in bf16, of AWQ and GPTQ in f16.
    let stored = |name: &str| match name.rsplit_once('.')?.1 {
        "weight_scale" => Some(DType::BF16),
        "scales" => Some(DType::F16),
        _ => None,
    };
    let config = config_of(quantization, layers, heads);
    let graph = decoder(&config, &BOUNDS, stored).unwrap();
    plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0
}

fn unique_hashes(quantization: &Value) -> BTreeSet<[u8; 32]> {
    let module = planned(quantization, 2, [8, 4]);
    let hashes = module.stitch().unwrap().unique.iter().map(|(_, piece)| piece.hash);
    hashes.collect()
}

fn packed(symmetric: bool) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group",
            "group_size": 32,
        }}},
    })
}

fn gptq(symmetric: bool, format: &str, group: i64) -> Value {
    json!({
        "quant_method": "gptq", "bits": 4, "group_size": group, "sym": symmetric,
        "checkpoint_format": format,
    })
}

#[test]
fn formats_of_one_kind_have_equal_pieces() {
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true});
    let with_zeros = unique_hashes(&awq);
    for same in [gptq(false, "gptq", 32), gptq(false, "gptq_v2", 32), packed(false)] {
        assert_eq!(unique_hashes(&same), with_zeros, "{same}");
    }
    let symmetric = unique_hashes(&packed(true));
    assert_eq!(unique_hashes(&gptq(true, "gptq", 32)), symmetric);
    // Another group, and other zeros, are another product.
    assert_ne!(unique_hashes(&gptq(true, "gptq", 64)), symmetric);
    assert_ne!(symmetric, with_zeros);
}

/// Layers that are rounded when they are loaded read what a file would have, and share all of it.
#[test]
fn rounded_layers_have_the_pieces_of_a_checkpoint_that_was_stored_so() {
    let floats = json!({
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel",
        }}},
    });
    let mut integers = packed(true);
    integers["config_groups"]["group_0"]["weights"]["group_size"] = 128.into();
    for (format, how) in [(Quantize::Fp8, floats), (Quantize::Int4, integers)] {
        let plain = config_of(&Value::Null, 2, [8, 4]);
        let rounded = plain.quantized(format).unwrap();
        // What a checkpoint in bf16 says of a layer is not what the graph reads of it.
        let stored = |name: &str| name.ends_with("_proj.weight").then_some(DType::BF16);
        let graph = rounded.graph(&BOUNDS, Box::new(stored)).unwrap();
        let module = plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0;
        let hashes = module.stitch().unwrap().unique.iter().map(|(_, piece)| piece.hash);
        assert_eq!(hashes.collect::<BTreeSet<_>>(), unique_hashes(&how), "{format}");
        let again = config_of(&how, 2, [8, 4]).quantized(format).err().unwrap();
        assert!(again.contains("`quantization_config` of config.json"), "{again}");
    }
}

#[test]
fn layers_of_one_input_become_one_product_where_blocks_end_with_them() {
    let scaled = |module: &Module| {
        let graph = module.graph();
        graph.nodes().filter(|&n| matches!(graph.node(n).op, Op::ScaledMatMul { .. })).count()
    };
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let tensor = json!({"quant_method": "fp8"});
    for layers in [2, 5] {
        // q, k and v of whole blocks; gate and up; o and down alone.
        assert_eq!(scaled(&planned(&fp8, layers, [8, 4])), 4 * layers);
        // k has half a block: the three stay apart.
        assert_eq!(scaled(&planned(&fp8, layers, [4, 2])), 6 * layers);
        // One scale for each tensor becomes one for each row.
        assert_eq!(scaled(&planned(&tensor, layers, [4, 2])), 4 * layers);
    }
    let unique = |layers| planned(&fp8, layers, [8, 4]).stitch().unwrap().unique_pieces().len();
    assert_eq!(unique(2), unique(5));
}
