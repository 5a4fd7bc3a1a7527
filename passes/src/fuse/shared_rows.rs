//! Growth of groups across what they both read.

use super::apart::Apart;
use super::decisions::Decisions;
use super::groups::Groups;
use super::recompute::Recompute;
use super::rows::row_elements;
use indexmap::{IndexMap, IndexSet};
use piecewise_ir::entity::Value;
use piecewise_ir::graph::Graph;

impl Groups {
    /// Joins groups that read the same rows, those of the widest rows first.
    pub(super) fn grow_across_shared_rows(
        &mut self,
        graph: &Graph,
        recompute: &Recompute,
        decisions: &mut Decisions<'_>,
    ) {
        let mut readers: IndexMap<Value, IndexSet<usize>> = IndexMap::new();
        for group in self.ids() {
            if self.is_view(graph, recompute, group) {
                continue;
            }
            for value in self.row_reads(graph, recompute, group) {
                readers.entry(value).or_default().insert(group);
            }
        }
        let mut shared: Vec<_> = readers.into_iter().filter(|(_, g)| g.len() > 1).collect();
        shared.sort_by_key(|(value, _)| {
            let ty = graph.ty(*value);
            std::cmp::Reverse(row_elements(ty).saturating_mul(ty.dtype.size() as u64))
        });
        for (_, readers) in shared {
            let readers: Vec<usize> = readers.into_iter().collect();
            // A group's number is its first member's, which stays with it.
            let mut apart = Apart::of(self, &readers);
            for i in 0..readers.len() {
                for j in i + 1..readers.len() {
                    let [a, b] = [readers[i], readers[j]].map(|reader| self.group_at(reader));
                    let pair = [readers[i], readers[j]].map(|reader| self.node_at(reader));
                    if a != b
                        && !apart.are(i, j)
                        && self.obstacle(a, b).is_none()
                        && decisions.allow_pair("fused over the same rows", graph, pair)
                    {
                        self.merge(a, b);
                        apart = Apart::of(self, &readers);
                    }
                }
            }
        }
    }
}
