//! What a reader of packings may get wrong, planted where it reads; and what a damaged file may hold.

use super::layers::Tensor;
use super::{Format, Tensors, checkpoint, formats, refused, run, with, write};
use crate::support::cache::{run as run_with, warnings};
use crate::support::cli::norm_error;
use serde_json::json;

fn named(name: &str) -> Format {
    formats().into_iter().find(|format| format.name == name).unwrap()
}

/// A fault in the tensors of that leaf shows in the logits of each format, which without it are right.
fn shows(formats: &[&str], leaf: &str, fault: fn(&mut Tensor)) {
    for name in formats {
        let format = named(name);
        let (config, mut packed, plain) = checkpoint(&format);
        let config_of_packed = with(&config, &format.quantization);
        let expected = run(&config, &plain);
        assert!(norm_error(&run(&config_of_packed, &packed), &expected) < 2e-5, "{name}");
        let mut found = 0;
        for (tensor, data) in &mut packed {
            if tensor.ends_with(&format!("down_proj.{leaf}")) {
                fault(data);
                found += 1;
            }
        }
        assert_eq!(found, 1, "{name} has such a tensor");
        let error = norm_error(&run(&config_of_packed, &packed), &expected);
        assert!(error > 2e-4, "{name}: {error}");
    }
}

fn element(tensor: &Tensor) -> usize {
    match tensor.dtype {
        "F16" | "BF16" => 2,
        _ => 4,
    }
}

#[test]
fn the_scale_of_a_neighbour_block_shows() {
    let next = |scales: &mut Tensor| {
        let size = element(scales);
        scales.bytes.rotate_left(size);
    };
    shows(&["block fp8"], "weight_scale_inv", next);
    shows(&["fp8 by channel", "packed", "packed in 64"], "weight_scale", next);
    shows(&["awq", "gptq"], "scales", next);
}

#[test]
fn another_order_of_nibbles_shows() {
    // Each two of a word change places.
    let turned = |words: &mut Tensor| words.bytes.iter_mut().for_each(|b| *b = b.rotate_left(4));
    shows(&["packed", "packed asymmetric"], "weight_packed", turned);
    shows(&["awq", "gptq", "gptq asymmetric"], "qweight", turned);
    shows(&["awq", "gptq v2 asymmetric"], "qzeros", turned);
}

#[test]
fn a_zero_point_off_by_one_shows() {
    // Zero points are 1 to 14, or less by one.
    let more = |zeros: &mut Tensor| zeros.bytes.iter_mut().for_each(|b| *b = b.wrapping_add(0x11));
    shows(&["awq", "gptq asymmetric", "gptq v2 asymmetric"], "qzeros", more);
    shows(&["packed asymmetric"], "weight_zero_point", more);
}

/// The configuration that names the other of two conventions.
#[test]
fn the_other_convention_of_zero_points_shows() {
    let format = named("gptq asymmetric");
    let (config, packed, plain) = checkpoint(&format);
    let mut other = with(&config, &format.quantization);
    other["quantization_config"]["checkpoint_format"] = "gptq_v2".into();
    let error = norm_error(&run(&other, &packed), &run(&config, &plain));
    assert!(error > 2e-4, "{error}");
}

#[test]
fn gate_and_up_in_each_others_place_show() {
    for name in ["block fp8", "packed asymmetric", "awq", "gptq"] {
        let format = named(name);
        let (config, mut packed, mut plain) = checkpoint(&format);
        // Of small numbers `silu` is a half, so that a product with another would be the same.
        for tensors in [&mut packed, &mut plain] {
            let norm = tensors.get_mut("model.layers.0.post_attention_layernorm.weight").unwrap();
            norm.bytes.as_chunks_mut().0.iter_mut().for_each(|x| {
                *x = (16.0 * f32::from_le_bytes(*x)).to_le_bytes();
            });
        }
        let swapped: Tensors = packed
            .into_iter()
            .map(|(name, tensor)| match name.contains("gate_proj") {
                true => (name.replace("gate_proj", "up_proj"), tensor),
                false => (name.replace("up_proj", "gate_proj"), tensor),
            })
            .collect();
        let found = run(&with(&config, &format.quantization), &swapped);
        assert!(norm_error(&found, &run(&config, &plain)) > 2e-4, "{name}");
    }
}

const MODULE: &str = "model.layers.0.mlp.up_proj";

