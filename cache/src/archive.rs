//! Entries in one file, to carry between machines.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`ARCHIVE_MAGIC`] |
//! | 4 | [`ARCHIVE_VERSION`] |
//! | | for each entry: its length (8), never 0, and its bytes as in [`format`](mod@crate::format) |
//! | 8 | 0 |
//! | 8 | the number of entries |
//!
//! Integers are little-endian; entries come by kind, then by key, so equal entries make equal
//! archives. The archive holds no names: an entry is kept under the kind and key that its own
//! checksum covers, by the same code that keeps any entry. It holds no links and no folders.
//!
//! Who imports an archive trusts who made it, as a checksum that is not keyed can be made by
//! anyone. A cache with a checksum key takes only entries of this key.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::cache::Cache;
use crate::error::{ArchiveFault, CacheError};
use crate::factors::pairs;
use crate::fault::{FaultPoint, reach};
use crate::format::{DecodeError, Header, ReadError, encode_header, read_entry};
use crate::listing::EntryInfo;

/// The first bytes of every archive.
pub const ARCHIVE_MAGIC: [u8; 8] = *b"PWARCHIV";
/// The version of the archive format that this crate reads and writes.
pub const ARCHIVE_VERSION: u32 = 1;

const BEFORE_ENTRIES: u64 = 12;

/// How much of a cache an export took into its archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportReport {
    /// Entries that the archive holds whole.
    pub entries: u64,
    /// The length of the archive, in bytes.
    pub bytes: u64,
    /// Entries that were listed and then bad or gone, and are not in the archive.
    pub skipped: u64,
}

/// What became of each entry of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Entries that are new in the cache.
    pub added: u64,
    /// Entries that the cache had, sound, and kept as they were.
    pub present: u64,
    /// Entries that were not taken; those after them were.
    pub refused: Vec<RefusedEntry>,
}

/// An entry of an archive that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedEntry {
    /// Its place in the archive, from 0.
    pub index: u64,
    /// Why it can not be trusted or read.
    pub reason: DecodeError,
}

impl Cache {
    /// Writes the entries that `filter` accepts to an archive, in place of a file of this name. The
    /// file has its name when it is whole.
    ///
    /// # Errors
    /// When the cache can't be listed or the file can't be written.
    pub fn export(
        &self,
        file: &Path,
        filter: impl Fn(&EntryInfo) -> bool,
    ) -> Result<ExportReport, CacheError> {
        let entries: Vec<_> = self.entries()?.into_iter().filter(filter).collect();
        self.export_entries(file, &entries).map_err(|source| {
            let path = file.to_owned();
            CacheError::Io { action: "write", path, source }
        })
    }

    fn export_entries(&self, file: &Path, entries: &[EntryInfo]) -> io::Result<ExportReport> {
        let folder = match file.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let readable = std::fs::Permissions::from_mode(0o666);
        let temporary = tempfile::Builder::new().permissions(readable).tempfile_in(folder)?;
        let mut report = ExportReport { bytes: BEFORE_ENTRIES + 16, ..ExportReport::default() };
        let mut to = BufWriter::new(temporary.as_file());
        to.write_all(&ARCHIVE_MAGIC)?;
        to.write_all(&ARCHIVE_VERSION.to_le_bytes())?;
        for info in entries {
            let Ok(Some(entry)) = self.entry(&info.kind, &info.key) else {
                report.skipped += 1;
                continue;
            };
            let factors = pairs(&entry.info.factors);
            let (kind, key) = (&entry.info.kind, &entry.info.key);
            let head = encode_header(kind, key, &factors, &entry.payload, &self.checksum)
                .map_err(io::Error::other)?;
            let bytes = head.len() as u64 + entry.payload.len() as u64;
            to.write_all(&bytes.to_le_bytes())?;
            to.write_all(&head)?;
            to.write_all(&entry.payload)?;
            report.entries += 1;
            report.bytes += 8 + bytes;
        }
        to.write_all(&0_u64.to_le_bytes())?;
        to.write_all(&report.entries.to_le_bytes())?;
        to.flush()?;
        drop(to);
        temporary.as_file().sync_all()?;
        temporary.persist(file).map_err(|error| error.error)?;
        Ok(report)
    }

