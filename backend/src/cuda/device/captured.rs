//! Captured graphs: programs recorded on the stream, inspected and made ready to replay.

use super::{CudaDevice, SharedLt};
use crate::cuda::capture::StreamCapture;
use crate::cuda::error::CallError;
use crate::cuda::graph::{GraphExec, GraphSummary};
use crate::cuda::program::{BoundLaunch, CudaProgram};
use crate::cuda::stamps::Stamps;
use crate::device::{CaptureRule, DeviceError};
use piecewise_kernels::step::{CaptureSupport, LaunchContext};
use std::sync::Arc;

/// A captured graph. It keeps alive everything it points to.
#[derive(Debug)]
pub struct CudaCaptured {
    // Dropped first: it waits for a replay that still runs.
    pub(super) exec: GraphExec,
    pub(super) label: String,
    pub(super) sizes: Vec<u64>,
    pub(super) summary: GraphSummary,
    pub(super) launches: Vec<Arc<BoundLaunch>>,
    pub(in crate::cuda) stamps: Option<Stamps>,
    /// Kernels of the library live with its handle.
    _lt: Option<SharedLt>,
}

impl CudaCaptured {
    /// What the driver says is in it.
    pub fn summary(&self) -> &GraphSummary {
        &self.summary
    }

    pub(in crate::cuda) fn launches(&self) -> usize {
        self.launches.len()
    }
}

impl CudaDevice {
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
        let summary = graph.inspect().map_err(call)?;
        if let Some(broken) = summary.broken_rule() {
            return Err(rule(broken));
        }
        if let Some(dir) = &self.options.dot_dir {
            let name: String =
                label.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
            graph.write_dot(&dir.join(format!("{name}.dot"))).map_err(call)?;
        }
        let exec = graph.instantiate().map_err(call)?;
        Ok(CudaCaptured {
            exec,
            label: label.to_owned(),
            sizes: sizes.to_vec(),
            summary,
            launches,
            stamps,
            _lt: self.lt.clone(),
        })
    }
}
