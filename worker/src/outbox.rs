//! What becomes of requests, gathered for each step and sent in one message.

use crate::stand_in::{BUSY, Log};
use crate::wire::{
    Event, EventKind, Finish, Output, OutputError, Prefill, Reason, Stats, monotonic, outputs,
};
use crate::zmtp::{Sender, ZmtpError};
use piecewise_runtime::engine::{Engine, TokenLogprobs};
use piecewise_runtime::engine_thread::{Failure, Update};
use piecewise_runtime::words::RequestId;
use piecewise_runtime::words::{EngineLoad, FinishReason, Usage};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// Outputs of a step that are written where they are gathered: to wake a thread for them would cost
/// more than to write them.
const FEW: usize = 4;

/// What goes to the front end in one message.
#[derive(Debug)]
enum Parcel {
    Outputs(Vec<Output>, Option<Stats>),
    /// The answer to a call, and its number.
    Answer(Vec<u8>, i64),
    /// What is left of a message.
    Rest(Vec<u8>),
    /// Requests whose ends have been sent.
    Ended(Vec<Arc<str>>),
}

/// What a front end has not got, since its connection was cut.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// Requests whose ends it waits for.
    pub(crate) requests: Vec<Arc<str>>,
    /// Answers to calls, with their numbers.
    pub(crate) answers: Vec<(Vec<u8>, i64)>,
}

impl Unsent {
    fn add(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Outputs(step, _) => self.requests.extend(ended(&step).cloned()),
            Parcel::Answer(message, call) => self.answers.push((message, call)),
            Parcel::Rest(_) => {}
            Parcel::Ended(requests) => self.requests.extend(requests),
        }
    }
}

/// The way to a front end.
#[derive(Debug)]
struct Way {
    rank: u16,
    parcels: mpsc::Sender<Parcel>,
    /// Parcels that the thread has not done with yet. Only while there are none may another thread
    /// write.
    waiting: Arc<AtomicUsize>,
    line: Sender,
}

impl Way {
    fn send(&self, parcel: Parcel) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Whoever sends has noticed that the front end is gone.
        let _ = self.parcels.send(parcel);
    }

    /// Sends what a step brought, without waiting for anything.
    fn send_step(&mut self, step: Vec<Output>, stats: Stats) {
        if step.len() > FEW || self.waiting.load(Ordering::Acquire) > 0 {
            return self.send(Parcel::Outputs(step, Some(stats)));
        }
        if let Some(left) = self.line.send_now(&[&outputs(self.rank, &step, Some(&stats))]) {
            self.send(Parcel::Rest(left));
        }
        let ended: Vec<_> = ended(&step).cloned().collect();
        if !ended.is_empty() {
            self.send(Parcel::Ended(ended));
        }
    }
}

fn ended(step: &[Output]) -> impl Iterator<Item = &Arc<str>> {
    step.iter().filter(|output| output.finish.is_some()).map(|output| &output.request)
}

/// Gathers on the engine's thread, which writes what is little; a thread of its own writes the rest.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None` while there is no front end.
    out: Option<Way>,
    outputs: Vec<Output>,
    /// Outputs that are the first of their requests.
    fresh: Vec<Fresh>,
    load: EngineLoad,
    steps: u64,
    /// Whether the front end is to choose another worker.
    is_leaving: bool,
}

/// The first output of a request.
#[derive(Debug)]
struct Fresh {
    index: usize,
    request: RequestId,
    queued: f64,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what comes from now on to a front end, and begins with what the scheduler has in hand:
    /// the front end may have old figures of it. The thread that sends ends with [`Self::detach`], and
    /// gives what it could not send. Once it can't, `input` ends too, so that its reader notices.
    pub(crate) fn attach(
        &self,
        rank: u16,
        sender: Sender,
        log: Log,
        input: TcpStream,
    ) -> std::io::Result<std::thread::JoinHandle<Unsent>> {
        let (parcels, received) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let way = Way { rank, parcels, waiting: Arc::clone(&waiting), line: sender.try_clone()? };
        let mut inner = self.lock();
        let load = inner.load;
        let stats = inner.stats(load, 0);
        inner.outputs.clear();
        inner.fresh.clear();
        let thread = std::thread::Builder::new().name("outputs".to_owned());
        let thread = thread.spawn(move || {
            let mut unsent = Unsent::default();
            if let Err((error, parcel)) = send(rank, sender, &received, &waiting, &log) {
                tracing::debug!("outputs can't be sent: {error}");
                // It has ended already where this fails.
                let _ = input.shutdown(Shutdown::Both);
                std::iter::once(parcel).chain(received).for_each(|parcel| unsent.add(parcel));
            }
            unsent
        })?;
        way.send(Parcel::Outputs(Vec::new(), Some(stats)));
        inner.out = Some(way);
        Ok(thread)
    }

