//! Planned faults of a device: the ways in which a GPU fails, around one whose results tests can hold.

use crate::host_time;
use piecewise_backend::device::{CaptureRule, Clock, DeviceError};
use piecewise_backend::hooks::{DeviceCall, DeviceHook, HookedDevice};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The calls of the device that a fault can strike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultPoint {
    /// Recording a program as a graph.
    Capture,
    /// A replay of a captured graph.
    Replay,
    /// The launches of a program.
    Launch,
    /// Waiting until work that was submitted is done.
    Wait,
    /// Opening the device anew.
    Reopen,
}

/// How a call that is struck fails, and what becomes of its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The call fails before anything of it ran.
    Refused,
    /// The call finds no memory, and a later one may.
    OutOfMemory,
    /// An op does what a capture does not allow.
    BrokenCapture,
    /// The call goes well, and whatever comes next finds the device lost; a wait finds it itself.
    Asynchronous,
    /// The call finds the device lost; where it opens it anew, for good.
    Sticky,
}

/// A fault that is to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFault {
    /// The call that it strikes.
    pub point: FaultPoint,
    /// How the call fails, and what follows from it.
    pub kind: FaultKind,
    /// How many calls that fit go well first.
    pub after: u32,
    /// How many fail then; `u32::MAX` is all.
    pub times: u32,
}

/// What is planned to fail; nothing by default. Clones share one plan, so that a test can add to
/// it while the device runs.
#[derive(Clone, Default, Debug)]
pub struct DeviceFaults(Arc<Mutex<Plan>>);

#[derive(Default, Debug)]
struct Plan {
    faults: Vec<DeviceFault>,
    is_lost: bool,
    slow: Option<(FaultPoint, Duration)>,
    held: Option<Held>,
}

/// Who is kept at a point, once so many have passed it.
#[derive(Debug)]
struct Held {
    point: FaultPoint,
    after: u32,
    arrived: Sender<()>,
    released: Receiver<()>,
}

/// A device whose calls fail as planned, and whose time is [`host_time`]'s.
pub type FaultyDevice = HookedDevice<DeviceFaults>;

fn lost(action: &str) -> DeviceError {
    DeviceError::Lost { action: action.to_owned(), reason: "a planned fault".to_owned() }
}

impl DeviceFaults {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault to those that are planned.
    pub fn fail(&self, fault: DeviceFault) {
        self.plan().faults.push(fault);
    }

    /// Passing a point keeps its caller for so long from now on, by [`host_time`].
    pub fn slow(&self, point: FaultPoint, each: Duration) {
        self.plan().slow = Some((point, each));
    }

    /// Keeps whoever passes a point after `after` others until the sender is used or dropped; the
    /// receiver hears that it is there. It replaces who was to be kept before.
    pub fn hold(&self, point: FaultPoint, after: u32) -> (Receiver<()>, Sender<()>) {
        let (arrived, has_arrived) = mpsc::channel();
        let (release, released) = mpsc::channel();
        self.plan().held = Some(Held { point, after, arrived, released });
        (has_arrived, release)
    }

    /// Waits where this caller is to be kept; nobody else waits for the plan meanwhile.
    fn wait_if_held(&self, point: FaultPoint) {
        let is_due = |held: &mut Held| {
            let is_due = held.point == point && held.after == 0;
            held.after -= u32::from(held.point == point && !is_due);
            is_due
        };
        let held = self.plan().held.take_if(is_due);
        if let Some(Held { arrived, released, .. }) = held {
            // A test that no longer listens has dropped the other end, too.
            let _ = arrived.send(());
            let _ = released.recv();
        }
    }

    /// How many faults have not struck as often as planned.
    pub fn pending(&self) -> usize {
        self.plan().faults.iter().filter(|fault| fault.times > 0).count()
    }

    /// Nothing will fail or be slow any more; a device that is lost stays so.
    pub fn clear(&self) {
        let mut plan = self.plan();
        plan.faults.clear();
        plan.slow = None;
    }

    fn check_lost(&self, action: &str) -> Result<(), DeviceError> {
        if self.plan().is_lost { Err(lost(action)) } else { Ok(()) }
    }

    fn reopen(&self) -> Result<(), DeviceError> {
        self.plan().is_lost = false;
        self.pass(FaultPoint::Reopen, "open the device anew").inspect_err(|_| {
            self.plan().is_lost = true;
        })
    }

    /// Passes a point, or fails as planned.
    fn pass(&self, point: FaultPoint, label: &str) -> Result<(), DeviceError> {
        self.wait_if_held(point);
        let mut plan = self.plan();
        if let Some((_, each)) = plan.slow.filter(|(slow, _)| *slow == point) {
            host_time::pass(each);
        }
        let Plan { faults, is_lost, .. } = &mut *plan;
        for fault in faults.iter_mut().filter(|fault| fault.point == point && fault.times > 0) {
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            if fault.times != u32::MAX {
                fault.times -= 1;
            }
            let (label, reason) = (label.to_owned(), "a planned fault".to_owned());
            return Err(match (fault.kind, point) {
                (FaultKind::Asynchronous, point) if point != FaultPoint::Wait => {
                    *is_lost = true;
                    return Ok(());
                }
                (FaultKind::Sticky, FaultPoint::Reopen) => {
                    DeviceError::ProcessRefused { action: label, reason }
                }
                (FaultKind::Asynchronous | FaultKind::Sticky, _) => {
                    *is_lost = true;
                    lost(&label)
                }
                (FaultKind::Refused | FaultKind::OutOfMemory, FaultPoint::Replay) => {
                    DeviceError::Refused { label, reason }
                }
                (FaultKind::Refused, FaultPoint::Capture) => {
                    DeviceError::CaptureFailed { label, launch: None, sizes: Vec::new(), reason }
                }
                (FaultKind::Refused, _) => {
                    DeviceError::Launch { launch: "the first".to_owned(), label, reason }
                }
                (FaultKind::OutOfMemory, _) => {
                    DeviceError::OutOfMemory { what: label, bytes: 0, reason }
                }
                (FaultKind::BrokenCapture, _) => {
                    DeviceError::Capture { label, rule: CaptureRule::NoSynchronization }
                }
            });
        }
        Ok(())
    }
}

impl DeviceHook for DeviceFaults {
    fn before(&mut self, call: DeviceCall<'_>) -> Result<(), DeviceError> {
        let (point, label) = match call {
            DeviceCall::Reopen => return self.reopen(),
            DeviceCall::Launch(_) => (FaultPoint::Launch, "a program"),
            DeviceCall::Replay(_) => (FaultPoint::Replay, "a captured graph"),
            DeviceCall::Capture(label) => (FaultPoint::Capture, label),
            DeviceCall::Wait => (FaultPoint::Wait, "a wait"),
            DeviceCall::Other(what) => return self.check_lost(what),
            other => return self.check_lost(&format!("{other:?}")),
        };
        self.check_lost(label)?;
        self.pass(point, label)
    }

    fn clock(&self, _: Clock) -> Clock {
        host_time::now
    }
}
