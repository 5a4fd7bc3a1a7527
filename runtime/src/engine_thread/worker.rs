//! What the thread does.

use super::handle::{Command, Submission};
use super::shared::{Phase, Place, Rest, Shared};
use super::sleep::{PauseMode, SleepAnswer, SleepError, SleepOrder};
use super::update::{Failure, Sink, Update, Watcher};
use crate::engine::{Engine, EngineError, RequestEvent};
use crate::observe::{RequestMetrics, RequestTimes};
use crate::words::FinishReason;
use crate::words::RequestId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long the thread waits after an error that is nobody's, which comes out once the engine has
/// tried again by itself, before the next step; after so many, requests end.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// A request that the engine has.
pub(super) struct Entry {
    sink: Sink,
    place: Place,
    times: RequestTimes,
}

pub(super) struct Worker {
    pub(super) capture_when_idle: bool,
    pub(super) commands: Receiver<Command>,
    pub(super) shared: Arc<Shared>,
    pub(super) entries: BTreeMap<RequestId, Entry>,
    pub(super) requests: BTreeMap<u64, RequestId>,
    pub(super) events: Vec<RequestEvent>,
    /// To fall asleep once all that is there has ended.
    pub(super) sleepy: Vec<SleepOrder>,
    pub(super) metrics: RequestMetrics,
    pub(super) watcher: Watcher,
    /// Errors of nobody's since a step went well.
    pub(super) failures: usize,
}