    /// Sends what is left of the last step, and nothing more.
    pub(crate) fn detach(&self) {
        let mut inner = self.lock();
        let left = std::mem::take(&mut inner.outputs);
        if let Some(out) = inner.out.take()
            && !left.is_empty()
        {
            out.send(Parcel::Outputs(left, None));
        }
    }

    /// Lets the front end choose another worker from now on.
    pub(crate) fn leave(&self) {
        self.lock().is_leaving = true;
        self.repeat();
    }

    /// Says again what the scheduler has in hand.
    pub(crate) fn repeat(&self) {
        let mut inner = self.lock();
        let load = inner.load;
        let stats = inner.stats(load, 0);
        drop(inner);
        self.send(Parcel::Outputs(Vec::new(), Some(stats)));
    }

    pub(crate) fn answer(&self, message: Vec<u8>, call: i64) {
        self.send(Parcel::Answer(message, call));
    }

    fn send(&self, parcel: Parcel) {
        if let Some(out) = &self.lock().out {
            out.send(parcel);
        }
    }

    /// Ends a request that the engine does not have, at once.
    pub(crate) fn refuse(&self, request: &Arc<str>, error: OutputError) {
        let finish = Some(Finish { reason: Reason::Error, stop_id: None, error: Some(error) });
        let output = Output { finish, ..Output::of(Arc::clone(request)) };
        self.send(Parcel::Outputs(vec![output], None));
    }

    /// Sends what the engine's last step brought, and what it has in hand, if there is news.
    pub(crate) fn flush(&self, engine: &Engine) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let load = engine.load();
        if inner.outputs.is_empty() && load == inner.load {
            return;
        }
        let mut outputs = std::mem::take(&mut inner.outputs);
        for Fresh { index, request, queued } in inner.fresh.drain(..) {
            if let Some(usage) = engine.usage(request) {
                outputs[index].begin(&usage, queued);
            }
        }
        let requests = outputs.iter().filter(|output| output.prefill.is_some()).count() as u64;
        inner.steps += 1;
        let stats = inner.stats(load, requests);
        if let Some(out) = &mut inner.out {
            out.send_step(outputs, stats);
        }
    }
}

impl Inner {
    /// What the scheduler says, of so many requests that have begun since it last did.
    fn stats(&mut self, load: EngineLoad, requests: u64) -> Stats {
        let mut stats = Stats::since(&mut self.load, load, requests, self.steps);
        if self.is_leaving {
            stats.waiting += BUSY;
        }
        stats
    }
}

impl Output {
    /// Says what is said once of a request, with its first output.
    fn begin(&mut self, usage: &Usage, queued: f64) {
        self.prefill = Some(Prefill { prompt: usage.prompt, cached: usage.cached });
        let scheduled = queued + usage.waited.as_secs_f64();
        let begin = [(EventKind::Queued, queued), (EventKind::Scheduled, scheduled)];
        self.events.splice(..0, begin.map(|(kind, at)| Event { kind, at }));
    }
}

/// Sends parcels until there will be no more, or one can't be sent.
fn send(
    rank: u16,
    mut sender: Sender,
    parcels: &mpsc::Receiver<Parcel>,
    waiting: &AtomicUsize,
    log: &Log,
) -> Result<(), (ZmtpError, Parcel)> {
    for parcel in parcels {
        if let Err(error) = send_one(rank, &mut sender, &parcel, log) {
            return Err((error, parcel));
        }
        waiting.fetch_sub(1, Ordering::Release);
    }
    Ok(())
}

fn send_one(rank: u16, sender: &mut Sender, parcel: &Parcel, log: &Log) -> Result<(), ZmtpError> {
    match parcel {
        Parcel::Answer(message, call) => {
            sender.send(&[message])?;
            log.answered(*call);
        }
        Parcel::Rest(left) => sender.resume(left)?,
        Parcel::Ended(requests) => requests.iter().for_each(|request| log.ended(request)),
        Parcel::Outputs(step, stats) => {
            sender.send(&[&outputs(rank, step, stats.as_ref())])?;
            // Not before the front end has it: whoever dies in between has not answered.
            ended(step).for_each(|request| log.ended(request));
        }
    }
    Ok(())
}

