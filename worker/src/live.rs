//! The requests that a front end waits for.

use piecewise_runtime::engine_thread::{SubmitError, Ticket};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The requests of one front end; a ticket that is dropped cancels its request.
#[derive(Debug)]
pub(crate) struct Requests<T = Ticket> {
    /// Without a ticket where the engine does not have the request yet.
    live: Mutex<BTreeMap<Arc<str>, Option<T>>>,
}

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self { live: Mutex::default() }
    }
}

impl<T> Requests<T> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Option<T>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a request, unless it is there.
    pub(crate) fn begin(&self, request: &Arc<str>) -> bool {
        let mut live = self.lock();
        let is_new = !live.contains_key(request);
        if is_new {
            live.insert(Arc::clone(request), None);
        }
        is_new
    }

    pub(crate) fn contains(&self, request: &str) -> bool {
        self.lock().contains_key(request)
    }

    /// Hands a request in, unless it has been aborted. An abort and an end that come meanwhile wait
    /// until its ticket is there.
    pub(crate) fn hand_in(
        &self,
        request: &Arc<str>,
        submit: impl FnOnce() -> Result<T, SubmitError>,
    ) -> Result<(), SubmitError> {
        let mut live = self.lock();
        if let Some(entry) = live.get_mut(request) {
            *entry = Some(submit()?);
        }
        Ok(())
    }

    /// Forgets a request, and cancels what is left of it.
    pub(crate) fn end(&self, request: &str) {
        // A ticket is dropped when nothing is locked any more.
        let ended = self.lock().remove(request);
        drop(ended);
    }

    /// Forgets all of them, and says which there were.
    pub(crate) fn end_all(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut *self.lock()).into_keys().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Says that it was dropped.
    struct Dropped(mpsc::Sender<()>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn a_request_that_is_aborted_while_it_is_prepared_is_not_handed_in() {
        let (requests, request) = (Requests::<()>::default(), Arc::from("r"));
        assert!(requests.begin(&request) && !requests.begin(&request));
        requests.end("r");
        requests.hand_in(&request, || panic!("it was aborted")).unwrap();
        assert!(requests.is_empty() && !requests.contains("r"));
    }

    #[test]
    fn an_abort_that_comes_while_a_request_is_handed_in_cancels_it() {
        let (requests, request) = (Requests::default(), Arc::from("r"));
        let (dropped, is_dropped) = mpsc::channel();
        requests.begin(&request);
        std::thread::scope(|scope| {
            let submit = || {
                scope.spawn(|| requests.end("r"));
                // The abort has time to come too early.
                std::thread::sleep(std::time::Duration::from_millis(50));
                Ok(Dropped(dropped))
            };
            requests.hand_in(&request, submit).unwrap();
        });
        is_dropped.try_recv().unwrap();
        assert!(requests.is_empty());
    }

    #[test]
    fn a_request_that_is_not_taken_stays_to_be_refused() {
        let (requests, request) = (Requests::<()>::default(), Arc::from("r"));
        requests.begin(&request);
        let refused = requests.hand_in(&request, || Err(SubmitError::ShuttingDown));
        assert_eq!(refused, Err(SubmitError::ShuttingDown));
        assert_eq!(requests.end_all(), [request]);
    }
}
