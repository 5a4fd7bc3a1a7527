//! Words of vLLM, SGLang and TensorRT-LLM: taken where they mean what a key here means, answered with
//! the key to write where they do not.

use super::values::RuntimeConfig;
use crate::words::{CompileLevel, GraphMode};
use piecewise_ir::dtype::DType;
use toml::Value;

/// What a setting of another server is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TheirWord {
    /// Another name of this key, with the same values.
    Same(&'static str),
    /// Nothing of the same meaning; what to write in its place, with keys in backticks.
    Instead(&'static str),
}

use TheirWord::{Instead, Same};

const ONE_DEVICE: &str = "a model runs on one device; docs/scaling.md has several of them behind one \
                          address";
const NO_GRAPHS: &str = "write `graph_mode` = \"none\"";
const BOTH_LISTS: &str = "write `capture_num_tokens` for sizes in tokens and `decode_batch_sizes` for \
                          decode batches; one number is the default pattern up to it";

/// Their names, dashes as underscores.
const WORDS: &[(&str, TheirWord)] = &[
    ("max_model_len", Same("max_seq_len")),
    ("context_length", Same("max_seq_len")),
    ("max_num_batched_tokens", Same("max_num_tokens")),
    ("max_running_requests", Same("max_num_seqs")),
    ("max_batch_size", Same("max_num_seqs")),
    ("cudagraph_mode", Same("graph_mode")),
    ("enable_prefix_caching", Same("prefix_cache")),
    ("cuda_graph_bs", Same("decode_batch_sizes")),
    ("cuda_graph_max_bs", Same("decode_batch_sizes")),
    ("cuda_graph_batch_sizes", Same("decode_batch_sizes")),
    ("batch_sizes", Same("decode_batch_sizes")),
    ("enable_padding", Same("padding")),
    ("cuda_graph_padding_enabled", Same("padding")),
    ("cudagraph_capture_sizes", Instead(BOTH_LISTS)),
    ("cuda_graph_sizes", Instead(BOTH_LISTS)),
    ("max_cudagraph_capture_size", Instead(BOTH_LISTS)),
    ("enforce_eager", Instead(NO_GRAPHS)),
    ("disable_cuda_graph", Instead(NO_GRAPHS)),
    ("use_cudagraph", Instead("write `graph_mode`; \"none\" captures nothing")),
    (
        "gpu_memory_utilization",
        Instead(
            "write `memory_fraction`, a share of what is free on the device, not of all that it has",
        ),
    ),
    (
        "mem_fraction_static",
        Instead("write `memory_fraction`, the share of what is free that the whole model may take"),
    ),
    (
        "free_gpu_memory_fraction",
        Instead("write `memory_fraction`, the share of what is free that the whole model may take"),
    ),
    (
        "kv_cache_memory_bytes",
        Instead(
            "write `memory_budget`, bytes for the whole model: the KV cache has what the rest leaves",
        ),
    ),
    (
        "enable_chunked_prefill",
        Instead("leave it out: prompts are cut into chunks of `max_num_tokens`"),
    ),
    ("chunked_prefill_size", Instead("write `max_num_tokens`: longer prompts are cut into chunks")),
    ("disable_radix_cache", Instead("write `prefix_cache` = false")),
    ("no_enable_prefix_caching", Instead("write `prefix_cache` = false")),
    ("kv_cache_dtype", Instead("leave it out: the KV cache has the `dtype` of activations")),
    (
        "quantization",
        Instead(
            "leave it out: a checkpoint in few bits says so itself, and `quantize` rounds one in floats",
        ),
    ),
    ("trust_remote_code", Instead("leave it out: no code of a model folder is run")),
    ("optimization_level", Instead("write `level`")),
    ("tensor_parallel_size", Instead(ONE_DEVICE)),
    ("tp_size", Instead(ONE_DEVICE)),
    ("tp", Instead(ONE_DEVICE)),
    ("pipeline_parallel_size", Instead(ONE_DEVICE)),
    ("data_parallel_size", Instead(ONE_DEVICE)),
];

/// Tables that other servers group such settings in.
const TABLES: [&str; 5] = [
    "compilation_config.",
    "cuda_graph_config.",
    "kv_cache_config.",
    "scheduler_config.",
    "parallel_config.",
];

/// What a key of another server's configuration, or a flag of it without its dashes in front, is here;
/// `None` where nobody knows it.
pub fn their_word(name: &str) -> Option<TheirWord> {
    let name = name.replace('-', "_");
    let name = TABLES.iter().find_map(|table| name.strip_prefix(table)).unwrap_or(&name);
    let known = WORDS.iter().find(|(theirs, _)| *theirs == name).map(|(_, word)| *word);
    known.or_else(|| RuntimeConfig::keys().find(|key| *key == name).map(Same))
}

/// A float type by its name here or in PyTorch; `None` for what is none.
pub fn float_named(name: &str) -> Option<DType> {
    match name {
        "bfloat16" => Some(DType::BF16),
        "float16" | "half" => Some(DType::F16),
        "float32" | "float" => Some(DType::F32),
        name => computed_in().find(|dtype| dtype.name() == name),
    }
}

/// The float types of activations; narrow ones are of weights alone.
pub(super) fn computed_in() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.is_float() && !dtype.is_narrow())
}

