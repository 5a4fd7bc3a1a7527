//! How an engine joins a front end.

use piecewise_runtime::engine::Engine;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What an engine says on the handshake's socket.
pub(crate) fn hello(status: &str) -> Value {
    json!({"status": status, "local": false, "headless": true})
}

/// What the front end answers. It does not say its version; what it says has the fields of the one
/// that is spoken, all of them and no others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Init {
    pub addresses: Addresses,
    parallel_config: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Addresses {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    // A field of which a function makes something has to be there.
    #[serde(deserialize_with = "Option::deserialize")]
    coordinator_input: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    coordinator_output: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    frontend_stats_publish_address: Option<String>,
}

impl Init {
    /// Reads an answer.
    ///
    /// # Errors
    /// What is not as vLLM 0.33 has it, or of engines that step together.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let init: Self = super::read(bytes).map_err(|error| error.to_string())?;
        if let Some((name, _)) = init.parallel_config.iter().next() {
            return Err(format!("`parallel_config` has `{name}`, which this version leaves out"));
        }
        let Addresses {
            coordinator_input, coordinator_output, frontend_stats_publish_address, ..
        } = &init.addresses;
        let together = [
            ("coordinator_input", coordinator_input),
            ("coordinator_output", coordinator_output),
            ("frontend_stats_publish_address", frontend_stats_publish_address),
        ];
        match together.iter().find(|(_, address)| address.is_some()) {
            Some((name, _)) => Err(format!(
                "it gives a `{name}`, which is for engines that step together, and these don't"
            )),
            None => Ok(init),
        }
    }
}

/// What an engine is, said on the socket of requests.
pub(crate) fn ready(engine: &Engine, rank: u16, dtype: &str, admin: bool) -> Value {
    let (options, load) = (engine.options(), engine.load());
    let block_size = piecewise_runtime::memory::PAGE_ROWS;
    let tokens = load.kv_pages * block_size;
    json!({
        "max_model_len": options.max_seq_len,
        "num_gpu_blocks": load.kv_pages,
        "block_size": block_size,
        "dp_stats_address": null,
        "dtype": dtype,
        "vllm_version": super::VLLM_VERSION,
        "world_size": 1,
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "data_parallel_rank": rank,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_tokens,
        "instance_id": format!("piecewise-{}-{rank}", std::process::id()),
        "supports_lora": false,
        "max_loras": 0,
        "kv_cache_size_tokens": tokens,
        "kv_cache_max_concurrency": tokens as f64 / options.max_seq_len.max(1) as f64,
        "enable_sleep_mode": admin,
        "supports_draft_weight_updates": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As vLLM 0.33.0 sends it.
    fn init() -> Value {
        json!({
            "addresses": {
                "inputs": ["tcp://127.0.0.1:1"], "outputs": ["tcp://127.0.0.1:2"],
                "coordinator_input": null, "coordinator_output": null,
                "frontend_stats_publish_address": null,
            },
            "parallel_config": {},
        })
    }

    fn error(init: &Value) -> String {
        Init::read(&rmp_serde::to_vec_named(init).unwrap()).unwrap_err()
    }

    #[test]
    fn an_answer_of_another_version_is_refused_by_the_field_that_differs() {
        let known = Init::read(&rmp_serde::to_vec_named(&init()).unwrap()).unwrap();
        assert_eq!(known.addresses.outputs, ["tcp://127.0.0.1:2"]);
        for at in ["", "/addresses", "/parallel_config"] {
            let mut more = init();
            more.pointer_mut(at).unwrap()["protocol_version"] = json!(2);
            assert!(error(&more).contains("protocol_version"), "{at}: {}", error(&more));
        }
        for at in ["", "/addresses"] {
            let whole = init();
            for name in whole.pointer(at).unwrap().as_object().unwrap().keys() {
                let mut less = init();
                less.pointer_mut(at).unwrap().as_object_mut().unwrap().remove(name);
                assert!(error(&less).contains(name.as_str()), "{name}: {}", error(&less));
            }
        }
    }

    #[test]
    fn engines_that_step_together_are_others() {
        let mut together = init();
        together["addresses"]["coordinator_input"] = json!("tcp://127.0.0.1:3");
        assert!(error(&together).contains("coordinator_input"));
    }
}
