//! A plan as data: what `inspect` prints, the report page draws, and dumps hold.

mod images;

pub(crate) use images::ImageRow;
pub(crate) use piecewise::assembly::launches::{OperandRow, PieceView, SizeRow};

use anyhow::bail;
use indexmap::IndexMap;
use piecewise::assembly::Planned;
use piecewise_backend::artifact::Digest;
use piecewise_ir::entity::{Entity, UniquePieceId, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{ArenaLayout, SlotKind, SlotTable, Step, Stitch, UniquePiece};
use piecewise_ir::op::Op;
use piecewise_ir::text::{print_graph, value_names};
use piecewise_ir::weight::Recipe;
use piecewise_runtime::model::Ledger;
use serde::Serialize;
use std::collections::BTreeMap;

/// A plan, and what became of its pieces where they were lowered.
#[derive(Debug, Serialize)]
pub(crate) struct PlanView {
    pub graph: String,
    pub graph_mode: &'static str,
    pub capture_num_tokens: Vec<u64>,
    pub decode_batch_sizes: Vec<u64>,
    /// The largest value of each symbol.
    pub bounds: BTreeMap<String, u64>,
    /// Pieces of the step, and how many of them differ.
    pub pieces: usize,
    pub unique_pieces: usize,
    pub split_ops: usize,
    /// Kernels of a step, unless a compiler makes more or fewer of a node.
    pub kernels: usize,
    pub regions: usize,
    pub matmuls: usize,
    /// The number of nodes of the step: slots live at positions below it.
    pub positions: usize,
    pub arena: ArenaRow,
    /// Where the memory of the model will go; scratch, code and graphs once pieces are lowered.
    pub memory: Ledger,
    pub steps: Vec<StepRow>,
    pub unique: Vec<UniqueRow>,
    /// Inputs, weights, states and what slots hold.
    pub values: Vec<ValueRow>,
    pub slots: Vec<SlotRow>,
    /// Every kernel once.
    pub images: Vec<ImageRow>,
}

/// Bytes of the arena.
#[derive(Debug, Serialize)]
pub(crate) struct ArenaRow {
    pub bytes: u64,
    /// Of these, what the host writes for each step.
    pub staged: u64,
    pub align: u64,
}

/// A piece, a split op or what runs once, as a step uses it.
#[derive(Debug, Serialize)]
pub(crate) struct StepRow {
    pub id: String,
    pub kind: &'static str,
    /// The names of its ops in order.
    pub ops: Vec<String>,
    /// Where in the author's code it begins and ends.
    pub scopes: Vec<String>,
    /// Its place among the unique ones.
    pub unique: usize,
    /// Positions of its first and last node.
    pub first: usize,
    pub last: usize,
    /// Values by operand position of the unique piece; `null` where one is not in memory.
    pub operands: Vec<Option<usize>>,
}

/// What is compiled once.
#[derive(Debug, Serialize)]
pub(crate) struct UniqueRow {
    pub id: String,
    /// The symbol that it iterates over.
    pub over: Option<String>,
    pub hash: String,
    pub nodes: usize,
    pub ir: String,
    pub operands: Vec<OperandRow>,
    /// What it became at each size, where it was lowered.
    pub sizes: Vec<SizeRow>,
    /// Why it does not compile, if it does not.
    pub error: Option<String>,
}

/// A value that is in memory.
#[derive(Debug, Serialize)]
pub(crate) struct ValueRow {
    /// In the text of the module.
    pub name: String,
    /// A checkpoint path, a state's name, or where it was computed.
    pub from: String,
    pub kind: &'static str,
    pub ty: String,
    /// Where every symbol has its bound.
    pub bytes: u64,
}

/// A slot of the arena.
#[derive(Debug, Serialize)]
pub(crate) struct SlotRow {
    pub id: String,
    pub kind: SlotKind,
    /// The row of what it holds among the values.
    pub value: usize,
    pub offset: u64,
    pub bytes: u64,
    /// Positions of the first and last node that it lives for.
    pub first: usize,
    pub last: usize,
}

impl PlanView {
    /// A plan without what becomes of its pieces.
    ///
    /// # Errors
    /// When the pipeline made no plan.
    pub(crate) fn of(planned: &Planned) -> anyhow::Result<Self> {
        let (module, symbols) = (planned.module(), planned.symbols());
        let graph = module.graph();
        let (Some(stitch), Some(slots), Some(layout)) =
            (module.stitch(), module.slots(), module.layout())
        else {
            bail!("this shows a plan, and the pipeline made none; leave --stop-after out")
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
            matmuls: count(|op| matches!(op, Op::MatMul { .. })),
            positions,
            arena: ArenaRow { bytes: layout.bytes, staged: layout.staged, align: layout.align },
            memory: planned.ledger()?,
            steps,
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
    pub(crate) fn lowered(planned: &Planned) -> anyhow::Result<Self> {
        let mut plan = Self::of(planned)?;
        let (stitch, compiler) = (planned.stitch()?, planned.compiler()?);
        let mut images = IndexMap::new();
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
                row.sizes.push(view.size_row(piece)?);
                for launch in piece.artifact.first_launches() {
                    let image = || ImageRow::of(compiler, piece.artifact, launch.image);
                    images.entry(launch.image).or_insert_with(image);
                }
            }
        }
        plan.images = images.into_values().collect();
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
        let kind = match step {
            Step::Prologue(_) => "prologue",
            Step::Piece(_) => "piece",
            Step::Split(_) => "split op",
        };
        let mut scopes: Vec<String> =
            usage.nodes.iter().map(|&n| graph.node(n).loc.scope.clone()).collect();
        scopes.retain(|scope| !scope.is_empty());
        scopes.dedup();
        rows.push(StepRow {
            id: step.id().to_string(),
            kind,
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
