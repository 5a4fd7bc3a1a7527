//! The launches of a step: which are left out, which there are, where and when their blocks ran.

use anyhow::{Context, bail, ensure};
use piecewise_runtime::measure::{GroupSummary, LaunchSummary, ModelTimer, Timeline};
use piecewise_runtime::steps::StepLaunch;
use piecewise_runtime::words::GraphMode;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `NAME` or `NAME@PART`: launches of a kernel, `*` standing for any letters, whose module path
/// contains `PART`.
#[derive(Clone, PartialEq, Eq, Debug, derive_more::Display)]
pub(super) struct LaunchPattern {
    text: String,
}

impl FromStr for LaunchPattern {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('@').unwrap_or((text, "all")) {
            ("", _) | (_, "") => Err(format!("`{text}` names no launch; write NAME or NAME@PART")),
            _ => Ok(Self { text: text.to_owned() }),
        }
    }
}

impl LaunchPattern {
    fn fits(&self, launch: &StepLaunch) -> bool {
        let (kernel, part) = self.text.split_once('@').unwrap_or((&self.text, ""));
        is_like(&launch.kernel, kernel) && launch.path.contains(part)
    }
}

/// Whether a name is that of a pattern in which `*` stands for any letters.
fn is_like(name: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(name) = name.strip_prefix(start) else { return false };
    (0..=name.len()).any(|at| name.get(at..).is_some_and(|name| is_like(name, rest)))
}

/// Leaves out what the patterns name.
///
/// # Errors
/// When one of them names nothing.
pub(super) fn leave_out(timer: &mut ModelTimer, patterns: &[LaunchPattern]) -> anyhow::Result<()> {
    if patterns.is_empty() {
        return Ok(());
    }
    let (found, kernels) = (RefCell::new(vec![false; patterns.len()]), RefCell::default());
    timer.leave_out(&|launch| {
        let kernels: &RefCell<BTreeSet<String>> = &kernels;
        kernels.borrow_mut().insert(launch.kernel.clone());
        let mut is_left_out = false;
        for (pattern, found) in patterns.iter().zip(found.borrow_mut().iter_mut()) {
            let fits = pattern.fits(launch);
            *found |= fits;
            is_left_out |= fits;
        }
        is_left_out
    });
    let found = found.into_inner();
    if let Some((pattern, _)) = patterns.iter().zip(found).find(|(_, found)| !found) {
        let kernels: Vec<String> = kernels.into_inner().into_iter().collect();
        bail!("--without {pattern} names no launch; the kernels are {}", kernels.join(", "));
    }
    Ok(())
}

/// The launches of a kernel in a step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct KernelCount {
    pub(super) kernel: String,
    pub(super) launches: usize,
    /// Module paths, `*` for numbers, each once.
    pub(super) paths: Vec<String>,
}

/// The kernels of a step, in the order of their first launches.
pub(super) fn kernel_counts(launches: &[StepLaunch]) -> Vec<KernelCount> {
    let mut order: Vec<KernelCount> = Vec::new();
    let mut at = BTreeMap::new();
    for launch in launches {
        let i = *at.entry(&launch.kernel).or_insert_with(|| {
            let kernel = launch.kernel.clone();
            order.push(KernelCount { kernel, launches: 0, paths: Vec::new() });
            order.len() - 1
        });
        order[i].launches += 1;
        let path = launch.starred_path();
        if !path.is_empty() && !order[i].paths.contains(&path) {
            order[i].paths.push(path);
        }
    }
    order
}

/// Where and when the blocks of a step ran, in short.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct TimelineReport {
    /// Where the trace of all blocks was written, for Perfetto.
    pub(super) file: PathBuf,
    pub(super) multiprocessors: u32,
    pub(super) launches: Vec<SeenLaunch>,
    pub(super) groups: Vec<GroupSummary>,
}

/// A launch; `times` is `None` where nothing is known of its blocks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct SeenLaunch {
    #[serde(flatten)]
    pub(super) launch: StepLaunch,
    pub(super) times: Option<LaunchSummary>,
}

/// Writes the trace of a timeline.
///
/// # Errors
/// When the file can't be written.
pub(super) fn write_timeline(file: &Path, timeline: Timeline) -> anyhow::Result<TimelineReport> {
    let failed = || format!("can't write {}", file.display());
    let out = std::fs::File::create(file).with_context(failed)?;
    timeline.write_trace(&mut std::io::BufWriter::new(out)).with_context(failed)?;
    let (summaries, groups) = (timeline.summaries(), timeline.groups());
    let launches = timeline.launches.into_iter().zip(summaries);
    let launches = launches.map(|(seen, times)| SeenLaunch { launch: seen.launch, times });
    Ok(TimelineReport {
        file: file.to_owned(),
        multiprocessors: timeline.multiprocessors,
        launches: launches.collect(),
        groups,
    })
}

