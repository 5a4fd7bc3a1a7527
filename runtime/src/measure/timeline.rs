//! Where and when the blocks of a step ran.

use crate::steps::StepLaunch;
use indexmap::IndexMap;
use piecewise_backend::device::measure::{BlockTime, GraphTimes};
use serde::Serialize;
use std::collections::BTreeMap;

/// A replayed step, launch by launch. Times are nanoseconds from the start of its first block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Timeline {
    /// How many multiprocessors the device has.
    pub multiprocessors: u32,
    /// The launches in the order of the step.
    pub launches: Vec<LaunchTimes>,
}

/// A launch and its blocks; none where nothing is known of it: a launch of a library.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LaunchTimes {
    /// Kernel, name and path.
    #[serde(flatten)]
    pub launch: StepLaunch,
    /// By their place in the grid, x fastest.
    pub blocks: Vec<BlockTime>,
}

/// A launch in a few numbers; times are microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LaunchSummary {
    /// How many blocks its grid has.
    pub blocks: usize,
    /// How many multiprocessors ran a block of it.
    pub multiprocessors: usize,
    /// Of these, those that had more blocks than an even spread over the device gives.
    pub doubled: usize,
    /// When the first block started.
    pub start_us: f64,
    /// When the first block had waited for the launches before; its start where none waits.
    pub released_us: f64,
    /// When the last block ended.
    pub end_us: f64,
    /// From the first block's release to the last one's end.
    pub busy_us: f64,
    /// From the end of the launch before to the first block's release; `None` after a launch of
    /// which nothing is known, and for the first.
    pub gap_us: Option<f64>,
}

/// Launches of one kernel at the same place of every layer; times are microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GroupSummary {
    /// The entry of a kernel, a function of a library, or the op of a host function.
    pub kernel: String,
    /// Where, with `*` for numbers: `model.layers.*.mlp`.
    pub path: String,
    /// One a layer, as a rule.
    pub launches: usize,
    /// Blocks of the middle launch by release to end, as are the next two.
    pub blocks: usize,
    /// Multiprocessors that had any.
    pub multiprocessors: usize,
    /// The most doubled ones of a launch.
    pub doubled: usize,
    /// The median from release to end; `None` where nothing is known of the launches.
    pub busy_us: Option<f64>,
    /// The median from the end before to the release, where that is known.
    pub gap_us: Option<f64>,
    /// Release to end and what went before, over all launches.
    pub total_us: f64,
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl Timeline {
    /// From what the blocks of the graph of these launches noted.
    pub fn new(launches: Vec<StepLaunch>, times: GraphTimes) -> Self {
        let starts = times.launches.iter().flatten().map(|block| block.start);
        let first = starts.min().unwrap_or(0);
        let since = |ns: u64| ns.saturating_sub(first);
        let of_block = |block: BlockTime| BlockTime {
            start: since(block.start),
            released: block.released.map(since),
            end: since(block.end),
            ..block
        };
        let mut noted = times.launches.into_iter();
        let launches = launches.into_iter().map(|launch| {
            let blocks = noted.next().unwrap_or_default();
            LaunchTimes { launch, blocks: blocks.into_iter().map(of_block).collect() }
        });
        Self { multiprocessors: times.multiprocessors, launches: launches.collect() }
    }

    /// Each launch in a few numbers; `None` where nothing is known of it.
    pub fn summaries(&self) -> Vec<Option<LaunchSummary>> {
        let mut before = None;
        let summary = |launch: &LaunchTimes| {
            let summary = launch.summary(self.multiprocessors, before);
            before = summary.as_ref().map(|summary| summary.end_us);
            summary
        };
        self.launches.iter().map(summary).collect()
    }

    /// Launches of one kernel at the same place of every layer together, in the order of the first
    /// of them.
    pub fn groups(&self) -> Vec<GroupSummary> {
        let mut found: IndexMap<_, Vec<Option<LaunchSummary>>> = IndexMap::new();
        for (times, summary) in self.launches.iter().zip(self.summaries()) {
            let key = (times.launch.kernel.clone(), times.launch.starred_path());
            found.entry(key).or_default().push(summary);
        }
        let group = |((kernel, path), all): (_, Vec<_>)| GroupSummary::of(kernel, path, &all);
        found.into_iter().map(group).collect()
    }
}

