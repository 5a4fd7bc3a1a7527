//! The folder of the entries: opened, lost, and opened again.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use crate::folder::{Folder, Ownership};
use crate::format::{Checksum, FORMAT_VERSION};
use crate::options::{CacheAccess, CacheOptions, Trust};
use crate::pause::Pause;

/// Where entries are kept, if it can be used. What could not be opened or was removed is looked for
/// again after a [`Pause`].
#[derive(Debug)]
pub(crate) struct Root {
    found: RwLock<Result<Arc<Folder>, Missing>>,
    again: Pause,
}

/// Why there is no folder.
#[derive(Clone, Debug)]
enum Missing {
    /// It could not be opened.
    Unusable(String),
    /// It was removed while in use. Who removed the cache directory may make it again; nobody else does.
    Lost,
}

impl Missing {
    fn reason(self) -> String {
        match self {
            Self::Unusable(reason) => reason,
            Self::Lost => {
                "it was removed while in use; make it again, and it is used again after a pause"
                    .to_owned()
            }
        }
    }
}

impl Root {
    pub(crate) fn open(options: &CacheOptions, checksum: &Checksum) -> Self {
        let again = Pause::new(options.clock);
        let may_create = options.access == CacheAccess::ReadWrite;
        let opened = open_root(options, checksum, may_create);
        if opened.is_err() {
            again.begin();
        }
        let found = opened.map(Arc::new).map_err(|error| Missing::Unusable(error.to_string()));
        Self { found: RwLock::new(found), again }
    }

    /// The folder, or why it can't be used.
    pub(crate) fn get(
        &self,
        options: &CacheOptions,
        checksum: &Checksum,
    ) -> Result<Arc<Folder>, String> {
        let found = self.found.read().unwrap_or_else(PoisonError::into_inner).clone();
        let missing = match found {
            Ok(folder) => return Ok(folder),
            Err(missing) => missing,
        };
        let Some(attempt) = self.again.attempt() else { return Err(missing.reason()) };
        let is_lost = matches!(missing, Missing::Lost);
        let may_create = !is_lost && options.access == CacheAccess::ReadWrite;
        let opened = open_root(options, checksum, may_create);
        let found = opened.map(Arc::new).map_err(|error| match is_lost {
            true => missing,
            false => Missing::Unusable(error.to_string()),
        });
        self.found.write().unwrap_or_else(PoisonError::into_inner).clone_from(&found);
        match found {
            Ok(folder) => {
                attempt.succeeded();
                Ok(folder)
            }
            Err(missing) => {
                attempt.failed();
                Err(missing.reason())
            }
        }
    }

    /// Notes that a folder that was got from here is gone; whether it is the first to note it.
    pub(crate) fn lose(&self, folder: &Arc<Folder>) -> bool {
        let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
        let is_news = found.as_ref().is_ok_and(|last| Arc::ptr_eq(last, folder));
        if is_news {
            *found = Err(Missing::Lost);
            self.again.begin();
        }
        is_news
    }
}

/// What the folder of a format and a checksum key is called in the cache directory.
pub(crate) fn root_name(checksum: &Checksum) -> String {
    match u64::from_be_bytes(checksum.id()) {
        0 => format!("v{FORMAT_VERSION}"),
        id => format!("v{FORMAT_VERSION}-{id:016x}"),
    }
}

/// Opens the folder; the cache directory is made only where it `may_create` it.
fn open_root(options: &CacheOptions, checksum: &Checksum, may_create: bool) -> io::Result<Folder> {
    let is_own = options.trust == Trust::Own;
    let ownership =
        Ownership { is_checked: is_own && options.checksum_key.is_none(), is_private: is_own };
    let opened = Folder::open(&options.dir, false, ownership);
    let dir = match opened {
        Err(error) if may_create && error.kind() == io::ErrorKind::NotFound => {
            Folder::open(&options.dir, true, ownership)
        }
        opened => opened,
    }?;
    let name = root_name(checksum);
    let root = match dir.child(&name, false)? {
        None if options.access == CacheAccess::ReadWrite => dir.child(&name, true)?,
        root => root,
    };
    root.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("it has no folder {name}")))
}
