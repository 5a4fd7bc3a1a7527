//! What happened in a cache, for statistics; and each condition warned about once.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::format::DecodeError;

/// The bad entries that are named; further ones are only counted.
const NAMED_BAD_ENTRIES: usize = 64;

/// What happened in one [`Cache`](crate::Cache) since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheEvents {
    /// Entries that were asked for and served.
    pub hits: u64,
    /// Entries asked for and not served, for whatever reason.
    pub misses: u64,
    /// Of the hits, those that came from the remote level.
    pub remote_hits: u64,
    /// Entries that were handed in and are on the disk.
    pub stored: u64,
    /// Entries kept in the remote level.
    pub remote_stored: u64,
    /// Entries not kept because the cache is open for reading only.
    pub not_stored: u64,
    /// Entries removed to make room.
    pub evicted: u64,
    /// Bytes of payload that were served, headers left out.
    pub bytes_read: u64,
    /// Bytes of the entries that were kept, headers included.
    pub bytes_written: u64,
    /// Bytes of entries removed to make room.
    pub bytes_evicted: u64,
    /// Entries that were bad: not served, and set aside under another name where that can be.
    pub quarantined: u64,
    /// The first of the bad ones; further ones are only counted.
    pub bad_entries: Vec<QuarantinedEntry>,
    /// What the cache could not do, each condition once.
    pub conditions: Vec<ConditionReport>,
}

/// An entry that was found bad, and so not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuarantinedEntry {
    /// What it is an entry of: `piece`, `kernel`.
    pub kind: String,
    /// Its file, named by the digits of its key.
    pub name: String,
    /// What of its header or payload does not hold.
    pub reason: String,
}

/// A condition in which a cache can't do all of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Condition {
    /// The directory can't be opened or created, or is not trusted. Nothing is served or kept, until it
    /// can be opened after a pause.
    Unusable,
    /// The directory was removed while in use. Nothing is served or kept, until it is found again after a
    /// pause; it is made by whoever removed it alone.
    Lost,
    /// The directory can't be written. Nothing is kept until it is tried again after a pause.
    NotWritable,
    /// There is no space. Entries are tried again.
    Full,
    /// An entry could not be read. It counts as a miss.
    Read,
    /// An entry could not be written for another reason. Others are tried.
    Write,
    /// An entry is larger than the cache keeps.
    TooLarge,
    /// A bad entry could not be set aside. It counts as a miss each time.
    Quarantine,
    /// The remote level can't be used: it is not built in, not trusted, or no address. The directory
    /// serves alone.
    Remote,
    /// The remote level can't be read. The directory serves alone until it is asked again after a pause.
    RemoteRead,
    /// The remote level can't be written. Entries are kept in the directory alone until it is tried again
    /// after a pause.
    RemoteWrite,
    /// An object of the remote level is larger than an entry can be, or could not be read to its end. It
    /// counts as a miss.
    RemoteObject,
    /// An entry could not be evicted. The cache may grow past its size.
    Evict,
}

/// A condition with what was said of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConditionReport {
    /// What is wrong with the place where entries are kept.
    pub condition: Condition,
    /// What was warned, the first time.
    pub message: String,
    /// How often it came up; only the first time is logged.
    pub times: u64,
}

#[derive(Debug, Default)]
struct Recorded {
    events: CacheEvents,
    bad: BTreeSet<(String, String)>,
}

/// The events of one cache.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Recorded>);

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut CacheEvents)) {
        change(&mut self.lock().events);
    }

    pub(crate) fn condition(&self, dir: &Path, condition: Condition, message: &str) {
        let mut recorded = self.lock();
        let reports = &mut recorded.events.conditions;
        match reports.binary_search_by_key(&condition, |report| report.condition) {
            Ok(at) => reports[at].times += 1,
            Err(at) => {
                tracing::warn!(dir = %dir.display(), "{message}");
                reports.insert(
                    at,
                    ConditionReport { condition, message: message.to_owned(), times: 1 },
                );
            }
        }
    }

    /// Records and warns about a bad entry, the first time.
    pub(crate) fn bad_entry(&self, place: &str, kind: &str, name: &str, reason: &DecodeError) {
        let mut recorded = self.lock();
        if !recorded.bad.insert((kind.to_owned(), name.to_owned())) {
            return;
        }
        recorded.events.quarantined += 1;
        if recorded.events.bad_entries.len() < NAMED_BAD_ENTRIES {
            recorded.events.bad_entries.push(QuarantinedEntry {
                kind: kind.to_owned(),
                name: name.to_owned(),
                reason: reason.to_string(),
            });
        }
        tracing::warn!("the cache entry {place}/{name} is bad: {reason}; it is made again");
    }

    pub(crate) fn events(&self) -> CacheEvents {
        self.lock().events.clone()
    }
}
