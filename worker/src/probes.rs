//! What orchestrators and monitors ask of a worker, over HTTP: `/health`, `/ready` and `/metrics`.

use http::StatusCode;
use piecewise_runtime::engine_thread::{EngineHandle, Phase, Rest};
use piecewise_server::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What probes and metrics are answered from.
#[derive(Clone, Debug)]
pub(crate) struct Probed {
    pub(crate) engine: EngineHandle,
    /// Whether there is a front end.
    pub(crate) has_joined: Arc<AtomicBool>,
}

impl Status for Probed {
    fn at(&self, path: &str) -> (StatusCode, String) {
        let well = |what: &str| (StatusCode::OK, format!("{what}\n"));
        let unavailable = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
        match (path, self.engine.phase()) {
            ("/health" | "/ready", Phase::Stopped) => unavailable("the engine has stopped"),
            ("/health", _) => well("alive"),
            ("/ready", Phase::Draining | Phase::Stopping) => {
                unavailable("the worker is shutting down")
            }
            ("/ready", _) if self.engine.rest() > Rest::Awake => unavailable("the engine sleeps"),
            ("/ready", _) if !self.has_joined.load(Ordering::Relaxed) => {
                unavailable("there is no front end")
            }
            ("/ready", _) => well("ready"),
            ("/metrics", _) => match self.engine.metrics().text() {
                Ok(text) => (StatusCode::OK, text),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            },
            _ => (StatusCode::NOT_FOUND, "there are /health, /ready and /metrics\n".to_owned()),
        }
    }
}
