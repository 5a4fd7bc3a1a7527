//! What a compiler made of a piece: its launches at each size, with names and bytes.

use super::planned::LoweredPiece;
use piecewise_backend::artifact::{Access, ArgRef, Artifact, Digest, Launch, Part, PieceSize, Way};
use piecewise_backend::compiler::FirstWay;
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::graph::ValueDef;
use piecewise_ir::module::UniquePiece;
use piecewise_ir::text::value_names;
use serde::Serialize;

/// An operand of a unique piece.
#[derive(Clone, Debug, Serialize)]
pub struct OperandRow {
    /// Its name in the piece's text.
    pub name: String,
    /// What it is to the piece.
    pub kind: &'static str,
    /// Its type in the piece's text.
    pub ty: String,
}

/// One kernel or library call of a lowered piece.
#[derive(Clone, Debug, Serialize)]
pub struct LaunchRow {
    /// What the compiler calls it.
    pub name: String,
    /// The digest of its image.
    pub image: String,
    /// At the artifact's size, on a CUDA device of one multiprocessor.
    pub grid: [u32; 3],
    /// Names of operands; `scratch` has its offset and bytes.
    pub operands: Vec<String>,
    /// Whether it can be captured, as it declares.
    pub capture: String,
    /// What it reads and writes.
    #[serde(flatten)]
    pub bytes: BytesMoved,
}

/// Bytes of the operands that a launch reads and writes, whole: a gather reads less. States are
/// left out, for what is touched of them depends on the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BytesMoved {
    /// Of operands that are loaded, weights among them.
    pub bytes_read: u64,
    /// Of `bytes_read`, what weights are.
    pub weight_bytes: u64,
    /// Of operands that are stored or changed in place.
    pub bytes_written: u64,
}

impl std::ops::AddAssign for BytesMoved {
    fn add_assign(&mut self, other: Self) {
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.weight_bytes = self.weight_bytes.saturating_add(other.weight_bytes);
        self.bytes_written = self.bytes_written.saturating_add(other.bytes_written);
    }
}

/// A piece at a size.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    /// The most rows that it serves.
    pub rows: u64,
    /// Whether it serves every size up to `rows`.
    pub general: bool,
    /// Tokens of each sequence, where it serves batches of that alone.
    pub query_length: Option<u64>,
    /// Of the artifact as JSON, in hexadecimal.
    pub digest: String,
    /// Of its entry in the compile cache.
    pub cache_key: String,
    /// Bytes that the launches of the piece need at most.
    pub scratch: u64,
    /// Of all its launches together.
    #[serde(flatten)]
    pub bytes: BytesMoved,
    /// Those of the first ways, which are taken where nothing was measured.
    pub launches: Vec<LaunchRow>,
    /// Why each part is computed as it is where nothing was measured, where there is a choice; empty of
    /// what the compiler was not asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<FirstWay>,
    /// Of each alternative the ways of each part.
    pub alternatives: Vec<Vec<Vec<WayRow>>>,
}

/// A way to compute a part of a piece, of which the fastest is taken where they are measured.
#[derive(Clone, Debug, Serialize)]
pub struct WayRow {
    /// What tells it from the others of its part.
    pub name: String,
    /// Bytes that its launches share.
    pub scratch: u64,
    /// Digests of the images that it launches, in order.
    pub images: Vec<String>,
}

/// A unique piece whose launches are shown.
#[derive(Debug)]
pub struct PieceView<'a> {
    piece: &'a UniquePiece,
    operands: Vec<Value>,
    names: Vec<Option<String>>,
    /// The largest size of each symbol, by symbol index.
    bounds: &'a [u64],
}

impl<'a> PieceView<'a> {
    /// Looks at a piece where each symbol has its bound.
    pub fn new(piece: &'a UniquePiece, bounds: &'a [u64]) -> Self {
        let names = value_names(&piece.graph);
        Self { piece, operands: piece.operands(), names, bounds }
    }

    /// What each operand is to the piece, and its type, in the order in which launches number them.
    pub fn operand_rows(&self) -> Vec<OperandRow> {
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

    /// The piece as it was lowered for a size.
    ///
    /// # Errors
    /// When the artifact can't be written as JSON, by which its digest is made.
    pub fn size_row(&self, piece: &LoweredPiece<'_>) -> Result<SizeRow, serde_json::Error> {
        let artifact = piece.artifact;
        let general = matches!(artifact.size, PieceSize::General(_));
        let launches = self.launch_rows(artifact);
        let mut bytes = BytesMoved::default();
        launches.iter().for_each(|launch| bytes += launch.bytes);
        let way = |way: &Way| WayRow {
            name: way.name.clone(),
            scratch: way.scratch,
            images: way.launches.iter().map(|launch| launch.image.to_string()).collect(),
        };
        let part = |part: &Part| part.ways.iter().map(way).collect();
        let alternatives = artifact.alternatives.iter();
        let alternatives = alternatives.map(|one| one.parts.iter().map(part).collect());
        Ok(SizeRow {
            rows: artifact.size.rows(),
            general,
            query_length: artifact.size.query_length(),
            digest: Digest::of(&serde_json::to_vec(artifact)?).to_string(),
            cache_key: piece.key.clone(),
            scratch: artifact.scratch(),
            bytes,
            launches,
            first: Vec::new(),
            alternatives: alternatives.collect(),
        })
    }

    fn launch_rows(&self, artifact: &Artifact) -> Vec<LaunchRow> {
        let mut limits = self.bounds.to_vec();
        if let Some(limit) = self.piece.over.and_then(|over| limits.get_mut(over.index())) {
            *limit = artifact.size.rows();
        }
        artifact.first_launches().map(|launch| self.launch_row(launch, &limits)).collect()
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
