//! A request, as the front end adds it.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// How many fields a request has at most; what is left out at the end has its default.
const FIELDS: u32 = 22;

/// A request, by position.
#[derive(Debug, Deserialize)]
pub(crate) struct Added {
    pub id: String,
    pub prompt: Option<Vec<u32>>,
    pub mm_features: Option<IgnoredAny>,
    pub sampling: Option<SamplingParams>,
    pub pooling_params: Option<IgnoredAny>,
    _arrival_time: f64,
    pub lora_request: Option<IgnoredAny>,
    pub cache_salt: Option<String>,
    _data_parallel_rank: Option<u32>,
    #[serde(default)]
    pub prompt_embeds: Option<IgnoredAny>,
    #[serde(default)]
    pub prompt_is_token_ids: Option<Vec<bool>>,
    #[serde(default)]
    _client_index: u32,
    #[serde(default)]
    _current_wave: u64,
    #[serde(default)]
    pub priority: i32,
    #[serde(default)]
    pub trace_headers: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub resumable: bool,
    #[serde(default)]
    _external_id: Option<String>,
    #[serde(default)]
    pub reasoning_ended: Option<bool>,
    #[serde(default)]
    _reasoning_parser_kwargs: Option<IgnoredAny>,
    #[serde(default)]
    pub abort_immediately: bool,
    #[serde(default)]
    _session_id: Option<String>,
    #[serde(default)]
    _kv_hints: Option<IgnoredAny>,
}

impl Added {
    /// Reads a request.
    ///
    /// # Errors
    /// What is not as vLLM 0.33 has it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let fields = rmp::decode::read_array_len(&mut &bytes[..]).unwrap_or(0);
        if fields > FIELDS {
            return Err(format!(
                "a request of {fields} fields, and vLLM {} has {FIELDS}: the front end is of \
                 another version",
                super::VLLM_VERSION
            ));
        }
        super::read(bytes).map_err(|error| error.to_string())
    }
}

/// The id of a request that may be damaged behind it.
pub(crate) fn request_id(bytes: &[u8]) -> Option<String> {
    let mut rest = bytes;
    rmp::decode::read_array_len(&mut rest).ok()?;
    let length = rmp::decode::read_str_len(&mut rest).ok()? as usize;
    std::str::from_utf8(rest.get(..length)?).ok().map(str::to_owned)
}

/// How tokens are chosen, and when to stop: by name, defaults left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default = "SamplingParams::of_nothing", deny_unknown_fields)]
pub(crate) struct SamplingParams {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i64,
    pub seed: Option<i64>,
    pub max_tokens: u64,
    pub min_tokens: u64,
    pub thinking_token_budget: Option<i64>,
    pub logprobs: Option<i64>,
    pub prompt_logprobs: Option<i64>,
    pub prompt_logprob_token_ids: Option<IgnoredAny>,
    pub prompt_logprob_start: Option<IgnoredAny>,
    pub min_p: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub repetition_penalty: f32,
    pub repetition_detection: Option<IgnoredAny>,
    pub stop_token_ids: Vec<u32>,
    #[serde(rename = "_eos_token_id")]
    pub eos_token_id: Option<u32>,
    #[serde(rename = "_all_stop_token_ids")]
    pub all_stop_token_ids: Vec<u32>,
    pub logit_bias: Option<BTreeMap<u32, f32>>,
    pub allowed_token_ids: Option<Vec<u32>>,
    #[serde(rename = "_bad_words_token_ids")]
    pub bad_words_token_ids: Option<Vec<Vec<u32>>>,
    pub structured_outputs: Option<Map<String, Value>>,
    pub logprob_token_ids: Option<IgnoredAny>,
    pub skip_reading_prefix_cache: Option<bool>,
    pub extra_args: Option<IgnoredAny>,
    // Nothing here marks texts, or has experts to route to.
    #[serde(rename = "watermarking")]
    _watermarking: bool,
    #[serde(rename = "routed_experts_prompt_start")]
    _routed_experts_prompt_start: u64,
}

impl SamplingParams {
    /// Those of a front end that names none.
    fn of_nothing() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            max_tokens: 16,
            repetition_penalty: 1.0,
            _watermarking: true,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn packed(request: &Value) -> Vec<u8> {
        rmp_serde::to_vec(request).unwrap()
    }

    fn request(sampling: &Value) -> Value {
        json!(["r-1", [1, 2, 3], null, sampling, null, 1.5, null, null, null])
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let added = Added::read(&packed(&request(&json!({"max_tokens": 5})))).unwrap();
        let sampling = added.sampling.unwrap();
        assert_eq!((added.id.as_str(), added.prompt), ("r-1", Some(vec![1, 2, 3])));
        assert_eq!((sampling.max_tokens, sampling.temperature, sampling.top_p), (5, 1.0, 1.0));
        assert_eq!((added.priority, added.abort_immediately), (0, false));
    }

    #[test]
    fn fields_of_another_version_are_named() {
        let unknown = request(&json!({"tachyons": 1}));
        let error = Added::read(&packed(&unknown)).unwrap_err();
        assert!(error.contains("tachyons"), "{error}");
        let mut longer = request(&json!({}));
        longer.as_array_mut().unwrap().resize(23, Value::Null);
        let error = Added::read(&packed(&longer)).unwrap_err();
        assert!(error.contains("23 fields") && error.contains("0.33"), "{error}");
    }

    #[test]
    fn a_request_that_is_cut_anywhere_is_refused_and_has_its_id_from_where_it_is_whole() {
        let whole = packed(&request(&json!({"max_tokens": 5, "stop_token_ids": [7]})));
        for cut in 0..whole.len() {
            assert!(Added::read(&whole[..cut]).is_err(), "{cut}");
            let id = (cut >= 5).then(|| "r-1".to_owned());
            assert_eq!(request_id(&whole[..cut]), id, "{cut}");
        }
    }
}
