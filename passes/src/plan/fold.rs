//! Repetition: many equal layers are packed as two, and the second's place is every other's.
//!
//! Where items repeat with a period, all periods but two are cut out of the time between them.
//! What is live at the end of the first of the two is made one item with what was live at its
//! beginning, so the first can be repeated as often as it was cut out.

use super::item::{Item, Packing, Problem};

/// Items with periods cut out, and how to get the others back.
#[derive(Debug)]
pub(super) struct Folded {
    /// The items that stay. One that stands for two has the size of both and spans both.
    pub(super) kept: Problem,
    /// For every original item, the kept item whose place it takes.
    place_of: Vec<usize>,
}

impl Folded {
    /// The packing of all items, given one of the kept.
    pub(super) fn unfold(&self, packing: &Packing) -> Packing {
        let offsets = self.place_of.iter().map(|&kept| packing.offsets[kept]).collect();
        Packing { offsets, height: packing.height }
    }
}

/// The fewest periods worth cutting.
const FEWEST_PERIODS: usize = 3;

/// The items folded along their longest repetition, if they have one that can be tied.
pub(super) fn fold(items: &[Item]) -> Option<Folded> {
    let last = items.iter().map(|item| item.end).max()?;
    let mut starting: Vec<Vec<usize>> = vec![Vec::new(); last + 1];
    for (i, item) in items.iter().enumerate() {
        starting[item.start].push(i);
    }
    let repetition = Repetition::longest(items, &starting)?;
    // What alternates between two places from layer to layer repeats with two layers.
    [1, 2].into_iter().find_map(|multiple| {
        let period = repetition.period * multiple;
        (0..period)
            .filter_map(|shift| repetition.within(repetition.begin + shift, period))
            .filter_map(|rotated| rotated.cut(items, &starting))
            .min_by_key(|folded| folded.kept.twofold.len())
    })
}

/// `periods` times the same starts, lengths and sizes from `begin` on, `period` positions apart.
#[derive(Clone, Copy, Debug)]
struct Repetition {
    begin: usize,
    period: usize,
    end: usize,
}

impl Repetition {
    fn longest(items: &[Item], starting: &[Vec<usize>]) -> Option<Self> {
        let shape = |at: usize| -> Vec<(usize, u64)> {
            starting[at].iter().map(|&i| (items[i].end - at, items[i].size)).collect()
        };
        let shapes: Vec<Vec<(usize, u64)>> = (0..starting.len()).map(shape).collect();
        let mut best: Option<Self> = None;
        for period in 1..=starting.len() / FEWEST_PERIODS {
            let mut begin = 0;
            for at in 0..starting.len() {
                let repeats = at + period < shapes.len() && shapes[at] == shapes[at + period];
                if repeats {
                    continue;
                }
                // Equal shapes from `begin` up to `at + period`, which is outside.
                let end = (at + period).min(starting.len());
                let found = Self { begin, period, end };
                let starts_any = (begin..end).any(|p| !starting[p].is_empty());
                if starts_any
                    && end - begin >= FEWEST_PERIODS * period
                    && best.is_none_or(|b| end - begin > b.end - b.begin)
                {
                    best = Some(found);
                }
                begin = at + 1;
            }
        }
        best
    }

    /// The same repetition from a later position on, by a multiple of its period.
    fn within(self, begin: usize, period: usize) -> Option<Self> {
        let fits = begin + FEWEST_PERIODS * period <= self.end;
        fits.then_some(Self { begin, period, ..self })
    }

    /// Cuts all periods but two out, if what is live at both ends of the first can be tied.
    fn cut(self, items: &[Item], starting: &[Vec<usize>]) -> Option<Folded> {
        let Self { begin, period, end } = self;
        let periods = (end - begin) / period;
        let removed = (periods - 2) * period;
        let (second, resume) = (begin + period, begin + period + removed);
        // The first period stays, the removed ones follow it, the last stays.
        let mut kept = Vec::new();
        let mut index = vec![None; items.len()];
        for (i, item) in items.iter().enumerate() {
            if (second..resume).contains(&item.start) {
                continue;
            }
            let (first_ends, next_ends) = (item.end < second, item.end < second + period);
            let ends_early = first_ends || (next_ends && item.start >= begin);
            let ends_late = item.end >= resume;
            let folded = if item.start >= resume {
                Item { start: item.start - removed, end: item.end - removed, ..*item }
            } else if item.start < begin && ends_late {
                Item { end: item.end - removed, ..*item }
            } else if ends_early {
                *item
            } else {
                return None;
            };
            index[i] = Some(kept.len());
            kept.push(folded);
        }
        let place_of = (0..items.len())
            .map(|i| match index[i] {
                Some(kept) => Some(kept),
                None => {
                    let at = items[i].start;
                    let nth = starting[at].iter().position(|&j| j == i)?;
                    index[starting[begin + (at - begin) % period][nth]]
                }
            })
            .collect::<Option<Vec<usize>>>()?;
        let ties = ties(&kept, begin, second)?;
        let (kept, merged) = Problem::of(kept).merge(&ties);
        let place_of = place_of.into_iter().map(|kept| merged[kept]).collect();
        Some(Folded { kept, place_of })
    }
}

/// Each item live across `second` but not across `begin`, after the one live across `begin` that
/// leaves as long after it; `None` if they are not the same, or would be in use together.
fn ties(items: &[Item], begin: usize, second: usize) -> Option<Vec<(usize, usize)>> {
    let crosses = |item: &Item, at: usize| item.start < at && item.end >= at;
    let crossing = |at: usize, other: usize| -> Vec<(usize, u64, usize)> {
        let mut found: Vec<_> = items
            .iter()
            .enumerate()
            .filter(|(_, item)| crosses(item, at) && !crosses(item, other))
            .map(|(i, item)| (item.end - at, item.size, i))
            .collect();
        found.sort_unstable();
        found
    };
    let (before, after) = (crossing(begin, second), crossing(second, begin));
    if before.len() != after.len() {
        return None;
    }
    let pairs =
        before.iter().zip(&after).map(|(&(left, size, i), &(later_left, later_size, j))| {
            let same = left == later_left && size == later_size;
            (same && !items[i].conflicts(&items[j])).then_some((i, j))
        });
    pairs.collect()
}
