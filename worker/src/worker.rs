//! The life of a worker: join, serve, and join again.

use crate::front_end::{FrontEnd, Joiner, note_file};
use crate::live::Requests;
use crate::outbox::{Outbox, Tracked, Unsent};
use crate::preparing::Preparing;
use crate::probes::Probed;
use crate::requests::Asked;
use crate::stand_in::{Log, StandIn, Watch};
use crate::utility;
use crate::wire::{self, Added, Call, Kind, OutputError, call_id, failure, ready, request_id};
use crate::zmtp::{Address, ZmtpError};
use piecewise_runtime::engine::{Engine, TokenConstraint};
use piecewise_runtime::engine_thread::{
    EngineHandle, EngineThread, Phase, SubmitError, ThreadOptions,
};
use piecewise_runtime::observe::Metrics;
use piecewise_server::answer_status;
use piecewise_server::chat::ReplyFormat;
use piecewise_server::structured::{Structures, Thoughts};
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Where a worker joins, as which engine, and what may be asked of it.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Where the front end takes engines.
    pub handshake: Address,
    /// Which of its engines this is.
    pub rank: u16,
    /// Where the worker notes the front end that it is with, to find it when it is started again.
    pub state_dir: PathBuf,
    /// Who answers for it once it is gone; `None` is nobody.
    pub stand_in: Option<StandIn>,
    /// Whether the front end, and whoever asks where metrics are, may put the engine to sleep, wake it
    /// and change its graphs.
    pub admin: bool,
    /// How the engine's thread treats requests.
    pub thread: ThreadOptions,
}

impl WorkerOptions {
    /// The file of [`Self::state_dir`] that is written once the worker has joined, for whoever would
    /// rather know before a model is loaded that it can't be.
    pub fn note_file(&self) -> PathBuf {
        note_file(&self.handshake, self.rank, &self.state_dir)
    }
}

/// What a front end is told of the model.
#[derive(Debug)]
pub struct Model {
    /// The dtype of activations, as PyTorch calls it.
    pub dtype: String,
    /// `None` where ids have no text that a structure could be kept to.
    pub structures: Option<Structures>,
    /// How replies have thoughts, behind which a structure begins; none by default.
    pub reasoning: ReplyFormat,
}

/// Ids at the end of a prompt that a mark may have, with white space behind it.
const LONGEST_MARK: usize = 64;
/// How often the worker looks whether it is to end.
const GLANCE: Duration = Duration::from_millis(200);
/// After how many looks without a request it says again how it is: the last that the front end has
/// heard may be from its stand-in, whose words go another way and may come later.
const QUIET: u32 = 5;
/// What requests are told whose front end was out of reach.
const CUT: &str = "the connection to the front end was cut; try again";
/// How long a stopped engine may take to end its requests.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often it looks for a front end.
const SEARCH: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];

/// Ends a worker from another thread. Clones are the same.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    service: Arc<Service>,
    is_cut_short: Arc<AtomicBool>,
}

impl WorkerHandle {
    /// Takes no more requests; the worker ends once those that are there have.
    pub fn drain(&self) {
        self.service.outbox.leave();
        if self.service.preparing.leave() {
            self.service.engine.drain();
        }
    }

    /// Ends the requests that are there with an error, and the worker.
    pub fn stop(&self) {
        self.is_cut_short.store(true, Ordering::Relaxed);
        self.service.engine.stop();
    }
}

/// An engine that serves a front end.
#[derive(Debug)]
pub struct Worker {
    thread: EngineThread,
    joiner: Joiner,
    stand_in: Option<StandIn>,
    service: Arc<Service>,
    has_joined: Arc<AtomicBool>,
    is_cut_short: Arc<AtomicBool>,
    structured: mpsc::Sender<(Arc<str>, Asked, Session)>,
}

/// What serving takes, on whatever thread.
#[derive(Debug)]
struct Service {
    rank: u16,
    engine: EngineHandle,
    outbox: Arc<Outbox>,
    structures: Option<Structures>,
    reasoning: ReplyFormat,
    preparing: Preparing,
    admin: bool,
    make: Make,
}

/// What makes the constraint of a request, as long as it is wanted.
type Make = fn(&Service, &Asked, &(dyn Fn() -> bool + Sync)) -> Made;
type Made = Result<Option<Box<dyn TokenConstraint>>, String>;

/// The time with one front end.
#[derive(Clone, Debug)]
struct Session {
    requests: Arc<Requests>,
    log: Log,
}

