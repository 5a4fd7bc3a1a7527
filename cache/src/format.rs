//! The bytes of one entry.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 4 | [`FORMAT_VERSION`] |
//! | 12 | 4 | bytes of the header, at most [`MAX_HEADER_BYTES`] |
//! | 16 | 8 | bytes of the payload |
//! | 24 | 32 | key |
//! | 56 | 8 | which key the checksums are keyed with; zeros if with none |
//! | 64 | 32 | blake3 of the payload |
//! | 96 | 32 | blake3 of bytes 0 to 96 and the header |
//! | 128 | | header: kind, number of factors (2), and for each its name and its value |
//! | | | payload, to the end of the file |
//!
//! Integers are little-endian. The length of a kind takes 1 byte, of a factor's name 2, of its
//! value 4. The second checksum covers the first, so that a listing can trust a header without
//! reading the payload. The bytes hold no time, path or host: an entry written twice is the same.

use std::io::{self, Read};

use crate::factors::Factors;
pub use crate::key::MAX_KIND_BYTES;
use crate::key::{Key, KeyHex, is_kind};

/// The first bytes of every entry.
pub const MAGIC: [u8; 8] = *b"PWCENTRY";
/// The version of the format that this crate reads and writes.
pub const FORMAT_VERSION: u32 = 1;
/// The bytes before the header.
pub const PREFIX_BYTES: usize = 128;
/// The longest header in bytes: kind and factors.
pub const MAX_HEADER_BYTES: usize = 1 << 20;
/// The most factors of an entry.
pub const MAX_FACTORS: usize = 256;
/// The longest name of a factor in bytes.
pub const MAX_FACTOR_NAME_BYTES: usize = 128;

const CHECKED_BYTES: usize = 96;

/// What is wrong with the bytes of an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum DecodeError {
    /// It ends before the header or the payload does.
    #[error("it ends after {bytes} bytes, before its {missing}")]
    Truncated {
        bytes: u64,
        /// The part that is not there in full.
        missing: &'static str,
    },
    /// It is something else than an entry.
    #[error("it does not begin as a cache entry does")]
    Magic,
    /// An entry of an older or a newer program.
    #[error("it has format version {found}, this program reads version {FORMAT_VERSION}")]
    Version { found: u32 },
    /// Its parts don't add up to the bytes that are there.
    #[error("it states {stated} bytes and has {found}")]
    Length {
        /// The sum of the stated lengths.
        stated: u128,
        /// The length of the file.
        found: u64,
    },
    /// A length beyond the bound, whatever is there.
    #[error("its {part} of {bytes} bytes is longer than the {cap} bytes that are read")]
    TooLong { part: &'static str, bytes: u64, cap: u64 },
    /// Its checksums are made with another key, or with none.
    #[error(
        "its checksums are made {}, this cache's are made {}",
        key_named(found),
        key_named(expected)
    )]
    ChecksumKey {
        /// The id of its key.
        found: ChecksumKeyId,
        /// The id of this cache's key.
        expected: ChecksumKeyId,
    },
    /// The bytes of a part are not the ones that were written.
    #[error("the checksum of its {part} does not match")]
    Checksum { part: &'static str },
    /// A header that no writer makes, under a checksum that matches.
    #[error("its header is malformed: {reason}")]
    Header { reason: &'static str },
    /// A sound entry under the name of another.
    #[error("it is the entry {kind} {}", KeyHex(key))]
    OtherEntry { kind: String, key: Key },
    /// A folder, link, pipe or device where an entry should be.
    #[error("it is not a regular file")]
    NotAFile,
}

/// Tells checksum keys apart without telling them; zeros for no key.
pub type ChecksumKeyId = [u8; 8];

fn key_named(id: &ChecksumKeyId) -> String {
    match u64::from_be_bytes(*id) {
        0 => "without a key".to_owned(),
        id => format!("with key {id:016x}"),
    }
}

/// Why an entry can't be made of a kind, factors and payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum EncodeError {
    /// The kind is no folder name.
    #[error(
        "kind {kind:?} can't name a folder; use 1 to {MAX_KIND_BYTES} of a-z, 0-9, - and _, the first a letter"
    )]
    Kind { kind: String },
    /// More factors than a header may have.
    #[error("{count} factors are more than {MAX_FACTORS}; put a digest of them in one")]
    FactorCount { count: usize },
    /// A factor's name.
    #[error(
        "factor name {name:?} is empty, longer than {MAX_FACTOR_NAME_BYTES} bytes, not printable, or there twice"
    )]
    FactorName { name: String },
    /// Together too long.
    #[error(
        "the factors take {bytes} bytes, more than {MAX_HEADER_BYTES}; put a digest in place of a long value"
    )]
    HeaderLength { bytes: usize },
}