/// What an outbox knows of a request.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) request: Arc<str>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) eos: Option<u32>,
    /// Ids to stop at that the request itself names.
    pub(crate) stop_ids: Vec<u32>,
    id: Option<RequestId>,
    /// When the engine took it.
    queued: f64,
    last: Option<u32>,
    /// What happened to it since its last output.
    events: Vec<Event>,
    /// Of the prompt's tokens, until the first of the answer.
    prompt_logprobs: Vec<(u32, TokenLogprobs)>,
}

impl Tracked {
    pub(crate) fn new(
        request: Arc<str>,
        outbox: Arc<Outbox>,
        eos: Option<u32>,
        stop_ids: Vec<u32>,
    ) -> Self {
        Self {
            request,
            outbox,
            eos,
            stop_ids,
            id: None,
            queued: 0.0,
            last: None,
            events: Vec::new(),
            prompt_logprobs: Vec::new(),
        }
    }

    /// Takes note of what became of the request; returns whether it has ended.
    pub(crate) fn take(&mut self, update: Update) -> bool {
        match update {
            Update::Accepted { request } => {
                (self.id, self.queued) = (Some(request), monotonic());
                false
            }
            Update::Preempted => {
                self.events.push(Event::now(EventKind::Preempted));
                false
            }
            Update::PromptToken { id, logprobs } => {
                self.prompt_logprobs.push((id, *logprobs));
                false
            }
            Update::Token { id, logprobs } => {
                self.token(id, logprobs);
                false
            }
            Update::Finished { reason, message, usage } => {
                self.finished(reason, message, &usage);
                true
            }
            Update::Failed(failure) => {
                let retryable = !matches!(failure, Failure::Refused(_));
                let error = OutputError { message: failure.to_string(), retryable };
                let (reason, stop_id, error) = (Reason::Error, None, Some(error));
                self.end(Finish { reason, stop_id, error }, None, false);
                true
            }
        }
    }

    fn token(&mut self, id: u32, logprobs: Option<Box<TokenLogprobs>>) {
        let mut inner = self.outbox.lock();
        if self.last.replace(id).is_none()
            && let Some(request) = self.id
        {
            let index = inner.outputs.len();
            inner.fresh.push(Fresh { index, request, queued: self.queued });
        }
        inner.outputs.push(Output {
            ids: vec![id],
            logprobs: logprobs.into_iter().map(|logprobs| *logprobs).collect(),
            prompt_logprobs: std::mem::take(&mut self.prompt_logprobs),
            events: std::mem::take(&mut self.events),
            ..Output::of(Arc::clone(&self.request))
        });
    }

    fn finished(&mut self, reason: FinishReason, message: Option<Box<str>>, usage: &Usage) {
        let finish = |reason| Finish { reason, stop_id: None, error: None };
        let finish = match reason {
            FinishReason::Stop => {
                let named = |id: &u32| Some(*id) != self.eos && self.stop_ids.contains(id);
                Finish { stop_id: self.last.filter(named), ..finish(Reason::Stop) }
            }
            FinishReason::Length => finish(Reason::Length),
            FinishReason::Deadline => finish(Reason::Abort),
            FinishReason::RowsLost | FinishReason::ConstraintFailed | FinishReason::BadLogits => {
                let message = message.unwrap_or_else(|| "what it brought was lost".into());
                let error = OutputError { message: message.into(), retryable: false };
                Finish { error: Some(error), ..finish(Reason::Error) }
            }
        };
        // The front end takes the last id of an output that stops for what it stopped at, which has
        // no text; where a structure has come to its end there is none.
        let stopped_at = |id: u32| Some(id) == self.eos || self.stop_ids.contains(&id);
        let is_whole = finish.reason == Reason::Stop && !self.last.is_some_and(stopped_at);
        self.end(finish, Some(usage), is_whole);
    }

    fn end(&mut self, finish: Finish, usage: Option<&Usage>, apart: bool) {
        let events = std::mem::take(&mut self.events);
        let mut inner = self.outbox.lock();
        let index = inner.outputs.len().wrapping_sub(1);
        // The engine forgets a request with its end.
        let is_fresh = inner.fresh.pop_if(|fresh| fresh.index == index).is_some();
        let last = inner.outputs.last_mut();
        if let Some(last) = last.filter(|last| Arc::ptr_eq(&last.request, &self.request)) {
            if let Some(usage) = usage.filter(|_| is_fresh) {
                last.begin(usage, self.queued);
            }
            if !apart {
                last.events.extend(events);
                last.finish = Some(finish);
                return;
            }
        }
        inner.outputs.push(Output {
            events,
            finish: Some(finish),
            ..Output::of(Arc::clone(&self.request))
        });
    }
}
