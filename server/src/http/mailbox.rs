//! The way of updates from the engine's thread to who answers a request.

use super::body::Held;
use super::error::ApiError;
use piecewise_runtime::engine::TokenLogprobs;
use piecewise_runtime::engine_thread::{Failure, Update};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// An update, and the answer that it is of.
pub(super) type Letter = (usize, Update);

/// Bytes that a letter takes beside its log-probabilities, in a queue that keeps room for as many again.
const OF_LETTER: usize = 2 * size_of::<Letter>();
/// Letters of so many bytes are taken at once. What is written of them is several times as large, and is
/// counted nowhere until the client takes it.
const PIECE: usize = 32 << 10;

/// Takes the updates of all answers to a request.
///
/// A channel of a runtime does the same by lists of blocks and several counters, each of which is a
/// line of memory that two threads pass on for every token; here all is behind one lock, and what is
/// there is taken as a whole.
///
/// Nobody who sends waits, however slow its reader is: what is unread takes memory of its client, and
/// where there is none the reader is given up.
#[derive(Debug)]
pub(super) struct Mailbox(Arc<Shared>);

/// Puts in the updates of one answer.
#[derive(Debug)]
pub(super) struct Sender {
    shared: Arc<Shared>,
    index: usize,
}

#[derive(Debug)]
struct Shared(Mutex<Contents>);

#[derive(Debug)]
struct Contents {
    letters: VecDeque<Letter>,
    /// The memory that they take.
    unread: Held,
    /// Whether somebody takes them, and did so in time.
    is_read: bool,
    /// Is woken by the next letter.
    reader: Option<Waker>,
    senders: usize,
}

impl Contents {
    /// Drops what is there and what will come.
    fn close(&mut self) {
        self.is_read = false;
        self.letters = VecDeque::new();
        self.unread.shrink(self.unread.bytes());
    }

    fn put(&mut self, letter: Letter) {
        if self.is_read && self.unread.grow(bytes(&letter.1)).is_err() {
            // A connection that can't write asks for nothing that it could be told by.
            self.unread.give_up();
            self.close();
        }
        if self.is_read {
            self.letters.push_back(letter);
        }
    }

    fn take(&mut self, into: &mut VecDeque<Letter>) {
        if self.unread.bytes() <= PIECE {
            std::mem::swap(&mut self.letters, into);
            return self.unread.shrink(self.unread.bytes());
        }
        let mut taken = 0;
        while taken < PIECE
            && let Some(letter) = self.letters.pop_front()
        {
            taken += bytes(&letter.1);
            into.push_back(letter);
        }
        self.unread.shrink(taken);
        if self.unread.bytes() <= PIECE {
            self.letters.shrink_to_fit();
        }
    }
}

/// What an update takes of memory.
fn bytes(update: &Update) -> usize {
    let of = |told: &TokenLogprobs| size_of_val(told) + size_of_val(&*told.top);
    OF_LETTER
        + match update {
            Update::PromptToken { logprobs, .. } => of(logprobs),
            Update::Token { logprobs, .. } => logprobs.as_deref().map_or(0, of),
            _ => 0,
        }
}

impl Shared {
    /// Nothing that holds it panics or waits.
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the reader after a change.
    fn wake(&self, change: impl FnOnce(&mut Contents)) {
        let mut contents = self.lock();
        change(&mut contents);
        let reader = contents.reader.take();
        // Woken under the lock it would wait for it.
        drop(contents);
        reader.into_iter().for_each(Waker::wake);
    }
}

/// A mailbox, and a sender for each of so many answers; `unread` takes the memory of what is not read.
pub(super) fn new(answers: usize, unread: Held) -> (Mailbox, impl Iterator<Item = Sender>) {
    let letters = VecDeque::new();
    let contents = Contents { letters, unread, is_read: true, reader: None, senders: answers };
    let shared = Arc::new(Shared(Mutex::new(contents)));
    let own = Mailbox(Arc::clone(&shared));
    (own, (0..answers).map(move |index| Sender { shared: Arc::clone(&shared), index }))
}

impl Mailbox {
    /// Takes what is there into `into`, which is empty; of much its beginning. Waits for something.
    ///
    /// # Errors
    /// When nothing is there and nobody is left who could send, and when it was read too slowly.
    pub(super) fn poll_take(
        &self,
        context: &mut Context<'_>,
        into: &mut VecDeque<Letter>,
    ) -> Poll<Result<(), ApiError>> {
        let mut contents = self.0.lock();
        if !contents.is_read {
            return Poll::Ready(Err(ApiError::unread()));
        }
        if !contents.letters.is_empty() {
            contents.take(into);
            return Poll::Ready(Ok(()));
        }
        if contents.senders == 0 {
            return Poll::Ready(Err(ApiError::from(&Failure::Stopped)));
        }
        contents.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.0.lock().close();
    }
}

