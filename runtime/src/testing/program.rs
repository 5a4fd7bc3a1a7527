//! Programs of the fake device, bound and captured.

use piecewise_backend::artifact::Choice;
use piecewise_backend::device::{
    Address, BoundAddress, BoundProgram, BoundTo, GraphShape, LaunchView, Program, Replayable,
};
use piecewise_kernels::step::CaptureSupport;

/// A bound op.
#[derive(Clone, Debug)]
pub(crate) struct FakeProgram {
    pub op: String,
    pub operands: Vec<Address>,
    pub counts: Address,
    /// Those of the first matrix that it takes or gives.
    pub columns: usize,
    pub(super) capture: CaptureSupport,
    pub replayed: bool,
    /// Which of its artifact's ways it is.
    pub choice: Choice,
    pub(super) uses_library: bool,
    /// The place of the algorithm that a captured program of the library took.
    pub algorithm: u64,
    /// Whether it does nothing.
    pub left_out: bool,
    /// Which of the captured programs it is.
    pub(super) place: usize,
    /// Whether it was captured to follow the sizes of replays.
    pub(super) follows: bool,
    /// The block table that it goes on using.
    pub table: Option<Vec<u8>>,
}

impl BoundProgram for FakeProgram {
    fn capture_support(&self) -> CaptureSupport {
        self.capture
    }

    fn launches(&self) -> Vec<LaunchView<'_>> {
        let view = LaunchView { name: &self.op, kernel: &self.op, nodes: &[0] };
        if self.left_out { Vec::new() } else { vec![view] }
    }

    fn without(&self, left_out: &[usize]) -> Program {
        Program::new(Self { left_out: self.left_out || left_out.contains(&0), ..self.clone() })
    }
}

#[derive(Debug)]
pub(crate) struct FakeCaptured {
    pub(super) programs: Vec<FakeProgram>,
    pub(super) sizes: Vec<u64>,
}

impl FakeCaptured {
    pub(super) fn launches(&self) -> u64 {
        self.programs.len() as u64
    }
}

impl Replayable for FakeCaptured {
    fn shape(&self) -> GraphShape {
        let launches = self.launches();
        GraphShape { launches, nodes: launches, programmatic_edges: 0 }
    }

    fn addresses(&self) -> Vec<BoundAddress<'_>> {
        let mut found = Vec::new();
        for bound in &self.programs {
            let program = bound.place;
            let launch = bound.op.as_str();
            let mut add = |what, name, address| {
                found.push(BoundAddress { program, launch, what, name, address });
            };
            for (i, &address) in bound.operands.iter().enumerate() {
                add(BoundTo::Operand(i as u32), OPERANDS[i], address);
            }
            add(BoundTo::Counts, "counts", bound.counts);
        }
        found
    }
}

/// What the library calls what a program computes.
pub(super) fn product(program: &FakeProgram, sizes: &[u64]) -> String {
    format!("{} at {sizes:?}", program.op)
}

/// What operands are called.
const OPERANDS: [&str; 16] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];
