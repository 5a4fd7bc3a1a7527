//! KV poison: rows that nobody has computed hold NaN before each step.

use super::pool::{Page, PagePool};
use super::slots::StateKind;
use super::table::PageTable;
use crate::device::Memory;
use crate::words::POISON;
use piecewise_backend::device::{Address, Device, DeviceError};
use piecewise_ir::graph::Graph;
use piecewise_kernels::attention::PAGE_ROWS;

/// Fills dead rows of the KV states: pages that hold nothing, and pages past a sequence's length.
#[derive(Clone, Debug)]
pub struct KvPoison {
    /// Where each state starts, and bytes of its rows.
    states: Vec<(Address, u64)>,
}

impl KvPoison {
    /// For the states of role `kv.cache`.
    pub fn new(graph: &Graph, memory: &Memory) -> Self {
        Self { states: StateKind::Pages.rows(graph, memory) }
    }

    /// Enqueues the fills: every page that holds nothing, and the rows of each table from its length on.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fill<'a>(
        &self,
        device: &mut dyn Device,
        pool: &PagePool,
        live: impl Iterator<Item = (&'a PageTable, u64)>,
    ) -> Result<(), DeviceError> {
        for page in pool.blank() {
            self.fill_page(device, page, 0)?;
        }
        for (table, length) in live {
            let first = (length / PAGE_ROWS) as usize;
            for (i, page) in table.pages().iter().enumerate().skip(first) {
                let row = if i == first { length % PAGE_ROWS } else { 0 };
                self.fill_page(device, page, row)?;
            }
        }
        Ok(())
    }

    /// Fills a page from `row` on.
    fn fill_page(&self, device: &mut dyn Device, page: &Page, row: u64) -> Result<(), DeviceError> {
        let first = u64::from(page.number()) * PAGE_ROWS + row;
        for &(state, row_bytes) in &self.states {
            let bytes = (PAGE_ROWS - row) * row_bytes;
            device.fill(state.offset(first * row_bytes), bytes, &[POISON])?;
        }
        Ok(())
    }
}
