//! How an engine joins a front end.

use serde::{Deserialize, Serialize};

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

/// What the front end answers.
#[derive(Debug, Deserialize)]
pub(crate) struct Init {
    pub addresses: Addresses,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Addresses {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
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
