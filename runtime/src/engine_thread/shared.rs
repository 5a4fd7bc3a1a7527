//! What a thread that serves requests and those who ask it have in common.

use super::handle::SubmitError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far the thread's life has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// It takes requests.
    Serving,
    /// It ends those that are there, and takes no more.
    Draining,
    /// It is about to end.
    Stopping,
    /// It has ended.
    Stopped,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Serving, Self::Draining, Self::Stopping, Self::Stopped];
}

/// Whether an engine has its memory and takes requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rest {
    /// It has its memory and takes requests.
    Awake,
    /// It takes no requests, and is about to give its memory back.
    FallingAsleep,
    /// It gave its memory back.
    Asleep,
}

impl Rest {
    const ALL: [Self; 3] = [Self::Awake, Self::FallingAsleep, Self::Asleep];
}

/// How far a thread's life has come, and how many requests are there.
#[derive(Debug)]
pub struct Shared {
    phase: AtomicU8,
    rest: AtomicU8,
    live: Mutex<Live>,
    bound: usize,
    next_key: AtomicU64,
}

/// Requests that are there, on their way to the thread among them.
#[derive(Debug, Default)]
struct Live {
    all: usize,
    of: HashMap<u64, usize>,
}

impl Shared {
    /// A thread that takes requests, at most `bound` at a time.
    pub fn new(bound: usize) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Serving as u8),
            rest: AtomicU8::new(Rest::Awake as u8),
            live: Mutex::default(),
            bound,
            next_key: AtomicU64::new(0),
        }
    }

    /// The requests that may be there at a time.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Acquire))]
    }

    /// Goes on to a later phase; life goes one way.
    pub fn advance(&self, to: Phase) {
        self.phase.fetch_max(to as u8, Ordering::AcqRel);
    }

    /// Whether the engine is awake, asleep or about to be.
    pub fn rest(&self) -> Rest {
        Rest::ALL[usize::from(self.rest.load(Ordering::Acquire))]
    }

    pub(super) fn fall_asleep(&self) {
        self.rest.fetch_max(Rest::FallingAsleep as u8, Ordering::AcqRel);
    }

    pub(super) fn set_rest(&self, rest: Rest) {
        self.rest.store(rest as u8, Ordering::Release);
    }

    /// How many requests run and wait.
    pub fn live(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        // Nothing that holds it panics.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for each of a client's further requests. Past the bound there are a quarter more for
    /// clients that have few there, so that nobody is kept out by what others have there.
    ///
    /// # Errors
    /// When the thread takes no more or sleeps, or they go past the bound.
    pub fn take_places(
        self: &Arc<Self>,
        clients: impl ExactSizeIterator<Item = u64>,
    ) -> Result<Vec<Place>, SubmitError> {
        if self.phase() > Phase::Serving {
            return Err(SubmitError::ShuttingDown);
        }
        if self.rest() > Rest::Awake {
            return Err(SubmitError::Asleep);
        }
        let (bound, count) = (self.bound, clients.len());
        if count > bound {
            return Err(SubmitError::TooMany { count, bound });
        }
        let clients = Vec::from_iter(clients);
        let mut live = self.lock();
        let few = (bound / 64).max(4).min(bound / 2);
        let has_few = |client| {
            live.of.get(client).is_none_or(|of_client| of_client.saturating_add(count) <= few)
        };
        let most = match count <= few && clients.iter().all(has_few) {
            true => bound.saturating_add((bound / 4).max(few)),
            false => bound,
        };
        if live.all.saturating_add(count) > most {
            return Err(SubmitError::Full { live: live.all, bound });
        }
        live.all += count;
        let first = self.next_key.fetch_add(count as u64, Ordering::Relaxed);
        let place = |(i, client)| {
            *live.of.entry(client).or_default() += 1;
            Place { key: first + i as u64, client, shared: Arc::clone(self) }
        };
        Ok(clients.into_iter().enumerate().map(place).collect())
    }
}

/// The place of a request among those that may be there; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    key: u64,
    client: u64,
    shared: Arc<Shared>,
}

impl Place {
    /// Whose it is: no other request has the same.
    pub fn key(&self) -> u64 {
        self.key
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut live = self.shared.lock();
        live.all -= 1;
        if let Some(of_client) = live.of.get_mut(&self.client) {
            *of_client -= 1;
            if *of_client == 0 {
                live.of.remove(&self.client);
            }
        }
    }
}
