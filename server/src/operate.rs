//! What an operator asks of a running engine: to sleep and to wake, under the names that vLLM has for it,
//! and what became of its graphs.

pub use crate::field::Field;
use crate::field::field;
use piecewise_runtime::engine::{Engine, EngineError, MOST_PROFILED_STEPS, ProfileError};
use piecewise_runtime::engine_thread::{EngineHandle, PauseMode, Rest, SleepError};
use piecewise_runtime::words::{
    GraphKey, GraphMode, GraphReport, GraphTotals, ModelError, SuspendedWeights,
};
use serde_json::{Value, json};
use std::str::FromStr;

/// A path with one method.
#[derive(Clone, Copy, Debug)]
pub struct OperatorPath {
    /// The method in capitals: `POST`.
    pub method: &'static str,
    /// The path from its slash on: `/sleep`.
    pub path: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// What its query may have; anything else is refused.
    pub parameters: &'static [Field],
}

const fn on(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    parameters: &'static [Field],
) -> OperatorPath {
    OperatorPath { method, path, summary, parameters }
}

/// Every path that an operator has.
pub const OPERATOR_PATHS: &[OperatorPath] = &[
    on(
        "POST",
        "/sleep",
        "Give the memory of the engine back until it is woken; requests get 503 meanwhile.",
        &[
            field(
                "level",
                r#"{"type":"integer","enum":[1,2],"default":1}"#,
                "1 keeps the weights on the device, 2 drops them, too.",
            ),
            field(
                "mode",
                r#"{"type":"string","enum":["keep","wait","abort"],"default":"keep"}"#,
                "Requests that are there go on when it wakes, are waited for, or end with an error.",
            ),
        ],
    ),
    on(
        "POST",
        "/reset_prefix_cache",
        "Forget what prompts have left for later ones that begin alike.",
        &[],
    ),
    on("POST", "/wake_up", "Take the memory back and go on.", &[]),
    on(
        "POST",
        "/start_profile",
        "Trace the next steps into memory, where and for how long each part of them runs.",
        &[field(
            "num_steps",
            r#"{"type":"integer","minimum":1,"maximum":10000,"default":100}"#,
            "How many steps; the profile ends by itself after them.",
        )],
    ),
    on(
        "POST",
        "/stop_profile",
        "End a profile, and take what was traced: a file for https://ui.perfetto.dev.",
        &[],
    ),
    on("GET", "/is_sleeping", "Whether the memory of the engine is given back.", &[]),
    on("GET", "/graphs", "The graph mode, and each graph with what became of it.", &[]),
    on(
        "POST",
        "/graphs",
        "Change the graph mode, let graphs be captured again that failures have disabled, or capture \
                  all of them again.",
        &[
            field("mode", r#"{"type":"string"}"#, "A graph mode, such as full_decode_only."),
            field(
                "enable",
                r#"{"type":"boolean","default":false}"#,
                "Whether graphs are tried again that failed too often.",
            ),
            field(
                "recapture",
                r#"{"type":"boolean","default":false}"#,
                "Whether every graph is dropped and captured again, those that failed too often among them.",
            ),
        ],
    ),
];

/// Why something is not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// A parameter of the query is not one of the path, or has a value that it does not take.
    #[error("`{name}`: {message}")]
    Parameter {
        /// The parameter's, as the query has it.
        name: String,
        /// What is wrong with it, or what it may be.
        message: String,
    },
    /// There is another method or path.
    #[error("there is no such path for an operator; /openapi.json lists those that there are")]
    NoPath,
    /// Graphs can't be changed, since the engine sleeps.
    #[error("the engine sleeps; its graphs can be changed once it is woken (`POST /wake_up`)")]
    Asleep,
    /// There is a profile already, or none to take.
    #[error("{0}")]
    Profile(String),
    /// The engine tried, and says why it could not.
    #[error("{0}")]
    Failed(String),
}

impl Refusal {
    fn of(error: ProfileError) -> Self {
        match error {
            ProfileError::Engine(error) => Self::Failed(error.to_string()),
            error => Self::Profile(error.to_string()),
        }
    }

    fn parameter(name: &str, message: impl Into<String>) -> Self {
        let name = name.chars().take(80).collect();
        Self::Parameter { name, message: message.into() }
    }
}

/// What an operator gets.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// What became of the order.
    Json(Value),
    /// A trace in the format of Perfetto.
    Trace(Vec<u8>),
}

/// What came of it, for whoever asked; it is called on the engine's thread and must not wait.
pub type Answer = Box<dyn FnOnce(Result<Reply, Refusal>) + Send>;

/// What is to become of the graphs; one of them at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphChange {
    /// The mode to run in from now on.
    pub mode: Option<GraphMode>,
    /// To try again what failed too often.
    pub enable: bool,
    /// To drop all of them and capture them again, as with `enable` those that failed too often, too.
    pub recapture: bool,
}

