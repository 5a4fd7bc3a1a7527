//! Archives that are read where they lie: entries that come with a program.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::archive::{Archive, ImportError};
use crate::error::{BadEntry, CacheError};
use crate::folder::Ownership;
use crate::format::{Checksum, DecodeError, ReadError, read_entry, read_header};
use crate::key::{Key, KeyHex};
use crate::options::Trust;

/// An archive whose entries are served where they lie, and never changed. It is trusted as a cache folder
/// is: what every user can write to, or belongs to another one, is refused.
///
/// An entry is found by its kind and key, so a pack of another program, or of another version of this one,
/// has nothing that is asked for. All bytes of an entry are covered by its checksums.
#[derive(Debug)]
pub struct Pack {
    path: PathBuf,
    file: File,
    entries: HashMap<(String, Key), Place>,
}

/// Where in the file an entry is.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    bytes: u64,
}

/// Packs are what anyone can make: they are under no key.
const CHECKSUM: Checksum = Checksum::WITHOUT_KEY;

impl Pack {
    /// Opens the archive at `path`, and reads the head of each entry.
    ///
    /// # Errors
    /// When it can't be read, is not trusted, or is no whole archive.
    pub fn open(path: &Path, trust: Trust) -> Result<Self, CacheError> {
        let failed = |source| CacheError::Io { action: "read", path: path.to_owned(), source };
        let ownership = Ownership { is_checked: trust == Trust::Own, is_private: false };
        let opened = open_trusted(path, ownership).map_err(failed)?;
        let total = opened.metadata().map_err(failed)?.len();
        let from = BufReader::new(opened.try_clone().map_err(failed)?);
        let mut archive = Archive { from, offset: 0, total };
        let entries = index(&mut archive).map_err(|error| match archive.failed(path, error) {
            CacheError::Archive { file, offset, reason } => {
                CacheError::CutPack { file, offset, reason }
            }
            other => other,
        })?;
        Ok(Self { path: path.to_owned(), file: opened, entries })
    }

    /// The file, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many entries can be asked for: those with a bad head are left out.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The payload of an entry, if it is there.
    ///
    /// # Errors
    /// When the entry is bad, or can't be read.
    pub fn get(&self, kind: &str, key: &Key) -> Result<Option<Vec<u8>>, CacheError> {
        let Some(place) = self.entries.get(&(kind.to_owned(), *key)) else { return Ok(None) };
        let failed = |source| CacheError::Io { action: "read", path: self.path.clone(), source };
        // No longer than the file was.
        let mut bytes = vec![0; place.bytes as usize];
        self.file.read_exact_at(&mut bytes, place.at).map_err(failed)?;
        let read = read_entry(&mut bytes.as_slice(), place.bytes, place.bytes, &CHECKSUM);
        let read = read.and_then(|(header, payload)| Ok((header.of(kind, key)?, payload)));
        match read {
            Ok((_, payload)) => Ok(Some(payload)),
            Err(ReadError::Io(source)) => Err(failed(source)),
            Err(ReadError::Decode(reason)) => {
                let entry =
                    BadEntry { kind: kind.to_owned(), name: KeyHex(key).to_string(), reason };
                Err(CacheError::Pack { file: self.path.clone(), entry: Box::new(entry) })
            }
        }
    }
}

fn open_trusted(path: &Path, ownership: Ownership) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        let reason = DecodeError::NotAFile.to_string();
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let file = File::open(path)?;
    let facts = file.metadata()?;
    match ownership.refusal(facts.uid(), facts.mode()) {
        None => Ok(file),
        Some(reason) => {
            let advice = "let root or you own it, writable by nobody else, or trust what is shared \
                          (cache.shared, --cache-shared)";
            Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{reason}; {advice}")))
        }
    }
}

/// Where each entry is. One whose head is bad is left out, as nobody can ask for it.
fn index(archive: &mut Archive) -> Result<HashMap<(String, Key), Place>, ImportError> {
    let mut entries = HashMap::new();
    archive.read_start()?;
    for count in 0.. {
        let bytes = u64::from_le_bytes(archive.array()?);
        if bytes == 0 {
            archive.read_end(count)?;
            break;
        }
        archive.check_left(bytes)?;
        let at = archive.offset;
        match read_header(&mut archive.from, bytes, bytes, &CHECKSUM) {
            Ok(header) => {
                entries.insert((header.kind, header.key), Place { at, bytes });
            }
            Err(ReadError::Decode(reason)) => {
                tracing::warn!(%reason, "entry {count} of a pack is bad, and not used");
            }
            Err(ReadError::Io(error)) => return Err(error.into()),
        }
        archive.offset = at + bytes;
        archive.from.seek(SeekFrom::Start(archive.offset))?;
    }
    Ok(entries)
}