/// That a timeline is asked of one row, which replays as one graph.
///
/// # Errors
/// When it is not.
pub(super) fn check_timeline(rows: usize, modes: &[GraphMode]) -> anyhow::Result<()> {
    ensure!(
        rows == 1 && matches!(modes, [GraphMode::Full]),
        "--timeline takes one row in mode full, not {rows} in {}: give one --batch and --context, \
         one --mixed or one --prefill",
        modes.iter().map(|mode| mode.name()).collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// The lines of a timeline: each launch, then launches at the same place of every layer together.
pub(super) fn timeline_lines(timeline: &TimelineReport) -> Vec<String> {
    let mut lines = vec![
        format!(
            "timeline         {}, {} multiprocessors; times in us, from the first wait passed to \
             the last end",
            timeline.file.display(),
            timeline.multiprocessors
        ),
        format!(
            "{:>8} {:>5} {:>7} {:>9} {:>9} {:>9} {:>8} {:>7}  launch",
            "blocks", "on", "doubled", "start", "released", "end", "busy", "gap"
        ),
    ];
    let gap = |gap: Option<f64>| gap.map_or("-".to_owned(), |us| format!("{us:.2}"));
    for SeenLaunch { launch, times } in &timeline.launches {
        let what = format!("{} {}", launch.kernel, launch.path);
        lines.push(match times {
            None => format!("{:>69}  {}", "not seen", what.trim_end()),
            Some(t) => format!(
                "{:>8} {:>5} {:>7} {:>9.2} {:>9.2} {:>9.2} {:>8.2} {:>7}  {}",
                t.blocks,
                t.multiprocessors,
                t.doubled,
                t.start_us,
                t.released_us,
                t.end_us,
                t.busy_us,
                gap(t.gap_us),
                what.trim_end()
            ),
        });
    }
    lines.push(format!(
        "{:>8} {:>7} {:>5} {:>7} {:>8} {:>7} {:>9}  launches together, by the median",
        "launches", "blocks", "on", "doubled", "busy", "gap", "all"
    ));
    for group in &timeline.groups {
        let busy = group.busy_us.map_or("not seen".to_owned(), |us| format!("{us:.2}"));
        lines.push(format!(
            "{:>8} {:>7} {:>5} {:>7} {:>8} {:>7} {:>9.2}  {} {}",
            group.launches,
            group.blocks,
            group.multiprocessors,
            group.doubled,
            busy,
            gap(group.gap_us),
            group.total_us,
            group.kernel,
            group.path
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(kernel: &str, path: &str) -> StepLaunch {
        StepLaunch { kernel: kernel.to_owned(), name: "x".to_owned(), path: path.to_owned() }
    }

    #[test]
    fn patterns_fit_kernels_and_module_paths() {
        let o = launch("matmul", "model.layers.3.self_attn.o_proj");
        let fits = |text: &str| text.parse::<LaunchPattern>().unwrap().fits(&o);
        for text in ["matmul", "mat*", "*", "*mul", "m*t*l", "matmul@o_proj", "*@layers.3."] {
            assert!(fits(text), "{text}");
        }
        for text in ["mat", "matmul_", "*x", "matmul@down", "region@o_proj"] {
            assert!(!fits(text), "{text}");
        }
        for text in ["", "@x", "matmul@"] {
            assert!(text.parse::<LaunchPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn kernels_are_counted_with_the_places_of_their_launches() {
        let launches = [launch("matmul", "l.0.o"), launch("region", ""), launch("matmul", "l.1.o")];
        let counts = kernel_counts(&launches);
        let count = |kernel: &str, launches, paths: &[&str]| KernelCount {
            kernel: kernel.to_owned(),
            launches,
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
        };
        assert_eq!(counts, [count("matmul", 2, &["l.*.o"]), count("region", 1, &[])]);
    }

    #[test]
    fn a_timeline_is_of_one_row_in_mode_full() {
        assert!(check_timeline(1, &[GraphMode::Full]).is_ok());
        for (rows, mode) in [(2, GraphMode::Full), (1, GraphMode::Piecewise)] {
            let error = check_timeline(rows, &[mode]).unwrap_err().to_string();
            assert!(error.contains("one row in mode full"), "{error}");
        }
    }
}
