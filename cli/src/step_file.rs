//! What is written of each step: with `--iteration-log` a line for `piecewise plan --log`, with `--trace`
//! what the host and the device did.

use super::set_keys::put_server;
use anyhow::{Context, anyhow};
use piecewise_ir::graph::WeightDecl;
use piecewise_planner::{IterationLogWriter, IterationRecord, LogHead};
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::engine::Engine;
use piecewise_runtime::observe::StepTraceWriter;
use piecewise_runtime::words::StepTrace;
use std::fs::File;
use std::io::{self, BufWriter};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Steps go to the file once none has come for so long, or the buffer is full.
const QUIET: Duration = Duration::from_millis(200);

/// A file that a thread of its own writes: steps wait for no disk.
#[derive(Debug)]
struct StepFile<T> {
    file: PathBuf,
    /// `None` is the end.
    steps: Sender<Option<T>>,
    thread: JoinHandle<io::Result<()>>,
}

impl<T: Send + 'static> StepFile<T> {
    /// `write` writes a step, or all that is left where there is none.
    fn start(
        file: &Path,
        write: impl FnMut(Option<&T>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (steps, received) = mpsc::channel();
        let thread = std::thread::Builder::new().name("step-file".to_owned());
        let thread = thread.spawn(move || write_all(write, &received))?;
        Ok(Self { file: file.to_owned(), steps, thread })
    }

    /// Writes what is left; later steps are not written.
    fn finish(self) -> anyhow::Result<()> {
        // Where nobody takes it, the thread has failed.
        let _ = self.steps.send(None);
        let written = self.thread.join().map_err(|_| anyhow!("the thread of a file panicked"))?;
        written.with_context(|| format!("can't write {}", self.file.display()))
    }
}

fn write_all<T>(
    mut write: impl FnMut(Option<&T>) -> io::Result<()>,
    steps: &Receiver<Option<T>>,
) -> io::Result<()> {
    let mut next = steps.recv().ok().flatten();
    while let Some(step) = next {
        write(Some(&step))?;
        next = match steps.recv_timeout(QUIET) {
            Ok(next) => next,
            Err(_) => {
                write(None)?;
                steps.recv().ok().flatten()
            }
        };
    }
    write(None)
}

/// What is written as one line: first what all the steps are of, then each of them.
#[derive(Debug)]
enum LogLine {
    Head(Box<LogHead>),
    Step(IterationRecord),
}

/// A line about each step.
type IterationLog = StepFile<LogLine>;

impl IterationLog {
    fn create(file: &Path) -> anyhow::Result<Self> {
        let mut writer = IterationLogWriter::create(file)?;
        let write = move |step: Option<&_>| match step {
            Some(LogLine::Head(head)) => writer.write_head(head),
            Some(LogLine::Step(step)) => writer.write(step),
            None => writer.flush(),
        };
        Ok(Self::start(file, write)?)
    }

    /// Logs the steps of an engine from now on, behind what they are of: `model` is what the model is
    /// called.
    fn observe(&self, engine: &mut Engine, model: &str, layers: Option<usize>) {
        let steps = self.steps.clone();
        let head = Box::new(head_of(engine, model, layers));
        // A log that has failed takes no more steps, and says so at the end.
        drop(steps.send(Some(LogLine::Head(head))));
        engine.observe(Box::new(move |step| {
            drop(steps.send(Some(LogLine::Step(step.clone()))));
        }));
    }
}

