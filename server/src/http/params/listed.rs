//! The fields of both endpoints, for the OpenAPI document.

use super::super::fields::{Field, field, schema};

/// The fields that [`Params::take`](super::Params::take) takes.
pub(crate) const FIELDS: &[Field] = &[
    field("max_tokens", schema::COUNT, "The most tokens to generate."),
    field("n", r#"{"type":"integer","minimum":1}"#, "How many answers to each prompt."),
    field("stream", schema::FLAG, "Answer piece by piece, as server-sent events."),
    field(
        "stream_options",
        r#"{"type":"object","properties":{"include_usage":{"type":"boolean"},"continuous_usage_stats":{"type":"boolean"},"include_obfuscation":{"type":"boolean"}}}"#,
        "Whether the last event of a stream says what it took, and then whether each does; events have no padding, whatever is said of it.",
    ),
    field("stop", schema::TEXT_OR_TEXTS, "Texts that end the answer; they are not part of it."),
    field("stop_token_ids", schema::IDS, "Ids that end the answer."),
    field(
        "include_stop_str_in_output",
        schema::FLAG,
        "Whether a stop text, or the text of a stop id, is part of the answer after all.",
    ),
    field(
        "skip_special_tokens",
        schema::FLAG_THAT_IS_SET,
        "Whether special tokens have no text in answers; where they have one, `stop` sees it.",
    ),
    field(
        "min_tokens",
        schema::COUNT_OR_NONE,
        "How many tokens there are at least before an id that ends the answer; a structure that is complete ends it all the same.",
    ),
    field("allowed_token_ids", schema::IDS, "The only ids that answers may have."),
    field("bad_words", schema::TEXTS, "Texts whose tokens never come one after the other."),
    field("ignore_eos", schema::FLAG, "Go on past the ids that end a text."),
    field("temperature", schema::TEMPERATURE, "0 takes the likeliest token."),
    field(
        "top_p",
        schema::SHARE,
        "Sample among the likeliest tokens that make up this share; 0 takes the likeliest.",
    ),
    field(
        "top_k",
        schema::BOUND,
        "Sample among so many of the likeliest tokens; -1 and 0 are off.",
    ),
    field(
        "min_p",
        schema::SHARE,
        "Sample among tokens at least so likely, as a share of the likeliest.",
    ),
    field("seed", schema::WHOLE, "The same seed gives the same answer, alone or in company."),
    field(
        "presence_penalty",
        schema::PENALTY,
        "Taken from the logit of every id that was generated.",
    ),
    field(
        "frequency_penalty",
        schema::PENALTY,
        "Taken from the logit of an id for each time it was generated.",
    ),
    field(
        "repetition_penalty",
        r#"{"type":"number","exclusiveMinimum":0}"#,
        "Divides the logits of ids that were there; 1 is off.",
    ),
    field(
        "logit_bias",
        r#"{"type":"object","additionalProperties":{"type":"number"}}"#,
        "What is added to the logits of ids.",
    ),
    field(
        "priority",
        schema::WHOLE,
        "Who goes first: the lower; with `--scheduling-policy priority`.",
    ),
    field(
        "deadline_seconds",
        r#"{"type":"number"}"#,
        "The answer ends so long after the request came, wherever it is then; its finish_reason is `abort`.",
    ),
    field(
        "return_token_ids",
        schema::FLAG,
        "Whether answers bring their token ids, and the prompt's.",
    ),
    field(
        "prompt_logprobs",
        schema::LIKELIEST,
        "Log-probabilities of the prompt's tokens, and of so many of the likeliest ids beside each.",
    ),
    field(
        "response_format",
        schema::OBJECT,
        "`json_object`, or `json_schema` with a schema: the answer keeps to it.",
    ),
    field(
        "structured_outputs",
        schema::OBJECT,
        "One of `json`, `regex`, `choice` and `grammar`, as in vLLM: the answer keeps to it.",
    ),
    field(
        "guided_json",
        r#"{"anyOf":[{"type":"object"},{"type":"string"}]}"#,
        "vLLM's older name of `structured_outputs.json`.",
    ),
    field(
        "guided_json_object",
        schema::FLAG,
        "vLLM's older name of `structured_outputs.json_object`.",
    ),
    field("guided_regex", schema::TEXT, "vLLM's older name of `structured_outputs.regex`."),
    field("guided_choice", schema::TEXTS, "vLLM's older name of `structured_outputs.choice`."),
    field("guided_grammar", schema::TEXT, "vLLM's older name of `structured_outputs.grammar`."),
    field(
        "return_tokens_as_token_ids",
        schema::FLAG,
        "Whether log-probabilities name tokens by their ids: `token_id:5`.",
    ),
    field(
        "truncate_prompt_tokens",
        schema::BOUND,
        "Of how many tokens a prompt has the last alone; -1 is as many as there is room for.",
    ),
    field(
        "cache_salt",
        schema::TEXT,
        "Pages of prompts are shared by requests with the same salt alone, or by those without one.",
    ),
    field("best_of", schema::COUNT, "As many as `n`."),
    field("request_id", schema::TEXT, "Taken, and not looked at."),
    field("prompt_cache_retention", schema::TEXT, "Taken, and not looked at."),
    field("user", schema::TEXT, "Taken, and not looked at."),
    field("metadata", schema::OBJECT, "Taken, and not looked at."),
    field("store", schema::FLAG, "Taken, and not looked at: nothing is stored."),
    field("safety_identifier", schema::TEXT, "Taken, and not looked at."),
    field("prompt_cache_key", schema::TEXT, "Taken, and not looked at."),
    field("service_tier", schema::TEXT, "Taken, and not looked at."),
];
