//! The way of updates from the engine's thread to who answers a request.

use piecewise_runtime::engine_thread::{Failure, Update};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// An update, and the answer that it is of.
pub(super) type Letter = (usize, Update);

/// Takes the updates of all answers to a request.
///
/// A channel of a runtime does the same by lists of blocks and several counters, each of which is a
/// line of memory that two threads pass on for every token; here all is behind one lock, and what is
/// there is taken as a whole.
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
    /// Is woken by the next letter.
    reader: Option<Waker>,
    senders: usize,
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

/// A mailbox, and a sender for each of so many answers.
pub(super) fn new(answers: usize) -> (Mailbox, impl Iterator<Item = Sender>) {
    let contents = Contents { letters: VecDeque::new(), reader: None, senders: answers };
    let shared = Arc::new(Shared(Mutex::new(contents)));
    let own = Mailbox(Arc::clone(&shared));
    (own, (0..answers).map(move |index| Sender { shared: Arc::clone(&shared), index }))
}

impl Mailbox {
    /// Takes all that is there into `into`, which is empty; waits for something.
    ///
    /// # Errors
    /// When nothing is there and nobody is left who could send.
    pub(super) fn poll_take(
        &self,
        context: &mut Context<'_>,
        into: &mut VecDeque<Letter>,
    ) -> Poll<Result<(), Failure>> {
        let mut contents = self.0.lock();
        if !contents.letters.is_empty() {
            std::mem::swap(&mut contents.letters, into);
            return Poll::Ready(Ok(()));
        }
        if contents.senders == 0 {
            return Poll::Ready(Err(Failure::Stopped));
        }
        contents.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Sender {
    /// Puts in an update; who has gone reads none.
    pub(super) fn send(&self, update: Update) {
        self.shared.wake(|contents| contents.letters.push_back((self.index, update)));
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.wake(|contents| contents.senders -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    /// Nothing is lost or changes places on the way from other threads, and who waits learns that
    /// nothing more will come.
    #[tokio::test]
    async fn updates_come_in_order_up_to_the_end_of_all_senders() {
        const EACH: u32 = 10_000;
        let (mailbox, senders) = new(3);
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
