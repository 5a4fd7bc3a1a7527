//! Row gathers and scatters: whole rows copied at indices read on the device.
//!
//! Slots are data, so that two rows of one scatter may be told the same: rows that other threads may
//! write, too, are written under a claim, and what stays is one of them, whole.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::line::Cursor;
use piecewise_ir::dtype::DType;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The right to write some rows of any table, on a cache line of its own.
#[repr(align(64))]
struct Claim(Mutex<()>);

/// Rows that lie near each other have one claim: mostly one thread writes them one after the other.
const ROWS_OF_CLAIM: u64 = 16;
static CLAIMS: [Claim; 64] = [const { Claim(Mutex::new(())) }; 64];

/// Waits until nobody else writes the row of any table at the slot.
fn claim(slot: u64) -> MutexGuard<'static, ()> {
    let Claim(claim) = &CLAIMS[(slot / ROWS_OF_CLAIM) as usize % CLAIMS.len()];
    claim.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The integer at the cursor; index dtypes only.
///
/// # Safety
/// The element must be valid to read.
#[inline(always)]
unsafe fn index_at(from: Cursor) -> i64 {
    // SAFETY: the caller's promise; programs are checked for index dtypes.
    unsafe {
        match from.dtype {
            DType::I64 => *from.address.cast::<i64>(),
            // The other index dtype.
            DType::I32
            | DType::F32
            | DType::F16
            | DType::BF16
            | DType::U8
            | DType::Bool
            | DType::E4M3
            | DType::I4 => i64::from(*from.address.cast::<i32>()),
        }
    }
}

/// Copies the row of `table` (of `extent` rows) at the index, clamped to the table. A table
/// without rows gives nothing.
///
/// # Safety
/// The index, `extent` rows of the table and one row at `to` must be valid; nobody else may use
/// that at `to`.
#[inline(always)]
pub(super) unsafe fn gather(table: Cursor, extent: u64, row: usize, index: Cursor, to: Cursor) {
    if extent == 0 {
        return;
    }
    let last = i64::try_from(extent - 1).unwrap_or(i64::MAX);
    // SAFETY: the caller's promise.
    let at = unsafe { index_at(index) }.clamp(0, last) as usize;
    let from = table.moved(at * row);
    // SAFETY: `at` is inside the table, and the row at `to` is the caller's alone.
    unsafe {
        std::ptr::copy_nonoverlapping(from.address, to.address, row * to.dtype.size());
    }
}

/// Copies a row into `table` (of `extent` rows) at the slot; one outside it writes nowhere. Where
/// the table `is_shared`, other threads may be in this function for the same row of it.
///
/// # Safety
/// The slot, the row and `extent` rows of the table must be valid; nobody else may use the row of
/// the table at the slot, but by this function where the table `is_shared`.
#[inline(always)]
pub(super) unsafe fn scatter(
    (table, extent, is_shared): (Cursor, u64, bool),
    row: usize,
    slot: Cursor,
    from: Cursor,
) {
    // SAFETY: the caller's promise.
    let Ok(slot) = u64::try_from(unsafe { index_at(slot) }) else { return };
    if slot >= extent {
        return;
    }
    let _claim = is_shared.then(|| claim(slot));
    let to = table.moved(slot as usize * row);
    // SAFETY: the slot is inside the table, and its row is the caller's alone, or the claim's.
    unsafe {
        std::ptr::copy_nonoverlapping(from.address, to.address, row * to.dtype.size());
    }
}
