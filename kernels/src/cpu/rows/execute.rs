//! Execution of row programs: tiles of rows, each a pass over the steps.

use super::elementwise::{AllLines, count, map_line};
use super::line::Cursor;
use super::walk::{Walk, chunks, each};
use super::{reduce, tables};
use crate::cpu::parallel;
use crate::cpu::simd::Isa;
use crate::lower::{LINES_BYTES, MapOp, Nest, PlaceKind, RowProgram, RowStep, StridedAccess};

/// Element visits below which waking other threads costs more than it saves.
const PARALLEL_ELEMENTS: u64 = 1 << 16;

/// Where an argument lies on the host, and how many rows a table has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowArg {
    /// Of its first element, on the host.
    pub address: usize,
    /// For a table, the number of its rows; else ignored.
    pub extent: u64,
}

/// One execution of a program.
#[derive(Clone, Copy, Debug)]
pub struct RowCall<'a> {
    /// The program whose steps run.
    pub program: &'a RowProgram,
    /// Where its arguments lie, in the order of [`RowProgram::args`].
    pub args: &'a [RowArg],
    /// How many rows are computed: the true count.
    pub rows: u64,
    /// Address of the scratch, aligned to 64 bytes.
    pub scratch: usize,
    /// Bytes of scratch; what they hold of [`Work::tile_bytes`](crate::lower::Work::tile_bytes) bounds the workers.
    pub scratch_bytes: u64,
}

impl RowCall<'_> {
    /// Whether this call is worth other threads.
    pub fn is_parallel(&self) -> bool {
        self.workers(u64::MAX) > 1
    }

    fn workers(&self, threads: u64) -> u64 {
        let work = self.program.work;
        if self.rows.saturating_mul(work.elements_per_row) < PARALLEL_ELEMENTS {
            return 1;
        }
        let served = self.scratch_bytes.checked_div(work.tile_bytes()).unwrap_or(u64::MAX);
        threads.min(served).min(self.program.tiles(self.rows)).max(1)
    }
}

/// Computes the rows of a call. Every result row has the same bits whatever the number of rows
/// and threads; of rows that one scatter is told the same slot for, one stays, whole, and which is
/// told by the threads. Tiles are taken by the threads of the current rayon pool; small calls stay on
/// the calling thread.
///
/// # Safety
/// The program must have passed [`RowProgram::check`]. Each argument's address must be aligned
/// for its dtype and valid for the elements that its declaration says (times `rows` or `extent`),
/// nobody else may use the written ones meanwhile, and none of these may share bytes with another
/// argument. The scratch must be the call's alone and hold at least [`Work::tile_bytes`](crate::lower::Work::tile_bytes).
pub unsafe fn run_rows(call: &RowCall<'_>) {
    let work = call.program.work;
    let tiles = call.program.tiles(call.rows);
    let workers = match call.is_parallel() {
        true => call.workers(rayon::current_num_threads() as u64),
        false => 1,
    };
    let isa = Isa::detected();
    let tile = |worker: u64, tile: u64| {
        let first = tile * work.tile_rows;
        let rows = work.tile_rows.min(call.rows - first);
        let scratch = call.scratch + (worker * work.tile_bytes()) as usize;
        let is_alone = workers <= 1;
        // SAFETY: the caller vouches for arguments and scratch; each worker has scratch of its
        // own, and no two tiles share a row but those of tables, which they scatter into.
        unsafe { Tile { call, first, rows: rows as usize, scratch, isa, is_alone }.run() };
    };
    if workers <= 1 {
        (0..tiles).for_each(|t| tile(0, t));
        return;
    }
    parallel::for_each_block(workers as usize, tiles as usize, |worker, t| {
        tile(worker as u64, t as u64);
    });
}

/// Rows `first .. first + rows` of a call.
#[derive(Clone, Copy)]
struct Tile<'a> {
    call: &'a RowCall<'a>,
    first: u64,
    rows: usize,
    scratch: usize,
    isa: Isa,
    /// Whether no other tile runs meanwhile.
    is_alone: bool,
}

