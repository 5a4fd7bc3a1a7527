//! Opening a cache, getting and keeping entries.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::error::CacheError;
use crate::events::{CacheEvents, Condition, Recorder};
use crate::fault::{FaultPoint, reach};
use crate::folder::{self, FileFacts, Folder, Opened};
use crate::format::{
    Checksum, DecodeError, EncodeError, Header, ReadError, encode_header, read_header, read_payload,
};
use crate::key::{Key, KeyHex, is_kind};
use crate::options::{CacheAccess, CacheOptions};
use crate::pause::{Attempt, Pause};
use crate::remote::Remote;
use crate::root::{Root, root_name};
use crate::scan::{SET_ASIDE, TEMPORARY};
use crate::usage::Usage;

/// The time of last use is good to this: most hits change nothing on the disk.
const LAST_USE_IS_GOOD_TO: Duration = Duration::from_secs(60 * 60);

/// A store of payloads by kind and key in one directory, shared with other threads by reference and
/// with other processes without a lock.
#[derive(Debug)]
pub struct Cache {
    pub(crate) options: CacheOptions,
    pub(crate) checksum: Checksum,
    pub(crate) recorder: Recorder,
    pub(crate) usage: Mutex<Option<Usage>>,
    pub(crate) remote: Option<Remote>,
    root: Root,
    /// Of writing to the directory.
    writes: Pause,
    temporaries: AtomicU64,
}

/// A sound entry and its open file.
pub(crate) struct Found {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    pub(crate) facts: FileFacts,
    file: File,
}

impl Cache {
    /// Opens the cache, whatever is there. What can't be used is warned about and recorded in
    /// [`events`](Self::events); then nothing is served and nothing kept, until it can be used after a
    /// [`Pause`](crate::Pause).
    pub fn open(options: CacheOptions) -> Self {
        let checksum = Checksum::new(options.checksum_key);
        let recorder = Recorder::default();
        let root = Root::open(&options, &checksum);
        if let Err(reason) = root.get(&options, &checksum) {
            let dir = &options.dir;
            let message = format!("the cache in {} is not used: {reason}", dir.display());
            recorder.condition(dir, Condition::Unusable, &message);
        }
        let remote = open_remote(&options, &recorder);
        let writes = Pause::new(options.clock);
        Self {
            options,
            checksum,
            recorder,
            remote,
            root,
            writes,
            usage: Mutex::default(),
            temporaries: AtomicU64::new(0),
        }
    }

    /// Where the entries are, as it was opened.
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// Where an entry of `kind` and `key` is, or would be.
    pub fn path_of(&self, kind: &str, key: &Key) -> PathBuf {
        let root = self.options.dir.join(root_name(&self.checksum));
        root.join(kind).join(KeyHex(key).to_string())
    }

    /// The payload that was kept under `kind` and `key`, if it is there and sound. A bad entry is
    /// warned about by name, set aside, and a miss.
    ///
    /// # Errors
    /// When `kind` can't name a folder, and when the operating system can't tell.
    pub fn get(&self, kind: &str, key: &Key) -> Result<Option<Vec<u8>>, CacheError> {
        if !is_kind(kind) {
            return Err(EncodeError::Kind { kind: kind.to_owned() }.into());
        }
        let found = match self.find(kind, key) {
            Ok(Some(found)) => {
                self.mark_used(&found);
                Ok(Some(found.payload))
            }
            nothing => match self.fetch(kind, key) {
                Some(payload) => Ok(Some(payload)),
                None => nothing.map(|_| None),
            },
        };
        self.recorder.count(|events| match &found {
            Ok(Some(payload)) => {
                events.hits += 1;
                events.bytes_read += payload.len() as u64;
            }
            Ok(None) | Err(_) => events.misses += 1,
        });
        found
    }