/// A value as the configuration has it: levels by number, modes in any case, types by their names in
/// PyTorch, and sizes in order, each once. What is nothing of the kind comes back as it is.
///
/// # Errors
/// What is wrong, where the type of the value would not say it.
pub(super) fn in_our_words(key: &str, value: Value) -> Result<Value, String> {
    Ok(match (key, value) {
        ("level", Value::Integer(level)) => {
            level.to_string().parse::<CompileLevel>()?.name().into()
        }
        ("level", Value::String(level)) => level.parse::<CompileLevel>()?.name().into(),
        ("graph_mode", Value::String(mode)) => mode.parse::<GraphMode>()?.name().into(),
        ("dtype", Value::String(name)) if name == "auto" => {
            return Err("leave it out, which takes the checkpoint's".to_owned());
        }
        ("dtype", Value::String(name)) => {
            float_named(&name).map_or(name, |dtype| dtype.name().to_owned()).into()
        }
        (
            "capture_num_tokens"
            | "decode_batch_sizes"
            | "capture_query_lengths"
            | "compile_sizes"
            | "launched_sizes"
            | "lazy_sizes",
            Value::Array(sizes),
        ) => {
            if sizes.iter().any(|size| size.as_str() == Some("cudagraph_capture_sizes")) {
                let reason = "capture sizes are compiled in any case, so that it need not be said";
                return Err(reason.to_owned());
            }
            in_order(sizes)
        }
        ("capture_own_rows", Value::Table(roles)) => {
            let roles = roles.into_iter().map(|(role, sizes)| match sizes {
                Value::Array(sizes) => (role, in_order(sizes)),
                other => (role, other),
            });
            Value::Table(roles.collect())
        }
        (_, value) => value,
    })
}

fn in_order(sizes: Vec<Value>) -> Value {
    let numbers: Option<Vec<i64>> = sizes.iter().map(Value::as_integer).collect();
    match numbers {
        None => Value::Array(sizes),
        Some(mut numbers) => {
            numbers.sort_unstable();
            numbers.dedup();
            numbers.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_the_same_is_a_key_and_what_does_not_names_one() {
        for (theirs, word) in WORDS {
            assert_eq!(their_word(theirs), Some(*word));
            assert!(!RuntimeConfig::keys().any(|key| key == *theirs), "{theirs} is a key here");
            let named: Vec<&str> = match word {
                Same(key) => vec![key],
                Instead(answer) => answer.split('`').skip(1).step_by(2).collect(),
            };
            for key in named {
                assert!(RuntimeConfig::keys().any(|known| known == key), "{theirs}: {key}");
            }
        }
        assert_eq!(their_word("max-model-len"), Some(Same("max_seq_len")));
        assert_eq!(their_word("compilation_config.level"), Some(Same("level")));
        assert_eq!(their_word("compilation_config.cudagraph_mode"), Some(Same("graph_mode")));
        assert_eq!(their_word("cache.max_batch_size"), None);
    }
}
