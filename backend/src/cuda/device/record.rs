//! Programs recorded on the stream as one graph, inspected and made ready to replay.

use super::CudaDevice;
use crate::cuda::bound::{BoundLaunch, Work, needed_once};
use crate::cuda::capture::StreamCapture;
use crate::cuda::captured::CudaCaptured;
use crate::cuda::error::CallError;
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

    /// Captures the launches of programs, in order, as one graph.
    pub(super) fn record_graph(
        &self,
        label: &str,
        programs: &[&CudaProgram],
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
        for launch in &launches {
            if launch.support == CaptureSupport::Never {
                let label = format!("{label} / {} / {}", launch.label, launch.name);
                return Err(DeviceError::Capture { label, rule: CaptureRule::UnsupportedOp });
            }
            let prepared = self.prepare(launch, sizes);
            prepared.map_err(|reason| failed(Some(&launch.name), reason))?;
        }
        let stamps = Stamps::of(&self.context, &self.stream, &launches, sizes)?;
        let capture = StreamCapture::begin(&self.stream).map_err(call)?;
        for (i, launch) in launches.iter().enumerate() {
            self.driver().scope(&[label, &launch.label, &launch.name], sizes);
            let noted_at = stamps.as_ref().map_or(0, |stamps| stamps.address(i));
            self.enqueue(launch, LaunchContext::Capture(sizes), noted_at)
                .map_err(|reason| failed(Some(&launch.name), reason))?;
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
        let ends = programs.iter().scan(0, |end, program| {
            *end += program.launches.len();
            Some(*end)
        });
        let exec = graph.instantiate().map_err(call)?;
        Ok(CudaCaptured {
            exec,
            label: label.to_owned(),
            sizes: sizes.to_vec(),
            summary: inspected.summary,
            launches,
            ends: ends.collect(),
            needed,
            stamps,
            _lt: self.lt.as_ref().map(LtView::handle),
        })
    }
}
