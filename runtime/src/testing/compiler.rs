//! A compiler whose launches name the ops.

use piecewise_backend::artifact::{Artifact, Digest, Launch, Lowered, PieceSize};
use piecewise_backend::compiler::{CompileError, Compiler, Store};
use piecewise_backend::weights::{NormalWeights, WeightLayout};
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::op::Op;
use piecewise_kernels::step::CaptureSupport;

/// Lowers each op to one launch of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FakeCompiler {
    /// What split ops support.
    pub split_support: CaptureSupport,
}

impl FakeCompiler {
    /// Weights for a model that has none.
    pub(crate) const WEIGHTS: NormalWeights = NormalWeights { std: 1.0, seed: 0 };
}

impl Compiler for FakeCompiler {
    fn identity(&self) -> String {
        "fake".to_owned()
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
        let launch = Launch {
            name: call.name.clone(),
            nodes: vec![0],
            args: Vec::new(),
            image: Digest::of(call.name.as_bytes()),
            grid: [1; 3],
            params: Vec::new(),
            capture: if call.splits { self.split_support } else { CaptureSupport::Always },
        };
        let lowered = Lowered { launches: vec![launch], scratch: 0 };
        Ok(Artifact { piece: piece.hash, size, alternatives: vec![lowered], images: Vec::new() })
    }
}