#[test]
fn codes_and_scales_that_are_no_numbers_are_refused_by_their_tensor() {
    for name in ["block fp8", "static fp8", "fp8 by channel"] {
        let format = named(name);
        let (config, packed, _) = checkpoint(&format);
        for code in [0x7f, 0xff] {
            let (mut faulty, tensor) = (packed.clone(), format!("{MODULE}.weight"));
            faulty.get_mut(&tensor).unwrap().bytes[64 + 7] = code;
            let parts = ["model.safetensors", &*tensor, "row 1, column 7", "NaN"];
            refused(&with(&config, &format.quantization), &faulty, &parts);
        }
    }
    for (name, leaf, wrong) in [
        ("block fp8", "weight_scale_inv", [[0xc0, 0x7f], [0x80, 0x7f], [0x80, 0xbf]]),
        ("packed", "weight_scale", [[0xc0, 0x7f], [0x80, 0x7f], [0x80, 0xbf]]),
        ("awq", "scales", [[0x00, 0x7e], [0x00, 0x7c], [0x00, 0xbc]]),
    ] {
        let format = named(name);
        let (config, packed, _) = checkpoint(&format);
        for (wrong, said) in wrong.into_iter().zip(["NaN", "inf", "-1"]) {
            let (mut faulty, tensor) = (packed.clone(), format!("{MODULE}.{leaf}"));
            faulty.get_mut(&tensor).unwrap().bytes[4..6].copy_from_slice(&wrong);
            let parts = ["model.safetensors", &*tensor, &format!("scale 2 is {said}")];
            refused(&with(&config, &format.quantization), &faulty, &parts);
        }
    }
}

#[test]
fn scales_of_another_size_than_weights_have_are_told() {
    for (name, leaf, one) in [
        ("block fp8", "weight_scale_inv", [0x80, 0x3f]),
        ("packed", "weight_scale", [0x20, 0x41]),
        ("awq", "scales", [0x00, 0x49]),
    ] {
        let format = named(name);
        let (config, mut packed, _) = checkpoint(&format);
        let folder = tempfile::tempdir().unwrap();
        let said = |tensors: &Tensors| {
            write(folder.path(), &with(&config, &format.quantization), tensors);
            let (model, cache) = (folder.path().to_str().unwrap(), tempfile::tempdir().unwrap());
            let ids = ["--ids", "1,2", "--out", "/dev/null", "--max-num-tokens", "8"];
            let args = [&["logits", "--model", model], &ids[..]].concat();
            warnings(&run_with(cache.path(), &args)).join("\n")
        };
        assert!(!said(&packed).contains("root mean square"), "{name}");
        let tensor = format!("{MODULE}.{leaf}");
        for scale in packed.get_mut(&tensor).unwrap().bytes.as_chunks_mut::<2>().0 {
            *scale = one;
        }
        let said = said(&packed);
        assert!(said.contains(&tensor) && said.contains("root mean square"), "{name}: {said}");
    }
}

#[test]
fn tensors_that_are_not_read_and_those_that_are_missing_are_named() {
    let format = named("packed");
    let (config, packed, plain) = checkpoint(&format);
    let config_of_packed = with(&config, &format.quantization);
    for (config, tensors) in [(&config, &plain), (&config_of_packed, &packed)] {
        let mut more = tensors.clone();
        for name in ["model.layers.0.mlp.more_proj.weight", "other.table"] {
            more.insert(name.to_owned(), Tensor::f32(&[2, 2], &[0.0; 4]));
        }
        refused(config, &more, &["reads nothing", "mlp.more_proj.weight", "other.table"]);
        // What is known to be of no use to a decoder.
        let mut known = tensors.clone();
        for name in ["model.layers.0.self_attn.rotary_emb.inv_freq", "mtp.fc.weight"] {
            known.insert(name.to_owned(), Tensor::f32(&[2], &[0.0; 2]));
        }
        run(config, &known);
        let mut fewer = tensors.clone();
        fewer.retain(|name, _| !name.contains("layernorm"));
        let missing = ["2 tensors are missing", "input_layernorm", "post_attention_layernorm"];
        refused(config, &fewer, &missing);
    }
}

#[test]
fn embeddings_and_heads_in_few_bits_are_refused_by_their_tensor() {
    let format = named("packed");
    let (config, packed, _) = checkpoint(&format);
    let config = with(&config, &format.quantization);
    for (module, said) in [("model.embed_tokens", "embedding"), ("lm_head", "head")] {
        for leaf in ["weight_packed", "qweight"] {
            let mut tensors = packed.clone();
            tensors.remove(&format!("{module}.weight"));
            let name = format!("{module}.{leaf}");
            tensors.insert(name.clone(), Tensor::words(&[48, 8], &[0; 48 * 8]));
            refused(&config, &tensors, &[&name, said, "quantization_config", "config.json"]);
        }
        let mut tensors = packed.clone();
        let name = format!("{module}.weight");
        let codes = Tensor::of("F8_E4M3", &[48, 64], std::iter::repeat_n([0x38], 48 * 64));
        tensors.insert(name.clone(), codes);
        refused(&config, &tensors, &[&name, "e4m3", "quantization_config"]);
    }
    let mut gptq = with(&config, &named("gptq").quantization);
    gptq["quantization_config"]["lm_head"] = json!(true);
    refused(&gptq, &packed, &["config.json", "`quantization_config.lm_head`"]);
}