impl LaunchTimes {
    fn summary(&self, multiprocessors: u32, before: Option<f64>) -> Option<LaunchSummary> {
        let start = self.blocks.iter().map(|block| block.start).min()?;
        let released = self.blocks.iter().map(|b| b.released.unwrap_or(b.start)).min()?;
        let end = self.blocks.iter().map(|block| block.end).max()?;
        let mut on: BTreeMap<u32, usize> = BTreeMap::new();
        for block in &self.blocks {
            *on.entry(block.multiprocessor).or_default() += 1;
        }
        let even = self.blocks.len().div_ceil(multiprocessors.max(1) as usize);
        Some(LaunchSummary {
            blocks: self.blocks.len(),
            multiprocessors: on.len(),
            doubled: on.values().filter(|&&blocks| blocks > even).count(),
            start_us: us(start),
            released_us: us(released),
            end_us: us(end),
            busy_us: us(end.saturating_sub(released)),
            gap_us: before.map(|end| us(released) - end),
        })
    }
}

impl GroupSummary {
    fn of(kernel: String, path: String, all: &[Option<LaunchSummary>]) -> Self {
        let mut known: Vec<&LaunchSummary> = all.iter().flatten().collect();
        known.sort_by(|a, b| a.busy_us.total_cmp(&b.busy_us));
        let middle = known.get(known.len() / 2);
        Self {
            kernel,
            path,
            launches: all.len(),
            blocks: middle.map_or(0, |summary| summary.blocks),
            multiprocessors: middle.map_or(0, |summary| summary.multiprocessors),
            doubled: known.iter().map(|summary| summary.doubled).max().unwrap_or(0),
            busy_us: middle.map(|summary| summary.busy_us),
            gap_us: median(known.iter().filter_map(|summary| summary.gap_us).collect()),
            total_us: known.iter().map(|s| s.busy_us + s.gap_us.unwrap_or(0.0)).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(kernel: &str, path: &str) -> StepLaunch {
        StepLaunch { kernel: kernel.to_owned(), name: String::new(), path: path.to_owned() }
    }

    fn block(multiprocessor: u32, start: u64, released: Option<u64>, end: u64) -> BlockTime {
        BlockTime { multiprocessor, start, released, end }
    }

    fn timeline() -> Timeline {
        let launches = vec![
            launch("matmul", "layers.0 + layers.0.o"),
            launch("cublasLtMatmul", "layers.0.up"),
            launch("matmul", "layers.1 + layers.1.o"),
            launch("region", "layers.1.norm"),
        ];
        let times = vec![
            vec![block(0, 5_000, Some(5_500), 7_000), block(0, 5_100, Some(5_600), 8_000)],
            Vec::new(),
            vec![block(0, 6_000, Some(9_000), 9_500), block(1, 6_000, Some(9_100), 10_000)],
            vec![block(1, 9_000, None, 12_000)],
        ];
        Timeline::new(launches, GraphTimes { multiprocessors: 2, launches: times })
    }

    #[test]
    fn launches_are_summed_up_from_their_blocks() {
        let summaries = timeline().summaries();
        let first = LaunchSummary {
            blocks: 2,
            multiprocessors: 1,
            doubled: 1,
            start_us: 0.0,
            released_us: 0.5,
            end_us: 3.0,
            busy_us: 2.5,
            gap_us: None,
        };
        assert_eq!(summaries[0], Some(first));
        assert_eq!(summaries[1], None);
        let third = summaries[2].as_ref().unwrap();
        assert_eq!((third.doubled, third.busy_us, third.gap_us), (0, 1.0, None));
        let last = summaries[3].as_ref().unwrap();
        assert_eq!((last.released_us, last.busy_us, last.gap_us), (4.0, 3.0, Some(-1.0)));
    }

    #[test]
    fn layers_come_together() {
        let groups = timeline().groups();
        let found: Vec<_> = groups.iter().map(|g| (g.path.as_str(), g.launches)).collect();
        let expected = [("layers.* + layers.*.o", 2), ("layers.*.up", 1), ("layers.*.norm", 1)];
        assert_eq!(found, expected);
        assert_eq!((groups[0].busy_us, groups[0].doubled), (Some(2.5), 1));
        assert_eq!((groups[1].busy_us, groups[1].total_us), (None, 0.0));
    }
}