    /// Takes the entries of an archive, each after decoding it in full. An entry that is bad is
    /// refused and the next is read; entries that the cache has are kept.
    ///
    /// # Errors
    /// When the cache can't be written, when the file can't be read, and when the archive itself is
    /// broken. What came before is in the cache; importing again adds the rest.
    pub fn import(&self, file: &Path) -> Result<ImportReport, CacheError> {
        self.root_to("import entries")?;
        let failed = |source| CacheError::Io { action: "read", path: file.to_owned(), source };
        let opened = File::open(file).map_err(failed)?;
        let facts = opened.metadata().map_err(failed)?;
        if !facts.is_file() {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(failed(source));
        }
        let total = facts.len();
        let mut archive = Archive { from: BufReader::new(opened), offset: 0, total };
        self.import_entries(&mut archive).map_err(|error| archive.failed(file, error))
    }

    fn import_entries(&self, archive: &mut Archive) -> Result<ImportReport, ImportError> {
        let mut report = ImportReport::default();
        archive.read_start()?;
        for index in 0.. {
            match archive.array().map(u64::from_le_bytes)? {
                0 => {
                    archive.read_end(index)?;
                    break;
                }
                bytes => match self.read_archived(archive, bytes)? {
                    Err(reason) => report.refused.push(RefusedEntry { index, reason }),
                    Ok((header, payload)) if self.take(&header, &payload)? => report.added += 1,
                    Ok(_) => report.present += 1,
                },
            }
        }
        Ok(report)
    }

    /// The entry in the next `bytes` of the archive, which are read to their end in any case.
    fn read_archived(
        &self,
        archive: &mut Archive,
        bytes: u64,
    ) -> Result<Result<(Header, Vec<u8>), DecodeError>, ImportError> {
        archive.check_left(bytes)?;
        let mut entry = (&mut archive.from).take(bytes);
        let cap = self.options.max_entry_bytes;
        let decoded = read_entry(&mut entry, bytes, cap, &self.checksum);
        io::copy(&mut entry, &mut io::sink())?;
        archive.offset += bytes;
        match decoded {
            Ok(entry) => Ok(Ok(entry)),
            Err(ReadError::Decode(reason)) => Ok(Err(reason)),
            Err(ReadError::Io(error)) => Err(ImportError::Io(error)),
        }
    }

    /// Keeps an entry that the cache does not have; whether it did not.
    fn take(&self, header: &Header, payload: &[u8]) -> Result<bool, ImportError> {
        if self.find(&header.kind, &header.key)?.is_some() {
            return Ok(false);
        }
        reach(self.options.fault.as_ref(), FaultPoint::Import)?;
        let factors = pairs(&header.factors);
        self.put(&header.kind, &header.key, &factors, payload)?;
        Ok(true)
    }
}

#[derive(derive_more::From)]
pub(crate) enum ImportError {
    Io(io::Error),
    Archive(ArchiveFault),
    Cache(CacheError),
}

/// An archive up to where it was read, in bytes from its beginning.
pub(crate) struct Archive {
    pub(crate) from: BufReader<File>,
    pub(crate) offset: u64,
    pub(crate) total: u64,
}

impl Archive {
    /// What is told of an archive that can't be read on.
    pub(crate) fn failed(&self, file: &Path, error: ImportError) -> CacheError {
        let reason = match error {
            ImportError::Cache(error) => return error,
            ImportError::Io(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                return CacheError::Io { action: "read", path: file.to_owned(), source };
            }
            ImportError::Io(_) => ArchiveFault::Truncated,
            ImportError::Archive(reason) => reason,
        };
        CacheError::Archive { file: file.to_owned(), offset: self.offset, reason }
    }

    /// That an entry of so many bytes fits into what is left.
    pub(crate) fn check_left(&self, bytes: u64) -> Result<(), ArchiveFault> {
        let left = self.total.saturating_sub(self.offset);
        if bytes > left { Err(ArchiveFault::Length { stated: bytes, left }) } else { Ok(()) }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        self.offset += N as u64;
        Ok(bytes)
    }

    pub(crate) fn read_start(&mut self) -> Result<(), ImportError> {
        if self.array()? != ARCHIVE_MAGIC {
            return Err(ArchiveFault::Magic.into());
        }
        match u32::from_le_bytes(self.array()?) {
            ARCHIVE_VERSION => Ok(()),
            found => Err(ArchiveFault::Version { found, expected: ARCHIVE_VERSION }.into()),
        }
    }

    pub(crate) fn read_end(&mut self, found: u64) -> Result<(), ImportError> {
        let stated = u64::from_le_bytes(self.array()?);
        if stated != found {
            return Err(ArchiveFault::Count { stated, found }.into());
        }
        match self.total.saturating_sub(self.offset) {
            0 => Ok(()),
            bytes => Err(ArchiveFault::Trailing { bytes }.into()),
        }
    }
}
