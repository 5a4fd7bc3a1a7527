//! A compiler whose launches name the ops.

use super::Planted;
use piecewise_backend::artifact::{
    Access, Alternative, Arg, ArgRef, Artifact, Digest, Launch, Part, PieceSize, Way,
};
use piecewise_backend::compiler::{CompileError, Compiler, Footprint, PieceAt, Store};
use piecewise_backend::weights::{NormalWeights, WeightLayout};
use piecewise_ir::graph::ValueDef;
use piecewise_ir::module::Stitch;
use piecewise_ir::op::Op;
use piecewise_kernels::step::CaptureSupport;

/// Lowers each op to a launch of its name, which reads, and one that writes: an op here has read
/// everything before it writes, so that the plan may give its results the bytes of its operands.
/// [`super::FakeDevice`] runs both as one.
#[derive(Clone, Debug)]
pub(crate) struct FakeCompiler {
    /// What split ops support.
    pub split_support: CaptureSupport,
    /// What the op of the first piece supports.
    pub piece_support: CaptureSupport,
    /// The ways of artifacts.
    pub planted: Planted,
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
        PieceAt { piece, size, .. }: PieceAt<'_>,
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
            follows_sizes: self.planted.follows_sizes,
        };
        let name = &call.name;
        let launches =
            [launch(name.clone(), read), launch(format!("{name}'s writes"), written.clone())];
        let way = |alternative: usize, part: usize, way: usize| Way {
            name: format!("way {way}"),
            launches: vec![match (alternative, part) {
                (1.., 1) => launch(format!("{name}'s other writes"), written.clone()),
                _ => launches[part].clone(),
            }],
            scratch: 0,
            uses_library: self.planted.library.is_some() && (part, way) == (0, 1),
        };
        let part = |alternative, part, count| Part {
            ways: (0..count).map(|i| way(alternative, part, i)).collect(),
        };
        let alternatives = self.planted.alternatives.iter().enumerate();
        let alternatives = alternatives.map(|(i, &[reads, writes])| Alternative {
            parts: vec![part(i, 0, reads), part(i, 1, writes)],
        });
        let alternatives = alternatives.collect();
        Ok(Artifact { piece: piece.hash, size, alternatives, images: Vec::new() })
    }
}
