//! Frames: a flag byte, a length, and bytes.

use super::ZmtpError;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// The most bytes of a message, all its frames together.
const MAX_MESSAGE: usize = 64 << 20;
const MAX_FRAMES: usize = 64;

/// What a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// A command: its name, and the rest.
    Command(String, Vec<u8>),
}

/// Cuts a stream of bytes into messages, however the bytes come.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    start: usize,
    frames: Vec<Vec<u8>>,
    size: usize,
}

impl Decoder {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
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
            if self.size > MAX_MESSAGE || self.frames.len() > MAX_FRAMES {
                let (size, frames) = (self.size, self.frames.len());
                let why = format!("a message of {size} bytes in {frames} frames is too large");
                return Err(ZmtpError::Protocol(why));
            }
            if flags & MORE == 0 {
                self.size = 0;
                return Ok(Some(Item::Message(std::mem::take(&mut self.frames))));
            }
        }
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
        if length > MAX_MESSAGE as u64 {
            return Err(ZmtpError::Protocol(format!("a frame of {length} bytes is too large")));
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

    #[test]
    fn what_no_frame_can_be_is_refused_before_it_is_waited_for() {
        for bytes in [&[0xff, 1][..], &[LONG, 0xff, 0, 0, 0, 0, 0, 0, 0]] {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            assert!(matches!(decoder.next(), Err(ZmtpError::Protocol(_))), "{bytes:?}");
        }
    }
}
