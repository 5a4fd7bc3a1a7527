//! Reading every entry in full.

use std::time::SystemTime;

use crate::cache::Cache;
use crate::error::{BadEntry, CacheError};
use crate::format::ReadError;
use crate::scan::{self, Role};

/// What is in the directory, read in full.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Entries whose header and payload fit their checksums.
    pub good_entries: u64,
    /// Bytes on the disk of the sound entries.
    pub good_bytes: u64,
    /// Entries that are not, by kind and name.
    pub bad: Vec<BadEntry>,
    /// Files that were found bad before and set aside.
    pub set_aside: u64,
    /// Temporary files whose writer is gone.
    pub stale: u64,
    /// What the cache has not written, as paths below the directory of entries. It is never read.
    pub foreign: Vec<String>,
    /// What repairing removed: bad entries, those set aside, and stale files.
    pub removed: u64,
    /// What could not be read or removed.
    pub failed: Vec<CacheError>,
}

impl VerifyReport {
    /// Whether a repair has nothing to do.
    pub fn is_clean(&self) -> bool {
        self.is_sound() && self.set_aside == 0 && self.stale == 0
    }

    /// Whether all that would be served is what was kept. What was set aside before and what a writer
    /// left that died is not served, and takes no more than room.
    pub fn is_sound(&self) -> bool {
        self.bad.is_empty() && self.failed.is_empty()
    }
}

impl Cache {
    /// Reads every entry in full and says what is bad. With `repair`, removes it, as well as entries
    /// that were set aside and files whose writer is gone. Nothing counts as used.
    pub fn verify(&self, repair: bool) -> VerifyReport {
        let mut report = VerifyReport::default();
        if let Err(error) = self.verify_into(repair, &mut report) {
            report.failed.push(error);
        }
        report
    }

    fn verify_into(&self, repair: bool, report: &mut VerifyReport) -> Result<(), CacheError> {
        let root = if repair { self.root_to("repair it") } else { self.root() }?;
        let now = SystemTime::now();
        let (folders, foreign) = scan::kinds(&root).map_err(|error| self.listing_failed(error))?;
        report.foreign.extend(foreign.into_iter().map(|item| item.name));
        for folder in &folders {
            for item in scan::items(folder).map_err(|error| self.listing_failed(error))? {
                let is_wrong = match item.role {
                    Role::Entry(key) => match self.read(folder, &item.kind, &key) {
                        Ok(None) => false,
                        Ok(Some(_)) => {
                            report.good_entries += 1;
                            report.good_bytes += item.bytes;
                            false
                        }
                        Err(ReadError::Io(source)) => {
                            let path = folder.path().join(&item.name);
                            report.failed.push(CacheError::Io { action: "read", path, source });
                            false
                        }
                        Err(ReadError::Decode(reason)) => {
                            let (kind, name) = (item.kind.clone(), item.name.clone());
                            report.bad.push(BadEntry { kind, name, reason });
                            true
                        }
                    },
                    Role::SetAside => {
                        report.set_aside += 1;
                        true
                    }
                    Role::Temporary => {
                        report.stale += u64::from(item.is_stale(now));
                        item.is_stale(now)
                    }
                    Role::Foreign => {
                        report.foreign.push(format!("{}/{}", item.kind, item.name));
                        false
                    }
                };
                if repair && is_wrong {
                    match folder.remove(&item.name) {
                        Ok(was_there) => report.removed += u64::from(was_there),
                        Err(source) => {
                            let path = folder.path().join(&item.name);
                            report.failed.push(CacheError::Io { action: "remove", path, source });
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
