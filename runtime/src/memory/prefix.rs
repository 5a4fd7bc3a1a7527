//! Pages by what they hold: rows of ids that an earlier request computed and a later one begins with.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Is called with every change of what the prefix cache holds.
pub type KvObserver = Box<dyn FnMut(&KvEvent) + Send>;

/// What a full page holds: its ids and all before them, which say by themselves what its rows are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize)]
pub struct PageHash(pub [u8; 32]);

impl PageHash {
    /// Of a page with these ids behind the page `parent`; `None` is the start of a text.
    pub fn of(parent: Option<Self>, ids: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&parent.map_or([0; 32], |parent| parent.0));
        for id in ids {
            hasher.update(&id.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// What stands before the first page of texts with this salt: none of their pages is found from
    /// another salt, or from none.
    pub fn of_salt(salt: &str) -> Self {
        Self(blake3::derive_key("piecewise 2026 salt of a prefix cache", salt.as_bytes()))
    }
}

/// A change of what can be found, for routers that send requests to where their prefix is. The names
/// are those of vLLM's events, a block being a page.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub enum KvEvent {
    /// Pages can be found from now on.
    BlockStored {
        /// One page behind the other, by what each and those before it hold.
        hashes: Vec<PageHash>,
        /// The page before the first; `None` at the start of a text.
        parent: Option<PageHash>,
        /// The tokens whose keys and values the pages hold.
        ids: Vec<u32>,
        /// How many ids a page has.
        block_size: u64,
        /// The salt of a text that the first page begins, where it has one.
        salt: Option<String>,
    },
    /// Pages can't be found any more.
    BlockRemoved {
        /// The pages by what they held.
        hashes: Vec<PageHash>,
    },
    /// No page can be found any more.
    AllBlocksCleared,
}

/// Which pages can be found, and which of them nobody uses.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    pages: FxHashMap<PageHash, u32>,
    /// By page; `None` where it can't be found.
    hashes: Vec<Option<PageHash>>,
    /// Pages that nobody uses, the longest unused first.
    idle: BTreeMap<u64, u32>,
    /// When each page was last given back, by page.
    stamps: Vec<u64>,
    clock: u64,
    /// What has changed, where somebody wants to know.
    pub events: Option<Vec<KvEvent>>,
}

impl PrefixCache {
    pub(super) fn new(pages: usize) -> Self {
        let (hashes, stamps) = (vec![None; pages], vec![0; pages]);
        Self {
            pages: FxHashMap::with_capacity_and_hasher(pages, Default::default()),
            hashes,
            stamps,
            ..Self::default()
        }
    }

    /// How many pages can be found.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// How many of them nobody uses.
    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    pub(super) fn find(&self, hash: &PageHash) -> Option<u32> {
        self.pages.get(hash).copied()
    }

    pub(super) fn is_idle(&self, page: u32) -> bool {
        self.idle.get(&self.stamps[page as usize]) == Some(&page)
    }

    /// The page has a user from now on: it is taken for nothing else.
    pub(super) fn begin_use(&mut self, page: u32) {
        if self.is_idle(page) {
            self.idle.remove(&self.stamps[page as usize]);
        }
    }

    /// Nobody uses the page any more. Whether it can be found, and so is to stay as it is.
    pub(super) fn end_use(&mut self, page: u32) -> bool {
        let is_found = self.hashes[page as usize].is_some();
        if is_found {
            self.clock += 1;
            self.stamps[page as usize] = self.clock;
            self.idle.insert(self.clock, page);
        }
        is_found
    }

    /// Lets a page be found that somebody uses, unless another is found by this hash. `salt` is that of
    /// its text.
    pub(super) fn insert(
        &mut self,
        page: u32,
        parent: Option<PageHash>,
        hash: PageHash,
        ids: &[u32],
        salt: Option<&Arc<str>>,
    ) {
        if self.hashes[page as usize].is_some() || self.pages.contains_key(&hash) {
            return;
        }
        self.hashes[page as usize] = Some(hash);
        self.pages.insert(hash, page);
        let Some(events) = &mut self.events else { return };
        if let Some(KvEvent::BlockStored { hashes, ids: stored, .. }) = events.last_mut()
            && hashes.last() == parent.as_ref()
        {
            hashes.push(hash);
            stored.extend_from_slice(ids);
            return;
        }
        let (hashes, ids, block_size) = (vec![hash], ids.to_vec(), ids.len() as u64);
        let salt = salt.filter(|_| parent.is_none()).map(|salt| salt.to_string());
        events.push(KvEvent::BlockStored { hashes, parent, ids, block_size, salt });
    }

    /// Lets the page that nobody has used for longest be found no more.
    pub(super) fn evict(&mut self) -> Option<u32> {
        let (_, page) = self.idle.pop_first()?;
        self.forget(page);
        Some(page)
    }

    /// Lets a page that is not idle be found no more.
    pub(super) fn forget(&mut self, page: u32) {
        let Some(hash) = self.hashes[page as usize].take() else { return };
        self.pages.remove(&hash);
        let Some(events) = &mut self.events else { return };
        match events.last_mut() {
            Some(KvEvent::BlockRemoved { hashes }) => hashes.push(hash),
            _ => events.push(KvEvent::BlockRemoved { hashes: vec![hash] }),
        }
    }

    /// Lets no page be found any more; returns those that nobody uses.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = u32> {
        self.pages.clear();
        self.hashes.fill(None);
        self.events.iter_mut().for_each(|events| events.push(KvEvent::AllBlocksCleared));
        std::mem::take(&mut self.idle).into_values()
    }
}
