//! A plan as data: what `piecewise inspect --json` prints and the report page draws.

mod images;
mod nodes;
mod products;
mod remarks;

pub use images::ImageRow;
pub use nodes::NodeRow;
pub use products::ScaledRow;
pub use remarks::{RemarkRow, starred};

use super::launches::{OperandRow, PieceView, SizeRow};
use super::{AssemblyError, Planned};
use piecewise_backend::artifact::Digest;
use piecewise_backend::compiler::PieceAt;
use piecewise_ir::entity::{Entity, UniquePieceId, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{ArenaLayout, SlotKind, SlotTable, Step, Stitch, UniquePiece};
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::text::{print_graph, value_names};
use piecewise_ir::weight::Recipe;
use piecewise_runtime::words::{Ledger, ModelError};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};

/// A plan, and what became of its pieces where they were lowered.
#[derive(Debug, Serialize)]
pub struct PlanView {
    /// The name of the graph.
    pub graph: String,
    /// The graph mode by its name.
    pub graph_mode: &'static str,
    /// Sizes in tokens that are captured.
    pub capture_num_tokens: Vec<u64>,
    /// Sequences of the decodes that are captured whole.
    pub decode_batch_sizes: Vec<u64>,
    /// The largest value of each symbol.
    pub bounds: BTreeMap<String, u64>,
    /// Pieces that a step runs, equal ones each time that they run.
    pub pieces: usize,
    /// How many of the pieces differ.
    pub unique_pieces: usize,
    /// Ops that run between pieces.
    pub split_ops: usize,
    /// Kernels of a step, unless a compiler makes more or fewer of a node.
    pub kernels: usize,
    /// Fused regions of the graph.
    pub regions: usize,
    /// Matrix products among the nodes of the graph.
    pub matmuls: usize,
    /// Products whose weights are in 8 or 4 bits.
    pub scaled: Vec<ScaledRow>,
    /// The number of nodes of the step: slots live at positions below it.
    pub positions: usize,
    /// What the arena takes, and how much of it the host writes.
    pub arena: ArenaRow,
    /// Where the memory of the model will go; scratch, code and graphs once pieces are lowered.
    pub memory: Ledger,
    /// What a step runs, in order.
    pub steps: Vec<StepRow>,
    /// The nodes that steps run, in order.
    pub nodes: Vec<NodeRow>,
    /// What the passes did and did not do, and why; empty of a text that brings its plan.
    pub remarks: Vec<RemarkRow>,
    /// What is compiled, each once.
    pub unique: Vec<UniqueRow>,
    /// Inputs, weights, states and what slots hold.
    pub values: Vec<ValueRow>,
    /// Where in the arena values are.
    pub slots: Vec<SlotRow>,
    /// Every kernel once, whichever pieces and sizes launch it.
    pub images: Vec<ImageRow>,
}

/// What the one block of memory for values within a step takes.
#[derive(Debug, Serialize)]
pub struct ArenaRow {
    /// Staged inputs among them, alignment too.
    pub bytes: u64,
    /// Of these, what the host writes for each step.
    pub staged: u64,
    /// To how many bytes slots are aligned.
    pub align: u64,
}

/// A piece, a split op or what runs once, as a step uses it.
#[derive(Debug, Serialize)]
pub struct StepRow {
    /// Its name in the text of the module.
    pub id: String,
    /// `prologue`, `piece` or `split op`.
    pub kind: &'static str,
    /// The names of its ops in order.
    pub ops: Vec<String>,
    /// Where in the author's code it begins and ends.
    pub scopes: Vec<String>,
    /// Its place among the unique ones.
    pub unique: usize,
    /// The position of its first node.
    pub first: usize,
    /// The position of its last node.
    pub last: usize,
    /// Values by operand position of the unique piece; `null` where one is not in memory.
    pub operands: Vec<Option<usize>>,
}

/// A piece that is compiled once for each size, wherever a step uses it.
#[derive(Debug, Serialize)]
pub struct UniqueRow {
    /// Its name in the text of the module.
    pub id: String,
    /// The symbol that it iterates over.
    pub over: Option<String>,
    /// The digest of its canonical text.
    pub hash: String,
    /// Ops of the piece, those inside a region uncounted.
    pub nodes: usize,
    /// The text of the piece, as a module's text has it.
    pub ir: String,
    /// In the order in which launches number them.
    pub operands: Vec<OperandRow>,
    /// What it became at each size, where it was lowered.
    pub sizes: Vec<SizeRow>,
    /// Why it does not compile, if it does not.
    pub error: Option<String>,
}

