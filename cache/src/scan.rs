//! Everything that is in a cache directory, by what its name says.

use std::io;
use std::time::{Duration, SystemTime};

use crate::folder::Folder;
use crate::key::{Key, is_kind, parse_key};

/// The first of a temporary file's name.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// The end of a bad entry's name.
pub(crate) const SET_ASIDE: &str = ".bad";

/// A temporary file of this age has no writer any longer.
const WRITERS_ARE_DONE_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// What a name in a folder of entries says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Entry(Key),
    SetAside,
    Temporary,
    /// Nothing that the cache writes; never touched.
    Foreign,
}

/// One name in one folder.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
}

impl Item {
    /// Whether no process can be writing this any longer. A time in the future is another clock's.
    pub(crate) fn is_stale(&self, now: SystemTime) -> bool {
        let apart = now.duration_since(self.modified).unwrap_or_else(|early| early.duration());
        self.role == Role::Temporary && apart > WRITERS_ARE_DONE_AFTER
    }
}

fn role(name: &str) -> Role {
    if let Some(key) = parse_key(name) {
        Role::Entry(key)
    } else if name.strip_suffix(SET_ASIDE).is_some_and(|name| parse_key(name).is_some()) {
        Role::SetAside
    } else if name.starts_with(TEMPORARY) {
        Role::Temporary
    } else {
        Role::Foreign
    }
}

/// The folders of entries in `root`, by kind, and the names that are none.
pub(crate) fn kinds(root: &Folder) -> io::Result<(Vec<Folder>, Vec<Item>)> {
    let mut folders = Vec::new();
    let mut foreign = Vec::new();
    for name in root.names()? {
        let child = if is_kind(&name) { root.child(&name, false).ok().flatten() } else { None };
        match child {
            Some(folder) => folders.push(folder),
            None => {
                let facts = root.facts(&name)?;
                foreign.extend(facts.map(|facts| Item {
                    kind: String::new(),
                    name,
                    role: Role::Foreign,
                    bytes: facts.bytes,
                    modified: facts.modified,
                }));
            }
        }
    }
    Ok((folders, foreign))
}

/// Everything in a folder of entries, by name. What vanishes meanwhile is left out.
pub(crate) fn items(folder: &Folder) -> io::Result<Vec<Item>> {
    let kind = folder.name();
    let mut items = Vec::new();
    for name in folder.names()? {
        if let Some(facts) = folder.facts(&name)? {
            let role = role(&name);
            let kind = kind.clone();
            items.push(Item { kind, name, role, bytes: facts.bytes, modified: facts.modified });
        }
    }
    Ok(items)
}