/// How the checksums of a cache are made.
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("Checksum({})", key_named(id))]
pub(crate) struct Checksum {
    key: Option<[u8; 32]>,
    id: ChecksumKeyId,
}

impl Checksum {
    /// What anyone can make.
    pub(crate) const WITHOUT_KEY: Self = Self { key: None, id: [0; 8] };

    pub(crate) fn new(key: Option<[u8; 32]>) -> Self {
        let id = key.map_or([0; 8], |key| {
            let digest =
                blake3::derive_key("piecewise cache: id of a checksum key, version 1", &key);
            let mut id = [0; 8];
            id.copy_from_slice(&digest[..8]);
            id
        });
        Self { key, id }
    }

    /// The part of the folder name that keeps entries of different checksum keys apart.
    pub(crate) fn id(&self) -> ChecksumKeyId {
        self.id
    }

    fn hasher(&self) -> blake3::Hasher {
        self.key.map_or_else(blake3::Hasher::new, |key| blake3::Hasher::new_keyed(&key))
    }

    fn of(&self, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = self.hasher();
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

/// What an entry says of itself, its checksum verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: String,
    pub(crate) key: Key,
    pub(crate) factors: Factors,
    pub(crate) payload_bytes: u64,
    payload_checksum: [u8; 32],
}

impl Header {
    /// The header of that entry, or why it is another's.
    pub(crate) fn of(self, kind: &str, key: &Key) -> Result<Self, DecodeError> {
        match self.kind == kind && self.key == *key {
            true => Ok(self),
            false => Err(DecodeError::OtherEntry { kind: self.kind, key: self.key }),
        }
    }
}

/// A header that could not be read, or not trusted.
#[derive(Debug, derive_more::From)]
pub(crate) enum ReadError {
    Io(io::Error),
    Decode(DecodeError),
}

/// The prefix and header of an entry; the payload's bytes follow them in the file.
///
/// # Errors
/// When a reader would refuse the kind or the factors.
pub(crate) fn encode_header(
    kind: &str,
    key: &Key,
    factors: &[(&str, &str)],
    payload: &[u8],
    checksum: &Checksum,
) -> Result<Vec<u8>, EncodeError> {
    if !is_kind(kind) {
        return Err(EncodeError::Kind { kind: kind.to_owned() });
    }
    if factors.len() > MAX_FACTORS {
        return Err(EncodeError::FactorCount { count: factors.len() });
    }
    let value_bytes: usize = factors.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
    let header_bytes = 1 + kind.len() + 2 + value_bytes;
    if header_bytes > MAX_HEADER_BYTES {
        return Err(EncodeError::HeaderLength { bytes: header_bytes });
    }
    let mut header = Vec::with_capacity(header_bytes);
    header.push(kind.len() as u8);
    header.extend_from_slice(kind.as_bytes());
    header.extend_from_slice(&(factors.len() as u16).to_le_bytes());
    for (i, (name, value)) in factors.iter().enumerate() {
        if !is_factor_name(name) || factors[..i].iter().any(|(earlier, _)| earlier == name) {
            return Err(EncodeError::FactorName { name: (*name).to_owned() });
        }
        header.extend_from_slice(&(name.len() as u16).to_le_bytes());
        header.extend_from_slice(name.as_bytes());
        header.extend_from_slice(&(value.len() as u32).to_le_bytes());
        header.extend_from_slice(value.as_bytes());
    }
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + header.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&checksum.id);
    bytes.extend_from_slice(checksum.of(&[payload]).as_bytes());
    let header_checksum = checksum.of(&[&bytes, &header]);
    bytes.extend_from_slice(header_checksum.as_bytes());
    bytes.extend_from_slice(&header);
    Ok(bytes)
}