/// A value that is in memory.
#[derive(Debug, Serialize)]
pub struct ValueRow {
    /// In the text of the module.
    pub name: String,
    /// A checkpoint path, a state's name, or where it was computed.
    pub from: String,
    /// `input`, `weight`, `state` or `value`.
    pub kind: &'static str,
    /// Its type, with symbols by name.
    pub ty: String,
    /// Where every symbol has its bound.
    pub bytes: u64,
}

/// A slot of the arena.
#[derive(Debug, Serialize)]
pub struct SlotRow {
    /// Its name in the text of the module.
    pub id: String,
    /// An input, a value between members, one of a piece alone, or an output.
    pub kind: SlotKind,
    /// The row of what it holds among the values.
    pub value: usize,
    /// Bytes from the start of the arena.
    pub offset: u64,
    /// From there on, at the largest sizes.
    pub bytes: u64,
    /// The position of the first node that it lives for.
    pub first: usize,
    /// The position of the last one.
    pub last: usize,
}

impl PlanView {
    /// A plan without what becomes of its pieces.
    ///
    /// # Errors
    /// When the pipeline made no plan.
    pub fn of(planned: &Planned) -> Result<Self, AssemblyError> {
        let (module, symbols) = (planned.module(), planned.symbols());
        let graph = module.graph();
        let (Some(stitch), Some(slots), Some(layout)) =
            (module.stitch(), module.slots(), module.layout())
        else {
            return Err(ModelError::Unplanned { part: "plan" }.into());
        };
        let dispatcher = &planned.settings().dispatcher;
        let values = Values::of(graph, slots, symbols.bounds());
        let (steps, positions) = step_rows(graph, stitch, &values);
        let bound =
            |(symbol, max): (&piecewise_ir::dim::SymbolDecl, &u64)| (symbol.name.clone(), *max);
        let of_pieces = stitch.steps.iter().filter(|step| matches!(step, Step::Piece(_)));
        let in_pieces: usize = of_pieces.map(|step| stitch.uses[step.id()].nodes.len()).sum();
        let count = |is: fn(&Op) -> bool| graph.nodes().filter(|&n| is(&graph.node(n).op)).count();
        Ok(Self {
            graph: graph.name.clone(),
            graph_mode: dispatcher.mode.name(),
            capture_num_tokens: dispatcher.tokens.sizes().to_vec(),
            decode_batch_sizes: dispatcher.batches.sizes().to_vec(),
            bounds: graph.symbols().values().zip(symbols.bounds()).map(bound).collect(),
            pieces: stitch.piece_count(),
            unique_pieces: stitch.unique_pieces().len(),
            split_ops: stitch.split_op_count(),
            kernels: in_pieces + stitch.split_op_count(),
            regions: count(|op| matches!(op, Op::Region(_))),
            matmuls: count(|op| matches!(op.class(), OpClass::Product { .. })),
            scaled: products::scaled_rows(graph),
            positions,
            arena: ArenaRow { bytes: layout.bytes, staged: layout.staged, align: layout.align },
            memory: planned.ledger()?,
            steps,
            nodes: nodes::node_rows(graph, stitch, symbols.bounds()),
            remarks: remarks::remark_rows(planned.passes()),
            unique: unique_rows(stitch, symbols.bounds()),
            slots: slot_rows(slots, layout, &values),
            values: values.rows,
            images: Vec::new(),
        })
    }

    /// A plan with every piece at every size. One that does not compile says why, and keeps the
    /// others from nothing.
    ///
    /// # Errors
    /// As for [`Self::of`], or when there is no compiler.
    pub fn lowered(planned: &Planned) -> Result<Self, AssemblyError> {
        let mut plan = Self::of(planned)?;
        let (stitch, compiler) = (planned.stitch()?, planned.compiler()?);
        let mut seen = HashSet::new();
        for lowered in planned.lower(|_| true)? {
            let view = PieceView::new(&stitch.unique[lowered.unique], planned.symbols().bounds());
            let row = &mut plan.unique[lowered.unique.index()];
            let pieces = match &lowered.pieces {
                Ok(pieces) => pieces,
                Err(error) => {
                    row.error = Some(error.to_string());
                    continue;
                }
            };
            for piece in pieces {
                let at = PieceAt {
                    piece: &stitch.unique[lowered.unique],
                    size: piece.artifact.size,
                    bounds: planned.symbols().bounds(),
                };
                match view.size_row(piece) {
                    Ok(size) => row.sizes.push(SizeRow { first: compiler.first_ways(at), ..size }),
                    Err(error) => row.error = Some(error.to_string()),
                }
                for launch in piece.artifact.first_launches() {
                    if seen.insert(launch.image) {
                        plan.images.push(ImageRow::of(compiler, piece.artifact, launch.image));
                    }
                }
            }
        }
        plan.memory = planned.ledger()?;
        Ok(plan)
    }
}

