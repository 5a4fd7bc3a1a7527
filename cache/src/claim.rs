//! The right to make an entry, so that of all processes that share a directory one makes it.
//!
//! A claim is an advisory lock on a file beside the entries: it ends with the process that has it,
//! however that ends. Entries are read and written without any; who makes one without a claim costs
//! time and nothing else.

use std::fs::{File, TryLockError};
use std::io;

use crate::cache::Cache;
use crate::folder::{self, Folder};
use crate::key::{Key, KeyHex, is_kind};
use crate::options::CacheAccess;
use crate::scan::TEMPORARY;

/// What becomes of a wish to make an entry.
#[derive(Debug)]
pub enum Claim {
    /// It is granted, until this is dropped.
    Mine(ClaimGuard),
    /// The entry is there by now.
    Made,
    /// Another process, or another thread of this one, is making it.
    Taken,
}

/// The right to make an entry; given back when dropped, at the latest with the process.
#[derive(Debug, Default)]
pub struct ClaimGuard {
    /// `None` where nobody else can be told.
    held: Option<(File, Folder, String)>,
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if let Some((_file, folder, name)) = self.held.take() {
            // Under the lock: who opened it before sees that it is gone and opens another.
            folder.remove(&name).ok();
        }
    }
}

impl Cache {
    /// Asks for the right to make the entry of `kind` and `key`, which was not there. Never waits.
    /// Where entries are not kept, or the file system has no locks, everybody has it.
    pub fn claim(&self, kind: &str, key: &Key) -> Claim {
        if self.options.access == CacheAccess::ReadOnly || !is_kind(kind) {
            return Claim::Mine(ClaimGuard::default());
        }
        self.try_claim(kind, &KeyHex(key).to_string()).unwrap_or_else(|error| {
            let dir = self.options.dir.display();
            tracing::debug!("nothing can be claimed in the cache in {dir}: {error}");
            Claim::Mine(ClaimGuard::default())
        })
    }

    fn try_claim(&self, kind: &str, entry: &str) -> io::Result<Claim> {
        let root = self.writable_root().map_err(io::Error::other)?;
        let name = format!("{TEMPORARY}claim-{entry}");
        loop {
            let folder = root.child(kind, true)?;
            let folder = folder.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            let file = folder.open_or_create(&name)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Claim::Taken),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if folder::is_removed(&file)? {
                continue;
            }
            let is_made = folder.facts(entry)?.is_some();
            let guard = ClaimGuard { held: Some((file, folder, name)) };
            return Ok(if is_made { Claim::Made } else { Claim::Mine(guard) });
        }
    }
}
