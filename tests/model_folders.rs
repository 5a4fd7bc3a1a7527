//! Every model folder of the repository is read whole: configuration, weights, tokenizer.

use std::path::{Path, PathBuf};

use piecewise::models::{Checkpoint, DecoderConfig, Family, RopeScaling, TextTokenizer};
use piecewise_ir::dtype::DType;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Names and shapes of the weights that a decoder of this configuration has.
fn expected_weights(c: &DecoderConfig) -> Vec<(String, Vec<usize>)> {
    let (q, kv) = (c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
    let mut weights = vec![
        ("model.embed_tokens.weight".to_owned(), vec![c.vocab_size, c.hidden_size]),
        ("model.norm.weight".to_owned(), vec![c.hidden_size]),
    ];
    if !c.tie_word_embeddings {
        weights.push(("lm_head.weight".to_owned(), vec![c.vocab_size, c.hidden_size]));
    }
    for layer in 0..c.num_layers {
        let mut add = |name: &str, shape: &[usize]| {
            weights.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[c.hidden_size]);
        add("post_attention_layernorm.weight", &[c.hidden_size]);
        for (name, rows, columns, bias) in [
            ("self_attn.q_proj", q, c.hidden_size, c.qkv_bias),
            ("self_attn.k_proj", kv, c.hidden_size, c.qkv_bias),
            ("self_attn.v_proj", kv, c.hidden_size, c.qkv_bias),
            ("self_attn.o_proj", c.hidden_size, q, c.output_bias),
            ("mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias),
            ("mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias),
            ("mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias),
        ] {
            add(&format!("{name}.weight"), &[rows, columns]);
            if bias {
                add(&format!("{name}.bias"), &[rows]);
            }
        }
        if c.qk_norm {
            add("self_attn.q_norm.weight", &[c.head_dim]);
            add("self_attn.k_norm.weight", &[c.head_dim]);
        }
    }
    weights.sort();
    weights
}

#[test]
fn the_weights_are_those_that_the_configuration_asks_for() {
    for (name, family, tensors) in [
        ("tests/fixtures/llama3", Family::Llama, 21),
        ("tests/fixtures/llama3-older-form", Family::Llama, 21),
        ("tests/fixtures/mistral", Family::Mistral, 21),
        ("tests/fixtures/qwen2", Family::Qwen2, 27),
        ("tests/fixtures/qwen3", Family::Qwen3, 24),
        ("tests/fixtures/qwen3-sharded", Family::Qwen3, 25),
        ("examples/tiny-qwen3", Family::Qwen3, 68),
    ] {
        let config = DecoderConfig::load(&folder(name)).unwrap();
        assert_eq!(config.family, family, "{name}");
        assert_eq!(config.dtype, Some(DType::BF16), "{name}");
        assert_eq!((config.bos_token_id, &config.eos_token_ids), (Some(0), &vec![0]), "{name}");
        assert_eq!(config.ignored_keys, Vec::<String>::new(), "{name}");
        let checkpoint = Checkpoint::open(&folder(name)).unwrap();
        let expected = expected_weights(&config);
        assert_eq!(expected.len(), tensors, "{name}");
        assert!(checkpoint.names().eq(expected.iter().map(|(weight, _)| weight)), "{name}");
        for (weight, shape) in &expected {
            let view = checkpoint.weight(weight, shape).unwrap();
            assert_eq!(view.dtype, DType::BF16, "{name}: {weight}");
            assert_eq!(checkpoint.dtype_of(weight), Some(view.dtype));
            assert_eq!(view.bytes.len(), 2 * shape.iter().product::<usize>(), "{name}: {weight}");
        }
    }
}

#[test]
fn the_older_form_of_a_configuration_says_the_same() {
    let newer = DecoderConfig::load(&folder("tests/fixtures/llama3")).unwrap();
    let older = DecoderConfig::load(&folder("tests/fixtures/llama3-older-form")).unwrap();
    assert!(matches!(older.rope.scaling, RopeScaling::Llama3 { .. }));
    assert_eq!(older, newer);
}

/// What published files say in the key names of older releases.
#[test]
fn the_names_of_the_hub_say_the_same() {
    for name in [
        "gemma2",
        "gemma3",
        "granite",
        "mistral-window",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen3-moe",
        "qwen3-yarn",
        "smollm3",
    ] {
        let folder = folder("tests/fixtures").join(name);
        let read = |file: &str| {
            let file = folder.join(file);
            DecoderConfig::parse(&std::fs::read(&file).unwrap(), &file).unwrap()
        };
        let (newer, older) = (read("config.json"), read("config.hub.json"));
        assert_eq!(newer.ignored_keys, Vec::<String>::new(), "{name}");
        assert_eq!(older, newer, "{name}");
    }
}

#[test]
fn shards_hold_the_bytes_that_their_files_hold() {
    let checkpoint = Checkpoint::open(&folder("tests/fixtures/qwen3-sharded")).unwrap();
    let mut files: Vec<_> =
        checkpoint.names().filter_map(|name| checkpoint.file_of(name)).collect();
    files.sort();
    files.dedup();
    assert_eq!(files.len(), 4);
    for file in files {
        let contents = std::fs::read(file).unwrap();
        let reference = safetensors::SafeTensors::deserialize(&contents).unwrap();
        for (name, tensor) in reference.iter() {
            let view = checkpoint.tensor(name).unwrap();
            assert_eq!((view.shape, view.bytes), (tensor.shape(), tensor.data()), "{name}");
        }
    }
}

#[test]
fn the_tokenizer_gives_the_ids_of_the_reference() {
    let folder = folder("examples/tiny-qwen3");
    let config = DecoderConfig::load(&folder).unwrap();
    let tokenizer = TextTokenizer::load(&folder, config.vocab_size).unwrap();
    let golden: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    assert_eq!(golden.len(), 5);
    for prompt in golden {
        let text = prompt["prompt"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        let reply: Vec<u32> = serde_json::from_value(prompt["greedy_fp32"].clone()).unwrap();
        let mut stream = tokenizer.stream_after(&ids).unwrap();
        let mut streamed: String = reply.iter().map(|id| stream.push(*id).unwrap()).collect();
        streamed += &stream.finish().unwrap();
        assert_eq!(streamed, tokenizer.decode(&reply).unwrap());
    }
}
