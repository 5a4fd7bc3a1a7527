//! Work that takes long, off the threads that others wait for.

use super::client::Client;
use super::error::ApiError;
use crate::structured::Wanted;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// What `work` gives, done aside.
pub(crate) async fn aside<R, E>(
    work: impl FnOnce() -> Result<R, E> + Send + 'static,
) -> Result<R, ApiError>
where
    R: Send + 'static,
    E: Into<ApiError> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(error.to_string()))?.map_err(Into::into)
}

/// Work of one kind, so much of it at a time, while so much waits at most, three quarters of it one
/// client's. Clients take turns.
#[derive(Debug)]
pub(crate) struct Turns {
    line: Arc<Mutex<Line>>,
    most_waiting: usize,
    /// The flag that bounds who waits.
    flag: &'static str,
}

/// Turns that nobody has, and who waits for one.
#[derive(Debug)]
struct Line {
    free: usize,
    /// Of each client; the one in front is next.
    waiting: VecDeque<(u64, VecDeque<oneshot::Sender<Turn>>)>,
}

/// Given back when it is dropped.
#[derive(Debug)]
struct Turn(Option<Arc<Mutex<Line>>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(line) = self.0.take() {
            give(&line);
        }
    }
}

fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    // Nothing that holds it panics.
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a turn to the next who waits, and to nobody where none does.
fn give(line: &Arc<Mutex<Line>>) {
    loop {
        let mut locked = lock(line);
        let Some((client, mut waiting)) = locked.waiting.pop_front() else {
            locked.free += 1;
            return;
        };
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            locked.waiting.push_back((client, waiting));
        }
        drop(locked);
        match next.map(|next| next.send(Turn(Some(Arc::clone(line))))) {
            // Who has gone takes none; what came back is given to the next here.
            Some(Err(mut turn)) => turn.0 = None,
            None => {}
            Some(Ok(())) => return,
        }
    }
}

impl Turns {
    pub(crate) fn new(turns: usize, most_waiting: usize, flag: &'static str) -> Self {
        let line = Line { free: turns.max(1), waiting: VecDeque::new() };
        Self { line: Arc::new(Mutex::new(line)), most_waiting, flag }
    }

    /// A turn, or a place in the line.
    fn ask(&self, client: u64) -> Result<Result<Turn, oneshot::Receiver<Turn>>, ApiError> {
        let mut line = lock(&self.line);
        if line.free > 0 {
            line.free -= 1;
            return Ok(Ok(Turn(Some(Arc::clone(&self.line)))));
        }
        for (_, waiting) in &mut line.waiting {
            waiting.retain(|other| !other.is_closed());
        }
        line.waiting.retain(|(_, waiting)| !waiting.is_empty());
        let all: usize = line.waiting.iter().map(|(_, waiting)| waiting.len()).sum();
        let place = line.waiting.iter().position(|(other, _)| *other == client);
        let own = place.map_or(0, |place| line.waiting[place].1.len());
        let of_one = self.most_waiting - self.most_waiting / 4;
        if all >= self.most_waiting {
            return Err(ApiError::too_busy("requests", all, self.flag));
        }
        if own >= of_one {
            return Err(ApiError::too_busy("requests of yours", own, self.flag));
        }
        let (sender, receiver) = oneshot::channel();
        match place {
            Some(place) => line.waiting[place].1.push_back(sender),
            None => line.waiting.push_back((client, VecDeque::from([sender]))),
        }
        Ok(Err(receiver))
    }

    /// As [`aside`], once the client has a turn, which it keeps until the work has ended, whoever still
    /// waits for it. The work is told whether somebody does; who has gone before it began has nothing done.
    pub(crate) async fn run<R, E>(
        &self,
        client: &Client,
        work: impl FnOnce(Wanted<'_>) -> Result<R, E> + Send + 'static,
    ) -> Result<R, ApiError>
    where
        R: Send + 'static,
        E: Into<ApiError> + Send + 'static,
    {
        let turn = match self.ask(client.id())? {
            Ok(turn) => turn,
            Err(comes) => comes.await.map_err(|error| ApiError::internal(error.to_string()))?,
        };
        let waits = Waits::default();
        let still = waits.still();
        let done = aside(move || {
            let _turn = turn;
            work(&still)
        });
        done.await
    }
}

/// Somebody waits until it is dropped.
pub(crate) struct Waits(Arc<AtomicBool>);

impl Default for Waits {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Waits {
    /// Whether somebody still does.
    pub(crate) fn still(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let still = Arc::clone(&self.0);
        move || still.load(Ordering::Relaxed)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What `work` gives, done on a thread of its own: it gets one, however much is done aside. `None`
/// where it panics.
pub(crate) async fn alone<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> std::io::Result<Option<R>> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("alone".to_owned());
    // Nobody may wait for it any more.
    thread.spawn(move || drop(sender.send(work())))?;
    Ok(receiver.await.ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use std::pin::Pin;
    use std::sync::mpsc;
    use std::task::Poll;
    use tokio::runtime::{Builder, Runtime};

    /// With one thread for what is done aside.
    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).build().unwrap()
    }

