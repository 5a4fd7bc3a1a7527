//! A parent that starts a process again when it dies: what a container needs for its first process,
//! since with that all others end.

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Who ends with an error so soon can't start.
const START: Duration = Duration::from_secs(5);
/// How long it waits before the next start, the first time and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// The process that is kept, and whether it is to end.
#[derive(Debug, Default)]
struct Kept {
    /// 0 while there is none.
    process: AtomicI32,
    is_over: AtomicBool,
}

impl Kept {
    fn signal(&self, signal: Signal) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(process) = Pid::from_raw(self.process.load(Ordering::SeqCst)) {
            // It may have ended meanwhile.
            let _ = kill_process(process, signal);
        }
    }
}

/// Runs this program with other arguments, again and again until it ends by itself, is told to end,
/// or can't start; its exit status is this process's. Hands signals on.
pub(crate) fn keep(arguments: &[std::ffi::OsString]) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("where is this program?")?;
    let kept = Arc::new(Kept::default());
    let signalled = Arc::clone(&kept);
    on_signals(move |signal| signalled.signal(signal))?;
    let mut pause = PAUSES[0];
    loop {
        let started = Instant::now();
        let mut command = Command::new(&program);
        // What a terminal sends to its group comes once, from here.
        let child = command.args(arguments).process_group(0).spawn();
        let child = child.context("can't start the worker")?;
        let process = Pid::from_child(&child);
        kept.process.store(process.as_raw_nonzero().get(), Ordering::SeqCst);
        if kept.is_over.load(Ordering::SeqCst) {
            // The signal came before there was anybody to hand it to.
            kept.signal(Signal::TERM);
        }
        let status = wait_for(process)?;
        kept.process.store(0, Ordering::SeqCst);
        let code = status.exit_status();
        let can_not_start = code.is_some() && started.elapsed() < START;
        if code == Some(0) || can_not_start || kept.is_over.load(Ordering::SeqCst) {
            let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            return Ok(ExitCode::from(code));
        }
        let how = match (code, status.terminating_signal()) {
            (Some(code), _) => format!("with status {code}"),
            (None, Some(signal)) => format!("by signal {signal}"),
            (None, None) => "somehow".to_owned(),
        };
        super::warn(&format!("the worker ended {how}; it is started again"));
        if started.elapsed() > PAUSES[1] {
            pause = PAUSES[0];
        }
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if kept.is_over.load(Ordering::SeqCst) {
                return Ok(ExitCode::FAILURE);
            }
            std::thread::sleep(PAUSES[0]);
        }
        pause = (pause * 2).min(PAUSES[1]);
    }
}

/// Waits for the end of a process, and lets others end too: the first process of a container is the
/// parent of all whose parents have ended.
fn wait_for(process: Pid) -> anyhow::Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == process => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("can't wait for the worker"),
        }
    }
}

/// Does this on a thread of its own, whenever a signal tells this process to end.
pub(crate) fn on_signals(mut told: impl FnMut(Signal) + Send + 'static) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _guard = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let signals = async move {
        loop {
            told(tokio::select! {
                _ = terminate.recv() => Signal::TERM,
                _ = interrupt.recv() => Signal::INT,
            });
        }
    };
    let listen = move || runtime.block_on(signals);
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
    Ok(())
}
