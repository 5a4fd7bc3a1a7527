//! A connection: greetings, and then messages both ways.

use super::ZmtpError;
use super::frames::{Decoder, Item, MAX_MESSAGE, command, encode};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What a socket is to those it talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Dealer,
    Push,
    Publisher,
    Router,
    /// Of a front end, for tests.
    #[cfg(test)]
    Pull,
    /// Of a router that reads KV events, for tests.
    #[cfg(test)]
    Subscriber,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Dealer => "DEALER",
            Self::Push => "PUSH",
            Self::Publisher => "PUB",
            Self::Router => "ROUTER",
            #[cfg(test)]
            Self::Pull => "PULL",
            #[cfg(test)]
            Self::Subscriber => "SUB",
        }
    }

    fn fits(self, other: &str) -> bool {
        match self {
            Self::Dealer => matches!(other, "ROUTER" | "DEALER" | "REP"),
            Self::Push => other == "PULL",
            Self::Publisher => matches!(other, "SUB" | "XSUB"),
            Self::Router => matches!(other, "DEALER" | "REQ" | "ROUTER"),
            #[cfg(test)]
            Self::Pull => other == "PUSH",
            #[cfg(test)]
            Self::Subscriber => other == "PUB",
        }
    }

    /// The most bytes of a message of the other side: who subscribes or asks again may be anybody, and
    /// says little.
    fn most_heard(self) -> usize {
        match self {
            Self::Publisher | Self::Router => 4096,
            _ => MAX_MESSAGE,
        }
    }
}

/// How long the other side may take for its greeting, and the network for what is written.
const PATIENCE: Duration = Duration::from_secs(10);
/// Version 3.0, no security, and nobody is the server.
const GREETING: [u8; 64] = {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    (greeting[12], greeting[13], greeting[14], greeting[15]) = (b'N', b'U', b'L', b'L');
    greeting
};

/// A connection on which both sides have said what they are.
#[derive(Debug)]
pub(crate) struct Connection {
    receiver: Receiver,
    sender: Sender,
}

impl Connection {
    /// Greets the other side; to which an empty identity is one of its own choice.
    pub(crate) fn new(stream: TcpStream, role: Role, identity: &[u8]) -> Result<Self, ZmtpError> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        watch(&stream)?;
        let mut sender = Sender { stream: stream.try_clone()?, bytes: GREETING.to_vec() };
        let mut ready = Vec::new();
        let properties = [("Socket-Type", role.name().as_bytes()), ("Identity", identity)];
        for (name, value) in properties.into_iter().filter(|(_, value)| !value.is_empty()) {
            ready.push(name.len() as u8);
            ready.extend_from_slice(name.as_bytes());
            ready.extend((value.len() as u32).to_be_bytes());
            ready.extend_from_slice(value);
        }
        command("READY", &ready, &mut sender.bytes);
        sender.flush()?;
        let mut receiver = Receiver { stream, decoder: Decoder::bounded(role.most_heard()) };
        let mut theirs = [0; 64];
        receiver.stream.read_exact(&mut theirs).map_err(closed)?;
        if (theirs[0], theirs[9]) != (0xff, 0x7f)
            || theirs[10] < 3
            || theirs[12..32] != GREETING[12..32]
        {
            let why = "its greeting is not of ZMTP 3 without security";
            return Err(ZmtpError::Protocol(why.to_owned()));
        }
        match receiver.item(Instant::now() + PATIENCE)? {
            Some(Item::Command(name, body)) if name == "READY" => {
                let other = property(&body, "Socket-Type");
                if !role.fits(&other) {
                    let why = format!("a {other} socket does not fit a {}", role.name());
                    return Err(ZmtpError::Protocol(why));
                }
            }
            Some(other) => {
                return Err(ZmtpError::Protocol(format!("it began with {other:?}")));
            }
            None => return Err(ZmtpError::Protocol("it said nothing".to_owned())),
        }
        Ok(Self { receiver, sender })
    }

    pub(crate) fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }
}

/// Notices a peer whose machine has gone without a word.
fn watch(stream: &TcpStream) -> std::io::Result<()> {
    let keepalive = socket2::TcpKeepalive::new();
    let keepalive = keepalive.with_time(Duration::from_secs(10));
    let keepalive = keepalive.with_interval(Duration::from_secs(5)).with_retries(3);
    let socket = socket2::SockRef::from(stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
    socket.set_tcp_keepalive(&keepalive)
}

fn property(mut body: &[u8], wanted: &str) -> String {
    let mut next = || {
        let (&length, rest) = body.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        body = rest;
        Some((name, value))
    };
    while let Some((name, value)) = next() {
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return String::from_utf8_lossy(value).into_owned();
        }
    }
    String::new()
}

