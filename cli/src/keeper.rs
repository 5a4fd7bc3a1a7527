//! A parent that starts a process again when it dies: what a container needs for its first process,
//! since with that all others end.

use super::logs::warn;
use anyhow::Context;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process, wait, waitid,
};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who ends with an error so soon can't start.
const START: Duration = Duration::from_secs(5);
/// How long it waits before the next start, the first time and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// The process that is kept, and whether it is to end.
#[derive(Debug, Default)]
struct Kept {
    /// Nobody reaps it but under this lock, and then it is `None`: until then its number is no other
    /// process's.
    process: Mutex<Option<Pid>>,
    is_over: AtomicBool,
}

impl Kept {
    fn process(&self) -> MutexGuard<'_, Option<Pid>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the process to end, and that it is not to be started again.
    fn end(&self, signal: Signal) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Err(error) = self.signal(signal) {
            warn(&format!("the worker could not be told to end: {error}"));
        }
    }

    /// Signals the process, if there is one; to one that has ended and is not reaped it does nothing.
    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        self.process().map_or(Ok(()), |process| kill_process(process, signal))
    }

    /// Reaps a process by `reap`; how it ended, if it is the one that is kept.
    fn reap(
        &self,
        reap: impl FnOnce() -> rustix::io::Result<Option<(Pid, WaitStatus)>>,
    ) -> rustix::io::Result<Option<WaitStatus>> {
        let mut process = self.process();
        let reaped = reap()?;
        let status = reaped.and_then(|(ended, status)| (Some(ended) == *process).then_some(status));
        *process = process.filter(|_| status.is_none());
        Ok(status)
    }
}

/// Runs this program with other arguments, again and again until it ends by itself, is told to end,
/// or can't start; its exit status is this process's. Hands signals on.
pub(crate) fn keep(arguments: &[std::ffi::OsString]) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("where is this program?")?;
    let kept = Arc::new(Kept::default());
    let signalled = Arc::clone(&kept);
    on_signals(move |signal| signalled.end(signal))?;
    let mut pause = PAUSES[0];
    loop {
        let started = Instant::now();
        let mut command = Command::new(&program);
        // What a terminal sends to its group comes once, from here.
        let child = command.args(arguments).process_group(0).spawn();
        let child = child.context("can't start the worker")?;
        *kept.process() = Some(Pid::from_child(&child));
        if kept.is_over.load(Ordering::SeqCst) {
            // The signal came before there was anybody to hand it to.
            kept.end(Signal::TERM);
        }
        let status = wait_for(&kept)?;
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
        warn(&format!("the worker ended {how}; it is started again"));
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

/// Waits for the end of the process that is kept, and lets others end too: the first process of a
/// container is the parent of all whose parents have ended.
fn wait_for(kept: &Kept) -> anyhow::Result<WaitStatus> {
    loop {
        // Somebody has ended, and is still there.
        let ended = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        match ended.and_then(|_| kept.reap(|| wait(WaitOptions::NOHANG))) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::waitpid;

    /// A signal that comes while the process ends finds it, or nobody: never a number that is free
    /// again, which the system may have given to another.
    #[test]
    fn no_signal_goes_to_a_process_that_was_reaped() {
        let kept = Kept::default();
        #[expect(clippy::zombie_processes, reason = "it is reaped by its process below")]
        let child = Command::new("true").spawn().unwrap();
        let process = Pid::from_child(&child);
        *kept.process() = Some(process);
        // No child of the tests beside this one is waited for.
        waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        kept.signal(Signal::CONT).expect("it has ended and is there");
        let reaped = kept.reap(|| {
            let reaped = waitpid(Some(process), WaitOptions::NOHANG);
            // Who signals now waits: the number is still there to be found.
            assert!(kept.process.try_lock().is_err(), "a signal would go to a free number");
            reaped
        });
        assert_eq!(reaped.unwrap().unwrap().exit_status(), Some(0));
        assert_eq!(*kept.process(), None);
        kept.signal(Signal::CONT).expect("there is nobody to be told");
    }

    #[test]
    fn another_process_that_ended_is_not_the_one_that_is_kept() {
        let kept = Kept::default();
        *kept.process() = Some(rustix::process::getpid());
        let other = Pid::from_child(&Command::new("true").spawn().unwrap());
        let reaped = kept.reap(|| waitpid(Some(other), WaitOptions::empty()));
        assert!(reaped.unwrap().is_none());
        assert!(kept.reap(|| Ok(None)).unwrap().is_none());
        assert_eq!(*kept.process(), Some(rustix::process::getpid()));
    }
}
