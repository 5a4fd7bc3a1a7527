//! Frames: a flag byte, a length, and bytes.

use super::ZmtpError;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// The most bytes of a message, all its frames together, from who brings requests.
pub(super) const MAX_MESSAGE: usize = 64 << 20;
const MAX_FRAMES: usize = 64;
/// What a decoder may hold of memory that it does not need.
const KEPT: usize = 256 << 10;

/// What a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// A command: its name, and the rest.
    Command(String, Vec<u8>),
}

/// Cuts a stream of bytes into messages, however the bytes come.
#[derive(Debug)]
pub(crate) struct Decoder {
    most: usize,
    bytes: Vec<u8>,
    start: usize,
    frames: Vec<Vec<u8>>,
    size: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::bounded(MAX_MESSAGE)
    }
}

impl Decoder {
    /// For messages of so many bytes at most, all frames together.
    pub(super) fn bounded(most: usize) -> Self {
        Self { most, bytes: Vec::new(), start: 0, frames: Vec::new(), size: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.compact(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Forgets what was given out, once that is most of what is held, and gives memory back that a
    /// burst has taken, before so many bytes `more`.
    fn compact(&mut self, more: usize) {
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let needed = (self.bytes.len() + more).max(KEPT);
        if self.bytes.capacity() > 4 * needed {
            self.bytes.shrink_to(needed);
        }
    }

    /// Bytes that are no part of anything that was given out.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// What there is in full; `None` where more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Item>, ZmtpError> {
        while let Some((flags, body)) = self.frame()? {
            if flags & COMMAND != 0 {
                let name = body.split_first().and_then(|(&length, rest)| {
                    let (name, rest) = rest.split_at_checked(usize::from(length))?;
                    Some(Item::Command(String::from_utf8(name.to_vec()).ok()?, rest.to_vec()))
                });
                let bad = || ZmtpError::Protocol("a command without a name".to_owned());
                return name.ok_or_else(bad).map(Some);
            }
            self.size += body.len();
            self.frames.push(body);
            if self.size > self.most || self.frames.len() > MAX_FRAMES {
                let (size, frames, most) = (self.size, self.frames.len(), self.most);
                let why = format!(
                    "a message of {size} bytes in {frames} frames is too large: {most} bytes in \
                     {MAX_FRAMES} are read"
                );
                return Err(ZmtpError::Protocol(why));
            }
            if flags & MORE == 0 {
                self.size = 0;
                return Ok(Some(Item::Message(std::mem::take(&mut self.frames))));
            }
        }
        self.compact(0);
        Ok(None)
    }

    fn frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, ZmtpError> {
        let bytes = &self.bytes[self.start..];
        let Some(&flags) = bytes.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(ZmtpError::Protocol(format!("a frame has the flags {flags:#04x}")));
        }
        let (length, header) = if flags & LONG == 0 {
            let Some(&length) = bytes.get(1) else { return Ok(None) };
            (u64::from(length), 2)
        } else {
            let Some(length) = bytes.get(1..9) else { return Ok(None) };
            (length.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)), 9)
        };
        if length > self.most as u64 {
            let most = self.most;
            let why = format!("a frame of {length} bytes is too large: {most} are read");
            return Err(ZmtpError::Protocol(why));
        }
        let end = header + length as usize;
        let Some(body) = bytes.get(header..end) else { return Ok(None) };
        let body = body.to_vec();
        self.start += end;
        Ok(Some((flags, body)))
    }
}

/// Appends a message as it goes over the wire.
pub(crate) fn encode(frames: &[&[u8]], to: &mut Vec<u8>) {
    for (i, frame) in frames.iter().enumerate() {
        let more = if i + 1 < frames.len() { MORE } else { 0 };
        put(more, frame, to);
    }
}

pub(crate) fn command(name: &str, body: &[u8], to: &mut Vec<u8>) {
    let named = [&[name.len() as u8], name.as_bytes(), body].concat();
    put(COMMAND, &named, to);
}

fn put(flags: u8, body: &[u8], to: &mut Vec<u8>) {
    match u8::try_from(body.len()) {
        Ok(length) => to.extend([flags, length]),
        Err(_) => {
            to.push(flags | LONG);
            to.extend((body.len() as u64).to_be_bytes());
        }
    }
    to.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_they_are_cut(
            messages in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..5), 1..5),
            cut in 1_usize..700,
        ) {
            let mut wire = Vec::new();
            for message in &messages {
                let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
                encode(&frames, &mut wire);
                command("PING", b"\0\0x", &mut wire);
            }
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for bytes in wire.chunks(cut) {
                decoder.push(bytes);
                while let Some(item) = decoder.next().unwrap() {
                    match item {
                        Item::Message(frames) => found.push(frames),
                        Item::Command(name, body) => {
                            assert_eq!((name.as_str(), &body[..]), ("PING", &b"\0\0x"[..]));
                        }
                    }
                }
            }
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next() {}
        }
    }

    /// A backlog that is read in slices which no message ends with is held a slice at a time, and what
    /// a large message took is given back once it was given out.
    #[test]
    fn memory_follows_what_is_unread() {
        let (mut wire, mut decoder) = (Vec::new(), Decoder::default());
        for byte in 0..200 {
            encode(&[&[byte; 20_000]], &mut wire);
        }
        let (mut found, mut most) = (0, 0);
        for slice in wire.chunks(64 << 10) {
            decoder.push(slice);
            while let Some(item) = decoder.next().unwrap() {
                let Item::Message(frames) = item else { panic!("{item:?}") };
                assert_eq!(frames, [[found; 20_000]]);
                found += 1;
            }
            most = most.max(decoder.bytes.capacity());
        }
        assert_eq!((found, decoder.unread()), (200, &[][..]));
        assert!(most <= 4 * KEPT, "{most} bytes for {} of a backlog", wire.len());

        let mut large = Vec::new();
        encode(&[&vec![7; 16 << 20]], &mut large);
        large.push(0);
        large.chunks(64 << 10).for_each(|slice| decoder.push(slice));
        assert!(decoder.bytes.capacity() >= 16 << 20);
        assert!(matches!(decoder.next(), Ok(Some(Item::Message(_)))));
        assert_eq!(decoder.next().unwrap(), None);
        assert_eq!(decoder.unread(), [0]);
        assert!(decoder.bytes.capacity() <= 4 * KEPT, "{}", decoder.bytes.capacity());
    }

    /// By its head, before anything of it is held, and so are frames that are too much together.
    #[test]
    fn who_may_say_little_is_refused_by_more() {
        let header = |length: u64| [&[LONG][..], &length.to_be_bytes()].concat();
        for (most, is_read) in [(1000, true), (999, false)] {
            let mut decoder = Decoder::bounded(most);
            decoder.push(&header(1000));
            assert_eq!(decoder.next().is_ok(), is_read, "{most}");
            let (mut decoder, mut wire) = (Decoder::bounded(most), Vec::new());
            encode(&[&[1; 500], &[2; 500]], &mut wire);
            decoder.push(&wire);
            assert_eq!(decoder.next().is_ok(), is_read, "{most}");
        }
    }

    #[test]
    fn what_no_frame_can_be_is_refused_before_it_is_waited_for() {
        for bytes in [&[0xff, 1][..], &[LONG, 0xff, 0, 0, 0, 0, 0, 0, 0]] {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            assert!(matches!(decoder.next(), Err(ZmtpError::Protocol(_))), "{bytes:?}");
        }
    }
}
