//! The pool: pages that are free.

use piecewise_kernels::attention::PAGE_ROWS;

/// A page that is owned. It can't be copied, so a page has one owner, and giving it back takes
/// it away.
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
    /// How many are free.
    pub free: usize,
    /// How many there are.
    pub pages: usize,
}

/// Pages of [`PAGE_ROWS`] rows, free or owned.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<Page>,
    pages: usize,
}

impl PagePool {
    /// A pool over `rows` rows; a rest that fills no page stays unused.
    pub fn new(rows: u64) -> Self {
        let pages = u32::try_from(rows / PAGE_ROWS).unwrap_or(u32::MAX);
        let free = (0..pages).rev().map(Page).collect();
        Self { free, pages: pages as usize }
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// How many pages are free.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// The free pages, in no order that means anything.
    pub fn free(&self) -> impl ExactSizeIterator<Item = &Page> {
        self.free.iter()
    }

    /// Takes `count` pages, all or none, into `to`.
    ///
    /// # Errors
    /// When fewer are free.
    pub fn take(&mut self, count: usize, to: &mut Vec<Page>) -> Result<(), PoolFull> {
        let Some(rest) = self.free.len().checked_sub(count) else {
            return Err(PoolFull { wanted: count, free: self.free.len(), pages: self.pages });
        };
        to.extend(self.free.drain(rest..).rev());
        Ok(())
    }

    /// Takes pages back.
    pub fn give_back(&mut self, pages: impl DoubleEndedIterator<Item = Page>) {
        self.free.extend(pages.rev());
        debug_assert!(self.free.len() <= self.pages, "pages of another pool were given back");
    }
}
