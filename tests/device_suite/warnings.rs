//! What is told by warnings.

use crate::sampling_controls::{engine_of, got};
use crate::small_decoder::Setup;
use crate::target::{Breakable, Breaks, Cpu, Strike};
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::engine::Request;
use piecewise_runtime::words::{CaptureWhen, GraphMode, OnCaptureFailure};
use piecewise_testing::{FaultKind, FaultPoint};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// What is logged goes here.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What some work gives, and the warnings of its thread meanwhile.
pub(crate) fn warned<R>(work: impl FnOnce() -> R) -> (R, String) {
    let log = Log::default();
    let writer = log.clone();
    let warnings = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
    let warnings = warnings.with_writer(move || writer.clone()).finish();
    let result = tracing::subscriber::with_default(warnings, work);
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    (result, said)
}

/// Whoever goes on without a graph is told which one, why, and how to have an error in its place.
#[test]
fn a_capture_that_fails_is_told() {
    for capture in [CaptureWhen::Startup, CaptureWhen::Lazy] {
        let setup = Setup {
            mode: GraphMode::Full,
            capture,
            on_capture_failure: OnCaptureFailure::Launch,
            ..Setup::default()
        };
        let (device, compiler, faults) = Cpu::breakable(&Arc::new(OpRegistry::builtin()));
        let model = setup.build_on::<Cpu>(device, compiler.as_ref());
        let mut engine = engine_of(model, true);
        let mut served = || {
            // Those of a start are captured as a whole, as at the start.
            engine.model_mut().invalidate_graphs();
            engine.enable_graphs().unwrap();
            let id = engine.add(Request::new([3, 5, 7], 4)).unwrap();
            let mut events = Vec::new();
            engine.run(&mut events).unwrap();
            (got(&events).remove(&id), engine.model().statistics().capture_failures)
        };
        faults.plan(Strike { point: FaultPoint::Capture, kind: FaultKind::Refused, after: 0 });
        let ((found, failures), said) = warned(&mut served);
        assert!(faults.has_struck() && failures == 1);
        let ((expected, failures), quiet) = warned(&mut served);
        assert_eq!((found, failures), (expected, 1));
        assert_eq!(quiet, "");
        let told = |part: &str| said.lines().filter(|line| line.contains(part)).count();
        let each: Vec<&str> = said.lines().filter(|line| line.contains("this size")).collect();
        let parts = ["WARN", "full step ", "a planned fault", "steps of this size are launched"];
        assert_eq!(each.len(), 1, "{said}");
        assert!(parts.iter().all(|part| each[0].contains(part)), "{said}");
        let counted = told("1 of ") == 1 && told("on_capture_failure = \"error\"") == 1;
        assert_eq!(counted, capture == CaptureWhen::Startup, "{said}");
    }
}