fn closed(error: std::io::Error) -> ZmtpError {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            ZmtpError::Closed
        }
        _ => ZmtpError::Network(error),
    }
}

/// The half that takes messages.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) stream: TcpStream,
    decoder: Decoder,
}

impl Receiver {
    /// Goes on with a connection where another left off.
    pub(crate) fn new(stream: TcpStream, decoder: Decoder) -> Self {
        Self { stream, decoder }
    }

    /// Bytes that have come and of which nothing has been made yet.
    pub(crate) fn unread(&self) -> &[u8] {
        self.decoder.unread()
    }

    /// How long [`Self::receive`] waits.
    pub(crate) fn set_patience(&self, time: Duration) -> std::io::Result<()> {
        self.stream.set_read_timeout(Some(time))
    }

    /// The frames of the next message; `None` where none came in time. `seen` gets the bytes as they
    /// come, before anything is made of them.
    pub(crate) fn receive(
        &mut self,
        seen: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<Vec<Vec<u8>>>, ZmtpError> {
        loop {
            match self.decoder.next()? {
                Some(Item::Message(frames)) => return Ok(Some(frames)),
                Some(Item::Command(name, body)) => self.answer(&name, &body)?,
                None => {
                    if !self.fill(seen)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Keeps the other side from taking this one for dead.
    fn answer(&self, name: &str, body: &[u8]) -> Result<(), ZmtpError> {
        if name == "PING" {
            let mut pong = Vec::new();
            command("PONG", body.get(2..).unwrap_or_default(), &mut pong);
            (&self.stream).write_all(&pong).map_err(closed)?;
        }
        Ok(())
    }

    fn item(&mut self, until: Instant) -> Result<Option<Item>, ZmtpError> {
        loop {
            if let Some(item) = self.decoder.next()? {
                return Ok(Some(item));
            }
            if !self.fill(&mut |_| {})? || Instant::now() >= until {
                return Ok(None);
            }
        }
    }

    fn fill(&mut self, seen: &mut dyn FnMut(&[u8])) -> Result<bool, ZmtpError> {
        let mut bytes = [0; 1 << 16];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(ZmtpError::Closed),
            Ok(count) => {
                seen(&bytes[..count]);
                self.decoder.push(&bytes[..count]);
                Ok(true)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(false),
                _ => Err(closed(error)),
            },
        }
    }
}

/// The half that sends messages.
#[derive(Debug)]
pub(crate) struct Sender {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Sender {
    /// Sends a message; waits while the other side takes nothing.
    pub(crate) fn send(&mut self, frames: &[&[u8]]) -> Result<(), ZmtpError> {
        encode(frames, &mut self.bytes);
        self.flush()
    }

    /// Another one of the same connection; who writes to both sees to it that no message is cut.
    pub(crate) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { stream: self.stream.try_clone()?, bytes: Vec::new() })
    }

    /// Sends as much of a message as the other side takes at once, and gives what is left for
    /// [`Self::resume`]: of a connection that is gone all of it.
    pub(crate) fn send_now(&mut self, frames: &[&[u8]]) -> Option<Vec<u8>> {
        encode(frames, &mut self.bytes);
        let is_ready = self.stream.set_nonblocking(true);
        let written = is_ready.and_then(|()| self.stream.write(&self.bytes)).unwrap_or(0);
        let left = (written < self.bytes.len()).then(|| self.bytes.split_off(written));
        self.bytes.clear();
        left
    }

    /// Sends what is left of a message; waits while the other side takes nothing.
    pub(crate) fn resume(&mut self, left: &[u8]) -> Result<(), ZmtpError> {
        self.bytes.extend_from_slice(left);
        self.flush()
    }

    /// Ends the connection for both halves.
    pub(crate) fn close(&self) {
        // It is closed already where this fails.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn flush(&mut self) -> Result<(), ZmtpError> {
        // A clone may have made it one that does not wait.
        self.stream.set_nonblocking(false)?;
        let sent = self.stream.write_all(&self.bytes).map_err(closed);
        self.bytes.clear();
        self.bytes.shrink_to(1 << 20);
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_is_not_taken_at_once_is_sent_later() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let mut sender = Sender { stream, bytes: Vec::new() };
        let mut waits = sender.try_clone().unwrap();
        let mut expected = Vec::new();
        let left = (0_u64..).find_map(|number| {
            let frame = number.to_le_bytes().repeat(2000);
            encode(&[&frame], &mut expected);
            sender.send_now(&[&frame])
        });
        encode(&[b"last"], &mut expected);
        let read = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            theirs.read_to_end(&mut bytes).unwrap();
            bytes
        });
        waits.resume(&left.unwrap()).unwrap();
        waits.send(&[b"last"]).unwrap();
        drop((sender, waits));
        assert!(read.join().unwrap() == expected);
    }
}
