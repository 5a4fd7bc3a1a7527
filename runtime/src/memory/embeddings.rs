//! Rows that stand for tokens: which of the state that holds them are whose.

use crate::device::Memory;
use crate::words::roles;
use piecewise_backend::device::{Address, Device, DeviceError};
use piecewise_ir::graph::Graph;
use std::collections::{BTreeMap, BTreeSet};

/// The number of rows that were added together; never used twice by an engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, derive_more::Display)]
pub struct RowsId(u64);

/// Why rows can't be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum RowsError {
    /// The graph has no state for them.
    #[error(
        "the model takes no rows in the place of tokens: its graph has no state of the role \
         \"embeddings\""
    )]
    NoState,
    /// More rows than are free.
    #[error(
        "{wanted} rows, but {free} of the {rows} rows that stand for tokens are free; wait for \
         requests to finish, remove rows that nobody needs, or build the model with more \
         (`Assembly::embedding_rows`)"
    )]
    Full { wanted: u64, free: u64, rows: u64 },
    /// They are not rows of the model's width.
    #[error("{found}, but the model takes rows of {width} numbers of f32")]
    Shape { found: String, width: u64 },
    /// They are of another device.
    #[error("the rows are of a model on another kind of device; give them as values")]
    OtherDevice,
    /// A row that is not there.
    #[error("row {row} is asked for, but the output has {rows}")]
    NoRow { row: u32, rows: u64 },
    /// Rows that were never added, or were removed.
    #[error("there are no rows {rows}: they were removed, or never added")]
    Unknown { rows: RowsId },
    /// The device could not copy the rows.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

#[derive(Debug)]
struct Held {
    /// Rows of the state, in the order of the tokens.
    rows: Vec<u32>,
    /// How many requests need them.
    users: usize,
    /// Whether whoever added them needs them no longer.
    is_removed: bool,
}

/// The rows of the state of role `embeddings`.
#[derive(Debug)]
pub(crate) struct EmbeddingPool {
    state: Option<Address>,
    pub(crate) width: u64,
    rows: u64,
    free: BTreeSet<u32>,
    held: BTreeMap<RowsId, Held>,
    next_id: u64,
    /// Bytes of rows by number, while the state's memory is given back.
    saved: Vec<(u32, Vec<u8>)>,
}

impl EmbeddingPool {
    pub(crate) fn new(graph: &Graph, memory: &Memory) -> Self {
        let is_pool = |role: &Option<String>| role.as_deref() == Some(roles::EMBEDDINGS);
        let state = graph.states().iter().find(|state| is_pool(&state.role));
        let dims = state.map(|state| graph.ty(state.value).dims(&memory.layout().bounds));
        let (rows, width) = match dims.as_deref() {
            Some(&[rows, width]) => (rows, width),
            _ => (0, 0),
        };
        let free = 0..u32::try_from(rows).unwrap_or(u32::MAX);
        Self {
            state: state.and_then(|state| memory.address(graph, state.value)),
            width,
            rows,
            free: free.collect(),
            held: BTreeMap::new(),
            next_id: 0,
            saved: Vec::new(),
        }
    }

    /// Nothing is held any more: what was, went with the device.
    pub(crate) fn lose(&mut self, graph: &Graph, memory: &Memory) {
        *self = Self { next_id: self.next_id, ..Self::new(graph, memory) };
    }

    /// Rows for `count` tokens, and where the state begins. They are nobody's until
    /// [`Self::keep`].
    pub(crate) fn take(&self, count: usize) -> Result<(Vec<u32>, Address), RowsError> {
        let state = self.state.ok_or(RowsError::NoState)?;
        let rows = Vec::from_iter(self.free.iter().copied().take(count));
        if rows.len() < count {
            let (wanted, free) = (count as u64, self.free.len() as u64);
            return Err(RowsError::Full { wanted, free, rows: self.rows });
        }
        Ok((rows, state))
    }

    pub(crate) fn keep(&mut self, rows: Vec<u32>) -> RowsId {
        let id = RowsId(self.next_id);
        self.next_id += 1;
        for row in &rows {
            self.free.remove(row);
        }
        self.held.insert(id, Held { rows, users: 0, is_removed: false });
        id
    }

    /// The rows of the state, in the order of the tokens.
    pub(crate) fn rows(&self, id: RowsId) -> Result<&[u32], RowsError> {
        match self.held.get(&id) {
            Some(held) if !held.is_removed => Ok(&held.rows),
            _ => Err(RowsError::Unknown { rows: id }),
        }
    }

    pub(crate) fn begin_use(&mut self, id: RowsId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.users += 1;
        }
    }

    pub(crate) fn end_use(&mut self, id: RowsId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.users -= 1;
        }
        self.free_unused(id);
    }

    /// Frees the rows once no request needs them.
    pub(crate) fn remove(&mut self, id: RowsId) -> Result<(), RowsError> {
        self.rows(id)?;
        if let Some(held) = self.held.get_mut(&id) {
            held.is_removed = true;
        }
        self.free_unused(id);
        Ok(())
    }

    fn free_unused(&mut self, id: RowsId) {
        let is_unused = |held: &Held| held.is_removed && held.users == 0;
        if self.held.get(&id).is_some_and(is_unused)
            && let Some(held) = self.held.remove(&id)
        {
            self.free.extend(held.rows);
        }
    }

    /// Reads every row that is held: the state's memory is about to be given back.
    pub(crate) fn save(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        let Some(state) = self.state else { return Ok(()) };
        let bytes = 4 * self.width;
        let mut saved = Vec::new();
        for &row in self.held.values().flat_map(|held| &held.rows) {
            let mut read = vec![0; bytes as usize];
            device.read(state.offset(u64::from(row) * bytes), &mut read)?;
            saved.push((row, read));
        }
        self.saved = saved;
        Ok(())
    }

    /// Writes what was saved into the state's memory again.
    pub(crate) fn restore(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        let Some(state) = self.state else { return Ok(()) };
        for (row, bytes) in &self.saved {
            device.write(state.offset(u64::from(*row) * 4 * self.width), bytes)?;
        }
        self.saved.clear();
        Ok(())
    }

    /// Rows that no request holds.
    pub(crate) fn free_rows(&self) -> u64 {
        self.free.len() as u64
    }

    /// Enqueues filling every free row with `byte`.
    pub(crate) fn fill_free(&self, device: &mut dyn Device, byte: u8) -> Result<(), DeviceError> {
        let Some(state) = self.state else { return Ok(()) };
        let bytes = 4 * self.width;
        let mut free = self.free.iter().map(|&row| u64::from(row));
        free.try_for_each(|row| device.fill(state.offset(row * bytes), bytes, &[byte]))
    }
}
