//! What the page's script draws: every unique piece, kernel and value once.

use super::Report;
use crate::amounts::shown_bytes;
use crate::launch_rows::{BytesMoved, OperandRow, PieceView};
use anyhow::bail;
use indexmap::IndexMap;
use piecewise::assembly::LoweredPiece;
use piecewise_backend::artifact::{Artifact, Digest, PieceSize};
use piecewise_backend::compiler::Compiler;
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{ArenaLayout, SlotKind, SlotTable, Step, Stitch};
use piecewise_ir::text::{print_graph, value_names};
use piecewise_ir::weight::Recipe;
use piecewise_runtime::model::Ledger;
use serde::Serialize;

/// The whole page.
#[derive(Serialize)]
pub(super) struct Page {
    pub(super) title: String,
    /// Name and value of what is said first.
    facts: Vec<(&'static str, String)>,
    /// The number of nodes of the step: slots live at positions below it.
    positions: usize,
    arena: Arena,
    steps: Vec<StepRow>,
    unique: Vec<UniqueRow>,
    /// Inputs, weights, states and what slots hold.
    values: Vec<ValueRow>,
    slots: Vec<SlotRow>,
    images: Vec<ImageRow>,
}

#[derive(Serialize)]
struct Arena {
    bytes: u64,
    staged: u64,
    align: u64,
}

#[derive(Serialize)]
struct StepRow {
    id: String,
    kind: &'static str,
    /// What it does, for people.
    label: String,
    /// Where in the author's code it begins and ends.
    scopes: Vec<String>,
    unique: usize,
    /// Positions of its first and last node.
    first: usize,
    last: usize,
    /// Values by operand position of the unique piece; `null` where one is not in memory.
    operands: Vec<Option<usize>>,
}

#[derive(Serialize)]
struct UniqueRow {
    id: String,
    over: Option<String>,
    hash: String,
    nodes: usize,
    ir: String,
    operands: Vec<OperandRow>,
    sizes: Vec<SizeRow>,
    /// Why it does not compile, if it does not.
    error: Option<String>,
}

#[derive(Serialize)]
struct SizeRow {
    rows: u64,
    general: bool,
    query_length: Option<u64>,
    digest: String,
    cache_key: String,
    scratch: u64,
    alternatives: usize,
    #[serde(flatten)]
    bytes: BytesMoved,
    launches: Vec<Launch>,
}

#[derive(Serialize)]
struct Launch {
    name: String,
    image: usize,
    grid: [u32; 3],
    operands: Vec<String>,
    capture: String,
    #[serde(flatten)]
    bytes: BytesMoved,
}

#[derive(Serialize)]
struct ImageRow {
    digest: String,
    name: String,
    kind: &'static str,
    language: &'static str,
    text: String,
    recipe: serde_json::Value,
    programmatic: bool,
}

#[derive(Serialize)]
struct ValueRow {
    /// In the text of the module.
    name: String,
    /// A checkpoint path, a state's name, or where it was computed.
    from: String,
    kind: &'static str,
    ty: String,
    /// At the bounds.
    bytes: u64,
}

#[derive(Serialize)]
struct SlotRow {
    id: String,
    kind: SlotKind,
    value: usize,
    offset: u64,
    bytes: u64,
    first: usize,
    last: usize,
}

impl Page {
    pub(super) fn of(report: &Report<'_>) -> anyhow::Result<Self> {
        let module = report.planned.module();
        let (Some(stitch), Some(slots), Some(layout)) =
            (module.stitch(), module.slots(), module.layout())
        else {
            bail!("the page shows a plan, and the pipeline made none; leave --stop-after out")
        };
        let (symbols, compiler) = (report.planned.symbols(), report.planned.compiler()?);
        let values = Values::of(module.graph(), slots, symbols.bounds());
        let mut images = IndexMap::new();
        let unique = unique_rows(report, stitch, &mut images)?;
        let (steps, positions) = step_rows(module.graph(), stitch, &values);
        Ok(Self {
            title: module.graph().name.clone(),
            facts: facts(report, stitch, layout, compiler),
            positions,
            arena: Arena { bytes: layout.bytes, staged: layout.staged, align: layout.align },
            steps,
            unique,
            slots: slot_rows(slots, layout, &values),
            values: values.rows,
            images: images.into_values().collect(),
        })
    }
}

fn facts(
    report: &Report<'_>,
    stitch: &Stitch,
    layout: &ArenaLayout,
    compiler: &dyn Compiler,
) -> Vec<(&'static str, String)> {
    let (graph, symbols) = (report.planned.module().graph(), report.planned.symbols());
    let ledger = Ledger::new(graph, layout, 0, symbols.bounds());
    let unique = stitch.unique_pieces().len();
    let bound = |(symbol, max): (&piecewise_ir::dim::SymbolDecl, &u64)| {
        format!("{}\u{a0}\u{2264}\u{a0}{max}", symbol.name)
    };
    let bounds: Vec<_> = graph.symbols().values().zip(symbols.bounds()).map(bound).collect();
    vec![
        ("target", compiler.identity()),
        ("pieces", format!("{} ({unique} unique)", stitch.piece_count())),
        ("split ops", stitch.split_op_count().to_string()),
        ("arena", shown_bytes(layout.bytes)),
        ("weights", shown_bytes(ledger.weights)),
        ("states", shown_bytes(ledger.states)),
        ("graph mode", report.planned.settings().dispatcher.mode.name().to_owned()),
        ("bounds", bounds.join(", ")),
    ]
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
    collect_sources(recipe, &mut names);
    match names.is_empty() {
        true => "computed at load".to_owned(),
        false => names.join(" + "),
    }
}

fn collect_sources<'a>(recipe: &'a Recipe, names: &mut Vec<&'a str>) {
    match recipe {
        Recipe::Checkpoint { name, .. } => names.push(name),
        Recipe::Concat { parts, .. } => {
            parts.iter().for_each(|part| collect_sources(part, names));
        }
        Recipe::Transpose { of, .. } | Recipe::Slice { of, .. } | Recipe::Cast { of, .. } => {
            collect_sources(of, names);
        }
        Recipe::Graph(_) => {}
    }
}