impl Sender {
    /// Puts in an update; who has gone reads none.
    pub(super) fn send(&self, update: Update) {
        self.shared.wake(|contents| contents.put((self.index, update)));
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.wake(|contents| contents.senders -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::body::BodyMemory;
    use super::super::client::Client;
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MEMORY: usize = 1 << 20;

    fn token(id: u32) -> Update {
        let top = (0..20).map(|id| (id, -1.0)).collect();
        let logprobs = TokenLogprobs { logprob: -1.0, rank: 1, top };
        Update::Token { id, logprobs: Some(Box::new(logprobs)) }
    }

    /// What is there, in the order in which it came.
    fn taken(mailbox: &Mailbox) -> Result<Vec<u32>, ApiError> {
        let mut context = Context::from_waker(Waker::noop());
        let mut came = VecDeque::new();
        match mailbox.poll_take(&mut context, &mut came) {
            Poll::Pending => Ok(Vec::new()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) => Ok(Vec::from_iter(came.iter().map(|letter| match letter {
                (0, Update::Token { id, .. }) => *id,
                other => panic!("{other:?}"),
            }))),
        }
    }

    #[test]
    fn a_reader_that_is_too_slow_is_given_up() {
        let memory = BodyMemory::new(MEMORY);
        let closed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&closed);
        let leave = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let client = Client::at(None).by(Some(leave));
        let (mailbox, mut senders) = new(1, memory.hold(client.clone()));
        let sender = senders.next().unwrap();
        // Who keeps up takes more than there is memory for, and who is behind gets it in order.
        let mut read = Vec::new();
        for id in 0..10_000 {
            sender.send(token(id));
            if id % 100 == 0 {
                let some = taken(&mailbox).unwrap();
                assert!(some.len() * bytes(&token(0)) < PIECE + 1000, "{}", some.len());
                read.extend(some);
            }
        }
        loop {
            let some = taken(&mailbox).unwrap();
            if some.is_empty() {
                break;
            }
            read.extend(some);
        }
        assert_eq!(read, Vec::from_iter(0..10_000));
        assert_eq!(closed.load(Ordering::Relaxed), 0);
        // Who reads nothing is given up once, with all that was there.
        for id in 0..10_000 {
            sender.send(token(id));
            let unread = mailbox.0.lock().unread.bytes();
            assert!(unread <= MEMORY, "{unread}");
        }
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        let error = taken(&mailbox).unwrap_err();
        assert!(error.body().to_string().contains("--max-body-memory"), "{error:?}");
        let contents = mailbox.0.lock();
        assert_eq!((contents.unread.bytes(), contents.letters.capacity()), (0, 0));
        drop(contents);
        memory.hold(client).grow(MEMORY / 4 * 3).unwrap();
    }

    /// Such as one whose answer has ended and who asks for another by the same connection.
    #[test]
    fn a_reader_that_has_gone_takes_no_memory() {
        let leave = Arc::new(|| panic!("it is closed"));
        let held = BodyMemory::new(MEMORY).hold(Client::at(None).by(Some(leave)));
        let (mailbox, mut senders) = new(1, held);
        let sender = senders.next().unwrap();
        let shared = Arc::clone(&mailbox.0);
        sender.send(token(0));
        assert!(shared.lock().unread.bytes() > 0);
        drop(mailbox);
        (0..10_000).for_each(|id| sender.send(token(id)));
        assert_eq!(shared.lock().unread.bytes(), 0);
    }

    /// Nothing is lost or changes places on the way from other threads, and who waits learns that
    /// nothing more will come.
    #[tokio::test]
    async fn updates_come_in_order_up_to_the_end_of_all_senders() {
        const EACH: u32 = 10_000;
        let held = BodyMemory::new(64 << 20).hold(Client::default());
        let (mailbox, senders) = new(3, held);
        let threads = Vec::from_iter(senders.map(|sender| {
            std::thread::spawn(move || {
                (0..EACH).for_each(|id| sender.send(Update::Token { id, logprobs: None }));
            })
        }));
        let (mut next, mut came) = ([0; 3], VecDeque::new());
        while poll_fn(|context| mailbox.poll_take(context, &mut came)).await.is_ok() {
            for (index, update) in came.drain(..) {
                assert!(
                    matches!(update, Update::Token { id, .. } if id == next[index]),
                    "{update:?}"
                );
                next[index] += 1;
            }
        }
        assert_eq!(next, [EACH; 3]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