impl Worker {
    /// Starts the engine's thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(engine: Engine, model: Model, options: WorkerOptions) -> std::io::Result<Self> {
        Self::making(engine, model, options, Service::constraint)
    }

    fn making(
        engine: Engine,
        model: Model,
        options: WorkerOptions,
        make: Make,
    ) -> std::io::Result<Self> {
        let WorkerOptions { handshake, rank, state_dir, stand_in, admin, thread } = options;
        let Model { dtype, structures, reasoning } = model;
        let ready = ready(&engine, rank, &dtype, admin);
        let outbox = Arc::new(Outbox::default());
        let gathers = Arc::clone(&outbox);
        let watcher = Box::new(move |engine: &Engine| gathers.flush(engine));
        let thread = EngineThread::start_watched(engine, thread, watcher)?;
        let engine = thread.handle().clone();
        let preparing = Preparing::default();
        let service =
            Service { rank, engine, outbox, structures, reasoning, preparing, admin, make };
        let service = Arc::new(service);
        let (structured, asked) = mpsc::channel::<(Arc<str>, Asked, Session)>();
        let makes = Arc::clone(&service);
        let maker = std::thread::Builder::new().name("structures".to_owned());
        maker.spawn(move || {
            for (request, asked, session) in asked {
                makes.hand_in(&request, asked, &session);
            }
        })?;
        let joiner = Joiner::new(handshake, rank, ready, &state_dir);
        let (has_joined, is_cut_short) = (Arc::default(), Arc::default());
        Ok(Self { thread, joiner, stand_in, service, has_joined, is_cut_short, structured })
    }

    /// A handle that ends the worker from another thread.
    pub fn handle(&self) -> WorkerHandle {
        let service = Arc::clone(&self.service);
        WorkerHandle { service, is_cut_short: Arc::clone(&self.is_cut_short) }
    }

    /// The metrics of the engine and of its requests.
    pub fn metrics(&self) -> &Metrics {
        self.thread.metrics()
    }

    /// Answers `/health`, `/ready` and `/metrics` over HTTP, and the
    /// [operator's paths](piecewise_server::operate::OPERATOR_PATHS) where there are such, and says
    /// where.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn answer_probes(&self, listener: TcpListener) -> std::io::Result<SocketAddr> {
        let (engine, has_joined) = (self.service.engine.clone(), Arc::clone(&self.has_joined));
        let operated = self.service.admin.then(|| engine.clone());
        answer_status(listener, operated, Probed { engine, has_joined })
    }

    /// Serves one front end after the other until it is told to end; `tell` hears how it goes.
    /// Returns whether the requests that were there have ended by themselves.
    pub fn run(self, tell: &mut dyn FnMut(&str)) -> bool {
        let mut patience = SEARCH[0];
        let mut said = None;
        let mut unsent = Unsent::default();
        while !self.is_over() {
            match self.joiner.join(&|| self.is_over()) {
                Ok(front_end) => {
                    let (rank, address) = (self.joiner.rank, &self.joiner.handshake);
                    let how = if front_end.again { "is back at" } else { "joined" };
                    tell(&format!("rank {rank} {how} the front end of {address}"));
                    (patience, said) = (SEARCH[0], None);
                    let served = self.serve(front_end, &mut unsent);
                    self.has_joined.store(false, Ordering::Relaxed);
                    if let Err(error) = served {
                        tell(&format!("the front end of {address} is gone: {error}"));
                    }
                }
                Err(error) => {
                    // Once is enough for what stays as it is.
                    let text = error.to_string();
                    if said.as_ref() != Some(&text) {
                        tell(&text);
                        said = Some(text);
                    }
                    std::thread::sleep(patience);
                    patience = (patience * 2).min(SEARCH[1]);
                }
            }
        }
        let is_over = self.thread.handle().phase() >= Phase::Draining;
        is_over && self.thread.finish().is_some() && !self.is_cut_short.load(Ordering::Relaxed)
    }

    /// Whether the worker is to look for no other front end.
    fn is_over(&self) -> bool {
        self.service.engine.phase() > Phase::Serving
    }

    /// Serves until the worker is to end, or the front end is gone; `unsent` is what one that went has
    /// not got. If it is back, only its connection was cut, and it still waits for that.
    fn serve(&self, front_end: FrontEnd, unsent: &mut Unsent) -> Result<(), ZmtpError> {
        let FrontEnd { mut input, output, outputs, again } = front_end;
        let Service { rank, outbox, engine, .. } = &*self.service;
        let started = |stand_in| Watch::start(stand_in, *rank, &outputs, &input.stream);
        let watch = self.stand_in.as_ref().map(started).transpose();
        let watch = watch.unwrap_or_else(|error| {
            tracing::warn!("nobody answers for this worker should it end: {error}");
            None
        });
        let log = watch.as_ref().map(Watch::log).unwrap_or_default();
        log.seen(input.unread());
        let session = Session { requests: Arc::default(), log };
        input.set_patience(GLANCE)?;
        let reader = input.stream.try_clone()?;
        let writer = outbox.attach(*rank, output, session.log.clone(), reader)?;
        let Unsent { requests, answers } = std::mem::take(unsent);
        if again {
            for request in requests {
                self.service.refuse(&request, CUT.to_owned(), true, &session);
            }
            answers.into_iter().for_each(|(message, call)| outbox.answer(message, call));
        }
        self.has_joined.store(true, Ordering::Relaxed);
        let mut quiet = 0;
        let result = loop {
            match input.receive(&mut |bytes| session.log.seen(bytes)) {
                Ok(Some(frames)) => {
                    quiet = 0;
                    self.take(&frames, &session);
                }
                Ok(None) => {
                    quiet += 1;
                    if quiet % QUIET == 0 {
                        outbox.repeat();
                    }
                }
                Err(error) => break Err(error),
            }
            if engine.phase() == Phase::Stopped {
                break Ok(());
            }
        };
        if result.is_ok() {
            // The engine's thread gives each an end with its last breath.
            let until = Instant::now() + LAST_WORDS;
            while !session.requests.is_empty() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let left = session.requests.end_all();
        if result.is_ok() {
            for request in &left {
                let why = SubmitError::ShuttingDown.to_string();
                self.service.refuse(request, why, true, &session);
            }
        }
        outbox.detach();
        let lost = writer.join().unwrap_or_default();
        if result.is_err() {
            *unsent = lost;
            unsent.requests.extend(left);
            watch.into_iter().for_each(Watch::leave);
        }
        result
    }

    fn take(&self, frames: &[Vec<u8>], session: &Session) {
        let Some((kind, payload)) = Kind::of(frames) else {
            let kind = frames.first().map(|kind| &kind[..kind.len().min(16)]);
            tracing::warn!("a message of {} frames and the unknown kind {kind:?}", frames.len());
            return;
        };
        match kind {
            Kind::Add => self.add(payload, session),
            Kind::Abort => match wire::read::<Vec<String>>(payload) {
                Ok(requests) => requests.iter().for_each(|id| session.requests.end(id)),
                Err(error) => tracing::warn!("an abort that can't be read: {error}"),
            },
            Kind::Wave => {}
            Kind::Utility => {
                let Service { rank, engine, outbox, admin, .. } = &*self.service;
                match (wire::read::<Call>(payload), call_id(payload)) {
                    (Ok(call), _) => {
                        let (outbox, id) = (Arc::clone(outbox), call.id);
                        let tell = move |message| outbox.answer(message, id);
                        utility::call(*rank, &call, engine, *admin, tell);
                    }
                    (Err(error), Some(id)) => {
                        let why = format!("the call can't be read: {error}");
                        outbox.answer(failure(*rank, id, &why), id);
                    }
                    (Err(error), None) => tracing::warn!("a call that can't be read: {error}"),
                }
            }
        }
    }

    fn add(&self, payload: &[u8], session: &Session) {
        let added = match Added::read(payload) {
            Ok(added) => added,
            Err(why) => match request_id(payload) {
                Some(id) => return self.service.refuse(&id.into(), why, false, session),
                None => return tracing::warn!("a request that can't be read: {why}"),
            },
        };
        let request: Arc<str> = added.id.as_str().into();
        if added.abort_immediately {
            return session.log.ended(&request);
        }
        if !session.requests.begin(&request) {
            // An answer would end the one that runs.
            tracing::warn!("the request {request} came twice; the second is passed over");
            return;
        }
        match Asked::of(added) {
            Err(why) => self.service.refuse(&request, why, false, session),
            Ok(_) if !self.service.preparing.begin() => {
                let why = SubmitError::ShuttingDown.to_string();
                self.service.refuse(&request, why, true, session);
            }
            Ok(asked) if asked.structure.is_some() => {
                if let Err(unheard) = self.structured.send((request, asked, session.clone())) {
                    let (request, _, session) = unheard.0;
                    let why = "structured_outputs: the thread that reads them has ended".to_owned();
                    self.service.refuse(&request, why, true, &session);
                    self.service.prepared();
                }
            }
            Ok(asked) => self.service.hand_in(&request, asked, session),
        }
    }
}