    /// Keeps `payload` under `kind` and `key`, in place of what was there. `factors` are what the
    /// key was made from, by name, to explain a later miss.
    ///
    /// # Errors
    /// When the entry was not kept, but for a cache that is open for reading only, where this is
    /// what was asked for.
    pub fn put(
        &self,
        kind: &str,
        key: &Key,
        factors: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<(), CacheError> {
        let head = encode_header(kind, key, factors, payload, &self.checksum)?;
        if self.options.access == CacheAccess::ReadOnly {
            self.recorder.count(|events| events.not_stored += 1);
            return Ok(());
        }
        self.send(kind, key, &head, payload);
        self.keep(kind, key, &head, payload)
    }

    /// Keeps an encoded entry in the directory.
    pub(crate) fn keep(
        &self,
        kind: &str,
        key: &Key,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), CacheError> {
        let bytes = head.len() as u64 + payload.len() as u64;
        self.check_size(kind, key, bytes, payload.len() as u64)?;
        let root = self.root()?;
        let attempt = self.writes.attempt().ok_or_else(|| self.not_writable())?;
        let name = KeyHex(key).to_string();
        let written = self.write(&root, kind, &name, head, payload).or_else(|error| {
            // Someone else may have cleared the folder under the writer.
            let is_swept = error.kind() == io::ErrorKind::NotFound && !root.is_gone();
            if is_swept { self.write(&root, kind, &name, head, payload) } else { Err(error) }
        });
        if let Err(error) = written {
            return Err(self.write_failed(&root, attempt, self.path_of(kind, key), error));
        }
        attempt.succeeded();
        self.recorder.count(|events| {
            events.stored += 1;
            events.bytes_written += bytes;
        });
        self.make_room(&root, kind, &name, bytes);
        Ok(())
    }

    /// Sees whether entries of `kind` can be kept, for whoever would rather know before the work of
    /// making one: a file is made and removed again. Nothing is warned about or recorded.
    ///
    /// # Errors
    /// When no entry could be kept.
    pub fn check_writable(&self, kind: &str) -> Result<(), CacheError> {
        let folder = self.root_to("keep entries")?.child(kind, true);
        let tried = folder.and_then(|folder| {
            let folder = folder.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            let (name, _) = self.create_temporary(&folder)?;
            folder.remove(&name)
        });
        let path = self.options.dir.join(root_name(&self.checksum)).join(kind);
        tried.map(drop).map_err(|source| CacheError::Io { action: "write", path, source })
    }

    /// What happened since the cache was opened.
    pub fn events(&self) -> CacheEvents {
        self.recorder.events()
    }

    /// The folder of the entries, if it can be used.
    pub(crate) fn root(&self) -> Result<Arc<Folder>, CacheError> {
        self.root.get(&self.options, &self.checksum).map_err(|reason| self.unusable(reason))
    }

    fn unusable(&self, reason: String) -> CacheError {
        CacheError::Unusable { dir: self.options.dir.clone(), reason }
    }

    fn not_writable(&self) -> CacheError {
        let reason = "it can't be written, as was warned before; it is tried again after a pause";
        self.unusable(reason.to_owned())
    }

    /// The folder of the entries, if it can be used and no pause of writing is on.
    pub(crate) fn writable_root(&self) -> Result<Arc<Folder>, CacheError> {
        if self.writes.is_on() { Err(self.not_writable()) } else { self.root() }
    }

    /// As [`root`](Self::root), for what changes the cache on request.
    pub(crate) fn root_to(&self, action: &'static str) -> Result<Arc<Folder>, CacheError> {
        if self.options.access == CacheAccess::ReadOnly {
            return Err(CacheError::ReadOnly { dir: self.options.dir.clone(), action });
        }
        self.root()
    }

    /// Reads an entry in full; a bad one is set aside.
    pub(crate) fn find(&self, kind: &str, key: &Key) -> Result<Option<Found>, CacheError> {
        let Ok(root) = self.root() else { return Ok(None) };
        let failed = |error| self.read_failed(self.path_of(kind, key), error);
        let Some(folder) = root.child(kind, false).map_err(failed)? else {
            self.notice_loss(&root);
            return Ok(None);
        };
        // Read again before it is called bad: another process may have just made it anew.
        let read = match self.read(&folder, kind, key) {
            Err(ReadError::Decode(_)) => reach(self.options.fault.as_ref(), FaultPoint::Reread)
                .map_err(ReadError::Io)
                .and_then(|()| self.read(&folder, kind, key)),
            read => read,
        };
        match read {
            Ok(found) => Ok(found),
            Err(ReadError::Io(error)) => Err(failed(error)),
            Err(ReadError::Decode(reason)) => {
                self.set_aside(&folder, kind, &KeyHex(key).to_string(), &reason);
                Ok(None)
            }
        }
    }

    /// Reads an entry in full and changes nothing.
    pub(crate) fn read(
        &self,
        folder: &Folder,
        kind: &str,
        key: &Key,
    ) -> Result<Option<Found>, ReadError> {
        let Some(mut opened) = self.read_head(folder, kind, key)? else { return Ok(None) };
        opened.payload = read_payload(&mut opened.file, &opened.header, &self.checksum)?;
        Ok(Some(opened))
    }

    /// Reads all of an entry but its payload.
    pub(crate) fn read_head(
        &self,
        folder: &Folder,
        kind: &str,
        key: &Key,
    ) -> Result<Option<Found>, ReadError> {
        let name = KeyHex(key).to_string();
        let (mut file, facts) = match folder.read(&name).map_err(ReadError::Io)? {
            None => return Ok(None),
            Some(Opened::NotAFile) => return Err(DecodeError::NotAFile.into()),
            Some(Opened::File(file, facts)) => (file, facts),
        };
        let cap = self.options.max_entry_bytes;
        let header = read_header(&mut file, facts.bytes, cap, &self.checksum)?.of(kind, key)?;
        Ok(Some(Found { header, payload: Vec::new(), facts, file }))
    }

    /// Gives a bad entry another name.
    pub(crate) fn set_aside(&self, folder: &Folder, kind: &str, name: &str, reason: &DecodeError) {
        let place = folder.path().display().to_string();
        self.recorder.bad_entry(&place, kind, name, reason);
        if self.options.access == CacheAccess::ReadOnly || self.writes.is_on() {
            return;
        }
        if let Err(error) = folder.rename(name, &format!("{name}{SET_ASIDE}"))
            && error.kind() != io::ErrorKind::NotFound
        {
            let path = folder.path().join(name);
            let message = format!("could not set aside {}: {error}", path.display());
            self.condition(Condition::Quarantine, &message);
        }
    }

    pub(crate) fn condition(&self, condition: Condition, message: &str) {
        self.recorder.condition(&self.options.dir, condition, message);
    }

    fn mark_used(&self, found: &Found) {
        let age = SystemTime::now().duration_since(found.facts.modified);
        let is_recent = age.is_ok_and(|age| age < LAST_USE_IS_GOOD_TO);
        if self.options.access == CacheAccess::ReadWrite && !is_recent {
            // In a shared directory others' entries may not be ours to touch: they age from their
            // making then.
            folder::touch(&found.file).ok();
        }
    }

    fn check_size(&self, kind: &str, key: &Key, all: u64, payload: u64) -> Result<(), CacheError> {
        let cap = self.options.max_bytes.unwrap_or(u64::MAX);
        if all <= cap && payload <= self.options.max_entry_bytes {
            return Ok(());
        }
        let cap = cap.min(self.options.max_entry_bytes);
        let error = CacheError::TooLarge { kind: kind.to_owned(), key: *key, bytes: all, cap };
        self.condition(Condition::TooLarge, &error.to_string());
        Err(error)
    }

    fn write(
        &self,
        root: &Folder,
        kind: &str,
        name: &str,
        head: &[u8],
        payload: &[u8],
    ) -> io::Result<()> {
        let created = root.child(kind, true)?;
        let folder = created.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let (temporary, mut file) = self.create_temporary(&folder)?;
        let written = self.write_synced(&mut file, head, payload).and_then(|()| {
            reach(self.options.fault.as_ref(), FaultPoint::Rename)?;
            folder.rename(&temporary, name)
        });
        if written.is_err() {
            // The first error is the one to report.
            folder.remove(&temporary).ok();
        }
        written
    }

    fn write_synced(&self, file: &mut File, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let fault = self.options.fault.as_ref();
        let (first, second) = payload.split_at(payload.len() / 2);
        file.write_all(head)?;
        file.write_all(first)?;
        reach(fault, FaultPoint::Write)?;
        file.write_all(second)?;
        reach(fault, FaultPoint::Sync)?;
        file.sync_all()
    }

    fn create_temporary(&self, folder: &Folder) -> io::Result<(String, File)> {
        let process = std::process::id();
        loop {
            let number = self.temporaries.fetch_add(1, Ordering::Relaxed);
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let nanoseconds = now.unwrap_or_default().as_nanos();
            let name = format!("{TEMPORARY}{process}-{nanoseconds:x}-{number}");
            match folder.create_new(&name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created.map(|file| (name, file)),
            }
        }
    }

    fn notice_loss(&self, root: &Arc<Folder>) -> bool {
        let is_lost = root.is_gone();
        if is_lost && self.root.lose(root) {
            let dir = self.options.dir.display();
            let message = format!("the cache in {dir} was removed while in use; going on without");
            self.condition(Condition::Lost, &message);
        }
        is_lost
    }

    fn read_failed(&self, path: PathBuf, source: io::Error) -> CacheError {
        let error = CacheError::Io { action: "read", path, source };
        self.condition(Condition::Read, &error.to_string());
        error
    }

    fn write_failed(
        &self,
        root: &Arc<Folder>,
        attempt: Attempt<'_>,
        path: PathBuf,
        source: io::Error,
    ) -> CacheError {
        if source.kind() == io::ErrorKind::NotFound
            && self.notice_loss(root)
            && let Err(lost) = self.root()
        {
            return lost;
        }
        let condition = match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                attempt.failed();
                Condition::NotWritable
            }
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Condition::Full,
            _ => Condition::Write,
        };
        let error = CacheError::Io { action: "write", path, source };
        self.condition(condition, &error.to_string());
        error
    }
}

fn open_remote(options: &CacheOptions, recorder: &Recorder) -> Option<Remote> {
    let remote = options.remote.as_ref()?;
    let opened = Remote::open(remote, options.checksum_key.is_some(), options.clock);
    let reason = match opened {
        Ok(opened) => return Some(opened),
        Err(reason) => reason,
    };
    let message = format!("the remote cache level is not used: {reason}");
    recorder.condition(&options.dir, Condition::Remote, &message);
    None
}
