//! What a front end asks of an engine besides tokens.

use crate::wire::{Call, answer, failure};
use piecewise_runtime::engine_thread::{EngineHandle, Rest};
use piecewise_server::operate::{Order, Refusal, Reply};
use serde_json::{Value, json};
use std::time::Duration;

/// How long the engine may take to come to a question between two steps.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers a call, whatever it is, by a message; of those that take long on the engine's thread. The
/// engine is put to sleep and woken where `admin` says so.
pub(crate) fn call(
    rank: u16,
    call: &Call,
    engine: &EngineHandle,
    admin: bool,
    tell: impl FnOnce(Vec<u8>) + Send + 'static,
) {
    let (id, method) = (call.id, call.method.clone());
    let message = move |outcome: Result<Value, String>| {
        outcome.map_or_else(
            |why| {
                tracing::warn!("the front end's call of `{method}`: {why}");
                failure(rank, id, &why)
            },
            |result| answer(rank, id, &result),
        )
    };
    match order(call) {
        Some(_) if !admin => {
            let why = format!("this worker may not `{}`: start it with --admin", call.method);
            tell(message(Err(why)));
        }
        Some(Err(why)) => tell(message(Err(why))),
        Some(Ok(order)) => {
            // vLLM's `sleep` returns nothing, and its `wake_up` whether all of the engine is awake.
            let result = match order {
                Order::WakeUp => json!(true),
                _ => Value::Null,
            };
            let done = |done: Result<Reply, Refusal>| match done {
                Ok(_) => Ok(result),
                Err(refusal) => Err(refusal.to_string()),
            };
            order.give(engine, Box::new(move |result| tell(message(done(result)))));
        }
        None => tell(message(outcome(call, engine))),
    }
}

/// What a call asks of the engine's memory, if anything.
fn order(call: &Call) -> Option<Result<Order, String>> {
    let argument = |i: usize| call.arguments.get(i).filter(|argument| !argument.is_null());
    match call.method.as_str() {
        "sleep" => {
            let level = argument(0).map_or_else(|| "1".to_owned(), Value::to_string);
            let mode = argument(1).map_or("abort", |mode| mode.as_str().unwrap_or_default());
            Some(Order::sleep(&level, Some(mode)).map_err(|refusal| refusal.to_string()))
        }
        "wake_up" if argument(0).is_some() => {
            Some(Err("`tags`: an engine wakes as a whole".to_owned()))
        }
        "wake_up" => Some(Ok(Order::WakeUp)),
        _ => None,
    }
}

fn outcome(call: &Call, engine: &EngineHandle) -> Result<Value, String> {
    match call.method.as_str() {
        "get_supported_tasks" => Ok(json!(["generate"])),
        "is_sleeping" => Ok(json!(engine.rest() == Rest::Asleep)),
        "is_scheduler_paused" => Ok(json!(engine.rest() > Rest::Awake)),
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
