//! What the cache could not do.

use std::io;
use std::path::PathBuf;

use crate::format::{DecodeError, EncodeError};
use crate::key::{Key, KeyHex};

/// What the cache could not do. The cache has warned about it already, once for each condition, and
/// works as far as it can; an error is for callers that must know, such as a command that fills the
/// cache. A compiler compiles and goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum CacheError {
    /// The kind or the factors can't be written.
    #[error("the entry can't be written: {0}")]
    Encode(#[from] EncodeError),
    /// The entry is longer than this cache keeps.
    #[error(
        "{kind} {} of {bytes} bytes is larger than the {cap} bytes that this cache keeps; raise its size",
        KeyHex(key)
    )]
    TooLarge {
        kind: String,
        key: Key,
        /// Its bytes with its header.
        bytes: u64,
        /// The bound on one entry or on the whole cache, whichever is smaller.
        cap: u64,
    },
    /// The directory can't be used at all, or can't any longer.
    #[error("the cache in {} is not used: {reason}", dir.display())]
    Unusable {
        dir: PathBuf,
        /// Why, and what to try.
        reason: String,
    },
    /// Only reading is allowed.
    #[error("the cache in {} is open for reading only; open it for writing to {action}", dir.display())]
    ReadOnly { dir: PathBuf, action: &'static str },
    /// The operating system refused.
    #[error("could not {action} {}: {source}{}", path.display(), advice(source))]
    Io {
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        source: io::Error,
    },
    /// An entry that was asked for by name is bad.
    #[error("the entry {} of kind {} is bad: {}; verify with repair removes it", .0.name, .0.kind, .0.reason)]
    Bad(BadEntry),
    /// An entry of a pack is bad.
    #[error(
        "the entry {} of kind {} of the pack {} is bad: {}; install the pack again, or remove it",
        .entry.name, .entry.kind, file.display(), .entry.reason
    )]
    Pack { file: PathBuf, entry: Box<BadEntry> },
    /// A pack ends early or is none.
    #[error(
        "the pack {} can't be read beyond byte {offset}: {reason}; nothing of it is used: install it \
         again, or remove it",
        file.display()
    )]
    CutPack {
        file: PathBuf,
        /// Where it can be read no further, in bytes from its beginning.
        offset: u64,
        reason: ArchiveFault,
    },
    /// An archive ends early or is none.
    #[error("the archive {} can't be read beyond byte {offset}: {reason}; what comes before was taken", file.display())]
    Archive {
        file: PathBuf,
        /// Where it can be read no further, in bytes from its beginning.
        offset: u64,
        reason: ArchiveFault,
    },
}

/// What is wrong with an archive itself, rather than with an entry in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum ArchiveFault {
    /// Another file than an archive.
    #[error("it does not begin as an archive of cache entries does")]
    Magic,
    /// An archive of an older or a newer program.
    #[error("it has archive version {found}, this program reads version {expected}")]
    Version {
        found: u32,
        /// The only version that this program reads.
        expected: u32,
    },
    /// It ends before its end mark.
    #[error("it ends before its end mark")]
    Truncated,
    /// An entry that does not fit into what is left of the file.
    #[error("it states an entry of {stated} bytes where {left} are left")]
    Length {
        stated: u64,
        /// What the file has from there on, in bytes.
        left: u64,
    },
    /// The end mark counts other entries than are there.
    #[error("its end mark counts {stated} entries where {found} are there")]
    Count { stated: u64, found: u64 },
    /// Something was appended after the end mark.
    #[error("{bytes} bytes follow its end mark")]
    Trailing { bytes: u64 },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free space, lower the cache's size, or choose another directory"
        }
        io::ErrorKind::FileTooLarge => "; raise the limit on the size of files, `ulimit -f`",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; choose a directory that can be written, or open the cache for reading only"
        }
        _ => "",
    }
}

/// An entry that was not served, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadEntry {
    /// What it is an entry of: `piece`, `kernel`.
    pub kind: String,
    /// Its file, named by the digits of its key.
    pub name: String,
    /// What of its header or payload does not hold.
    pub reason: DecodeError,
}
