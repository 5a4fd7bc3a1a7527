//! Keeping the cache within its size: the least recently used go first.

use std::io;
use std::sync::PoisonError;
use std::time::SystemTime;

use serde::Serialize;

use crate::cache::Cache;
use crate::error::CacheError;
use crate::events::Condition;
use crate::fault::{FaultPoint, reach};
use crate::folder::Folder;
use crate::scan::{self, Item, Role};
use crate::usage::Usage;

/// The directory is looked through again when this share of the bound was written: other processes
/// write too.
const LOOK_AGAIN_AFTER_SHARE: u64 = 16;

/// The share of the bound that is freed at once, so that not every entry evicts one.
const FREED_SHARE: u64 = 10;

/// What was removed and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Entries that are gone: the least recently used ones, or all where it was cleared.
    pub removed_entries: u64,
    /// Bad entries and temporary files that were removed.
    pub removed_leftovers: u64,
    /// What both took on the disk.
    pub removed_bytes: u64,
    /// Entries that are still served, those that could not be removed among them.
    pub kept_entries: u64,
    /// Bytes on the disk of the entries that are left.
    pub kept_bytes: u64,
    /// Files that could not be removed, and still take their bytes.
    pub failed: u64,
}

/// What a sweep removes beside entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leftovers {
    /// Temporary files whose writer is gone.
    Stale,
    /// These and bad entries that were set aside.
    StaleAndBad,
    /// Every temporary file and bad entry. A writer whose temporary file goes writes it again.
    All,
}

impl Cache {
    /// Removes bad entries and temporary files, then the least recently used entries until the rest
    /// takes at most `max_bytes`. A process that is reading a removed entry reads it to its end.
    ///
    /// # Errors
    /// When the cache is open for reading only, or its directory can't be used or listed.
    pub fn gc(&self, max_bytes: u64) -> Result<GcReport, CacheError> {
        let root = self.root_to("remove entries")?;
        self.sweep(&root, max_bytes, Leftovers::All, None)
            .map_err(|error| self.listing_failed(error))
    }

    /// Removes every entry of this cache's format and checksum key, bad entries and temporary files.
    /// What the cache has not written stays.
    ///
    /// # Errors
    /// As [`gc`](Self::gc).
    pub fn clear(&self) -> Result<GcReport, CacheError> {
        self.gc(0)
    }

    pub(crate) fn listing_failed(&self, source: io::Error) -> CacheError {
        let error = CacheError::Io { action: "list", path: self.options.dir.clone(), source };
        self.condition(Condition::Read, &error.to_string());
        error
    }

    /// Evicts when the entry of `bytes` that was just written exceeds the bound.
    pub(crate) fn make_room(&self, root: &Folder, kind: &str, name: &str, bytes: u64) {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let bound = self.options.max_bytes.unwrap_or(u64::MAX);
        if let Some(usage) = usage.as_mut() {
            usage.bytes += bytes;
            usage.written_since += bytes;
            let is_known = usage.written_since <= bound / LOOK_AGAIN_AFTER_SHARE;
            if is_known && (usage.is_stuck || usage.bytes <= bound) {
                return;
            }
        }
        let swept = self.sweep_to_fit(root, bound, (kind, name));
        match swept {
            Ok(report) => {
                let is_stuck = report.failed > 0 && report.kept_bytes > bound;
                *usage = Some(Usage { bytes: report.kept_bytes, written_since: 0, is_stuck });
            }
            Err(error) => {
                let dir = self.options.dir.display();
                let message = format!("could not look for entries to evict in {dir}: {error}");
                self.condition(Condition::Evict, &message);
            }
        }
    }

    fn sweep_to_fit(&self, root: &Folder, bound: u64, keep: (&str, &str)) -> io::Result<GcReport> {
        let report = self.sweep(root, u64::MAX, Leftovers::Stale, Some(keep))?;
        if report.kept_bytes <= bound {
            return Ok(report);
        }
        let report =
            self.sweep(root, bound - bound / FREED_SHARE, Leftovers::StaleAndBad, Some(keep))?;
        self.recorder.count(|events| {
            events.evicted += report.removed_entries;
            events.bytes_evicted += report.removed_bytes;
        });
        Ok(report)
    }

    fn sweep(
        &self,
        root: &Folder,
        max_bytes: u64,
        leftovers: Leftovers,
        keep: Option<(&str, &str)>,
    ) -> io::Result<GcReport> {
        let now = SystemTime::now();
        let mut report = GcReport::default();
        let mut entries: Vec<(Item, usize)> = Vec::new();
        let (folders, _) = scan::kinds(root)?;
        for (i, folder) in folders.iter().enumerate() {
            for item in scan::items(folder)? {
                match item.role {
                    Role::Entry(_) => entries.push((item, i)),
                    Role::Foreign => {}
                    Role::Temporary | Role::SetAside => {
                        let is_due = match leftovers {
                            Leftovers::Stale => item.is_stale(now),
                            Leftovers::StaleAndBad => {
                                item.role == Role::SetAside || item.is_stale(now)
                            }
                            Leftovers::All => true,
                        };
                        if is_due {
                            let was_there = self.remove(folder, &item, &mut report);
                            report.removed_leftovers += u64::from(was_there == Some(true));
                        }
                    }
                }
            }
        }
        entries.sort_by(|(a, _), (b, _)| {
            (a.modified, &a.kind, &a.name).cmp(&(b.modified, &b.kind, &b.name))
        });
        let mut left: u64 = entries.iter().map(|(item, _)| item.bytes).sum();
        for (item, folder) in &entries {
            let is_kept = keep == Some((&item.kind, &item.name));
            if (left > max_bytes || max_bytes == 0) && !is_kept {
                reach(self.options.fault.as_ref(), FaultPoint::Evict)?;
                if let Some(was_there) = self.remove(&folders[*folder], item, &mut report) {
                    left -= item.bytes;
                    report.removed_entries += u64::from(was_there);
                    continue;
                }
            }
            report.kept_entries += 1;
            report.kept_bytes += item.bytes;
        }
        Ok(report)
    }

    /// Removes a file; whether it was there, or `None` where it still is.
    fn remove(&self, folder: &Folder, item: &Item, report: &mut GcReport) -> Option<bool> {
        let reached = reach(self.options.fault.as_ref(), FaultPoint::Remove);
        match reached.and_then(|()| folder.remove(&item.name)) {
            Ok(was_there) => {
                report.removed_bytes += if was_there { item.bytes } else { 0 };
                Some(was_there)
            }
            Err(error) => {
                let path = folder.path().join(&item.name);
                let message = format!("could not remove {}: {error}", path.display());
                self.condition(Condition::Evict, &message);
                report.failed += 1;
                None
            }
        }
    }
}
