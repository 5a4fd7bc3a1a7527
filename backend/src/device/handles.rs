//! What a device made, as those hold it who do not know which device it is. Dropping it frees it.

use super::error::DeviceError;
use super::memory::Address;
use derive_more::Deref;
use piecewise_kernels::step::CaptureSupport;
use std::any::Any;
use std::fmt::Debug;

/// What a launch was bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoundTo {
    /// The operand at this position of the unique piece.
    Operand(u32),
    /// The memory that launches need while they run.
    Scratch,
    /// The true size of each symbol, an `i32` each, which the host writes before a step.
    Counts,
}

/// An address that a captured graph holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoundAddress<'a> {
    /// Which of the captured programs holds it, by its place among them.
    pub program: usize,
    /// Name of the launch that reads or writes there.
    pub launch: &'a str,
    /// What is to lie there.
    pub what: BoundTo,
    /// The same for people: the name of the operand in its piece, `scratch` or `counts`.
    pub name: &'a str,
    /// The raw address, as captured.
    pub address: Address,
}

/// A launch of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchView<'a> {
    /// What it computes: its op and the first value that it defines.
    pub name: &'a str,
    /// What runs: the entry of a kernel, a function of a library, the op of a host function.
    pub kernel: &'a str,
    /// The nodes of the unique piece that it computes, by position in program order.
    pub nodes: &'a [u32],
}

/// What is in a captured graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, derive_more::Add, serde::Serialize)]
pub struct GraphShape {
    /// Launches that were captured; a matmul of a library is one.
    pub launches: u64,
    /// Nodes, as the driver tells them.
    pub nodes: u64,
    /// Edges whose consumer may start before its producer ends.
    pub programmatic_edges: u64,
}

/// An artifact bound to addresses, as a device of its own has it.
pub trait BoundProgram: Any + Debug + Send {
    /// In which batches it may be captured: the least of its launches.
    fn capture_support(&self) -> CaptureSupport;

    /// Its launches, in order.
    fn launches(&self) -> Vec<LaunchView<'_>>;

    /// The same without the launches at these positions: for timing what the rest takes, since what
    /// it computes then is not held.
    fn without(&self, left_out: &[usize]) -> Program;
}

/// A captured graph, as a device of its own has it.
pub trait Replayable: Any + Debug + Send {
    /// How many launches and nodes are in it.
    fn shape(&self) -> GraphShape;

    /// The addresses that it was built on, for the address audit.
    fn addresses(&self) -> Vec<BoundAddress<'_>>;
}

/// An artifact bound to addresses.
#[derive(Debug, Deref)]
#[deref(forward)]
pub struct Program(Box<dyn BoundProgram>);

/// A captured graph. It keeps alive everything it points to.
#[derive(Debug, Deref)]
#[deref(forward)]
pub struct Captured(Box<dyn Replayable>);

/// A point in the stream; one of [`Device::mark`](super::Device::mark) remembers when it was passed.
#[derive(Debug)]
pub struct Event(Box<dyn Any + Send>);

fn own<'a, T: Any>(made: &'a dyn Any, what: &'static str) -> Result<&'a T, DeviceError> {
    made.downcast_ref().ok_or(DeviceError::Foreign { what })
}

impl Program {
    /// Hides what a device bound.
    pub fn new(program: impl BoundProgram) -> Self {
        Self(Box::new(program))
    }

    /// What the device bound.
    ///
    /// # Errors
    /// Where it is another kind of device's.
    pub fn of<T: BoundProgram>(&self) -> Result<&T, DeviceError> {
        own(&*self.0, "a program")
    }
}

impl Captured {
    /// Hides what a device captured.
    pub fn new(graph: impl Replayable) -> Self {
        Self(Box::new(graph))
    }

    /// What the device captured.
    ///
    /// # Errors
    /// Where it is another kind of device's.
    pub fn of<T: Replayable>(&self) -> Result<&T, DeviceError> {
        own(&*self.0, "a captured graph")
    }
}

impl Event {
    /// The point in the device's stream.
    ///
    /// # Errors
    /// Where it is another kind of device's.
    pub fn of<T: Any>(&self) -> Result<&T, DeviceError> {
        own(&*self.0, "an event")
    }

    /// The same, to be used again; `None` where it is another kind of device's.
    pub fn into<T: Any>(self) -> Option<Box<T>> {
        self.0.downcast().ok()
    }
}

impl<T: Any + Send> From<Box<T>> for Event {
    /// Hides a point in a device's stream.
    fn from(point: Box<T>) -> Self {
        Self(point)
    }
}
