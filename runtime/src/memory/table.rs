//! The pages of one sequence.

use super::pool::{Page, PagePool, PoolFull};
use super::prefix::PageHash;
use piecewise_kernels::attention::PAGE_ROWS;

/// The pages of a sequence in the order of its positions.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<Page>,
}

impl PageTable {
    /// A table that can grow to `rows` rows without allocating host memory.
    pub fn with_capacity(rows: u64) -> Self {
        Self { pages: Vec::with_capacity(Self::pages_for(rows)) }
    }

    /// The pages that `rows` rows take.
    pub fn pages_for(rows: u64) -> usize {
        rows.div_ceil(PAGE_ROWS) as usize
    }

    /// The pages in the order of the positions that they hold.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// How many rows the pages hold.
    pub fn rows(&self) -> u64 {
        self.pages.len() as u64 * PAGE_ROWS
    }

    /// The pages that are missing for `rows` rows.
    pub fn missing(&self, rows: u64) -> usize {
        Self::pages_for(rows).saturating_sub(self.pages.len())
    }

    /// Takes pages until `rows` rows fit, all or none.
    ///
    /// # Errors
    /// When the pool has too few free.
    pub fn grow(&mut self, pool: &mut PagePool, rows: u64) -> Result<(), PoolFull> {
        pool.take(self.missing(rows), &mut self.pages)
    }

    /// Begins with pages that hold these rows already, as far as they are found; returns how many.
    pub(crate) fn share(&mut self, pool: &mut PagePool, hashes: &[PageHash]) -> usize {
        assert!(self.pages.is_empty(), "a table that has pages can't begin with others");
        pool.share(hashes, &mut self.pages);
        self.pages.len()
    }

    /// The row of the pool that holds a position, if a page holds it.
    pub fn slot(&self, position: u64) -> Option<u64> {
        let page = self.pages.get((position / PAGE_ROWS) as usize)?;
        Some(u64::from(page.number()) * PAGE_ROWS + position % PAGE_ROWS)
    }

    /// Gives every page back to `pool`, so that the table has none.
    pub fn release(&mut self, pool: &mut PagePool) {
        pool.give_back(self.pages.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn positions_map_to_rows_of_their_pages() {
        let mut pool = PagePool::new(64);
        let (mut a, mut b) = (PageTable::default(), PageTable::default());
        a.grow(&mut pool, 1).unwrap();
        b.grow(&mut pool, 17).unwrap();
        a.grow(&mut pool, 17).unwrap();
        let numbers = |t: &PageTable| t.pages().iter().map(Page::number).collect::<Vec<_>>();
        assert_eq!((numbers(&a), numbers(&b)), (vec![0, 3], vec![1, 2]));
        assert_eq!(a.slot(15), Some(15));
        assert_eq!(a.slot(16), Some(48));
        assert_eq!(a.slot(32), None);
        assert_eq!(b.slot(31), Some(47));
    }

    #[test]
    fn a_full_pool_gives_nothing_and_says_what_to_change() {
        let mut pool = PagePool::new(47);
        let mut table = PageTable::default();
        let error = table.grow(&mut pool, 33).unwrap_err();
        assert_eq!(error, PoolFull { wanted: 3, free: 2, pages: 2 });
        assert!(error.to_string().contains("memory_budget"));
        assert_eq!((table.pages().len(), pool.free_pages()), (0, 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn no_page_is_owned_twice_and_all_come_back(
            rows in 0u64..400,
            steps in prop::collection::vec((0usize..6, 0u64..200, any::<bool>()), 0..60),
        ) {
            let mut pool = PagePool::new(rows);
            let mut tables: Vec<PageTable> = (0..6).map(|_| PageTable::default()).collect();
            for (which, rows, release) in steps {
                if release {
                    tables[which].release(&mut pool);
                } else {
                    let (before, free) = (tables[which].rows(), pool.free_pages());
                    match tables[which].grow(&mut pool, rows) {
                        Ok(()) => prop_assert!(tables[which].rows() >= rows.max(before)),
                        Err(error) => {
                            prop_assert!(error.wanted > free);
                            prop_assert_eq!(tables[which].rows(), before);
                        }
                    }
                }
                let owned = tables.iter().flat_map(PageTable::pages).chain(pool.blank());
                let numbers: Vec<_> = owned.map(Page::number).collect();
                let distinct: BTreeSet<_> = numbers.iter().copied().collect();
                prop_assert_eq!(numbers.len(), pool.pages());
                prop_assert_eq!(distinct.len(), pool.pages());
            }
            for table in &mut tables {
                table.release(&mut pool);
            }
            prop_assert_eq!(pool.free_pages(), (rows / PAGE_ROWS) as usize);
        }
    }
}