fn unique_rows(stitch: &Stitch, bounds: &[u64]) -> Vec<UniqueRow> {
    let row = |(id, piece): (UniquePieceId, &UniquePiece)| UniqueRow {
        id: id.to_string(),
        over: piece.over.map(|over| piece.graph.symbols()[over].name.clone()),
        hash: Digest(piece.hash).to_string(),
        nodes: piece.graph.nodes().len(),
        ir: print_graph(&piece.graph),
        operands: PieceView::new(piece, bounds).operand_rows(),
        sizes: Vec::new(),
        error: None,
    };
    stitch.unique.iter().map(row).collect()
}

/// The rows of values, and which row a value of the graph has.
struct Values {
    rows: Vec<ValueRow>,
    row_of: Vec<Option<usize>>,
}

impl Values {
    fn of(graph: &Graph, slots: &SlotTable, bounds: &[u64]) -> Self {
        let names = value_names(graph);
        let mut this = Self { rows: Vec::new(), row_of: vec![None; graph.value_count()] };
        let mut add = |value: Value, kind, from: String| {
            let ty = graph.ty(value);
            this.row_of[value.index()] = Some(this.rows.len());
            this.rows.push(ValueRow {
                name: names[value.index()].clone().unwrap_or_else(|| value.to_string()),
                from,
                kind,
                ty: ty.display(graph.symbols()).to_string(),
                bytes: ty.bytes(bounds),
            });
        };
        for input in graph.inputs() {
            add(input.value, "input", input.role.clone().unwrap_or_default());
        }
        for weight in graph.weights() {
            add(weight.value, "weight", sources(&weight.recipe));
        }
        for state in graph.states() {
            add(state.value, "state", state.name.clone());
        }
        for data in slots.slots.values() {
            if let ValueDef::Result { node, .. } = graph.def(data.value) {
                let data_of = graph.node(node);
                let place = match data_of.loc.scope.as_str() {
                    "" => &data_of.loc.source,
                    scope => scope,
                };
                add(data.value, "value", format!("{} {place}", data_of.op.name()));
            }
        }
        this
    }

    fn row(&self, value: Value) -> Option<usize> {
        self.row_of.get(value.index()).copied().flatten()
    }
}

/// The checkpoint tensors of a recipe, or that it is computed.
fn sources(recipe: &Recipe) -> String {
    let mut names = Vec::new();
    recipe.visit_sources(&mut |name, _| names.push(name));
    if names.is_empty() { "computed at load".to_owned() } else { names.join(" + ") }
}

fn step_rows(graph: &Graph, stitch: &Stitch, values: &Values) -> (Vec<StepRow>, usize) {
    let mut position = 0;
    let mut rows = Vec::with_capacity(stitch.steps.len());
    for &step in &stitch.steps {
        let usage = &stitch.uses[step.id()];
        let ops: Vec<String> =
            usage.nodes.iter().map(|&n| graph.node(n).op.name().to_owned()).collect();
        let mut scopes: Vec<String> =
            usage.nodes.iter().map(|&n| graph.node(n).loc.scope.clone()).collect();
        scopes.retain(|scope| !scope.is_empty());
        scopes.dedup();
        rows.push(StepRow {
            id: step.id().to_string(),
            kind: step.kind(),
            scopes,
            unique: usage.unique.index(),
            first: position,
            last: (position + ops.len()).saturating_sub(1),
            operands: usage.operands.iter().map(|&value| values.row(value)).collect(),
            ops,
        });
        position += usage.nodes.len();
    }
    (rows, position)
}

fn slot_rows(slots: &SlotTable, layout: &ArenaLayout, values: &Values) -> Vec<SlotRow> {
    let rows = slots.slots.iter().filter_map(|(slot, data)| {
        Some(SlotRow {
            id: slot.to_string(),
            kind: data.kind,
            value: values.row(data.value)?,
            offset: *layout.offsets.get(slot.index())?,
            bytes: *layout.sizes.get(slot.index())?,
            first: data.live.start,
            last: data.live.end,
        })
    });
    rows.collect()
}