fn step_rows(graph: &Graph, stitch: &Stitch, values: &Values) -> (Vec<StepRow>, usize) {
    let mut position = 0;
    let mut rows = Vec::with_capacity(stitch.steps.len());
    for &step in &stitch.steps {
        let usage = &stitch.uses[step.id()];
        let ops: Vec<&str> = usage.nodes.iter().map(|&n| graph.node(n).op.name()).collect();
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
            label: ops.join(", "),
            scopes,
            unique: usage.unique.index(),
            first: position,
            last: (position + ops.len()).saturating_sub(1),
            operands: usage.operands.iter().map(|&value| values.row(value)).collect(),
        });
        position += ops.len();
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

fn unique_rows(
    report: &Report<'_>,
    stitch: &Stitch,
    images: &mut IndexMap<Digest, ImageRow>,
) -> anyhow::Result<Vec<UniqueRow>> {
    let (symbols, compiler) = (report.planned.symbols(), report.planned.compiler()?);
    let mut rows = Vec::new();
    for lowered in report.planned.lower(|_| true)? {
        let piece = &stitch.unique[lowered.unique];
        let view = PieceView::new(piece, symbols.bounds());
        let (sizes, error) = match &lowered.pieces {
            Ok(pieces) => {
                let sizes = pieces.iter().map(|piece| size_row(compiler, &view, piece, images));
                (sizes.collect::<anyhow::Result<_>>()?, None)
            }
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        rows.push(UniqueRow {
            id: lowered.unique.to_string(),
            over: piece.over.map(|over| piece.graph.symbols()[over].name.clone()),
            hash: Digest(piece.hash).to_string(),
            nodes: piece.graph.nodes().len(),
            ir: print_graph(&piece.graph),
            operands: view.operand_rows(),
            sizes,
            error,
        });
    }
    Ok(rows)
}

fn size_row(
    compiler: &dyn Compiler,
    view: &PieceView<'_>,
    piece: &LoweredPiece<'_>,
    images: &mut IndexMap<Digest, ImageRow>,
) -> anyhow::Result<SizeRow> {
    let artifact = piece.artifact;
    let (rows, general) = (artifact.size.rows(), matches!(artifact.size, PieceSize::General(_)));
    let mut total = BytesMoved::default();
    let mut launches = Vec::new();
    let kernels = artifact.alternatives.first().map_or(&[][..], |lowered| &lowered.launches);
    for (row, launch) in view.launch_rows(artifact).into_iter().zip(kernels) {
        total += row.bytes;
        let image = match images.get_index_of(&launch.image) {
            Some(image) => image,
            None => images.insert_full(launch.image, image_row(compiler, artifact, launch.image)).0,
        };
        launches.push(Launch {
            name: row.name,
            image,
            grid: row.grid,
            operands: row.operands,
            capture: row.capture,
            bytes: row.bytes,
        });
    }
    Ok(SizeRow {
        rows,
        general,
        query_length: artifact.size.query_length(),
        digest: Digest::of(&serde_json::to_vec(artifact)?).to_string(),
        cache_key: piece.key.clone(),
        scratch: artifact.scratch(),
        alternatives: artifact.alternatives.len(),
        bytes: total,
        launches,
    })
}

fn image_row(compiler: &dyn Compiler, artifact: &Artifact, digest: Digest) -> ImageRow {
    let listing = artifact.image(digest).and_then(|bytes| compiler.listing(bytes));
    let digest = digest.to_string();
    match listing {
        Some(listing) => ImageRow {
            digest,
            name: listing.name,
            kind: listing.kind,
            language: listing.language,
            text: listing.text,
            recipe: listing.recipe,
            programmatic: listing.programmatic,
        },
        None => ImageRow {
            digest,
            name: "image".to_owned(),
            kind: "kernel",
            language: "txt",
            text: String::new(),
            recipe: serde_json::Value::Null,
            programmatic: false,
        },
    }
}
