//! Loops over the elements of an access.

use crate::lower::{LINE, MAX_LOOPS};

/// Loops and the strides of one access for them.
#[derive(Clone, Copy)]
pub(super) struct Walk<'a> {
    pub(super) extents: &'a [u64],
    pub(super) strides: &'a [u64],
}

/// Calls `body` with every index tuple of `extents`, the last index fastest.
#[inline(always)]
pub(super) fn each(extents: &[u64], mut body: impl FnMut(&[u64])) {
    if extents.contains(&0) {
        return;
    }
    let mut at = [0u64; MAX_LOOPS];
    let at = &mut at[..extents.len()];
    loop {
        body(at);
        let mut axis = extents.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            at[axis] += 1;
            if at[axis] < extents[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}

/// Calls `chunk(start, n)` for pieces of at most [`LINE`] of `extent`.
#[inline(always)]
pub(super) fn chunks(extent: usize, mut chunk: impl FnMut(usize, usize)) {
    let mut start = 0;
    while start < extent {
        let n = (extent - start).min(LINE);
        chunk(start, n);
        start += n;
    }
}
