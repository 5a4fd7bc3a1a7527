//! How an engine joins a front end.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What an engine says on the handshake's socket.
#[derive(Debug, Serialize)]
pub(crate) struct Hello {
    pub status: &'static str,
    pub local: bool,
    pub headless: bool,
}

impl Hello {
    pub(crate) fn new(status: &'static str) -> Self {
        Self { status, local: false, headless: true }
    }
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
        let init: Self = rmp_serde::from_slice(bytes).map_err(|error| error.to_string())?;
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
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ready {
    pub max_model_len: u64,
    pub num_gpu_blocks: u64,
    pub block_size: u64,
    pub dp_stats_address: Option<String>,
    pub dtype: String,
    pub vllm_version: &'static str,
    pub world_size: u64,
    pub data_parallel_size: u64,
    pub tensor_parallel_size: u64,
    pub pipeline_parallel_size: u64,
    pub decode_context_parallel_size: u64,
    pub data_parallel_rank: u16,
    pub max_num_seqs: u64,
    pub max_num_batched_tokens: u64,
    pub instance_id: String,
    pub supports_lora: bool,
    pub max_loras: u64,
    pub kv_cache_size_tokens: u64,
    pub kv_cache_max_concurrency: f64,
    pub enable_sleep_mode: bool,
    pub supports_draft_weight_updates: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
