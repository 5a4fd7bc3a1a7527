//! Looking at entries: all of them, one, or the nearest to one that is missed.

use std::time::SystemTime;

use serde::Serialize;

use crate::cache::{Cache, Found};
use crate::error::{BadEntry, CacheError};
use crate::factors::{FactorDifference, Factors, differences};
use crate::format::{EncodeError, ReadError};
use crate::key::{Key, KeyHex, is_kind, serialize_key};
use crate::scan::{self, Role};

/// What an entry says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryInfo {
    /// The folder that it is in: `piece`, `kernel`.
    pub kind: String,
    /// Its key; 64 hexadecimal digits when serialized.
    #[serde(serialize_with = "serialize_key")]
    pub key: Key,
    /// What its key was made from.
    pub factors: Factors,
    /// What it takes on the disk, with its header.
    pub bytes: u64,
    /// Length of what was kept, without header and factors.
    pub payload_bytes: u64,
    /// When it was last served or kept, good to an hour.
    pub last_use: SystemTime,
}

/// An entry and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its kind, key and factors.
    pub info: EntryInfo,
    /// What was handed in to be kept, checked by its checksum.
    pub payload: Vec<u8>,
}

/// The entry that is nearest to what was missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nearest {
    /// Where it is and what it was made from.
    pub entry: EntryInfo,
    /// The factors in which it differs, by name. None differ when the keys do but the factors do
    /// not tell why.
    pub differing: Vec<FactorDifference>,
}

impl EntryInfo {
    /// Every factor that is not the same in `wanted` and in the entry, by name.
    pub fn differences(&self, wanted: &[(&str, &str)]) -> Vec<FactorDifference> {
        differences(wanted, &self.factors)
    }

    fn of(found: &Found) -> Self {
        Self {
            kind: found.header.kind.clone(),
            key: found.header.key,
            factors: found.header.factors.clone(),
            bytes: found.facts.bytes,
            payload_bytes: found.header.payload_bytes,
            last_use: found.facts.modified,
        }
    }
}

impl Cache {
    /// Every entry with a sound header, by kind, then by key. Payloads are not read; what is bad is
    /// left out, [`verify`](Self::verify) names it.
    ///
    /// # Errors
    /// When the directory can't be used or listed.
    pub fn entries(&self) -> Result<Vec<EntryInfo>, CacheError> {
        let failed = |error| self.listing_failed(error);
        let (folders, _) = scan::kinds(&*self.root()?).map_err(failed)?;
        let mut entries = Vec::new();
        for folder in &folders {
            for item in scan::items(folder).map_err(failed)? {
                if let Role::Entry(key) = item.role
                    && let Ok(Some(found)) = self.read_head(folder, &item.kind, &key)
                {
                    entries.push(EntryInfo::of(&found));
                }
            }
        }
        Ok(entries)
    }

    /// An entry with its payload, `None` if it is not there. It does not count as used.
    ///
    /// # Errors
    /// When `kind` can't name a folder, the directory can't be used, or the entry is bad, which
    /// this leaves as it is.
    pub fn entry(&self, kind: &str, key: &Key) -> Result<Option<Entry>, CacheError> {
        if !is_kind(kind) {
            return Err(EncodeError::Kind { kind: kind.to_owned() }.into());
        }
        let path = || self.path_of(kind, key);
        let io = |source| CacheError::Io { action: "read", path: path(), source };
        let Some(folder) = self.root()?.child(kind, false).map_err(io)? else { return Ok(None) };
        match self.read(&folder, kind, key) {
            Ok(found) => {
                Ok(found.map(|found| Entry { info: EntryInfo::of(&found), payload: found.payload }))
            }
            Err(ReadError::Io(error)) => Err(io(error)),
            Err(ReadError::Decode(reason)) => {
                let name = KeyHex(key).to_string();
                Err(CacheError::Bad(BadEntry { kind: kind.to_owned(), name, reason }))
            }
        }
    }

    /// The entry of `kind` whose factors differ in the fewest places from `factors`; of several,
    /// the one with the smallest key. `None` if there is no entry of this kind.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    pub fn nearest(
        &self,
        kind: &str,
        factors: &[(&str, &str)],
    ) -> Result<Option<Nearest>, CacheError> {
        let entries = self.entries()?.into_iter().filter(|entry| entry.kind == kind);
        let compared = entries.map(|entry| {
            let differing = differences(factors, &entry.factors);
            Nearest { entry, differing }
        });
        Ok(compared.min_by_key(|nearest| nearest.differing.len()))
    }
}
