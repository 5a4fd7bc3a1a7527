//! What a front end asks of an engine besides tokens.

use crate::wire::{Call, answer, failure};
use piecewise_runtime::engine_thread::EngineHandle;
use serde_json::{Value, json};
use std::time::Duration;

/// How long the engine may take to come to a question between two steps.
const PATIENCE: Duration = Duration::from_secs(60);

/// The message that answers a call, whatever it is.
pub(crate) fn call(rank: u16, call: &Call, engine: &EngineHandle) -> Vec<u8> {
    match outcome(call, engine) {
        Ok(result) => answer(rank, call.id, &result),
        Err(why) => {
            tracing::warn!("the front end's call of `{}`: {why}", call.method);
            failure(rank, call.id, &why)
        }
    }
}

fn outcome(call: &Call, engine: &EngineHandle) -> Result<Value, String> {
    match call.method.as_str() {
        "get_supported_tasks" => Ok(json!(["generate"])),
        "is_sleeping" | "is_scheduler_paused" => Ok(json!(false)),
        "list_loras" => Ok(json!([])),
        // There is nothing of the kind to empty.
        "reset_mm_cache" | "reset_encoder_cache" => Ok(Value::Null),
        "reset_prefix_cache" => {
            if call.arguments.iter().any(|argument| argument == &json!(true)) {
                return Err(
                    "only the cache of pages that nobody runs with can be emptied: call it \
                            without arguments"
                        .to_owned(),
                );
            }
            let done = engine.call(|engine| engine.clear_prefix_cache());
            let done = done.recv_timeout(PATIENCE);
            done.map(|()| json!(true)).map_err(|_| "the engine has not come to it".to_owned())
        }
        other => Err(format!("this worker can't `{other}`")),
    }
}
