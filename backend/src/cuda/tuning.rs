//! Measured choice of matmul algorithms, kept in tuning records.

use super::device::{CudaDevice, SharedLt, lock};
use super::error::device_error;
use super::event::CudaEvent;
use super::lt::{LtError, TuningRecord, tuning_key};
use super::matmul::MatmulProblem;
use super::program::{BoundMatmul, CudaProgram, Work};
use crate::compiler::Store;
use crate::device::DeviceError;
use crate::tuning::{TuneMode, TuningReport};

/// The kind of entry that the store keeps records under.
const KIND: &str = "tuning";

/// Calls of a candidate between two events.
const ROUNDS: u32 = 8;

impl CudaDevice {
    pub(super) fn tune_matmuls(
        &mut self,
        program: &CudaProgram,
        sizes: &[u64],
        mode: TuneMode,
        store: &dyn Store,
    ) -> Result<TuningReport, DeviceError> {
        let mut report = TuningReport::default();
        let Some(lt) = self.shared_lt().cloned() else { return Ok(report) };
        if mode == TuneMode::Off {
            return Ok(report);
        }
        self.enter()?;
        let library = lock(&lt).identity();
        let device = self.report().name.clone();
        for launch in &program.launches {
            let Work::Matmul(bound) = &launch.work else { continue };
            let failed = |reason: String| DeviceError::Launch {
                launch: launch.name.clone(),
                label: launch.label.to_string(),
                reason: format!("tuning at sizes {sizes:?}: {reason}"),
            };
            launch.check(sizes).map_err(failed)?;
            let problem = bound.matmul.problem(sizes).map_err(failed)?;
            let workspace = bound.workspace_bytes;
            let key = tuning_key(&problem, &library, &device, workspace);
            let stored = store.get(KIND, key).unwrap_or_default();
            let record = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            if let Some(record) = record.filter(|r: &TuningRecord| r.problem == problem) {
                match lock(&lt).prefer(&problem, workspace, record.algorithm) {
                    Ok(true) => report.loaded += 1,
                    Ok(false) | Err(_) => report.refused += 1,
                }
                continue;
            }
            if mode == TuneMode::Load {
                report.untuned += 1;
                continue;
            }
            let Some((winner, microseconds, candidates)) = self.measure(&lt, bound, &problem)?
            else {
                report.refused += 1;
                continue;
            };
            let record = TuningRecord {
                problem,
                library: library.clone(),
                device: device.clone(),
                workspace,
                algorithm: winner,
                microseconds,
                candidates,
            };
            let prefer = lock(&lt).prefer(&problem, workspace, winner);
            prefer.map_err(|e| failed(e.to_string()))?;
            report.measured += 1;
            let (shown, bytes) = (problem.to_string(), workspace.to_string());
            let factors = [
                ("problem", shown.as_str()),
                ("device", &device),
                ("library", &library),
                ("workspace", &bytes),
            ];
            let kept = serde_json::to_vec(&record)
                .is_ok_and(|b| store.put(KIND, key, &factors, &b).is_ok());
            report.refused += usize::from(!kept);
        }
        Ok(report)
    }

    /// The fastest candidate, its microseconds, and how many ran; `None` where none did.
    fn measure(
        &self,
        lt: &SharedLt,
        bound: &BoundMatmul,
        problem: &MatmulProblem,
    ) -> Result<Option<(super::lt::LtAlgorithm, f32, u32)>, DeviceError> {
        let failed = |e| device_error(format!("measure {problem}"), &e);
        let refused = |e: LtError| DeviceError::Driver {
            action: format!("measure {problem}"),
            reason: e.to_string(),
        };
        let mut lt = lock(lt);
        let plan = lt.plan(problem, bound.workspace_bytes).map_err(refused)?;
        let call = bound.call(self.stream.handle);
        let mut best: Option<(super::lt::LtAlgorithm, f32)> = None;
        let mut ran = 0;
        for (i, &algorithm) in plan.candidates().iter().enumerate() {
            // The first call loads code; a candidate that the library refuses is passed over.
            if lt.enqueue(&plan, i, &call).is_err() {
                continue;
            }
            let start = CudaEvent::record(&self.stream, true, None).map_err(failed)?;
            for _ in 0..ROUNDS {
                lt.enqueue(&plan, i, &call).map_err(refused)?;
            }
            let end = CudaEvent::record(&self.stream, true, None).map_err(failed)?;
            end.wait().map_err(failed)?;
            let time = end.milliseconds_since(&start).map_err(failed)? * 1e3 / ROUNDS as f32;
            ran += 1;
            if best.is_none_or(|(_, least)| time < least) {
                best = Some((algorithm, time));
            }
        }
        Ok(best.map(|(algorithm, time)| (algorithm, time, ran)))
    }
}