fn is_factor_name(name: &str) -> bool {
    (1..=MAX_FACTOR_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Reads the prefix and header of an entry of `total` bytes from its start. Allocates no more than
/// the header that is there, at most [`MAX_HEADER_BYTES`].
pub(crate) fn read_header(
    from: &mut impl Read,
    total: u64,
    payload_cap: u64,
    checksum: &Checksum,
) -> Result<Header, ReadError> {
    let mut prefix = [0; PREFIX_BYTES];
    let first = total.min(PREFIX_BYTES as u64) as usize;
    fill(from, &mut prefix[..first], total, "header")?;
    if !MAGIC.starts_with(&prefix[..first.min(MAGIC.len())]) {
        return Err(DecodeError::Magic.into());
    }
    if first < PREFIX_BYTES {
        return Err(DecodeError::Truncated { bytes: total, missing: "header" }.into());
    }
    let found = u32::from_le_bytes(array(&prefix, 8));
    if found != FORMAT_VERSION {
        return Err(DecodeError::Version { found }.into());
    }
    let header_bytes = u32::from_le_bytes(array(&prefix, 12));
    let payload_bytes = u64::from_le_bytes(array(&prefix, 16));
    let bounds = [
        ("header", u64::from(header_bytes), MAX_HEADER_BYTES as u64),
        ("payload", payload_bytes, payload_cap),
    ];
    for (part, bytes, cap) in bounds {
        if bytes > cap {
            return Err(DecodeError::TooLong { part, bytes, cap }.into());
        }
    }
    let stated = PREFIX_BYTES as u128 + u128::from(header_bytes) + u128::from(payload_bytes);
    if stated != u128::from(total) {
        return Err(DecodeError::Length { stated, found: total }.into());
    }
    let key_id: ChecksumKeyId = array(&prefix, 56);
    if key_id != checksum.id {
        let expected = checksum.id;
        return Err(DecodeError::ChecksumKey { found: key_id, expected }.into());
    }
    let mut header = vec![0; header_bytes as usize];
    fill(from, &mut header, total, "header")?;
    // `blake3::Hash` compares in constant time: a keyed checksum can't be guessed byte by byte.
    if checksum.of(&[&prefix[..CHECKED_BYTES], &header]) != array(&prefix, CHECKED_BYTES) {
        return Err(DecodeError::Checksum { part: "header" }.into());
    }
    let (kind, factors) = parse_header(&header)?;
    let key = array(&prefix, 24);
    Ok(Header { kind, key, factors, payload_bytes, payload_checksum: array(&prefix, 64) })
}

/// Reads the payload that follows `header` and verifies its checksum.
pub(crate) fn read_payload(
    from: &mut impl Read,
    header: &Header,
    checksum: &Checksum,
) -> Result<Vec<u8>, ReadError> {
    let mut payload = vec![0; header.payload_bytes as usize];
    fill(from, &mut payload, header.payload_bytes, "payload")?;
    if checksum.of(&[&payload]) != header.payload_checksum {
        return Err(DecodeError::Checksum { part: "payload" }.into());
    }
    Ok(payload)
}

/// Reads an entry of `total` bytes whole.
pub(crate) fn read_entry(
    from: &mut impl Read,
    total: u64,
    payload_cap: u64,
    checksum: &Checksum,
) -> Result<(Header, Vec<u8>), ReadError> {
    let header = read_header(from, total, payload_cap, checksum)?;
    let payload = read_payload(from, &header, checksum)?;
    Ok((header, payload))
}

fn fill(
    from: &mut impl Read,
    buffer: &mut [u8],
    total: u64,
    missing: &'static str,
) -> Result<(), ReadError> {
    from.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => DecodeError::Truncated { bytes: total, missing }.into(),
        _ => ReadError::Io(error),
    })
}

fn array<const N: usize>(prefix: &[u8; PREFIX_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| prefix[at + i])
}

fn parse_header(header: &[u8]) -> Result<(String, Factors), DecodeError> {
    let mut rest = Rest(header);
    let kind_bytes = usize::from(rest.array::<1>()?[0]);
    let kind = rest.text(kind_bytes)?;
    if !is_kind(kind) {
        return Err(DecodeError::Header { reason: "its kind can't name a folder" });
    }
    let count = usize::from(u16::from_le_bytes(rest.array()?));
    if count > MAX_FACTORS {
        return Err(DecodeError::Header { reason: "it states too many factors" });
    }
    let mut factors = Factors::with_capacity(count);
    for _ in 0..count {
        let name_bytes = u16::from_le_bytes(rest.array()?);
        let name = rest.text(usize::from(name_bytes))?;
        if !is_factor_name(name) || factors.iter().any(|(earlier, _)| earlier == name) {
            return Err(DecodeError::Header { reason: "the name of a factor is no name" });
        }
        let value_bytes = u32::from_le_bytes(rest.array()?);
        let value = rest.text(value_bytes as usize)?;
        factors.push((name.to_owned(), value.to_owned()));
    }
    if !rest.0.is_empty() {
        return Err(DecodeError::Header { reason: "it goes on after its last factor" });
    }
    Ok((kind.to_owned(), factors))
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let too_short = DecodeError::Header { reason: "it ends within a length" };
        let (first, rest) = self.0.split_first_chunk().ok_or(too_short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn text(&mut self, bytes: usize) -> Result<&'a str, DecodeError> {
        let too_short = DecodeError::Header { reason: "it ends within a text" };
        let (text, rest) = self.0.split_at_checked(bytes).ok_or(too_short)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| DecodeError::Header { reason: "a text is not UTF-8" })
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
