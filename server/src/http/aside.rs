//! Work that takes long, off the threads that others wait for.

use super::error::ApiError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// As [`aside`], once it has one of the turns, which it keeps until it has ended, whoever still waits
/// for it. It is told whether somebody does.
pub(crate) async fn in_turn<R, E>(
    turns: &Arc<Semaphore>,
    work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> Result<R, E> + Send + 'static,
) -> Result<R, ApiError>
where
    R: Send + 'static,
    E: Into<ApiError> + Send + 'static,
{
    let turn = Arc::clone(turns).acquire_owned().await;
    let waits = Waits(Arc::new(AtomicBool::new(true)));
    let still = Arc::clone(&waits.0);
    let done = aside(move || {
        let _turn = turn;
        work(&|| still.load(Ordering::Relaxed))
    });
    done.await
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
    use std::sync::mpsc;
    use tokio::runtime::{Builder, Runtime};

    /// With one thread for what is done aside.
    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).build().unwrap()
    }

    #[test]
    fn who_leaves_gives_back_no_turn_while_the_work_goes_on() {
        let (runtime, turns) = (runtime(), Arc::new(Semaphore::new(1)));
        let (begun, begins) = mpsc::channel();
        let (told, tells) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let of_work = Arc::clone(&turns);
        let client = runtime.spawn(async move {
            let work = in_turn(&of_work, move |is_wanted| {
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
        assert_eq!(turns.available_permits(), 0);
        go_on.send(()).unwrap();
        assert!(!tells.recv().unwrap(), "nobody waits");
        // The turn comes back with the end of the work.
        drop(runtime.block_on(turns.acquire()).unwrap());
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
