//! A compiler whose launches name the ops.

use piecewise_backend::artifact::{
    Access, Arg, ArgRef, Artifact, Digest, Launch, Lowered, PieceSize,
};
use piecewise_backend::compiler::{CompileError, Compiler, Footprint, Store};
use piecewise_backend::weights::{NormalWeights, WeightLayout};
use piecewise_ir::graph::ValueDef;
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::op::Op;
use piecewise_kernels::step::CaptureSupport;

/// Lowers each op to a launch of its name, which reads, and one that writes: an op here has read
/// everything before it writes, so that the plan may give its results the bytes of its operands.
/// [`super::FakeDevice`] runs both as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FakeCompiler {
    /// What split ops support.
    pub split_support: CaptureSupport,
    /// What the op of the first piece supports.
    pub piece_support: CaptureSupport,
    /// How many equal alternatives artifacts have.
    pub alternatives: usize,
}

impl FakeCompiler {
    /// Weights for a model that has none.
    pub(crate) const WEIGHTS: NormalWeights = NormalWeights { std: 1.0, seed: 0 };
}

impl Compiler for FakeCompiler {
    fn target(&self) -> String {
        "fake".to_owned()
    }

    fn identity(&self) -> String {
        "fake".to_owned()
    }

    fn footprint(&self) -> Footprint {
        Footprint { graph_bytes: 1 << 20, launch_bytes: 1, context_bytes: 0, loads_images: true }
    }

    fn weight_layouts(&self, stitch: &Stitch, _: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        stitch.unique.keys().map(|_| Vec::new()).collect()
    }

    fn compile(
        &self,
        piece: &UniquePiece,
        size: PieceSize,
        _: &[u64],
        _: &[WeightLayout],
        _: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let node = piece.graph.order()[0];
        let Op::Custom(call) = &piece.graph.node(node).op else { unreachable!() };
        let (mut read, mut written) = (Vec::new(), Vec::new());
        for (position, value) in (0..).zip(piece.operands()) {
            let arg = |access| Arg { at: ArgRef::Operand(position), access };
            match piece.graph.def(value) {
                ValueDef::Result { .. } => written.push(arg(Access::Write)),
                ValueDef::State(_) => written.push(arg(Access::ReadWrite)),
                ValueDef::Input(_) | ValueDef::Weight(_) => read.push(arg(Access::Read)),
            }
        }
        let launch = |name: String, args| Launch {
            image: Digest::of(name.as_bytes()),
            name,
            nodes: vec![0],
            args,
            grid: [1; 3],
            params: Vec::new(),
            capture: match call.name.as_str() {
                _ if call.splits => self.split_support,
                "test.embed" => self.piece_support,
                _ => CaptureSupport::Always,
            },
        };
        let launches = vec![
            launch(call.name.clone(), read),
            launch(format!("{}'s writes", call.name), written),
        ];
        let lowered = Lowered { launches, scratch: 0 };
        Ok(Artifact {
            piece: piece.hash,
            size,
            alternatives: vec![lowered; self.alternatives],
            images: Vec::new(),
        })
    }
}
