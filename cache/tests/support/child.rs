//! The test program run again as a child that does one task, to be killed or confined.

use crate::bounded::{Bound, Bounded};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStdout, Command, Output, Stdio};

const TASK: &str = "PIECEWISE_CACHE_TEST_TASK";

/// The task and arguments of this process, if it is a child.
pub(crate) fn task() -> Option<Vec<String>> {
    let task = std::env::var(TASK).ok()?;
    Some(task.split('\n').map(str::to_owned).collect())
}

/// A child that runs the test `tasks::does_its_task` with a task and arguments.
pub(crate) fn child(task: &str, dir: &Path, arguments: &[&str]) -> Command {
    confined(&[], task, dir, arguments)
}

/// The same, started by another program: the words `confiner`, then this program and its arguments.
pub(crate) fn confined(confiner: &[&str], task: &str, dir: &Path, arguments: &[&str]) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut command = match confiner.split_first() {
        None => Command::new(this),
        Some((program, rest)) => {
            let mut command = Command::new(program);
            command.args(rest).arg(this);
            command
        }
    };
    let dir = dir.to_str().unwrap();
    let words: Vec<_> = [task, dir].iter().chain(arguments).copied().collect();
    command.args(["--exact", "tasks::does_its_task", "--nocapture", "--test-threads=1"]);
    command.env(TASK, words.join("\n")).stdin(Stdio::null());
    command
}

/// What a child writes until it has said this on a line of its own, or has ended, and where it writes on.
pub(crate) fn said_until(child: &mut Bounded, last: &str) -> (String, BufReader<ChildStdout>) {
    let (mut said, mut out) = (String::new(), BufReader::new(child.stdout.take().unwrap()));
    let last = format!("\n{last}\n");
    while !said.ends_with(&last) && out.read_line(&mut said).unwrap() > 0 {}
    (said, out)
}

/// Waits, as a child, until the parent drops what it writes to.
pub(crate) fn wait_for_parent() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[track_caller]
pub(crate) fn assert_succeeds(mut command: Command) -> Output {
    let output = command.bounded_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {text}{errors}", output.status);
    output
}

/// Lets this process have no more address space than it has and `more` bytes: who believes a huge
/// length ends it.
pub(crate) fn limit_memory(more: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    let used: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(used * 1024 + more), maximum }).unwrap();
    let much = usize::try_from(more * 4).unwrap();
    assert!(Vec::<u8>::new().try_reserve_exact(much).is_err(), "the limit holds");
}
