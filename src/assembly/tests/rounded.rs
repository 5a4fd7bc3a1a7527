//! Random weights, and those in memory, with their layers rounded when they are loaded.

use super::*;
use crate::models::DecoderConfig;
use piecewise_backend::weights::NormalWeights;
use piecewise_runtime::words::Progress;

fn small() -> DecoderConfig {
    let mut config = Preset::ALL[0].config();
    (config.hidden_size, config.intermediate_size, config.num_layers) = (128, 384, 2);
    (config.num_heads, config.num_kv_heads, config.head_dim) = (4, 2, 32);
    (config.vocab_size, config.eos_token_ids) = (64, Vec::new());
    config.bos_token_id = None;
    config
}

fn assembly(format: Quantize) -> Assembly {
    let weights = NormalWeights { std: 0.02, seed: 7 };
    let assembly = Assembly::model(small()).weights(weights).set("cache.enabled", false).threads(1);
    let assembly = assembly.activations(DType::F32).max_num_tokens(8).max_num_seqs(2);
    assembly.max_seq_len(32).quantize(format)
}

/// The root mean square of the logits of a prompt.
fn size_of_logits(format: Quantize) -> f64 {
    let mut engine = assembly(format).purpose(Purpose::Logits).engine().unwrap();
    let mut values = Vec::new();
    let request = Request::new(vec![3, 5, 7, 11, 60], 1);
    engine
        .logits(&request, &mut |_, bytes| {
            values.extend(bytes.as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))));
        })
        .unwrap();
    assert_eq!(values.len(), 5 * 64);
    assert!(values.iter().all(|x| x.is_finite()), "{format}");
    (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn random_codes_and_scales_make_logits_of_the_size_that_random_floats_make() {
    let plain = size_of_logits(Quantize::None);
    for format in [Quantize::Fp8, Quantize::Int4] {
        let size = size_of_logits(format);
        assert!((0.5..2.0).contains(&(size / plain)), "{format}: {size} beside {plain}");
    }
}

/// So many bytes are loaded: fewer of fewer bits, and all at the end.
#[test]
fn loading_is_told_in_bytes() {
    let loaded = |format| {
        let told = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&told);
        let engine = assembly(format).watch(move |notice| {
            if let Notice::Progress(Progress::Loading { done, total }) = notice {
                hears.lock().unwrap().push((done, total));
            }
        });
        let weights = engine.engine().unwrap().model().ledger().weights;
        let told = told.lock().unwrap();
        let (done, total) = *told.last().unwrap();
        assert!(told.is_sorted() && told.iter().all(|(_, of)| *of == total));
        // The memory of a weight begins at a whole number of cache lines.
        assert!(done == total && total <= weights && 10 * total > 9 * weights, "{done}, {weights}");
        total
    };
    let [plain, eight, four] = [Quantize::None, Quantize::Fp8, Quantize::Int4].map(loaded);
    assert!(four < eight && eight < plain, "{plain}, {eight}, {four}");
}

#[test]
fn random_codes_mean_numbers_of_the_spread_of_the_floats() {
    use crate::models::few_bits::{RoundedWeights, rounded_layers};
    let bounds = |format| assembly(format).plan().unwrap();
    let plain = bounds(Quantize::None);
    for format in [Quantize::Fp8, Quantize::Int4] {
        let rounded = bounds(format);
        let layers = rounded_layers(plain.module().graph(), rounded.module().graph());
        assert_eq!(layers.len(), 14, "{layers:?}");
        let source = Box::new(NormalWeights { std: 0.02, seed: 7 });
        let weights = RoundedWeights::new(source, format, layers, Vec::new());
        let name = "model.layers.1.mlp.down_proj";
        let bytes = |leaf: &str, dtype, shape: &[u64]| {
            let name = format!("{name}.{leaf}");
            match weights.tensor(TensorSpec { name: &name, dtype, shape }).unwrap() {
                TensorSource::Bytes(bytes) => bytes.into_owned(),
                TensorSource::Normal { std, seed } => {
                    let n = shape.iter().product::<u64>() as usize;
                    let numbers = piecewise_backend::cpu::normal_numbers(&name, seed, std, n);
                    let codes = numbers.iter().map(|&x| Scalar::new(dtype, f64::from(x)));
                    codes.flat_map(Scalar::to_bytes).collect()
                }
            }
        };
        let groups = if format == Quantize::Int4 { 3 } else { 1 };
        let scales = bytes("weight_scale", DType::F32, &[128, groups]);
        let scales = Vec::from_iter(scales.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)));
        assert!(scales.iter().all(|scale| scale.is_finite() && *scale > 0.0));
        let codes: Vec<f64> = match format {
            Quantize::Int4 => {
                let words = bytes("weight_packed", DType::I32, &[128, 48]);
                let nibbles = words.iter().flat_map(|b| [b & 15, b >> 4]);
                nibbles.map(|code| f64::from(code) - 8.0).collect()
            }
            _ => {
                let codes = bytes("weight", DType::E4M3, &[128, 384]);
                assert!(codes.iter().all(|code| code & 0x7f != 0x7f), "NaN");
                let number = |code: &u8| Scalar::from_bits(DType::E4M3, u64::from(*code)).to_f64();
                codes.iter().map(number).collect()
            }
        };
        assert_eq!(codes.len(), 128 * 384);
        let group = 384 / groups as usize;
        let weights = codes.iter().enumerate().map(|(i, x)| x * f64::from(scales[i / group]));
        let weights = Vec::from_iter(weights);
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let std = (weights.iter().map(|x| x * x).sum::<f64>() / weights.len() as f64).sqrt();
        assert!(mean.abs() < 4e-4 && (std - 0.02).abs() < 1e-3, "{format}: {mean}, {std}");
        assert!(codes.iter().any(|code| *code != codes[0]), "they differ");
    }
}