/// What an operator asks of the engine's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// To give the memory back.
    Sleep(SuspendedWeights, PauseMode),
    /// To empty the prefix cache of pages that nobody runs with.
    ResetPrefixCache,
    /// To take it back.
    WakeUp,
    /// Whether it is given back.
    IsSleeping,
    /// To trace so many steps.
    StartProfile(u64),
    /// To give the trace.
    StopProfile,
    /// What became of the graphs.
    Graphs,
    /// To run in another mode, or to have graphs captured again.
    ChangeGraphs(GraphChange),
}

impl Order {
    /// What a request asks.
    ///
    /// # Errors
    /// When there is no such path, or a parameter is unknown or wrong.
    pub fn read(method: &str, path: &str, query: &str) -> Result<Self, Refusal> {
        let known =
            OPERATOR_PATHS.iter().find(|known| known.method == method && known.path == path);
        let known = known.ok_or(Refusal::NoPath)?;
        let given = |name: &str| pairs(query).find(|pair| pair.0 == name).map(|pair| pair.1);
        let is_known = |name: &str| known.parameters.iter().any(|known| known.name == name);
        if let Some((name, _)) = pairs(query).find(|pair| !is_known(pair.0)) {
            let message = "there is no such parameter; /openapi.json lists those that there are";
            return Err(Refusal::parameter(name, message));
        }
        Ok(match (method, path) {
            (_, "/sleep") => Self::sleep(given("level").unwrap_or("1"), given("mode"))?,
            (_, "/wake_up") => Self::WakeUp,
            (_, "/reset_prefix_cache") => Self::ResetPrefixCache,
            (_, "/is_sleeping") => Self::IsSleeping,
            (_, "/start_profile") => {
                let steps = given("num_steps").unwrap_or("100").parse::<u64>().ok();
                let steps = steps.filter(|steps| (1..=MOST_PROFILED_STEPS).contains(steps));
                let message = || format!("must be from 1 to {MOST_PROFILED_STEPS}");
                Self::StartProfile(steps.ok_or_else(|| Refusal::parameter("num_steps", message()))?)
            }
            (_, "/stop_profile") => Self::StopProfile,
            ("GET", _) => Self::Graphs,
            _ => {
                let flag = |name| match given(name) {
                    None | Some("false") => Ok(false),
                    Some("true") => Ok(true),
                    Some(_) => Err(Refusal::parameter(name, "must be true or false")),
                };
                let mode = given("mode").map(|mode| read("mode", mode)).transpose()?;
                let (enable, recapture) = (flag("enable")?, flag("recapture")?);
                let change = GraphChange { mode, enable, recapture };
                if change == GraphChange::default() {
                    let message = "is missing; give a mode, enable=true or recapture=true";
                    return Err(Refusal::parameter("mode", message));
                }
                Self::ChangeGraphs(change)
            }
        })
    }

    /// To sleep at a level of vLLM's, in one of its modes.
    ///
    /// # Errors
    /// When there is no such level or mode.
    pub fn sleep(level: &str, mode: Option<&str>) -> Result<Self, Refusal> {
        let weights = match level {
            "1" => SuspendedWeights::Keep,
            "2" => SuspendedWeights::Drop,
            _ => {
                let message = "must be 1, which keeps the weights, or 2, which drops them";
                return Err(Refusal::parameter("level", message));
            }
        };
        let mode = mode.map(|mode| read("mode", mode)).transpose()?;
        Ok(Self::Sleep(weights, mode.unwrap_or_default()))
    }

    /// Has the engine do it, and tells what came of it. Of an engine that has ended nothing is told:
    /// `answer` is dropped.
    pub fn give(self, engine: &EngineHandle, answer: Answer) {
        let sleeps = |result: Result<(), SleepError>, is_sleeping: bool| {
            let done = result.map(|()| Reply::Json(json!({"is_sleeping": is_sleeping})));
            done.map_err(|error| Refusal::Failed(error.to_string()))
        };
        match self {
            Self::Sleep(weights, mode) => {
                engine.sleep(weights, mode, Box::new(move |result| answer(sleeps(result, true))));
            }
            Self::ResetPrefixCache => drop(engine.call(|engine| {
                engine.clear_prefix_cache();
                answer(Ok(Reply::Json(json!({"success": true}))));
            })),
            Self::WakeUp => engine.wake_up(Box::new(move |result| answer(sleeps(result, false)))),
            Self::IsSleeping => answer(sleeps(Ok(()), engine.rest() == Rest::Asleep)),
            Self::StartProfile(steps) => drop(engine.call(move |engine| {
                let started = engine.start_profile(steps);
                answer(
                    started.map(|()| Reply::Json(json!({"num_steps": steps}))).map_err(Refusal::of),
                )
            })),
            Self::StopProfile => drop(engine.call(|engine| {
                answer(engine.take_profile().map(Reply::Trace).map_err(Refusal::of));
            })),
            Self::Graphs => drop(engine.call(|engine| answer(Ok(Reply::Json(graphs(engine)))))),
            Self::ChangeGraphs(wanted) => {
                drop(engine.call(move |engine| answer(change(engine, wanted).map(Reply::Json))));
            }
        }
    }
}