    #[test]
    fn who_leaves_gives_back_no_turn_while_the_work_goes_on() {
        let (runtime, turns) = (runtime(), Arc::new(Turns::new(1, 1, "--max-waiting-texts")));
        let (begun, begins) = mpsc::channel();
        let (told, tells) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let of_work = Arc::clone(&turns);
        let client = runtime.spawn(async move {
            let client = Client::default();
            let work = of_work.run(&client, move |is_wanted| {
                begun.send(is_wanted()).unwrap();
                goes_on.recv().unwrap();
                told.send(is_wanted()).unwrap();
                Ok::<_, ApiError>(())
            });
            work.await
        });
        assert!(begins.recv().unwrap(), "somebody waits");
        client.abort();
        assert!(runtime.block_on(client).unwrap_err().is_cancelled());
        assert_eq!(lock(&turns.line).free, 0);
        // One may wait for the turn; a second one is told to come again, until the first has gone.
        let client = Client::default();
        let later = || Box::pin(turns.run(&client, |_| Ok::<_, ApiError>(3)));
        let mut waits = later();
        let pending = |work: &mut Pin<Box<_>>| poll_once(&runtime, work).is_none();
        assert!(pending(&mut waits));
        let refused = poll_once(&runtime, &mut later()).unwrap().unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        drop(waits);
        let mut waits = later();
        assert!(pending(&mut waits));
        go_on.send(()).unwrap();
        assert!(!tells.recv().unwrap(), "nobody waits");
        // The turn comes back with the end of the work.
        assert_eq!(runtime.block_on(waits).unwrap(), 3);
        let line = lock(&turns.line);
        assert_eq!((line.free, line.waiting.len()), (1, 0));
    }

    #[test]
    fn clients_take_turns_and_one_leaves_places_to_others() {
        let turns = Turns::new(1, 4, "--max-connections");
        let ask = |client| turns.ask(client);
        let first = ask(1).unwrap().unwrap();
        let mut comes = Vec::from_iter([1, 1, 1].map(|client| ask(client).unwrap().unwrap_err()));
        let Err(refused) = ask(1) else { panic!("places are left to others") };
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        let message = refused.body().to_string();
        assert!(message.contains("requests of yours"), "{message}");
        assert!(message.contains("(--max-connections)"), "{message}");
        let mut other = ask(2).unwrap().unwrap_err();
        assert!(ask(3).is_err(), "four wait");
        // One of the first client's is next, then the other's.
        drop(first);
        let turn = comes[0].try_recv().unwrap();
        assert!(other.try_recv().is_err());
        // Who has gone is passed over.
        drop(comes.remove(1));
        drop(turn);
        let turn = other.try_recv().unwrap();
        drop(turn);
        drop(comes.pop().unwrap().try_recv().unwrap());
        assert_eq!(lock(&turns.line).free, 1);
    }

    /// What a future gives, where it gives it at once.
    fn poll_once<F: Future>(runtime: &Runtime, future: &mut Pin<Box<F>>) -> Option<F::Output> {
        runtime.block_on(std::future::poll_fn(|context| {
            Poll::Ready(match future.as_mut().poll(context) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            })
        }))
    }

    #[test]
    fn what_must_be_done_waits_for_nothing_that_is_done_aside() {
        let runtime = runtime();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let busy = runtime.spawn_blocking(move || goes_on.recv().unwrap());
        assert_eq!(runtime.block_on(alone(|| 3)).unwrap(), Some(3));
        assert_eq!(runtime.block_on(alone(|| -> u32 { panic!("planted") })).unwrap(), None);
        go_on.send(()).unwrap();
        runtime.block_on(busy).unwrap();
    }
}
