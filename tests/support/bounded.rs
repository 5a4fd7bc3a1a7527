//! Programs that tests start have an end: one that runs for too long is killed, and its test fails.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// No program of a test takes nearly so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);

/// A process that outlives neither its test nor its time: whoever reads what it writes comes to an end.
#[derive(Debug)]
pub(crate) struct Bounded {
    child: Child,
    /// Dropping the sender ends the thread, which says whether it had to kill.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<bool>)>,
}

impl Bounded {
    fn new(child: Child, patience: Duration) -> Self {
        let pid = Pid::from_child(&child);
        let (ended, has_ended) = mpsc::channel::<()>();
        let keep = move || {
            let is_stuck = has_ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            if is_stuck {
                kill_process(pid, Signal::KILL).unwrap();
            }
            is_stuck
        };
        Self { child, keeper: Some((ended, std::thread::spawn(keep))) }
    }

    /// Whether it had to be killed; nobody kills it from then on.
    fn was_stuck(&mut self) -> bool {
        self.keeper.take().is_some_and(|(ended, keeper)| {
            drop(ended);
            keeper.join().unwrap()
        })
    }

    /// Waits for its end; that it did not come to one by itself fails the test.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        // It is not reaped before the keeper is gone: until then its number is no other process's.
        let (id, options) = (WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::EXITED);
        if self.keeper.is_some() {
            let interrupted = || waitid(id.clone(), options | WaitIdOptions::NOWAIT).err();
            while interrupted() == Some(rustix::io::Errno::INTR) {}
        }
        assert!(!self.was_stuck(), "a program did not end by itself");
        self.child.wait().unwrap()
    }

    /// The same, and all that it writes until then.
    #[track_caller]
    pub(crate) fn wait_with_output(mut self) -> Output {
        drop(self.child.stdin.take());
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let errors = std::thread::spawn(move || all_of(stderr));
        let stdout = all_of(stdout);
        let stderr = errors.join().unwrap();
        Output { status: self.wait(), stdout, stderr }
    }
}

fn all_of(from: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        from.read_to_end(&mut bytes).unwrap();
    }
    bytes
}

impl Deref for Bounded {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Bounded {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        self.was_stuck();
        // One that has ended can't be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As [`Command::spawn`] and [`Command::output`], of what may not run for ever.
pub(crate) trait Bound {
    fn bounded(&mut self) -> std::io::Result<Bounded>;

    /// Nothing is there for it to read.
    fn bounded_output(&mut self) -> std::io::Result<Output>;
}

impl Bound for Command {
    fn bounded(&mut self) -> std::io::Result<Bounded> {
        Ok(Bounded::new(self.spawn()?, PATIENCE))
    }

    #[track_caller]
    fn bounded_output(&mut self) -> std::io::Result<Output> {
        self.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.bounded().map(Bounded::wait_with_output)
    }
}

/// Its reader comes to an end, and whoever waits for it fails.
#[test]
#[should_panic(expected = "a program did not end by itself")]
fn what_does_not_end_is_killed() {
    let child = Command::new("sleep").arg("infinity").stdout(Stdio::piped()).spawn();
    Bounded::new(child.unwrap(), Duration::ZERO).wait_with_output();
}
