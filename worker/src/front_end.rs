//! Finding a front end and joining it, the first time or again.

use crate::wire::{Init, hello};
use crate::zmtp::{Address, Connection, Receiver, Role, Sender, ZmtpError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a worker is not with a front end.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum JoinError {
    /// Nobody listens there.
    #[error(
        "no front end takes engines at {address}: {error}; it does so only while it starts, so \
         start it, or start it again"
    )]
    Away { address: Address, error: ZmtpError },
    /// Somebody listens and says nothing in time.
    #[error("the front end at {address} has not answered within {} s", ANSWER.as_secs())]
    Silent { address: Address },
    /// What it says is not understood.
    #[error("the front end at {address} is not of vLLM {}: {why}", crate::VLLM_VERSION)]
    Answer { address: Address, why: String },
    /// Its other sockets can't be reached.
    #[error("the front end names the address {address}, which can't be reached: {error}")]
    Socket { address: Address, error: ZmtpError },
}

/// How long a front end may take to answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A front end that the worker is with.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    pub(crate) input: Receiver,
    pub(crate) output: Sender,
    pub(crate) outputs: Address,
    /// Whether the worker was with it before, and it goes on.
    pub(crate) again: bool,
}

/// Where a worker finds the front end that it was with: one that has started takes no handshake any
/// more, but goes on with an engine that comes back to the same sockets.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    inputs: Address,
    outputs: Address,
}

/// What a worker says of itself to join, and where it does.
#[derive(Debug)]
pub(crate) struct Joiner {
    pub(crate) handshake: Address,
    pub(crate) rank: u16,
    pub(crate) ready: Value,
    /// The file of the note.
    note: PathBuf,
}

impl Joiner {
    pub(crate) fn new(handshake: Address, rank: u16, ready: Value, folder: &Path) -> Self {
        let note = note_file(&handshake, rank, folder);
        Self { handshake, rank, ready, note }
    }

    fn identity(&self) -> [u8; 2] {
        self.rank.to_le_bytes()
    }

    pub(crate) fn join(&self, stops: &dyn Fn() -> bool) -> Result<FrontEnd, JoinError> {
        if let Some(front_end) = self.join_again() {
            return Ok(front_end);
        }
        self.forget();
        self.join_anew(stops)
    }

    /// The front end that it was with is gone.
    fn forget(&self) {
        // There may be none.
        let _ = std::fs::remove_file(&self.note);
    }

    /// What the engine is, is said again: a front end that still waits for others has not read it, and
    /// one that has started passes over it.
    fn join_again(&self) -> Option<FrontEnd> {
        let note: Note = serde_json::from_slice(&std::fs::read(&self.note).ok()?).ok()?;
        self.connect(&note, true).ok()
    }

    fn join_anew(&self, stops: &dyn Fn() -> bool) -> Result<FrontEnd, JoinError> {
        let address = || self.handshake.clone();
        let away = |error| JoinError::Away { address: address(), error };
        let stream = self.handshake.connect().map_err(|error| away(error.into()))?;
        let connection = Connection::new(stream, Role::Dealer, &self.identity()).map_err(away)?;
        let (mut answers, mut sender) = connection.split();
        let mut say = |status| {
            let message = rmp_serde::to_vec_named(&hello(status)).unwrap_or_default();
            sender.send(&[&message]).map_err(away)
        };
        say("HELLO")?;
        answers.set_patience(Duration::from_millis(200)).map_err(|error| away(error.into()))?;
        let until = Instant::now() + ANSWER;
        let answer = loop {
            match answers.receive(&mut |_| {}).map_err(away)? {
                Some(frames) => break frames,
                None if Instant::now() >= until || stops() => {
                    return Err(JoinError::Silent { address: address() });
                }
                None => {}
            }
        };
        let note = note(&answer).map_err(|why| JoinError::Answer { address: address(), why })?;
        let front_end = self.connect(&note, false)?;
        say("READY")?;
        self.keep(&note);
        Ok(front_end)
    }

    fn connect(&self, note: &Note, again: bool) -> Result<FrontEnd, JoinError> {
        let open = |address: &Address, role, identity: &[u8]| {
            let stream = address.connect().map_err(ZmtpError::from);
            let connection = stream.and_then(|stream| Connection::new(stream, role, identity));
            connection.map_err(|error| JoinError::Socket { address: address.clone(), error })
        };
        // Without an identity: by one, the front end would drop what came by another connection of
        // the same, such as a stand-in's.
        let (_, output) = open(&note.outputs, Role::Push, b"")?.split();
        let (input, mut sender) = open(&note.inputs, Role::Dealer, &self.identity())?.split();
        let ready = rmp_serde::to_vec_named(&self.ready).unwrap_or_default();
        let sent = sender.send(&[&ready]);
        sent.map_err(|error| JoinError::Socket { address: note.inputs.clone(), error })?;
        Ok(FrontEnd { input, output, outputs: note.outputs.clone(), again })
    }

    fn keep(&self, note: &Note) {
        let written = serde_json::to_vec(note).map_err(std::io::Error::other);
        let written = written.and_then(|bytes| {
            self.note.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(&self.note, bytes)
        });
        if let Err(error) = written {
            let file = self.note.display();
            tracing::warn!(
                "can't write {file}: {error}; a worker that is started again will not find this \
                 front end: give --state-dir"
            );
        }
    }
}

/// Where a worker of this rank notes the front end that takes engines at this address.
pub(crate) fn note_file(handshake: &Address, rank: u16, folder: &Path) -> PathBuf {
    let name = blake3::hash(handshake.to_string().as_bytes()).to_hex();
    folder.join(format!("worker-{}-{rank}.json", &name[..16]))
}

fn note(answer: &[Vec<u8>]) -> Result<Note, String> {
    let [message] = answer else { return Err(format!("an answer of {} frames", answer.len())) };
    let init = Init::read(message)?;
    let one = |name: &str, list: &[String]| match list {
        [address] => address.parse(),
        _ => Err(format!("it has {} sockets for {name} instead of one", list.len())),
    };
    let inputs = one("requests", &init.addresses.inputs)?;
    Ok(Note { inputs, outputs: one("outputs", &init.addresses.outputs)? })
}
