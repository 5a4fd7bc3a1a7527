//! An encoder on a thread of its own, for servers: calls come from any thread, and what is there at
//! a time is packed together.
//!
//! The thread works in rounds of a bounded number of items, of which every call that waits brings
//! some, and no client more than another for having more calls: a small call does not wait for the end
//! of large ones. An item has the same bits in any company, so nobody sees whose items shared its step.

mod metrics;
mod shares;

use super::protocol::{ItemEncoder, ItemError, ItemOutputs};
use super::runner::Encoder;
use metrics::PathMetrics;
use piecewise_runtime::engine::Client;
use piecewise_runtime::engine_thread::{Phase, Place, Shared, SubmitError};
use piecewise_runtime::observe::{Metrics, RequestMetrics, RequestTimes};
use piecewise_runtime::words::{EngineLoad, FinishReason, Usage};
use shares::shares;
use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// Items of a round: a few steps of as many as one has at most by default.
const ROUND: usize = 128;

/// What each item of a call became, in their order.
pub type CallOutputs = Vec<Result<ItemOutputs, ItemError>>;

/// Takes what became of a call, on the encoder's thread: it must not wait for anything. One that is
/// dropped belongs to a call that nobody waits for, or to a thread that has ended.
pub type CallSink = Box<dyn FnOnce(CallOutputs) + Send>;

/// The thread of an encoder. Dropped, it ends after the round that runs.
#[derive(Debug)]
pub struct EncoderThread<M: ItemEncoder> {
    handle: EncoderHandle<M>,
    thread: Option<JoinHandle<Encoder<M>>>,
}

/// Takes calls for the thread of an encoder. Clones are the same.
#[derive(Debug)]
pub struct EncoderHandle<M: ItemEncoder> {
    calls: Sender<Option<Call<M>>>,
    shared: Arc<Shared>,
    metrics: Metrics,
}

impl<M: ItemEncoder> Clone for EncoderHandle<M> {
    fn clone(&self) -> Self {
        let Self { calls, shared, metrics } = self;
        Self { calls: calls.clone(), shared: Arc::clone(shared), metrics: metrics.clone() }
    }
}

/// A call that was handed in. Dropped, it takes part in no further round.
#[derive(Debug)]
#[must_use = "a ticket that is dropped cancels its call"]
pub struct CallTicket {
    _interest: Arc<()>,
}

#[derive(derive_more::Debug)]
#[debug("Call of {} items", items.len())]
struct Call<M: ItemEncoder> {
    items: VecDeque<M::Item>,
    outputs: CallOutputs,
    sink: CallSink,
    interest: Weak<()>,
    times: RequestTimes,
    /// Of the items that took part in a round.
    tokens: u64,
    is_running: bool,
    /// Whether it had no part in the last round.
    waits: bool,
    client: Client,
    place: Place,
}

impl<M> EncoderThread<M>
where
    M: ItemEncoder + Send + 'static,
    M::Item: Send,
{
    /// Starts the thread; `max_calls` may be there at a time, and metrics call the model
    /// `model_name`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(encoder: Encoder<M>, max_calls: usize, model_name: &str) -> std::io::Result<Self> {
        let (calls, received) = mpsc::channel();
        let shared = Arc::new(Shared::new(max_calls));
        let metrics = Metrics::new();
        let requests = metrics.requests(model_name).clone();
        let paths = PathMetrics::new(&metrics);
        let handle = EncoderHandle { calls, shared: Arc::clone(&shared), metrics: metrics.clone() };
        let calls = VecDeque::new();
        let mut worker = Worker { encoder, received, calls, shared, metrics, requests, paths };
        worker.publish();
        let thread = std::thread::Builder::new().name("encoder".to_owned());
        let thread = thread.spawn(move || worker.run())?;
        Ok(Self { handle, thread: Some(thread) })
    }

    /// The way to the thread; clones are the same.
    pub fn handle(&self) -> &EncoderHandle<M> {
        &self.handle
    }

    /// Takes no more calls, waits for those that are there, and gives the encoder back; `None` where
    /// the thread panicked.
    pub fn finish(mut self) -> Option<Encoder<M>> {
        self.handle.advance(Phase::Draining);
        self.thread.take()?.join().ok()
    }
}

impl<M: ItemEncoder> Drop for EncoderThread<M> {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has told of itself.
            let _ = thread.join();
        }
    }
}

impl<M: ItemEncoder> EncoderHandle<M> {
    /// Hands in the items of a call of this client: nobody is kept out by what other clients have there, and
    /// nobody waits for it either.
    ///
    /// # Errors
    /// When too many calls are there, or the thread shuts down.
    pub fn submit(
        &self,
        client: Client,
        items: Vec<M::Item>,
        sink: CallSink,
    ) -> Result<CallTicket, SubmitError> {
        let place = self
            .shared
            .take_places([client.id].into_iter())?
            .pop()
            .ok_or(SubmitError::ShuttingDown)?;
        let ticket = CallTicket { _interest: Arc::new(()) };
        let call = Call {
            outputs: Vec::with_capacity(items.len()),
            items: items.into(),
            sink,
            interest: Arc::downgrade(&ticket._interest),
            times: RequestTimes::new(Instant::now(), 0),
            tokens: 0,
            is_running: false,
            waits: true,
            client,
            place,
        };
        let sent = self.calls.send(Some(call));
        sent.map(|()| ticket).map_err(|_| SubmitError::ShuttingDown)
    }

