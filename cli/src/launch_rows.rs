//! The launches of a lowered piece with names and bytes, for dumps and the report page.

use piecewise_backend::artifact::{Access, ArgRef, Artifact, Launch};
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::graph::ValueDef;
use piecewise_ir::module::UniquePiece;
use piecewise_ir::text::value_names;
use serde::Serialize;

/// An operand of a unique piece.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OperandRow {
    /// Its name in the piece's text.
    pub name: String,
    /// What it is to the piece.
    pub kind: &'static str,
    /// Its type in the piece's text.
    pub ty: String,
}

/// A launch.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LaunchRow {
    pub name: String,
    pub image: String,
    /// At the artifact's size, on a CUDA device of one multiprocessor.
    pub grid: [u32; 3],
    /// Names of operands; `scratch` has its offset and bytes.
    pub operands: Vec<String>,
    pub capture: String,
    #[serde(flatten)]
    pub bytes: BytesMoved,
}

/// Bytes of the operands that a launch reads and writes, whole: a gather reads less. States are
/// left out, for what is touched of them depends on the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct BytesMoved {
    pub bytes_read: u64,
    /// Of these, bytes of weights.
    pub weight_bytes: u64,
    pub bytes_written: u64,
}

impl std::ops::AddAssign for BytesMoved {
    fn add_assign(&mut self, other: Self) {
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.weight_bytes = self.weight_bytes.saturating_add(other.weight_bytes);
        self.bytes_written = self.bytes_written.saturating_add(other.bytes_written);
    }
}

/// A unique piece whose launches are shown.
pub(crate) struct PieceView<'a> {
    piece: &'a UniquePiece,
    operands: Vec<Value>,
    names: Vec<Option<String>>,
    /// The largest size of each symbol, by symbol index.
    bounds: &'a [u64],
}

impl<'a> PieceView<'a> {
    pub(crate) fn new(piece: &'a UniquePiece, bounds: &'a [u64]) -> Self {
        let names = value_names(&piece.graph);
        Self { piece, operands: piece.operands(), names, bounds }
    }

    /// The operands by position.
    pub(crate) fn operand_rows(&self) -> Vec<OperandRow> {
        let graph = &self.piece.graph;
        let row = |&value: &Value| OperandRow {
            name: self.name(value),
            kind: match graph.def(value) {
                ValueDef::Input(_) => "input",
                ValueDef::Weight(_) => "weight",
                ValueDef::State(_) => "state",
                ValueDef::Result { .. } if graph.outputs().contains(&value) => "output",
                ValueDef::Result { .. } => "local",
            },
            ty: graph.ty(value).display(graph.symbols()).to_string(),
        };
        self.operands.iter().map(row).collect()
    }

    /// The launches of an artifact's first alternative, which is taken where nothing was measured.
    pub(crate) fn launch_rows(&self, artifact: &Artifact) -> Vec<LaunchRow> {
        let Some(lowered) = artifact.alternatives.first() else { return Vec::new() };
        let mut limits = self.bounds.to_vec();
        if let Some(limit) = self.piece.over.and_then(|over| limits.get_mut(over.index())) {
            *limit = artifact.size.rows();
        }
        lowered.launches.iter().map(|launch| self.launch_row(launch, &limits)).collect()
    }

    fn launch_row(&self, launch: &Launch, limits: &[u64]) -> LaunchRow {
        let mut bytes = BytesMoved::default();
        let mut operands = Vec::with_capacity(launch.args.len());
        for arg in &launch.args {
            match arg.at {
                ArgRef::Operand(position) => {
                    let Some(&value) = self.operands.get(position as usize) else { continue };
                    bytes += self.bytes_of(value, arg.access, limits);
                    operands.push(self.name(value));
                }
                ArgRef::Scratch { offset, bytes } => {
                    operands.push(format!("scratch {offset}+{bytes}"));
                }
            }
        }
        LaunchRow {
            name: launch.name.clone(),
            image: launch.image.to_string(),
            grid: launch.grid,
            operands,
            capture: format!("{:?}", launch.capture),
            bytes,
        }
    }

    fn bytes_of(&self, value: Value, access: Access, limits: &[u64]) -> BytesMoved {
        let graph = &self.piece.graph;
        let bytes = graph.ty(value).bytes(limits);
        match (graph.def(value), access) {
            (ValueDef::State(_), _) => BytesMoved::default(),
            (ValueDef::Weight(_), _) => {
                BytesMoved { bytes_read: bytes, weight_bytes: bytes, bytes_written: 0 }
            }
            (_, Access::Read | Access::ReadAhead) => {
                BytesMoved { bytes_read: bytes, ..BytesMoved::default() }
            }
            (_, Access::Write | Access::ReadWrite) => {
                BytesMoved { bytes_written: bytes, ..BytesMoved::default() }
            }
        }
    }

    fn name(&self, value: Value) -> String {
        self.names.get(value.index()).cloned().flatten().unwrap_or_else(|| value.to_string())
    }
}
