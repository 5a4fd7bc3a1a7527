//! What a device made is for devices of its kind, and what is around a device is told of its calls.

use crate::cpu_capture::{bound, doubled};
use crate::harness::registry;
use piecewise_backend::cpu::CpuDevice;
use piecewise_backend::cuda::CudaOptions;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::hooks::{DeviceCall, DeviceHook, HookedDevice};
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::{CaptureSupport, LaunchContext, StepContext};
use piecewise_testing::{Faults, cuda};
use std::sync::{Arc, Mutex};

const SIZES: [u64; 2] = [6, 8];

fn is_foreign(result: Result<impl Sized, DeviceError>) -> bool {
    matches!(result, Err(DeviceError::Foreign { .. }))
}

#[test]
fn what_another_kind_of_device_made_is_refused() {
    let (mut bench, artifact) = bound(doubled(false).0, CaptureSupport::Always);
    let program = bench.bind(&artifact).unwrap();
    let graph = bench.device.capture("one", &[&program], &SIZES).unwrap();
    let [mark, event] = [bench.device.mark(None).unwrap(), bench.device.record(None).unwrap()];
    let options = CudaOptions::default();
    let mut other = cuda::simulated(options, OpRegistry::new(), &Faults::default()).unwrap();
    let step = StepContext { counts: &SIZES, sizes: &SIZES, inputs: &[] };
    assert!(is_foreign(other.launch(&program, LaunchContext::Step(&step))));
    assert!(is_foreign(other.capture("one", &[&program], &SIZES)));
    assert!(is_foreign(other.replay(&graph)));
    assert!(is_foreign(other.replay_at(&graph, &SIZES)));
    assert!(is_foreign(other.wait(&event)));
    assert!(is_foreign(other.elapsed(&mark, &mark)));
    let at = bench.counts;
    assert!(is_foreign(other.copy_from(&mut bench.device, at, 4, at)));
    // Nothing is lost by what is only to be used again.
    let own = other.record(Some(event)).unwrap();
    other.wait(&own).unwrap();
    let mark = bench.device.mark(Some(own)).unwrap();
    bench.device.elapsed(&mark, &mark).unwrap();
}

/// Notes what it is told, and refuses captures.
#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl DeviceHook for Notes {
    fn before(&mut self, call: DeviceCall<'_>) -> Result<(), DeviceError> {
        let (name, result) = match call {
            DeviceCall::Capture(label) => {
                let (action, reason) = ("capture".to_owned(), label.to_owned());
                ("capture", Err(DeviceError::Driver { action, reason }))
            }
            DeviceCall::Launch(_) => ("launch", Ok(())),
            DeviceCall::Wait => ("wait", Ok(())),
            DeviceCall::Other(what) => (what, Ok(())),
            _ => ("else", Ok(())),
        };
        self.0.lock().unwrap().push(name.to_owned());
        result
    }
}

#[test]
fn a_hook_is_told_of_calls_of_every_model_and_what_it_refuses_is_not_done() {
    let (mut bench, artifact) = bound(doubled(false).0, CaptureSupport::Always);
    let program = bench.bind(&artifact).unwrap();
    let notes = Notes::default();
    let mut device = HookedDevice::new(bench.device, notes.clone());
    let step = StepContext { counts: &SIZES, sizes: &SIZES, inputs: &[] };
    device.launch(&program, LaunchContext::Step(&step)).unwrap();
    let error = device.capture("all of it", &[&program], &SIZES).unwrap_err();
    assert_eq!(error.to_string(), "could not capture: all of it");
    let mut shared = device.share(registry()).unwrap();
    let region = shared.reserve("of another", 64).unwrap();
    shared.back(region).unwrap();
    shared.write(region.base, &[7; 64]).unwrap();
    // Two with a hook of one kind are of one kind, and one without is of another.
    device.copy_from(&mut *shared, region.base, 64, bench.counts).unwrap();
    let mut bytes = [0; 64];
    device.read(bench.counts, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64]);
    let mut plain = CpuDevice::new(registry(), 1).unwrap();
    assert!(is_foreign(device.copy_from(&mut plain, region.base, 64, bench.counts)));
    let expected = [
        "launch",
        "capture",
        "of another",
        "backing a region",
        "a write",
        "a copy",
        "a read",
        "a copy",
    ];
    assert_eq!(*notes.0.lock().unwrap(), expected);
}
