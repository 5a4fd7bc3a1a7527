//! Where in program order groups reach over: a position that no group spans cuts the graph in two,
//! which keeps every search for what lies between two groups near them.

/// How many groups span each position: have a member before it and one at it or after.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    count: Vec<u32>,
}

impl Spans {
    /// `nodes` groups of one node each.
    pub(super) fn of_single_nodes(nodes: usize) -> Self {
        Self { count: vec![0; nodes + 1] }
    }

    /// Two groups become one. Members ascend.
    pub(super) fn merge(&mut self, a: &[usize], b: &[usize]) {
        let (Some((&a0, &a1)), Some((&b0, &b1))) =
            (a.first().zip(a.last()), b.first().zip(b.last()))
        else {
            return;
        };
        for (first, last) in [(a0, a1), (b0, b1)] {
            self.count[first + 1..=last].iter_mut().for_each(|n| *n -= 1);
        }
        self.count[a0.min(b0) + 1..=a1.max(b1)].iter_mut().for_each(|n| *n += 1);
    }

    /// The last position up to `at` that no group spans.
    pub(super) fn floor(&self, at: usize) -> usize {
        let at = at.min(self.count.len() - 1);
        self.count[..=at].iter().rposition(|&n| n == 0).unwrap_or(0)
    }

    /// The first position from `at` on that no group spans.
    pub(super) fn ceil(&self, at: usize) -> usize {
        let end = self.count.len() - 1;
        let at = at.min(end);
        self.count[at..].iter().position(|&n| n == 0).map_or(end, |n| at + n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_inside_a_group_are_no_cuts() {
        let mut spans = Spans::of_single_nodes(8);
        assert_eq!((spans.floor(5), spans.ceil(5)), (5, 5));
        spans.merge(&[2], &[5]);
        assert_eq!((spans.floor(4), spans.ceil(4)), (2, 6));
        assert_eq!((spans.floor(2), spans.ceil(6)), (2, 6));
        spans.merge(&[4], &[7]);
        assert_eq!((spans.floor(5), spans.ceil(3)), (2, 8));
        spans.merge(&[2, 5], &[4, 7]);
        assert_eq!((spans.floor(7), spans.ceil(3)), (2, 8));
        assert_eq!((spans.floor(1), spans.ceil(1)), (1, 1));
    }
}