/// Names and values of a query; none of those that there are has anything to be unescaped.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}

fn read<T: FromStr<Err: ToString>>(name: &str, value: &str) -> Result<T, Refusal> {
    value.parse().map_err(|error: T::Err| Refusal::parameter(name, error.to_string()))
}

fn change(engine: &mut Engine, wanted: GraphChange) -> Result<Value, Refusal> {
    if engine.model().suspended().is_some() {
        return Err(Refusal::Asleep);
    }
    let refused = |error: EngineError| match &error {
        EngineError::Model(ModelError::Mode { .. } | ModelError::BeyondLimit { .. }) => {
            Refusal::parameter("mode", error.to_string())
        }
        _ => Refusal::Failed(error.to_string()),
    };
    if let Some(mode) = wanted.mode {
        engine.set_graph_mode(mode).map_err(refused)?;
    }
    if wanted.recapture {
        engine.invalidate_graphs();
    }
    if wanted.enable || wanted.recapture {
        engine.enable_graphs().map_err(refused)?;
    }
    Ok(graphs(engine))
}

fn graphs(engine: &Engine) -> Value {
    let model = engine.model();
    let graphs = model.graphs();
    let row = |GraphReport { key, state, counts }: &GraphReport| {
        // A whole step is of no members in particular.
        let members = match key {
            GraphKey::Full(_) => None,
            GraphKey::Stretch { first, last, .. } => Some([first, last]),
        };
        let mut row = json!({"members": members, "size": key.size().to_string(), "state": state});
        merge(&mut row, json!(counts));
        row
    };
    let mode = model.dispatcher().mode.name();
    let mut all = json!({ "mode": mode, "reduced_mode": model.reduced_mode() });
    merge(&mut all, json!(GraphTotals::of(&graphs)));
    all["graphs"] = graphs.iter().map(row).collect();
    all
}

fn merge(to: &mut Value, from: Value) {
    if let (Value::Object(to), Value::Object(from)) = (to, from) {
        to.extend(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_or_refused_by_its_name() {
        let (keep, drop) = (SuspendedWeights::Keep, SuspendedWeights::Drop);
        let graphs =
            |mode, enable, recapture| Order::ChangeGraphs(GraphChange { mode, enable, recapture });
        let launched = Some(GraphMode::None);
        for (request, order) in [
            ("POST /sleep", Order::Sleep(keep, PauseMode::Keep)),
            ("POST /sleep?level=2&mode=wait", Order::Sleep(drop, PauseMode::Wait)),
            ("POST /sleep?mode=abort", Order::Sleep(keep, PauseMode::Abort)),
            ("POST /wake_up", Order::WakeUp),
            ("POST /reset_prefix_cache", Order::ResetPrefixCache),
            ("GET /is_sleeping", Order::IsSleeping),
            ("POST /start_profile", Order::StartProfile(100)),
            ("POST /start_profile?num_steps=10000", Order::StartProfile(10_000)),
            ("POST /stop_profile", Order::StopProfile),
            ("GET /graphs?", Order::Graphs),
            ("POST /graphs?mode=none", graphs(launched, false, false)),
            ("POST /graphs?enable=true&recapture=false", graphs(None, true, false)),
            ("POST /graphs?recapture=true", graphs(None, false, true)),
            ("POST /graphs?recapture=true&mode=none", graphs(launched, false, true)),
        ] {
            assert_eq!(of(request), Ok(order), "{request}");
        }
        for (request, name) in [
            ("POST /sleep?level=0", "level"),
            ("POST /sleep?level=", "level"),
            ("POST /sleep?mode=gently", "mode"),
            ("POST /wake_up?tags=weights", "tags"),
            ("POST /graphs", "mode"),
            ("POST /start_profile?num_steps=0", "num_steps"),
            ("POST /start_profile?num_steps=10001", "num_steps"),
            ("POST /start_profile?num_steps=all", "num_steps"),
            ("POST /stop_profile?num_steps=1", "num_steps"),
            ("POST /graphs?mode=fast", "mode"),
            ("POST /graphs?enable=1", "enable"),
            ("POST /graphs?recapture=false", "mode"),
            ("POST /graphs?mode=none&recapture=", "recapture"),
            ("POST /graphs?recapture=now", "recapture"),
            ("GET /graphs?mode=none", "mode"),
        ] {
            let error = of(request).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{name}`: ")), "{request}: {error}");
        }
        assert_eq!(of("GET /sleep"), Err(Refusal::NoPath));
        assert_eq!(of("POST /"), Err(Refusal::NoPath));
    }

    fn of(request: &str) -> Result<Order, Refusal> {
        let (method, rest) = request.split_once(' ').unwrap();
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        Order::read(method, path, query)
    }
}
