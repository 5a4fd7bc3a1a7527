//! Who answers for a worker that is gone.
//!
//! A front end does not notice the end of an engine: requests that it had, and those that are sent to
//! it until it is back, would never get an answer. So a small process holds the socket of requests
//! too, and follows what comes there. When the worker ends, however it does, the stand-in ends its
//! requests with an error that says to try again, and those that still come, until a worker with the
//! same rank is back or the front end is gone.

use crate::wire::{
    self, Finish, Kind, Output, OutputError, Reason, Stats, call_id, failure, outputs, request_id,
};
use crate::zmtp::{Address, Connection, Decoder, Item, Receiver, Role, Sender, ZmtpError};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How the process is started that calls [`stand_in`]; the rank and the address of the front end's
/// outputs are appended to the arguments.
#[derive(Clone, Debug)]
pub struct StandIn {
    /// What to run: the worker's own executable, as a rule.
    pub program: PathBuf,
    /// Arguments of the program, passed as they are.
    pub arguments: Vec<OsString>,
}

/// Bytes that came from the front end.
const SEEN: u8 = 0;
/// A request that has ended.
const ENDED: u8 = 1;
/// A call that has been answered.
const ANSWERED: u8 = 3;
/// There is no need of a stand-in any more.
const LEAVE: u8 = 2;
/// What a call is told.
const ENDED_WITHOUT: &str = "the worker has ended";
/// Requests said to wait, which keep a front end from choosing an engine while there are others.
pub(crate) const BUSY: u64 = 1 << 20;

/// A stand-in as its worker has it: its process, and the line to it.
#[derive(Debug)]
pub(crate) struct Watch {
    control: Arc<Mutex<UnixStream>>,
    child: Child,
}

impl Watch {
    pub(crate) fn start(
        stand_in: &StandIn,
        rank: u16,
        outputs: &Address,
        input: &TcpStream,
    ) -> std::io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        let mut command = Command::new(&stand_in.program);
        command.args(&stand_in.arguments).arg(rank.to_string()).arg(outputs.to_string());
        command.stdin(Stdio::from(OwnedFd::from(input.try_clone()?)));
        command.stdout(Stdio::from(OwnedFd::from(theirs))).stderr(Stdio::null());
        // A signal to the worker's group is not for it.
        let child = command.process_group(0).spawn()?;
        Ok(Self { control: Arc::new(Mutex::new(control)), child })
    }

    pub(crate) fn log(&self) -> Log {
        Log { control: Some(Arc::clone(&self.control)) }
    }

    /// Says that the front end is gone.
    pub(crate) fn leave(mut self) {
        write(&self.control, LEAVE, &[]);
        // It has nothing to wait for.
        let _ = self.child.wait();
    }
}

/// Tells the stand-in what happens; without one, nobody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    control: Option<Arc<Mutex<UnixStream>>>,
}

impl Log {
    pub(crate) fn seen(&self, bytes: &[u8]) {
        self.control.iter().for_each(|control| write(control, SEEN, bytes));
    }

    pub(crate) fn ended(&self, request: &str) {
        self.control.iter().for_each(|control| write(control, ENDED, request.as_bytes()));
    }

    pub(crate) fn answered(&self, call: i64) {
        self.control.iter().for_each(|control| write(control, ANSWERED, &call.to_le_bytes()));
    }
}

/// A stand-in that is gone is one that nobody can tell anything. Several threads tell it, and one record is
/// whole before the next begins: the system takes a long one in parts.
fn write(control: &Mutex<UnixStream>, kind: u8, bytes: &[u8]) {
    let mut record = Vec::with_capacity(bytes.len() + 5);
    record.push(kind);
    record.extend((bytes.len() as u32).to_le_bytes());
    record.extend_from_slice(bytes);
    let mut control = control.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = control.write_all(&record);
}

/// What the stand-in learned of requests and calls that have not ended.
#[derive(Default)]
struct Known {
    decoder: Decoder,
    live: BTreeSet<String>,
    calls: BTreeSet<i64>,
}

