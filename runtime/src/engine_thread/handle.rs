//! The way to the thread.

use super::shared::{Phase, Place, Rest, Shared};
use super::sleep::{PauseMode, SleepAnswer, SleepError, SleepOrder};
use super::update::{Failure, Sink, Update};
use crate::engine::{Engine, EngineError, EngineOptions, Request, RequestEvent};
use crate::observe::Metrics;
use crate::words::SuspendedWeights;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

/// Something to do with the engine between two steps; events that it makes are told as those of a step.
type Question = Box<dyn FnOnce(&mut Engine, &mut Vec<RequestEvent>) + Send>;

/// What the thread is told.
pub(super) enum Command {
    Submit(Vec<Submission>),
    Cancel(u64),
    End(u64),
    Call(Question),
    Sleep(SleepOrder),
    WakeUp(SleepAnswer),
    /// Look at the phase, which has changed.
    Wake,
}

impl Command {
    /// Tells who waits for an answer that the thread has ended.
    pub(super) fn refuse(self) {
        match self {
            Self::Submit(submissions) => {
                for mut submission in submissions {
                    (submission.sink)(Update::Failed(Failure::Stopped));
                }
            }
            Self::Sleep(SleepOrder { answer, .. }) | Self::WakeUp(answer) => {
                answer(Err(SleepError::Stopped));
            }
            // Their channels close.
            Self::Cancel(_) | Self::End(_) | Self::Call(_) | Self::Wake => {}
        }
    }
}

pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) sink: Sink,
    pub(super) place: Place,
    pub(super) submitted: std::time::Instant,
}

/// Why a request does not get to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum SubmitError {
    /// As many are there as may be.
    #[error("{live} requests run and wait, and at most {bound} may (--max-queue); try again later")]
    Full { live: usize, bound: usize },
    /// More at once than may ever be there.
    #[error(
        "{count} requests at once are more than the {bound} that may run and wait (--max-queue); send fewer"
    )]
    TooMany { count: usize, bound: usize },
    /// The thread takes no more.
    #[error("the engine is shutting down and takes no more requests")]
    ShuttingDown,
    /// The engine gave its memory back until it is woken.
    #[error("the engine sleeps and takes no requests until it is woken (`/wake_up`)")]
    Asleep,
}

/// Takes requests for the thread of an engine. Clones are the same.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    pub(super) commands: Sender<Command>,
    pub(super) shared: Arc<Shared>,
    pub(super) engine: EngineOptions,
    pub(super) metrics: Metrics,
}

impl EngineHandle {
    /// Hands in a request; whether it is in order, the first update says.
    ///
    /// # Errors
    /// When too many are there, or the thread shuts down or sleeps.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, SubmitError> {
        let tickets = self.submit_all(vec![(request, sink)])?;
        tickets.into_iter().next().ok_or(SubmitError::ShuttingDown)
    }

    /// Hands in several requests, all of them or none; the tickets are in their order.
    ///
    /// # Errors
    /// As for [`Self::submit`].
    pub fn submit_all(&self, requests: Vec<(Request, Sink)>) -> Result<Vec<Ticket>, SubmitError> {
        let places =
            self.shared.take_places(requests.iter().map(|(request, _)| request.client.id))?;
        let ticket = |place: &Place| Ticket { key: place.key(), commands: self.commands.clone() };
        let tickets = places.iter().map(ticket).collect();
        let submitted = std::time::Instant::now();
        let submission = |((request, sink), place)| Submission { request, sink, place, submitted };
        let submissions = requests.into_iter().zip(places).map(submission).collect();
        let sent = self.commands.send(Command::Submit(submissions));
        sent.map(|()| tickets).map_err(|_| SubmitError::ShuttingDown)
    }

    /// Does something with the engine between two steps, such as asking for its graphs or changing
    /// their mode; the answer comes when it is done. The requests of the thread are its own: they
    /// must not be removed, no step be run, and the engine not be suspended but by
    /// [`Self::suspend`]. A receiver without an answer says that the thread has ended.
    pub fn call<R: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Receiver<R> {
        self.ask(move |engine, _| ask(engine))
    }

    /// Gives the memory of the engine back between two steps, as [`Engine::suspend`] does. What the
    /// steps on their way bring reaches their requests, and all go on once the engine is resumed by
    /// [`Self::call`].
    pub fn suspend(&self, weights: SuspendedWeights) -> Receiver<Result<(), EngineError>> {
        self.ask(move |engine, events| engine.suspend(weights, events))
    }

    fn ask<R: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Engine, &mut Vec<RequestEvent>) -> R + Send + 'static,
    ) -> Receiver<R> {
        let (answer, received) = mpsc::sync_channel(1);
        let ask = move |engine: &mut Engine, events: &mut Vec<RequestEvent>| {
            drop(answer.send(ask(engine, events)));
        };
        // The thread that is gone drops what was to answer.
        let _ = self.commands.send(Command::Call(Box::new(ask)));
        received
    }

    /// Puts the engine to sleep between two steps: its memory is given back as by
    /// [`Engine::suspend`], and from now on requests are refused with
    /// [`SubmitError::Asleep`].
    pub fn sleep(&self, weights: SuspendedWeights, mode: PauseMode, answer: SleepAnswer) {
        self.shared.fall_asleep();
        self.tell(Command::Sleep(SleepOrder { weights, mode, answer }));
    }

    /// Wakes the engine: its memory is taken back, weights that were dropped are made again from
    /// where they came, and requests are taken and go on. One that does not sleep is as before.
    pub fn wake_up(&self, answer: SleepAnswer) {
        self.tell(Command::WakeUp(answer));
    }

    /// Whether the engine sleeps, or is about to.
    pub fn rest(&self) -> Rest {
        self.shared.rest()
    }

    fn tell(&self, command: Command) {
        if let Err(unsent) = self.commands.send(command) {
            unsent.0.refuse();
        }
    }

    /// Requests that may run and wait at a time.
    pub fn most_requests(&self) -> usize {
        self.shared.bound()
    }

    /// Takes no more requests; the thread ends once those that are there have.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Ends the requests that are there, and the thread, after the step that runs.
    pub fn stop(&self) {
        self.advance(Phase::Stopping);
    }

    fn advance(&self, to: Phase) {
        self.shared.advance(to);
        // Nobody is left to be woken where this fails.
        let _ = self.commands.send(Command::Wake);
    }

    /// How far the thread's life has come.
    pub fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// Requests that run or wait.
    pub fn live_requests(&self) -> usize {
        self.shared.live()
    }

    /// The bounds of the engine.
    pub fn options(&self) -> &EngineOptions {
        &self.engine
    }

    /// The metrics of the engine and of its requests.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

/// A request that was handed in. Dropped, it cancels what is left of it: pages and slot are free
/// before the next step.
#[derive(Debug)]
#[must_use = "a ticket that is dropped cancels its request"]
pub struct Ticket {
    key: u64,
    commands: Sender<Command>,
}

impl Ticket {
    /// Ends the request before its next step, as one that has all it asked for:
    /// [`Update::Finished`] by a stop follows, unless it came already.
    pub fn end(&self) {
        // A thread that is gone has told of the end.
        let _ = self.commands.send(Command::End(self.key));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A thread that is gone has no request to cancel.
        let _ = self.commands.send(Command::Cancel(self.key));
    }
}