impl Service {
    /// Ends a request that the engine does not get.
    fn refuse(&self, request: &Arc<str>, message: String, retryable: bool, session: &Session) {
        tracing::info!(target: "piecewise::access", "{request} refused: {message}");
        session.requests.end(request);
        self.outbox.refuse(request, OutputError { message, retryable });
    }

    /// Makes what the reply keeps to, and hands the request in unless it has been aborted. Whatever goes
    /// wrong with one is to reach no other: a panic is a refusal.
    fn hand_in(&self, request: &Arc<str>, asked: Asked, session: &Session) {
        let wanted = || session.requests.contains(request);
        let work = || match wanted().then(|| (self.make)(self, &asked, &wanted)) {
            None => {}
            Some(Ok(constraint)) => self.submit(request, asked, constraint, session),
            Some(Err(why)) => self.refuse(request, why, false, session),
        };
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let why = "what was to hand it to the engine panicked, as its log says";
            self.refuse(request, why.to_owned(), false, session);
        }
        self.prepared();
    }

    /// A request that was on its way to the engine is there, or was refused.
    fn prepared(&self) {
        if self.preparing.end() {
            self.engine.drain();
        }
    }

    fn constraint(&self, asked: &Asked, wanted: &(dyn Fn() -> bool + Sync)) -> Made {
        let structure = asked.structure.as_ref().map(|structure| {
            let none = || "structured_outputs: this model has no tokenizer".to_owned();
            let structures = self.structures.as_ref().ok_or_else(none)?;
            let thoughts = self.thoughts(asked, structures)?;
            let made = structures.constraint(structure, "structured_outputs", thoughts, wanted);
            made.map_err(|error| error.to_string())
        });
        let structure = structure.transpose()?;
        let Some(restraint) = asked.restraint.clone() else { return Ok(structure) };
        let vocabulary = self.engine.options().vocab;
        if let Some(id) = restraint.allowed.iter().find(|id| u64::from(**id) >= vocabulary) {
            return Err(format!("allowed_token_ids: {id} is none of the model's {vocabulary} ids"));
        }
        Ok(Some(restraint.over(structure, vocabulary)))
    }

    /// What the reply may begin with that its structure is not for. A front end may leave it to the
    /// engine to see that in the prompt.
    fn thoughts(&self, asked: &Asked, structures: &Structures) -> Result<Option<Thoughts>, String> {
        match asked.reasoning_ended {
            Some(true) => Ok(None),
            Some(false) => {
                let marks = self.reasoning.marks().ok_or(
                    "structured_outputs: the reply begins within thoughts, and how they end this \
                     worker does not know; start it with --reasoning-parser",
                )?;
                Ok(Some(Thoughts { begun: true, ..marks }))
            }
            None => {
                let prompt = &asked.request.prompt;
                let end = prompt.len().saturating_sub(LONGEST_MARK);
                Ok(self.reasoning.thoughts(&structures.text(&prompt[end..])))
            }
        }
    }

    fn submit(
        &self,
        request: &Arc<str>,
        asked: Asked,
        constraint: Option<Box<dyn TokenConstraint>>,
        session: &Session,
    ) {
        let Asked { request: mut engine_request, eos, stop_ids, .. } = asked;
        engine_request.constraint = constraint;
        let outbox = Arc::clone(&self.outbox);
        let mut tracked = Tracked::new(Arc::clone(request), outbox, eos, stop_ids);
        let requests = Arc::clone(&session.requests);
        let sink = Box::new(move |update| {
            // Nobody waits for what comes of a request after its end, which an abort or a cut may be.
            if requests.contains(&tracked.request) && tracked.take(update) {
                requests.end(&tracked.request);
            }
        });
        let submit = || self.engine.submit(engine_request, sink);
        if let Err(error) = session.requests.hand_in(request, submit) {
            let retryable = !matches!(error, SubmitError::TooMany { .. });
            self.refuse(request, error.to_string(), retryable, session);
        }
    }
}

#[cfg(test)]
mod tests;
