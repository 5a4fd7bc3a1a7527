//! The pool: pages that are free, used, or found by what they hold.

use super::prefix::{KvEvent, PageHash, PrefixCache};
use piecewise_kernels::attention::PAGE_ROWS;
use std::sync::Arc;

/// The use of a page. It can't be copied, so each use is given back once. A page that is used more
/// than once is full and computed: nobody writes it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Page(u32);

impl Page {
    /// Its number: it holds rows `number * PAGE_ROWS ..` of the pool.
    pub fn number(&self) -> u32 {
        self.0
    }
}

/// There are not enough free pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the KV pool has {free} of {pages} pages free, but {wanted} are wanted; raise memory_budget, \
     or lower max_num_seqs or max_seq_len"
)]
pub struct PoolFull {
    /// How many pages are wanted.
    pub wanted: usize,
    /// Pages that nobody held when it was asked.
    pub free: usize,
    /// Free and held ones together.
    pub pages: usize,
}

/// Pages of [`PAGE_ROWS`] rows. One that nobody uses is free, whether it holds nothing or what a
/// later request may begin with; of those, the one unused for longest goes first.
#[derive(Debug)]
pub struct PagePool {
    blank: Vec<Page>,
    /// How many use each page.
    users: Vec<u32>,
    cache: PrefixCache,
}

impl PagePool {
    /// A pool over `rows` rows; a rest that fills no page stays unused.
    pub fn new(rows: u64) -> Self {
        let pages = u32::try_from(rows / PAGE_ROWS).unwrap_or(u32::MAX);
        let users = vec![0; pages as usize];
        let cache = PrefixCache::new(pages as usize);
        Self { blank: (0..pages).rev().map(Page).collect(), users, cache }
    }

    /// Free and held ones together.
    pub fn pages(&self) -> usize {
        self.users.len()
    }

    /// How many pages nobody uses.
    pub fn free_pages(&self) -> usize {
        self.blank.len() + self.cache.idle()
    }

    /// Of the free pages, those that hold nothing, in no order that means anything.
    pub fn blank(&self) -> impl ExactSizeIterator<Item = &Page> {
        self.blank.iter()
    }

    /// How many pages are found by what they hold, used or free.
    pub fn cached_pages(&self) -> usize {
        self.cache.pages()
    }

    /// How many use a page.
    pub fn users(&self, page: &Page) -> u32 {
        self.users[page.0 as usize]
    }

    /// Takes `count` pages that hold nothing, all or none, into `to`.
    ///
    /// # Errors
    /// When fewer are free.
    pub fn take(&mut self, count: usize, to: &mut Vec<Page>) -> Result<(), PoolFull> {
        let free = self.free_pages();
        if count > free {
            return Err(PoolFull { wanted: count, free, pages: self.pages() });
        }
        while self.blank.len() < count
            && let Some(page) = self.cache.evict()
        {
            self.blank.push(Page(page));
        }
        let taken = self.blank.drain(self.blank.len() - count..).rev();
        to.extend(taken.inspect(|page| self.users[page.0 as usize] = 1));
        Ok(())
    }

    /// Takes uses of pages back; of what can be found, the last goes first.
    pub fn give_back(&mut self, pages: impl DoubleEndedIterator<Item = Page>) {
        for page in pages.rev() {
            let users = &mut self.users[page.0 as usize];
            *users -= 1;
            if *users == 0 && !self.cache.end_use(page.0) {
                self.blank.push(page);
            }
        }
    }

    /// How many of these pages, which follow one another, can be found, and how many of those are free.
    pub(crate) fn find(&self, hashes: &[PageHash]) -> (usize, usize) {
        let found = hashes.iter().map_while(|hash| self.cache.find(hash));
        found.fold((0, 0), |(found, free), page| {
            (found + 1, free + usize::from(self.cache.is_idle(page)))
        })
    }

    /// Takes these pages, which follow one another, into `to`, as far as they are found.
    pub(crate) fn share(&mut self, hashes: &[PageHash], to: &mut Vec<Page>) {
        for hash in hashes {
            let Some(page) = self.cache.find(hash) else { break };
            self.cache.begin_use(page);
            self.users[page as usize] += 1;
            to.push(Page(page));
        }
    }

    /// Lets pages be found that are computed: those of `hashes` with `ids`, behind the page `parent` of a
    /// text with this salt.
    pub(crate) fn publish(
        &mut self,
        pages: &[Page],
        mut parent: Option<PageHash>,
        hashes: &[PageHash],
        ids: &[u32],
        salt: Option<&Arc<str>>,
    ) {
        for ((page, &hash), ids) in pages.iter().zip(hashes).zip(ids.chunks(PAGE_ROWS as usize)) {
            self.cache.insert(page.0, parent, hash, ids, salt);
            parent = Some(hash);
        }
    }

    /// Lets pages be found no more.
    pub(crate) fn forget(&mut self, pages: &[Page]) {
        pages.iter().for_each(|page| self.cache.forget(page.0));
    }

    /// Lets no page be found any more.
    pub(crate) fn forget_all(&mut self) {
        self.blank.extend(self.cache.clear().map(Page));
    }

    /// Notes from now on what can be found.
    pub(crate) fn note_events(&mut self) {
        self.cache.events.get_or_insert_default();
    }

    /// What has changed since this was last asked.
    pub(crate) fn take_events(&mut self) -> Vec<KvEvent> {
        self.cache.events.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
