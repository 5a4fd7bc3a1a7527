//! Which readers of one value a third group keeps apart.

use super::groups::Groups;

/// For each of a few groups, which others can only run with a third group in between. One search
/// serves all of them, so that a value that every layer reads costs no search for each layer.
pub(super) struct Apart {
    /// By reader, a bit for each reader that comes after a third group after it.
    behind: Vec<Vec<u64>>,
}

impl Apart {
    /// Of the groups that now hold the nodes at these positions.
    pub(super) fn of(groups: &Groups, readers: &[usize]) -> Self {
        let readers: Vec<usize> = readers.iter().map(|&at| groups.group_at(at)).collect();
        let window = groups.window(readers.iter().copied());
        let words = readers.len().div_ceil(64);
        // A group's number is the position of its first member, and groups end in the window.
        let local = |group: usize| group - window.start;
        let mut reached = vec![vec![0u64; words]; window.len()];
        let mut own = vec![vec![0u64; words]; window.len()];
        for (i, &reader) in readers.iter().enumerate() {
            own[local(reader)][i / 64] |= 1 << (i % 64);
        }
        for group in last_first(groups, window.clone()) {
            let mut found = std::mem::take(&mut reached[local(group)]);
            for next in groups.successors(group).filter(|next| window.contains(next)) {
                let (theirs, itself) = (&reached[local(next)], &own[local(next)]);
                for (word, (theirs, itself)) in found.iter_mut().zip(theirs.iter().zip(itself)) {
                    *word |= theirs | itself;
                }
            }
            reached[local(group)] = found;
        }
        let behind = readers.iter().map(|&reader| {
            let mut behind = vec![0u64; words];
            for next in groups.successors(reader).filter(|next| window.contains(next)) {
                behind.iter_mut().zip(&reached[local(next)]).for_each(|(b, r)| *b |= r);
            }
            behind
        });
        Self { behind: behind.collect() }
    }

    /// Whether a third group must run between two of the readers.
    pub(super) fn are(&self, i: usize, j: usize) -> bool {
        let has = |i: usize, j: usize| self.behind[i][j / 64] >> (j % 64) & 1 == 1;
        has(i, j) || has(j, i)
    }
}

/// The groups of a window, each after all groups of the window that must run after it.
fn last_first(groups: &Groups, window: std::ops::Range<usize>) -> Vec<usize> {
    let mut order = Vec::new();
    let mut entered = vec![false; window.len()];
    for start in window.clone().map(|at| groups.group_at(at)) {
        let mut stack = vec![(start, false)];
        while let Some((group, left)) = stack.pop() {
            if left {
                order.push(group);
                continue;
            }
            if std::mem::replace(&mut entered[group - window.start], true) {
                continue;
            }
            stack.push((group, true));
            let next = groups.successors(group).filter(|next| window.contains(next));
            stack.extend(next.map(|next| (next, false)));
        }
    }
    order
}
