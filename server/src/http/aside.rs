//! Work that takes long, off the threads that others wait for.

use super::error::ApiError;
use crate::structured::Wanted;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::{Semaphore, oneshot};

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

/// Work of one kind, so much of it at a time, while so much waits at most.
#[derive(Debug)]
pub(crate) struct Turns {
    turns: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    most_waiting: usize,
}

impl Turns {
    pub(crate) fn new(turns: usize, most_waiting: usize) -> Self {
        let waiting = Arc::default();
        Self { turns: Arc::new(Semaphore::new(turns.max(1))), waiting, most_waiting }
    }

    /// As [`aside`], once it has a turn, which it keeps until it has ended, whoever still waits for it. It
    /// is told whether somebody does; who has gone before it began has nothing done.
    pub(crate) async fn run<R, E>(
        &self,
        work: impl FnOnce(Wanted<'_>) -> Result<R, E> + Send + 'static,
    ) -> Result<R, ApiError>
    where
        R: Send + 'static,
        E: Into<ApiError> + Send + 'static,
    {
        let turn = match Arc::clone(&self.turns).try_acquire_owned() {
            Ok(turn) => turn,
            Err(_) => {
                let in_line = InLine(Arc::clone(&self.waiting));
                if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.most_waiting {
                    return Err(ApiError::too_busy(self.most_waiting));
                }
                let turn = Arc::clone(&self.turns).acquire_owned().await;
                drop(in_line);
                turn.map_err(|error| ApiError::internal(error.to_string()))?
            }
        };
        let waits = Waits(Arc::new(AtomicBool::new(true)));
        let still = Arc::clone(&waits.0);
        let done = aside(move || {
            let _turn = turn;
            work(&|| still.load(Ordering::Relaxed))
        });
        done.await
    }
}

/// One that waits for its turn until it is dropped.
struct InLine(Arc<AtomicUsize>);

impl Drop for InLine {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Somebody waits until it is dropped.
struct Waits(Arc<AtomicBool>);

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
        let (runtime, turns) = (runtime(), Arc::new(Turns::new(1, 1)));
        let (begun, begins) = mpsc::channel();
        let (told, tells) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let of_work = Arc::clone(&turns);
        let client = runtime.spawn(async move {
            let work = of_work.run(move |is_wanted| {
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
        assert_eq!(turns.turns.available_permits(), 0);
        // One may wait for the turn; a second one is told to come again, until the first has gone.
        let later = || Box::pin(turns.run(|_| Ok::<_, ApiError>(3)));
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
        assert_eq!(turns.waiting.load(Ordering::Relaxed), 0);
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