impl Worker {
    pub(super) fn run(mut self, mut engine: Engine) -> Engine {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.execute(&mut engine, command);
            }
            match self.shared.phase() {
                Phase::Stopping | Phase::Stopped => break,
                Phase::Draining if self.is_idle() => break,
                Phase::Draining if engine.model().suspended().is_some() => {
                    self.wake_to_end(&mut engine);
                    continue;
                }
                Phase::Draining | Phase::Serving => {}
            }
            self.nod_off(&mut engine);
            let works = engine.has_work() && engine.model().suspended().is_none();
            if works {
                self.step(&mut engine);
            }
            (self.watcher)(&engine);
            if !works && !self.captures(&mut engine) {
                // What was removed since the last step shows too.
                engine.metrics();
                match self.commands.recv() {
                    Ok(command) => self.execute(&mut engine, command),
                    // Nobody is left who could ask for anything.
                    Err(_) => break,
                }
            }
        }
        for &request in self.entries.keys() {
            remove(&mut engine, request);
        }
        engine.metrics();
        (self.watcher)(&engine);
        engine
    }

    fn execute(&mut self, engine: &mut Engine, command: Command) {
        match command {
            Command::Submit(submissions) => {
                submissions.into_iter().for_each(|submission| self.add(engine, submission));
            }
            Command::Cancel(key) => {
                let Some(request) = self.requests.remove(&key) else { return };
                self.entries.remove(&request);
                remove(engine, request);
                self.metrics.cancelled();
            }
            Command::End(key) => {
                let Some(request) = self.requests.get(&key).copied() else { return };
                let usage = engine.usage(request).unwrap_or_default();
                remove(engine, request);
                let reason = FinishReason::Stop;
                self.events.push(RequestEvent::Finished { request, reason, message: None, usage });
                self.deliver();
            }
            Command::Call(ask) => {
                ask(engine, &mut self.events);
                self.deliver();
            }
            Command::Sleep(order) => self.put_to_sleep(engine, order),
            Command::WakeUp(answer) => self.wake_up(engine, answer),
            Command::Wake => {}
        }
    }

    /// Whether no request is there.
    fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    fn add(&mut self, engine: &mut Engine, submission: Submission) {
        let Submission { request, mut sink, place, submitted } = submission;
        let times = RequestTimes::new(submitted, request.max_tokens);
        match engine.add(request) {
            Ok(request) => {
                sink(Update::Accepted { request });
                self.requests.insert(place.key(), request);
                self.entries.insert(request, Entry { sink, place, times });
            }
            Err(error) => {
                drop(place);
                sink(Update::Failed(Failure::Refused(Arc::new(error))));
            }
        }
    }

    fn step(&mut self, engine: &mut Engine) {
        let result = engine.step(&mut self.events);
        self.deliver();
        let Err(error) = result else {
            self.failures = 0;
            return;
        };
        let (of_one, is_over) = (error.request(), error.needs_new_process());
        let failure = Failure::Engine(Arc::new(error));
        if let Some(request) = of_one {
            return self.fail(request, &failure);
        }
        if is_over {
            tracing::error!("{failure}; the engine ends");
            self.fail_all(engine, &failure);
            self.shared.advance(Phase::Stopping);
            return;
        }
        self.failures += 1;
        if let Some(&pause) = PAUSES.get(self.failures - 1) {
            tracing::warn!("{failure}; in {} ms, since its requests are there", pause.as_millis());
            std::thread::sleep(pause);
            return;
        }
        self.failures = 0;
        tracing::error!("{failure}");
        self.fail_all(engine, &failure);
    }

    /// Takes every request from the engine, and tells each of the failure.
    fn fail_all(&mut self, engine: &mut Engine, failure: &Failure) {
        for request in Vec::from_iter(self.entries.keys().copied()) {
            remove(engine, request);
            self.fail(request, failure);
        }
    }

    fn deliver(&mut self) {
        let now = Instant::now();
        let Self { entries, requests, events, metrics, .. } = self;
        for event in events.drain(..) {
            match event {
                RequestEvent::Preempted { request } => {
                    let Some(entry) = entries.get_mut(&request) else { continue };
                    (entry.sink)(Update::Preempted);
                }
                RequestEvent::PromptToken { request, id, logprobs } => {
                    let Some(entry) = entries.get_mut(&request) else { continue };
                    (entry.sink)(Update::PromptToken { id, logprobs });
                }
                RequestEvent::Token { request, id, logprobs } => {
                    let Some(entry) = entries.get_mut(&request) else { continue };
                    metrics.token(&mut entry.times, now);
                    (entry.sink)(Update::Token { id, logprobs });
                }
                RequestEvent::Finished { request, reason, message, usage } => {
                    let Some(mut entry) = entries.remove(&request) else { continue };
                    requests.remove(&entry.place.key());
                    metrics.finished(&entry.times, reason, usage, now);
                    // Its place is free before anybody knows of the end.
                    drop(entry.place);
                    (entry.sink)(Update::Finished { reason, message, usage });
                }
            }
        }
    }

    fn fail(&mut self, request: RequestId, failure: &Failure) {
        let Some(mut entry) = self.entries.remove(&request) else { return };
        self.requests.remove(&entry.place.key());
        self.metrics.failed();
        drop(entry.place);
        (entry.sink)(Update::Failed(failure.clone()));
    }

    fn put_to_sleep(&mut self, engine: &mut Engine, order: SleepOrder) {
        match order.mode {
            PauseMode::Keep => {}
            PauseMode::Wait if self.is_idle() => {}
            PauseMode::Wait => return self.sleepy.push(order),
            PauseMode::Abort => self.fail_all(engine, &Failure::Asleep),
        }
        let result = engine.suspend(order.weights, &mut self.events);
        self.deliver();
        self.note_rest(engine);
        (order.answer)(result.map_err(SleepError::from));
    }

    /// Falls asleep where all have ended that it was to wait for.
    fn nod_off(&mut self, engine: &mut Engine) {
        if self.is_idle() {
            let orders = std::mem::take(&mut self.sleepy);
            orders.into_iter().for_each(|order| self.put_to_sleep(engine, order));
        }
    }

    fn wake_up(&mut self, engine: &mut Engine, answer: SleepAnswer) {
        self.refuse_sleep(|| SleepError::Woken);
        let result = engine.resume(None);
        self.note_rest(engine);
        answer(result.map_err(SleepError::from));
    }

    /// Wakes an engine that is to end, for the requests that it sleeps on.
    fn wake_to_end(&mut self, engine: &mut Engine) {
        self.refuse_sleep(|| SleepError::Stopped);
        let result = engine.resume(None);
        self.note_rest(engine);
        if let Err(error) = result {
            self.fail_all(engine, &Failure::Engine(error.into()));
        }
    }

    fn refuse_sleep(&mut self, why: fn() -> SleepError) {
        self.sleepy.drain(..).for_each(|order| (order.answer)(Err(why())));
    }

    fn note_rest(&self, engine: &Engine) {
        self.shared.set_rest(match engine.model().suspended() {
            Some(_) => Rest::Asleep,
            None => Rest::Awake,
        });
    }

    /// Captures a graph that is missing, if there is one.
    fn captures(&self, engine: &mut Engine) -> bool {
        if !self.capture_when_idle || engine.model().suspended().is_some() {
            return false;
        }
        engine.capture_next().unwrap_or_else(|error| {
            tracing::warn!("{error}; the graph is captured another time");
            false
        })
    }
}

/// Removes a request that may be gone.
fn remove(engine: &mut Engine, request: RequestId) {
    match engine.remove(request) {
        Ok(()) | Err(EngineError::UnknownRequest { .. }) => {}
        Err(error) => tracing::error!("{error}"),
    }
}

/// However the thread ends, by a panic too, each request gets an end.
impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.advance(Phase::Stopped);
        for request in Vec::from_iter(self.entries.keys().copied()) {
            self.fail(request, &Failure::Stopped);
        }
        self.refuse_sleep(|| SleepError::Stopped);
        while let Ok(command) = self.commands.try_recv() {
            command.refuse();
        }
    }
}