/// Waits for the end of the worker that started this process, and answers for it then. Standard input
/// is the socket of requests, standard output one to the worker.
///
/// # Errors
/// When the front end can't be talked to.
pub fn stand_in(rank: u16, outputs_at: &Address) -> Result<(), ZmtpError> {
    let input = TcpStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let control = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let mut known = Known::default();
    if follow(control, &mut known)? {
        return Ok(());
    }
    let push = Connection::new(outputs_at.connect()?, Role::Push, b"")?;
    let (_, mut sender) = push.split();
    for message in known.last_words(rank) {
        sender.send(&[&message])?;
    }
    let mut requests = Receiver::new(input, known.decoder);
    requests.set_patience(Duration::from_secs(3600))?;
    loop {
        match requests.receive(&mut |_| {}) {
            Ok(Some(frames)) => refuse(rank, &frames, &mut sender)?,
            Ok(None) => {}
            Err(ZmtpError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Follows what the worker does. Returns whether it needs no stand-in any more; else it has ended.
fn follow(mut control: UnixStream, known: &mut Known) -> Result<bool, ZmtpError> {
    loop {
        let (mut head, mut body) = ([0; 5], Vec::new());
        let [kind, length @ ..] = match control.read_exact(&mut head) {
            Ok(()) => head,
            Err(_) => return Ok(false),
        };
        let length = u64::from(u32::from_le_bytes(length));
        (&mut control).take(length).read_to_end(&mut body)?;
        match kind {
            SEEN => known.seen(&body)?,
            ENDED => {
                known.live.remove(String::from_utf8_lossy(&body).as_ref());
            }
            ANSWERED => known.calls.retain(|call| call.to_le_bytes() != body[..]),
            LEAVE => return Ok(true),
            _ => {}
        }
    }
}

impl Known {
    fn seen(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        self.decoder.push(bytes);
        while let Some(item) = self.decoder.next()? {
            let Item::Message(frames) = item else { continue };
            match Kind::of(&frames) {
                Some((Kind::Add, payload)) => self.live.extend(request_id(payload)),
                Some((Kind::Abort, payload)) => {
                    let ids: Vec<String> = wire::read(payload).unwrap_or_default();
                    self.live.retain(|id| !ids.contains(id));
                }
                Some((Kind::Utility, payload)) => self.calls.extend(call_id(payload)),
                Some((Kind::Wave, _)) | None => {}
            }
        }
        Ok(())
    }

    /// What ends the requests and the calls that the worker has left.
    fn last_words(&self, rank: u16) -> Vec<Vec<u8>> {
        let left: Vec<Output> = self.live.iter().map(|request| gone(request)).collect();
        let busy = Stats { waiting: BUSY, ..Stats::default() };
        let requests = outputs(rank, &left, Some(&busy));
        let calls = self.calls.iter().map(|call| failure(rank, *call, ENDED_WITHOUT));
        std::iter::once(requests).chain(calls).collect()
    }
}

fn gone(request: &str) -> Output {
    let message = "the worker that had this request has ended; try again".to_owned();
    let error = Some(OutputError { message, retryable: true });
    let finish = Some(Finish { reason: Reason::Error, stop_id: None, error });
    Output { finish, ..Output::of(request.into()) }
}

fn refuse(rank: u16, frames: &[Vec<u8>], sender: &mut Sender) -> Result<(), ZmtpError> {
    match Kind::of(frames) {
        Some((Kind::Add, payload)) => {
            let Some(request) = request_id(payload) else { return Ok(()) };
            let busy = Stats { waiting: BUSY, ..Stats::default() };
            sender.send(&[&outputs(rank, &[gone(&request)], Some(&busy))])
        }
        Some((Kind::Utility, payload)) => match call_id(payload) {
            Some(call) => sender.send(&[&failure(rank, call, ENDED_WITHOUT)]),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn message(kind: u8, payload: &Value) -> Vec<u8> {
        let payload = rmp_serde::to_vec(payload).unwrap();
        [&[1, 1, kind, 0, payload.len() as u8][..], &payload].concat()
    }

    /// Long ones, which the system takes in parts.
    #[test]
    fn records_of_several_threads_stay_whole() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let control = Mutex::new(ours);
        std::thread::scope(|scope| {
            for kind in [200, 201] {
                let control = &control;
                scope.spawn(move || {
                    (0..20).for_each(|_| write(control, kind, &[kind; 1 << 20]));
                });
            }
            for _ in 0..40 {
                let (mut head, mut body) = ([0; 5], vec![0; 1 << 20]);
                theirs.read_exact(&mut head).unwrap();
                theirs.read_exact(&mut body).unwrap();
                let whole = body.iter().all(|&byte| byte == head[0]);
                // Who writes must not wait for a test that has failed.
                if !whole || head[1..] != (1u32 << 20).to_le_bytes() {
                    theirs.shutdown(std::net::Shutdown::Both).unwrap();
                    panic!("{head:?}");
                }
            }
        });
    }

    #[test]
    fn what_a_worker_has_left_is_ended_requests_and_calls() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let log = Log { control: Some(Arc::new(Mutex::new(ours))) };
        let add = |id: &str| message(0, &json!([id, [1, 2]]));
        let call = |id: i64| message(3, &json!([0, id, "reset_prefix_cache", []]));
        let came = [add("a"), add("b"), call(4), add("c"), call(5), call(6)].concat();
        let came = [came, message(1, &json!(["c"]))].concat();
        // However the bytes come.
        came.chunks(7).for_each(|bytes| log.seen(bytes));
        log.ended("a");
        log.answered(5);
        drop(log);
        let mut known = Known::default();
        assert!(!follow(theirs, &mut known).unwrap(), "it has to answer");
        let words = known.last_words(2);
        let words: Vec<Value> =
            words.iter().map(|word| rmp_serde::from_slice(word).unwrap()).collect();
        assert_eq!(words.len(), 3);
        let ended = words[0][1].as_array().unwrap();
        assert_eq!((ended.len(), &ended[0][0], &ended[0][5]), (1, &json!("b"), &json!(3)));
        assert_eq!(words[1][4], json!([4, ENDED_WITHOUT, null]));
        assert_eq!(words[2][4][0], json!(6));
    }
}