impl Tile<'_> {
    /// The place's first element for row `row` of the tile.
    #[inline(always)]
    fn place(&self, place: u32, row: usize) -> Cursor {
        let place = &self.call.program.places[place as usize];
        let row_stride = place.row_stride as usize;
        let (base, row) = match place.kind {
            PlaceKind::Arg(arg) => {
                (self.call.args[arg as usize].address, self.first as usize + row)
            }
            PlaceKind::Temp(bytes) => {
                let tile_rows = self.call.program.work.tile_rows as usize;
                (self.scratch + LINES_BYTES as usize + bytes as usize * tile_rows, row)
            }
            PlaceKind::Constant(words) => {
                (self.call.program.constants.as_ptr().expose_provenance() + 8 * words as usize, row)
            }
        };
        let address = base as *mut u8;
        Cursor { address, dtype: place.dtype, stride: 0 }.moved(row * row_stride)
    }

    /// The access at an index of the outer loops, its stride that of the line.
    #[inline(always)]
    fn cursor(&self, access: &StridedAccess, row: usize, outer: &[u64]) -> Cursor {
        let offset: u64 = outer.iter().zip(&access.strides).map(|(i, s)| i * s).sum();
        let stride = access.strides.last().map_or(0, |s| *s as usize);
        let start = self.place(access.place, row).moved((access.offset + offset) as usize);
        Cursor { stride, ..start }
    }

    /// Calls `line(row, outer index, extent)` for every line of a nest.
    #[inline(always)]
    fn lines(&self, nest: &Nest, mut line: impl FnMut(usize, &[u64], usize)) {
        let last = nest.extents.len() - 1;
        let extent = nest.extents[last] as usize;
        if nest.fold_rows {
            line(0, &[], extent * self.rows);
            return;
        }
        for row in 0..self.rows {
            each(&nest.extents[..last], |outer| line(row, outer, extent));
        }
    }

    /// Runs all steps.
    ///
    /// # Safety
    /// As for [`run_rows`]; the tile's rows and scratch must be the caller's alone.
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the scratch is the caller's alone, aligned to 64 bytes, and starts with room for
        // the line buffers, for which any bytes are valid.
        let lines = unsafe { &mut *(self.scratch as *mut AllLines) };
        for step in &self.call.program.steps {
            // SAFETY: the caller's promise.
            unsafe { self.step(step, lines) };
        }
    }

    /// Runs one step.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn step(&self, step: &RowStep, lines: &mut AllLines) {
        match step {
            RowStep::Map { op, nest, inputs, out } => {
                // SAFETY: the caller's promise.
                unsafe { self.map(*op, nest, inputs, out, lines) };
            }
            RowStep::Reduce { op, nest, kept, input, out } => {
                let kept = *kept as usize;
                let inner =
                    Walk { extents: &nest.extents[kept..], strides: &input.strides[kept..] };
                for row in 0..self.rows {
                    each(&nest.extents[..kept], |outer| {
                        let from = self.cursor(input, row, outer);
                        let to = self.cursor(out, row, outer);
                        // SAFETY: the caller's promise; checked accesses stay inside their place.
                        unsafe { reduce::reduce(self.isa, *op, from, inner, to) };
                    });
                }
            }
            RowStep::TopK { nest, k, input, values, indices, best_values, best_indices } => {
                let extent = nest.extents[nest.extents.len() - 1] as usize;
                let k = *k as usize;
                self.lines(nest, |row, outer, _| {
                    let from = self.cursor(input, row, outer);
                    let best = self.cursor(best_values, row, &[]);
                    let at = self.cursor(best_indices, row, &[]);
                    // SAFETY: the caller's promise; checked accesses stay inside their place.
                    unsafe {
                        reduce::top_k(self.isa, from, extent, k, best, at);
                        for (found, to) in [(best, values.as_ref()), (at, Some(indices))] {
                            let Some(to) = to else { continue };
                            let to = self.cursor(to, row, outer);
                            chunks(k, |start, n| {
                                let found = Cursor { stride: 1, ..found };
                                map_line(
                                    self.isa,
                                    MapOp::Cast,
                                    found.dtype,
                                    &[found.advanced(start); 3],
                                    to.advanced(start),
                                    n,
                                    lines,
                                );
                            });
                        }
                    }
                });
            }
            RowStep::Gather { table, offset, extent, row, nest, indices, out } => {
                let rows = extent.unwrap_or_else(|| self.extent(*table));
                let width = *row as usize;
                for r in 0..self.rows {
                    let table = self.place(*table, r).moved(*offset as usize);
                    let mut to = self.place(*out, r);
                    each(&nest.extents, |at| {
                        let index = self.cursor(indices, r, at);
                        // SAFETY: the caller's promise; `to` stays inside its place, which holds
                        // a row for each index.
                        unsafe { tables::gather(table, rows, width, index, to) };
                        to = to.moved(width);
                    });
                }
            }
            RowStep::Scatter { table, extent, row, nest, slots, rows: (place, first) } => {
                let extent = extent.unwrap_or_else(|| self.extent(*table));
                let width = *row as usize;
                let table = (self.place(*table, 0), extent, !self.is_alone);
                for r in 0..self.rows {
                    let mut from = self.place(*place, r).moved(*first as usize);
                    each(&nest.extents, |at| {
                        let slot = self.cursor(slots, r, at);
                        // SAFETY: the caller's promise; of tiles that run at once, none uses the
                        // table otherwise.
                        unsafe { tables::scatter(table, width, slot, from) };
                        from = from.moved(width);
                    });
                }
            }
        }
    }

    /// Runs an elementwise step.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[inline(always)]
    unsafe fn map(
        &self,
        op: MapOp,
        nest: &Nest,
        inputs: &[StridedAccess],
        out: &StridedAccess,
        lines: &mut AllLines,
    ) {
        let places = &self.call.program.places;
        let operand = inputs.last().map(|a| places[a.place as usize].dtype);
        self.lines(nest, |row, outer, extent| {
            let to = self.cursor(out, row, outer);
            let Some(dtype) = operand else {
                let number = (self.first + row as u64) as i64;
                chunks(extent, |start, n| {
                    // What counts along the line; all others have operands.
                    let (first, step) = match op == MapOp::RowNumber {
                        true => (number, 0),
                        false => (start as i64, 1),
                    };
                    // SAFETY: the caller's promise; checked accesses stay inside their place.
                    unsafe { count(self.isa, to.advanced(start), n, first, step, lines) };
                });
                return;
            };
            let mut from = [to; 3];
            for (cursor, access) in from.iter_mut().zip(inputs) {
                *cursor = self.cursor(access, row, outer);
            }
            chunks(extent, |start, n| {
                let from = from.map(|cursor| cursor.advanced(start));
                // SAFETY: the caller's promise; checked accesses stay inside their place.
                unsafe { map_line(self.isa, op, dtype, &from, to.advanced(start), n, lines) };
            });
        });
    }

    /// The number of rows of a table argument.
    #[inline(always)]
    fn extent(&self, place: u32) -> u64 {
        match self.call.program.places[place as usize].kind {
            PlaceKind::Arg(arg) => self.call.args[arg as usize].extent,
            _ => 0,
        }
    }
}
