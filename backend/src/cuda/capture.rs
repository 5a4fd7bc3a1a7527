//! A stream capture that ends whatever happens inside it.

use super::context::warn_failed;
use super::driver::Outcome;
use super::graph::Graph;
use super::stream::Stream;
use std::sync::Arc;

/// A capture under way, in the thread-local mode: strict about this thread, and tolerant of
/// others that load modules meanwhile. Dropped without [`StreamCapture::end`], by an error or by
/// unwinding, it ends the capture and discards what it recorded.
#[derive(Debug)]
pub(super) struct StreamCapture {
    stream: Arc<Stream>,
    ended: bool,
}

impl StreamCapture {
    pub(super) fn begin(stream: &Arc<Stream>) -> Outcome<Self> {
        stream.context.driver.begin_capture(stream.handle)?;
        Ok(Self { stream: stream.clone(), ended: false })
    }

    /// Ends it; `None` where nothing was recorded.
    pub(super) fn end(mut self) -> Outcome<Option<Graph>> {
        self.ended = true;
        let graph = self.stream.context.driver.end_capture(self.stream.handle)?;
        Ok(Graph::own(&self.stream, graph))
    }
}

impl Drop for StreamCapture {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let driver = &self.stream.context.driver;
        match driver.end_capture(self.stream.handle) {
            Ok(graph) => drop(Graph::own(&self.stream, graph)),
            // An invalidated capture ends with the error that invalidated it.
            Err(error) => tracing::debug!(%error, "a failed capture was discarded"),
        }
        if let Ok(true) = driver.is_capturing(self.stream.handle) {
            warn_failed(driver.end_capture(self.stream.handle).map(|graph| {
                drop(Graph::own(&self.stream, graph));
            }));
        }
    }
}