    /// Ends the thread after the round that runs; calls that are there get no outputs.
    pub fn stop(&self) {
        self.advance(Phase::Stopping);
    }

    fn advance(&self, to: Phase) {
        self.shared.advance(to);
        // Nobody is left to be woken where this fails.
        let _ = self.calls.send(None);
    }

    /// How far the thread's life has come.
    pub fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// Calls that wait or run.
    pub fn live_calls(&self) -> usize {
        self.shared.live()
    }

    /// What is counted of calls, items and steps.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

struct Worker<M: ItemEncoder> {
    encoder: Encoder<M>,
    /// `None` wakes the thread to look at its phase.
    received: Receiver<Option<Call<M>>>,
    /// Those that had no part in the last round first, and the oldest.
    calls: VecDeque<Call<M>>,
    shared: Arc<Shared>,
    metrics: Metrics,
    requests: RequestMetrics,
    paths: PathMetrics,
}

impl<M: ItemEncoder> Worker<M> {
    fn run(mut self) -> Encoder<M> {
        let ends = Ends(Arc::clone(&self.shared));
        loop {
            // A call that has its place is on its way.
            let may_come = match self.shared.phase() {
                Phase::Serving => true,
                Phase::Draining => self.shared.live() > 0,
                Phase::Stopping | Phase::Stopped => false,
            };
            if self.calls.is_empty() && may_come {
                match self.received.recv() {
                    Ok(call) => self.calls.extend(call),
                    // Nobody is left who could ask for anything.
                    Err(_) => break,
                }
            }
            while let Ok(call) = self.received.try_recv() {
                self.calls.extend(call);
            }
            match self.shared.phase() {
                Phase::Stopping | Phase::Stopped => break,
                Phase::Draining if self.calls.is_empty() && self.shared.live() == 0 => break,
                Phase::Draining | Phase::Serving => {}
            }
            let before = self.calls.len();
            self.calls.retain(|call| call.interest.strong_count() > 0);
            (self.calls.len()..before).for_each(|_| self.requests.cancelled());
            self.round();
        }
        drop(ends);
        self.calls.clear();
        self.publish();
        self.encoder
    }

    /// Encodes some items of every call that there is, and ends those that have all their outputs.
    fn round(&mut self) {
        let calls = self.calls.iter().map(|call| (call.client, call.items.len()));
        let taken = shares(&Vec::from_iter(calls), ROUND);
        let mut items = Vec::with_capacity(taken.iter().sum());
        for (call, &count) in self.calls.iter_mut().zip(&taken) {
            for item in call.items.drain(..count) {
                let sizes = self.encoder.model().sizes(&item).unwrap_or_default();
                call.tokens += sizes.iter().map(|size| size.rows).sum::<u64>();
                items.push(item);
            }
            call.is_running = true;
            call.waits = count == 0;
        }
        self.publish();
        let mut outputs = self.encoder.encode(&items).into_iter();
        let now = Instant::now();
        for (call, count) in self.calls.iter_mut().zip(taken) {
            call.outputs.extend(outputs.by_ref().take(count));
        }
        let (waiting, ended): (VecDeque<_>, VecDeque<_>) =
            self.calls.drain(..).partition(|call| !call.items.is_empty());
        self.calls = waiting;
        // Those for whom there was no room go first.
        self.calls.make_contiguous().sort_by_key(|call| !call.waits);
        let ended = ended.into_iter().map(|call| {
            let usage = Usage { prompt: call.tokens, ..Usage::default() };
            match call.outputs.iter().all(Result::is_ok) {
                true => self.requests.finished(&call.times, FinishReason::Stop, usage, now),
                false => self.requests.failed(),
            }
            drop(call.place);
            (call.sink, call.outputs)
        });
        // Places are free and counts are shown before anybody knows of the end.
        let ended = Vec::from_iter(ended);
        self.publish();
        ended.into_iter().for_each(|(sink, outputs)| sink(outputs));
    }

    /// Puts the counters where the metrics of other threads are read from.
    fn publish(&mut self) {
        let running = self.calls.iter().filter(|call| call.is_running).count() as u64;
        let waiting = self.calls.len() as u64 - running;
        let load = EngineLoad { running, waiting, ..EngineLoad::default() };
        if let Some(snapshot) = self.encoder.snapshot(load) {
            self.metrics.publish(snapshot);
        }
        self.paths.publish(&self.encoder.statistics());
    }
}

/// However the thread ends, by a panic too, it is known to have.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.advance(Phase::Stopped);
    }
}
