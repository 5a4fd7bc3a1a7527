//! `--iteration-log`: a line about each step, for `piecewise plan --log`.

use anyhow::{Context, anyhow};
use piecewise_planner::{IterationLogWriter, IterationRecord};
use piecewise_runtime::engine::Engine;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Lines go to the file once none has come for so long, or the buffer is full.
const QUIET: Duration = Duration::from_millis(200);

/// A log that a thread of its own writes: steps wait for no disk.
#[derive(Debug)]
pub(crate) struct IterationLog {
    file: PathBuf,
    /// `None` is the end.
    steps: Sender<Option<IterationRecord>>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl IterationLog {
    /// Creates the file, or empties it; before a model is loaded, so that one that can't be written is
    /// known at once.
    pub(crate) fn create(file: &Path) -> anyhow::Result<Self> {
        let writer = IterationLogWriter::create(file)?;
        let (steps, received) = mpsc::channel();
        let thread = std::thread::Builder::new().name("iteration-log".to_owned());
        let thread = thread.spawn(move || write(writer, &received))?;
        Ok(Self { file: file.to_owned(), steps, thread })
    }

    /// Logs the steps of an engine from now on.
    pub(crate) fn observe(&self, engine: &mut dyn Engine) {
        let steps = self.steps.clone();
        // A log that has failed takes no more steps, and says so at the end.
        engine.observe(Box::new(move |step| drop(steps.send(Some(step.clone())))));
    }

    /// Writes what is left; later steps are not logged.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        // Where nobody takes it, the thread has failed.
        let _ = self.steps.send(None);
        let written = self.thread.join().map_err(|_| anyhow!("the thread of the log panicked"))?;
        written.with_context(|| format!("can't write {}", self.file.display()))
    }
}

fn write<W: Write>(
    mut writer: IterationLogWriter<W>,
    steps: &Receiver<Option<IterationRecord>>,
) -> std::io::Result<()> {
    let mut next = steps.recv().ok().flatten();
    while let Some(step) = next {
        writer.write(&step)?;
        next = match steps.recv_timeout(QUIET) {
            Ok(next) => next,
            Err(_) => {
                writer.flush()?;
                steps.recv().ok().flatten()
            }
        };
    }
    writer.flush()
}
