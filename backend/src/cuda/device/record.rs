//! Programs recorded on the stream as one graph, inspected and made ready to replay.

use super::CudaDevice;
use crate::cuda::bound::{BoundLaunch, Work, needed_once};
use crate::cuda::capture::StreamCapture;
use crate::cuda::captured::CudaCaptured;
use crate::cuda::error::CallError;
use crate::cuda::followed::{Following, SetError};
use crate::cuda::graph::{Inspected, KernelEdges};
use crate::cuda::lt_view::LtView;
use crate::cuda::program::CudaProgram;
use crate::cuda::stamps::Stamps;
use crate::device::{CaptureRule, DeviceError};
use piecewise_kernels::step::{CaptureSupport, LaunchContext};
use std::sync::Arc;

impl CudaDevice {
    /// That every kernel which may start before the kernel ahead of it ends does so in the graph:
    /// an edge that the driver made a plain one costs time and shows nowhere else. Edges are told apart by
    /// the kernels that they join, so that one within a library's kernels stands for none of ours.
    fn check_edges(
        &self,
        label: &str,
        launches: &[Arc<BoundLaunch>],
        sizes: &[u64],
        graph: &Inspected,
    ) -> Result<(), DeviceError> {
        let mut wanted = KernelEdges::new();
        let mut ahead = None;
        for launch in launches {
            let Work::Kernel(bound) = &launch.work else {
                // What a library or a host function enqueues last is its own affair.
                ahead = None;
                continue;
            };
            let grid = bound.recipe.grid_at(sizes, self.context.device.multiprocessors);
            if grid.is_ok_and(|grid| grid.contains(&0)) {
                continue;
            }
            let entry = bound.recipe.entry.as_str();
            if let Some(ahead) = ahead.filter(|_| self.is_programmatic(bound)) {
                *wanted.entry((ahead, entry)).or_default() += 1;
            }
            ahead = Some(entry);
        }
        let failed = |reason: String| DeviceError::CaptureFailed {
            label: label.to_owned(),
            launch: None,
            sizes: sizes.to_vec(),
            reason: format!("{reason}; open the device with `serial` to run without them"),
        };
        let (all, found) = (wanted.values().sum(), graph.summary.programmatic_edges);
        if found < all {
            return Err(failed(format!(
                "the driver kept {found} of at least {all} programmatic edges"
            )));
        }
        // A driver that does not tell the names of kernels leaves their number alone to go by.
        let has_name = |name: &str| graph.summary.kernels.iter().any(|kernel| kernel == name);
        let edges = graph.kernel_edges();
        for ((from, to), wanted) in wanted {
            let found = edges.get(&(from, to)).copied().unwrap_or(0);
            if found < wanted && has_name(from) && has_name(to) {
                return Err(failed(format!(
                    "the driver kept {found} of at least {wanted} programmatic edges from kernel \
                     `{from}` to kernel `{to}`"
                )));
            }
        }
        Ok(())
    }

    /// Captures the launches of programs, in order, as one graph; those of the programs at the places
    /// `following` follow the sizes of each replay.
    pub(super) fn record_graph(
        &self,
        label: &str,
        programs: &[&CudaProgram],
        following: &[usize],
        sizes: &[u64],
    ) -> Result<CudaCaptured, DeviceError> {
        let failed = |launch: Option<&str>, reason: String| DeviceError::CaptureFailed {
            label: label.to_owned(),
            launch: launch.map(str::to_owned),
            sizes: sizes.to_vec(),
            reason,
        };
        let call = |e: CallError| failed(None, e.to_string());
        let launches: Vec<_> = programs.iter().flat_map(|p| &p.launches).cloned().collect();
        let ends = programs.iter().scan(0, |end, program| {
            *end += program.launches.len();
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        let follows =
            |launch: usize| following.contains(&ends.partition_point(|end| *end <= launch));
        for (i, launch) in launches.iter().enumerate() {
            if launch.support == CaptureSupport::Never {
                let label = format!("{label} / {} / {}", launch.label, launch.name);
                return Err(DeviceError::Capture { label, rule: CaptureRule::UnsupportedOp });
            }
            let can_follow = || if follows(i) { launch.check_follows() } else { Ok(()) };
            let prepared = can_follow().and_then(|()| self.prepare(launch, sizes));
            prepared.map_err(|reason| failed(Some(&launch.name), reason))?;
        }
        let stamps = Stamps::of(&self.context, &self.stream, &launches, &follows, sizes)?;
        let capture = StreamCapture::begin(&self.stream).map_err(call)?;
        let mut nodes = Following::default();
        for (i, launch) in launches.iter().enumerate() {
            self.driver().scope(&[label, &launch.label, &launch.name], sizes);
            let noted_at = stamps.as_ref().map_or(0, |stamps| stamps.address(i));
            let failed = |reason| failed(Some(&launch.name), reason);
            self.enqueue(launch, LaunchContext::Capture(sizes), noted_at).map_err(failed)?;
            if follows(i) {
                let node = self.driver().captured_node(self.stream.handle);
                nodes.push(launch, node.map_err(|e| failed(e.to_string()))?);
            }
        }
        self.driver().scope(&[label], sizes);
        let rule = |rule| DeviceError::Capture { label: label.to_owned(), rule };
        let graph = capture.end().map_err(call)?.ok_or_else(|| rule(CaptureRule::NoEmpty))?;
        let inspected = graph.inspect().map_err(call)?;
        if let Some(broken) = inspected.summary.broken_rule() {
            return Err(rule(broken));
        }
        if let Some(dir) = &self.options.dot_dir {
            let name: String =
                label.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
            graph.write_dot(&dir.join(format!("{name}.dot"))).map_err(call)?;
        }
        self.check_edges(label, &launches, sizes, &inspected)?;
        let needed = needed_once(&launches);
        let exec = graph.instantiate().map_err(call)?;
        let followed =
            nodes.of(graph, sizes, |launches, at| self.prepare_launches(launches, sizes, at));
        Ok(CudaCaptured {
            exec,
            label: label.to_owned(),
            sizes: sizes.to_vec(),
            summary: inspected.summary,
            followed: followed.map_err(|reason| failed(None, reason))?,
            launches,
            ends,
            needed,
            stamps,
            _lt: self.lt.as_ref().map(LtView::handle),
        })
    }

    /// Sets the launches of a graph that follow sizes to these, as far as they differ from what they were
    /// set to last.
    pub(super) fn set_sizes(&self, graph: &CudaCaptured, sizes: &[u64]) -> Result<(), DeviceError> {
        let Some(followed) = &graph.followed else { return Ok(()) };
        let refused = |reason: String| DeviceError::Refused {
            label: graph.label.clone(),
            reason: format!("its launches can't be set to the sizes {sizes:?}: {reason}"),
        };
        let prepare = |launches: &[_], at: &mut _| self.prepare_launches(launches, sizes, at);
        let set = followed.set(sizes, prepare, |node, kernel| graph.exec.set_kernel(node, kernel));
        set.map_err(|error| match error {
            SetError::Launch(reason) => refused(reason),
            SetError::Call(error) if error.is_sticky() => self.asynchronous(&error),
            SetError::Call(error) => self.lost_or(refused(error.to_string())),
        })
    }
}