/// What an engine's steps are of.
fn head_of(engine: &Engine, model: &str, layers: Option<usize>) -> LogHead {
    let graph = engine.model().module().graph();
    // What is computed from nothing, such as a table of angles, is no parameter.
    let is_stored = |weight: &&WeightDecl| {
        let mut is_stored = false;
        weight.recipe.visit_sources(&mut |_, _| is_stored = true);
        is_stored
    };
    let stored = graph.weights().iter().filter(is_stored);
    let types = stored.map(|weight| graph.ty(weight.value));
    let elements = types.map(|ty| {
        let extents = ty.shape.iter().map(|dim| dim.as_constant().unwrap_or(1));
        (extents.product::<u64>(), ty.dtype.size() as u64)
    });
    let (parameters, weight_bytes) = elements.fold((0, 0), |(count, bytes), (elements, each)| {
        (count + elements, bytes + elements * each)
    });
    let options = engine.options();
    let bound = |bound: u64| u32::try_from(bound).ok();
    LogHead {
        max_num_tokens: bound(options.max_num_tokens),
        max_num_seqs: bound(options.max_num_seqs),
        device: Some(engine.model().describe_device()),
        model: Some(model.to_owned()),
        parameters: Some(parameters),
        weight_bytes: Some(weight_bytes),
        layers: layers.and_then(|layers| u32::try_from(layers).ok()),
    }
}

/// What is written of the steps of a run.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct StepFileArgs {
    /// Write a line about each step, for `piecewise plan --log`.
    #[arg(long, value_name = "FILE")]
    iteration_log: Option<PathBuf>,
    /// Write what the host and the device did in each step, as a trace that ui.perfetto.dev opens: pieces,
    /// split ops and copies with their times. Marks between the parts of a step cost it a little.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl StepFileArgs {
    /// The flags on top of the configuration of a server.
    pub(crate) fn over(&self, layers: ConfigLayers) -> anyhow::Result<ConfigLayers> {
        let layers = put_server(layers, "iteration_log", self.iteration_log.as_ref())?;
        put_server(layers, "trace", self.trace.as_ref())
    }

    /// Creates the files that are asked for.
    pub(crate) fn create(&self) -> anyhow::Result<StepFiles> {
        StepFiles::create(self.iteration_log.as_deref(), self.trace.as_deref())
    }
}

/// The files of a run: a line about each step, and a trace.
#[derive(Debug)]
pub(crate) struct StepFiles {
    log: Option<IterationLog>,
    /// Created, and not begun.
    out: Option<(PathBuf, File)>,
    trace: Option<StepFile<StepTrace>>,
}

impl StepFiles {
    /// Creates the files, or empties them; before a model is loaded, so that one that can't be written is
    /// known at once.
    ///
    /// # Errors
    /// When one can't be written.
    pub(crate) fn create(log: Option<&Path>, trace: Option<&Path>) -> anyhow::Result<Self> {
        let create = |path: &Path| {
            let out = File::create(path).with_context(|| format!("can't write {}", path.display()));
            out.map(|out| (path.to_owned(), out))
        };
        let log = log.map(IterationLog::create).transpose()?;
        Ok(Self { log, out: trace.map(create).transpose()?, trace: None })
    }

    /// Writes about the steps of an engine from now on; `model` is what it is called.
    ///
    /// # Errors
    /// When the trace can't begin.
    pub(crate) fn start(
        &mut self,
        engine: &mut Engine,
        model: &str,
        layers: Option<usize>,
    ) -> anyhow::Result<()> {
        if let Some(log) = &self.log {
            log.observe(engine, model, layers);
        }
        if let Some((path, out)) = self.out.take() {
            self.trace = Some(traced(&path, out, engine)?);
        }
        Ok(())
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// When some of it could not be written.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        self.log.map_or(Ok(()), StepFile::finish)?;
        self.trace.map_or(Ok(()), StepFile::finish)
    }
}

/// Traces the steps of an engine from now on.
fn traced(path: &Path, out: File, engine: &mut Engine) -> anyhow::Result<StepFile<StepTrace>> {
    let (device, module) = (engine.model().describe_device(), engine.model().module());
    let mut writer = StepTraceWriter::new(module, &device, BufWriter::new(out))
        .with_context(|| format!("can't write {}", path.display()))?;
    let file = StepFile::start(path, move |step: Option<&_>| match step {
        Some(step) => writer.write(step),
        None => writer.flush(),
    })?;
    let steps = file.steps.clone();
    // As with a log, one that has failed says so at the end.
    engine.observe_traces(Some(Box::new(move |step| {
        drop(steps.send(Some(step)));
        ControlFlow::Continue(())
    })))?;
    Ok(file)
}
