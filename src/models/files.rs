//! Reading small text files of a model folder, with a bound on their size.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Why a file could not be read whole.
#[derive(Debug)]
pub enum ReadError {
    /// The file is missing, unreadable or no regular file.
    Io(io::Error),
    /// The file has more bytes than such a file can sensibly have.
    TooLarge {
        /// Length of the file.
        bytes: u64,
    },
}

/// Reads a text of at most `limit` bytes; `None` where there is no such file.
///
/// # Errors
/// As [`read_bounded`], and when it is no UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<Option<String>, ReadError> {
    match read_bounded(path, limit) {
        Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => {
            let bad = |error| ReadError::Io(io::Error::new(io::ErrorKind::InvalidData, error));
            String::from_utf8(bytes).map(Some).map_err(bad)
        }
    }
}

/// Reads a regular file of at most `limit` bytes.
///
/// A directory or a pipe is refused before it is opened, since opening a pipe would block.
///
/// # Errors
/// When the file is missing, unreadable, too large or no regular file.
pub fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
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
