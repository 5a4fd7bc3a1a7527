//! An engine on a thread of its own, for servers: requests come from any thread, and what becomes of
//! each goes to a sink of its own.
//!
//! The thread steps while there is work, takes commands between steps, and captures graphs that are
//! missing while nothing else is to be done. An error of one request ends that request. After an error
//! of the engine, which comes out only once it has tried again and opened the device anew, the thread
//! waits a moment and lets it try some more; then those that are there end, and the next ones are
//! served. An engine that sleeps takes none until it is woken.
//!
//! ```no_run
//! use piecewise_runtime::engine::{Engine, Request};
//! use piecewise_runtime::engine_thread::{EngineThread, ThreadOptions, Update};
//! use std::sync::mpsc;
//!
//! # fn serve(engine: Engine) -> Result<(), Box<dyn std::error::Error>> {
//! let thread = EngineThread::start(engine, ThreadOptions::default())?;
//! let (sender, updates) = mpsc::channel();
//! let sink = Box::new(move |update| drop(sender.send(update)));
//! // Who drops the ticket is no longer interested: the request is removed before the next step.
//! let ticket = thread.handle().submit(Request::new([326, 680], 16), sink)?;
//! for update in updates {
//!     match update {
//!         Update::Token { id, .. } => println!("{id}"),
//!         Update::Failed(failure) => return Err(failure.into()),
//!         _ => {}
//!     }
//! }
//! drop(ticket);
//! thread.finish();
//! # Ok(())
//! # }
//! ```

mod handle;
mod shared;
mod sleep;
mod update;
mod worker;

pub use handle::{EngineHandle, SubmitError, Ticket};
pub use shared::{Phase, Place, Rest, Shared};
pub use sleep::{PauseMode, SleepAnswer, SleepError};
pub use update::{Failure, Sink, Update, Watcher};

use crate::engine::Engine;
use crate::observe::Metrics;
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use worker::Worker;

/// Constraints of requests work on the thread, some as deep as what they were made of is nested. Only
/// what is used of it takes memory.
const STACK: usize = 128 << 20;

/// How the thread treats requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadOptions {
    /// Requests that may be there beyond those that can run at once.
    pub max_queue: usize,
    /// Whether missing graphs are captured while nothing else is to be done.
    pub capture_when_idle: bool,
    /// What the metrics call the model.
    pub model_name: String,
}

impl Default for ThreadOptions {
    fn default() -> Self {
        Self { max_queue: 1024, capture_when_idle: true, model_name: "model".to_owned() }
    }
}

/// The thread of an engine. Dropped, it stops: requests that are there end with
/// [`Failure::Stopped`].
#[derive(Debug)]
pub struct EngineThread {
    handle: EngineHandle,
    thread: Option<JoinHandle<Engine>>,
}

impl EngineThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(engine: Engine, options: ThreadOptions) -> std::io::Result<Self> {
        Self::start_watched(engine, options, Box::new(|_| {}))
    }

    /// Starts the thread, and has `watcher` look at the engine after each step, once the sinks have
    /// what became of their requests in it, and after whatever else it was told to do.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_watched(
        mut engine: Engine,
        options: ThreadOptions,
        watcher: Watcher,
    ) -> std::io::Result<Self> {
        let (commands, received) = mpsc::channel();
        let running = usize::try_from(engine.options().max_num_seqs).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared::new(running.saturating_add(options.max_queue)));
        let metrics = engine.metrics();
        let handle = EngineHandle {
            commands,
            shared: Arc::clone(&shared),
            engine: *engine.options(),
            metrics: metrics.clone(),
        };
        let worker = Worker {
            capture_when_idle: options.capture_when_idle,
            commands: received,
            shared,
            entries: BTreeMap::new(),
            requests: BTreeMap::new(),
            events: Vec::new(),
            sleepy: Vec::new(),
            metrics: metrics.requests(&options.model_name).clone(),
            watcher,
            failures: 0,
        };
        let thread = std::thread::Builder::new().name("engine".to_owned()).stack_size(STACK);
        let thread = thread.spawn(move || worker.run(engine))?;
        Ok(Self { handle, thread: Some(thread) })
    }

    /// The way to the thread; clones are the same.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// The metrics of the engine and of its requests.
    pub fn metrics(&self) -> &Metrics {
        &self.handle.metrics
    }

    /// Takes no more requests, waits for those that are there, and gives the engine back; `None`
    /// where the thread panicked.
    pub fn finish(mut self) -> Option<Engine> {
        self.handle.drain();
        self.thread.take()?.join().ok()
    }

    /// Ends the requests that are there, and gives the engine back; `None` where the thread panicked.
    pub fn stop(mut self) -> Option<Engine> {
        self.handle.stop();
        self.thread.take()?.join().ok()
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has told of itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
