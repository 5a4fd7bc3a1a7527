//! Log lines of what serves: a thread of their own writes them, so that nobody who serves waits for whoever
//! reads them, or fails with the disk that they go to.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of lines that wait at most; what comes above is lost, and counted.
const MOST_BYTES: usize = 1 << 20;

/// Lines on their way to a writer. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Whether a line was taken that is not written yet.
    is_writing: bool,
}

impl LogQueue {
    /// A queue whose lines a thread hands to `writer`, one by one.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(crate) fn start(writer: impl Write + Send + 'static) -> std::io::Result<Self> {
        let queue = Self::default();
        let lines = queue.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || lines.run(writer))?;
        Ok(queue)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut writer: impl Write) {
        let mut waiting = self.waiting();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                waiting.is_writing = true;
                drop(waiting);
                // The next line may be written again: a disk has room, a pipe another reader.
                if writer.write_all(&line).and_then(|()| writer.flush()).is_err() {
                    self.0.lost.fetch_add(1, Ordering::Relaxed);
                }
                waiting = self.waiting();
                waiting.is_writing = false;
                self.0.changed.notify_all();
            } else {
                waiting = self.0.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Has a line written, its end included, or loses it where too much waits.
    pub(crate) fn push(&self, line: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.bytes + line.len() > MOST_BYTES {
            drop(waiting);
            self.0.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_owned());
        drop(waiting);
        self.0.changed.notify_all();
    }

    /// Lines that were not written since too much waited or writing failed.
    pub(crate) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Waits until every line is written, but no longer than so long; whether they are.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        let left = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        let waited = self.0.changed.wait_timeout_while(self.waiting(), patience, left);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    const PATIENCE: Duration = Duration::from_secs(600);

    /// Hands each line out, and waits until somebody says whether it was written.
    struct Reader {
        lines: SyncSender<Vec<u8>>,
        taken: Receiver<bool>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.lines.send(line.to_owned()).unwrap();
            match self.taken.recv().unwrap() {
                true => Ok(line.len()),
                false => Err(std::io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_logs_waits_for_no_reader_and_what_is_lost_is_counted() {
        let (lines, written) = sync_channel(0);
        let (take, taken) = sync_channel(0);
        let queue = LogQueue::start(Reader { lines, taken }).unwrap();
        queue.push(b"first\n");
        assert_eq!(written.recv().unwrap(), b"first\n");
        // Nobody reads: what fits waits, what comes above is lost.
        let long = vec![b'x'; MOST_BYTES / 2];
        for _ in 0..5 {
            queue.push(&long);
        }
        assert_eq!(queue.lost(), 3);
        assert!(!queue.flush(Duration::ZERO), "three lines are not written");
        take.send(true).unwrap();
        for _ in 0..2 {
            assert_eq!(written.recv().unwrap().len(), long.len());
            take.send(true).unwrap();
        }
        assert!(queue.flush(PATIENCE));
        assert_eq!(queue.lost(), 3);
    }

    #[test]
    fn a_disk_that_is_full_loses_lines_and_takes_later_ones() {
        let (lines, written) = sync_channel(0);
        let (take, taken) = sync_channel(0);
        let queue = LogQueue::start(Reader { lines, taken }).unwrap();
        for (line, is_taken) in [("a\n", true), ("b\n", false), ("c\n", true)] {
            queue.push(line.as_bytes());
            assert_eq!(written.recv().unwrap(), line.as_bytes());
            take.send(is_taken).unwrap();
        }
        assert!(queue.flush(PATIENCE));
        assert_eq!(queue.lost(), 1);
    }
}
