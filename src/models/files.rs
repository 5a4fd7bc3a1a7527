//! Reading small text files of a model folder, with a bound on their size.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Why a file could not be read whole.
pub(super) enum ReadError {
    /// The file is missing, unreadable or no regular file.
    Io(io::Error),
    /// The file has more bytes than such a file can sensibly have.
    TooLarge { bytes: u64 },
}

/// Reads a regular file of at most `limit` bytes.
///
/// A directory or a pipe is refused before it is opened, since opening a pipe would block.
pub(super) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let metadata = fs::metadata(path).map_err(ReadError::Io)?;
    if !metadata.is_file() {
        return Err(ReadError::Io(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )));
    }
    if metadata.len() > limit {
        return Err(ReadError::TooLarge { bytes: metadata.len() });
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    // The file may grow while it is read, so the length from the metadata is no bound.
    File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .map_err(ReadError::Io)?;
    if bytes.len() as u64 > limit {
        return Err(ReadError::TooLarge { bytes: bytes.len() as u64 });
    }
    Ok(bytes)
}
