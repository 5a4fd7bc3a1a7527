//! Random graphs and modules that use all of the syntax. They need not verify: text is about what
//! the types can hold.

use piecewise_ir::custom::{Attr, Attrs, CustomCall};
use piecewise_ir::dim::{Dim, SymbolDecl};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Node, PieceId, Symbol, UniquePieceId, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::literal::{Literal, Scalar};
use piecewise_ir::module::{
    ArenaLayout, LiveRange, Module, PieceUse, SlotData, SlotKind, SlotTable, Step, Stitch,
    UniquePiece,
};
use piecewise_ir::op::{BinaryOp, CompareOp, Op, ReduceOp, RowTreatment, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;

/// Names that a careless printer would not read back.
const ODD_NAMES: [&str; 14] = [
    "x",
    "ret",
    "dim",
    "in",
    "v0",
    "s1",
    "f32",
    "",
    "a b",
    "9",
    "1.5",
    "quo\"te\\",
    "é\n\t\u{1}",
    "rows",
];

/// Splitmix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    fn name(&mut self, index: usize) -> String {
        match self.chance(50) {
            // The number keeps names apart.
            true => format!("{}{index}", self.pick(&ODD_NAMES)),
            false => format!("name_{index}"),
        }
    }

    fn text(&mut self) -> String {
        self.pick(&ODD_NAMES).to_owned()
    }

    fn optional_text(&mut self) -> Option<String> {
        self.chance(30).then(|| self.text())
    }

    fn coefficient(&mut self) -> i64 {
        match self.below(6) {
            0 => i64::MIN,
            1 => i64::MAX,
            2 => -1,
            n => n as i64,
        }
    }

    fn dim(&mut self, symbols: usize) -> Dim {
        if symbols == 0 || self.chance(60) {
            return Dim::affine(self.pick(&[0, 1, 7, 1024, -3, i64::MAX, i64::MIN]), []);
        }
        if self.chance(60) {
            return Symbol::new(self.below(symbols)).into();
        }
        let terms: Vec<_> = (0..1 + self.below(3))
            .map(|_| (Symbol::new(self.below(symbols)), self.coefficient()))
            .collect();
        Dim::affine(self.pick(&[0, 0, 1, -1, i64::MIN]), terms)
    }

    fn ty(&mut self, symbols: usize) -> TensorType {
        let rank = self.below(4);
        let dtype = self.pick(&DType::ALL);
        TensorType { dtype, shape: (0..rank).map(|_| self.dim(symbols)).collect() }
    }

    fn scalar(&mut self, dtype: DType) -> Scalar {
        match self.below(4) {
            0 => Scalar::from_bits(dtype, self.next()),
            1 => Scalar::int(dtype, self.next() as i64),
            2 => Scalar::new(dtype, -0.0),
            _ => Scalar::new(dtype, self.below(1000) as f64 / 10.0),
        }
    }

    fn padding(&mut self, dtype: DType) -> Option<Scalar> {
        if self.chance(60) {
            return None;
        }
        let dtype = if self.chance(80) { dtype } else { self.pick(&DType::ALL) };
        Some(self.scalar(dtype))
    }

    fn loc(&mut self) -> Loc {
        let scope = if self.chance(30) { self.text() } else { String::new() };
        let source = if self.chance(30) { "src/a b.rs:42".to_owned() } else { String::new() };
        Loc { scope, source }
    }

    fn axes(&mut self) -> Vec<usize> {
        (0..self.below(4)).map(|_| self.below(5)).collect()
    }

    fn recipe(&mut self, symbols: usize, depth: usize) -> Recipe {
        match self.below(if depth == 0 { 1 } else { 10 }) {
            1 => Recipe::Concat {
                axis: self.below(3),
                parts: (0..self.below(4)).map(|_| self.recipe(symbols, depth - 1)).collect(),
            },
            2 => Recipe::Slice {
                axis: self.below(3),
                start: self.next(),
                len: self.next(),
                of: Box::new(self.recipe(symbols, depth - 1)),
            },
            3 => Recipe::Transpose {
                perm: self.axes(),
                of: Box::new(self.recipe(symbols, depth - 1)),
            },
            4 => Recipe::Cast {
                to: self.pick(&DType::ALL),
                of: Box::new(self.recipe(symbols, depth - 1)),
            },
            5 => Recipe::Graph(Box::new(self.graph(depth - 1))),
            6 => Recipe::Reshape {
                shape: (0..self.below(4)).map(|_| self.below(100) as u64).collect(),
                of: Box::new(self.recipe(symbols, depth - 1)),
            },
            7 => Recipe::Broadcast {
                shape: (0..self.below(4)).map(|_| self.below(100) as u64).collect(),
                of: Box::new(self.recipe(symbols, depth - 1)),
            },
            8 => Recipe::Unpack {
                axis: self.below(3),
                order: std::array::from_fn(|_| self.below(9) as u8),
                less: self.below(256) as u8,
                len: self.next(),
                of: Box::new(self.recipe(symbols, depth - 1)),
            },
            _ => Recipe::Checkpoint { name: self.text(), ty: self.ty(symbols) },
        }
    }

    /// A graph with regions and recipes nested up to `depth` levels.
    pub(crate) fn graph(&mut self, depth: usize) -> Graph {
        let mut graph = Graph::new(self.text());
        for i in 0..self.below(4) {
            let (min, max) = (self.next(), self.next());
            let (name, role) = (self.name(i), self.optional_text());
            graph.add_symbol(SymbolDecl { name, min, max, role });
        }
        let symbols = graph.symbols().len();
        for i in 0..self.below(4) {
            let ty = self.ty(symbols);
            let (name, padding) = (self.name(i), self.padding(ty.dtype));
            let role = self.optional_text();
            graph.add_input(name, ty, padding, role);
        }
        self.fill(&mut graph, depth);
        graph
    }

    /// Weights, states, nodes and outputs.
    fn fill(&mut self, graph: &mut Graph, depth: usize) {
        let symbols = graph.symbols().len();
        for _ in 0..self.below(3) {
            let ty = self.ty(symbols);
            let recipe = match self.chance(50) {
                true => Recipe::Checkpoint { name: self.text(), ty: ty.clone() },
                false => self.recipe(symbols, depth),
            };
            graph.add_weight(ty, recipe);
        }
        for i in 0..self.below(3) {
            let (name, ty, role) = (self.name(i), self.ty(symbols), self.optional_text());
            graph.add_state(name, ty, role);
        }
        for _ in 0..self.below(12) {
            let values = values_in_sight(graph);
            let operands: Vec<Value> = match values.is_empty() {
                true => Vec::new(),
                false => (0..self.below(4)).map(|_| self.pick(&values)).collect(),
            };
            let results: Vec<_> = (0..self.below(3)).map(|_| self.ty(symbols)).collect();
            let (op, operands) = self.op(graph, operands, results.first(), depth);
            let loc = self.loc();
            graph.push_node(op, operands, results, loc);
        }
        let values = values_in_sight(graph);
        if !values.is_empty() {
            graph.set_outputs((0..self.below(4)).map(|_| self.pick(&values)).collect());
        }
        // Out of order, or dead: the text numbers what it shows.
        if self.chance(20) {
            let live: Vec<Node> = graph.order()[..self.below(graph.order().len() + 1)].to_vec();
            let shown = |v: &Value| graph.defining_node(*v).is_none_or(|n| live.contains(&n));
            let outputs = graph.outputs().iter().copied().filter(shown).collect();
            graph.set_outputs(outputs);
            graph.set_order(live);
        }
    }

    fn op(
        &mut self,
        graph: &Graph,
        operands: Vec<Value>,
        result: Option<&TensorType>,
        depth: usize,
    ) -> (Op, Vec<Value>) {
        let axis = self.below(4);
        let symbols = graph.symbols().len();
        let op = match self.below(21) {
            0 => Op::Unary(self.pick(UnaryOp::ALL)),
            1 => Op::Binary(self.pick(BinaryOp::ALL)),
            2 => Op::Compare(self.pick(CompareOp::ALL)),
            3 => Op::Select,
            4 => Op::Cast,
            5 => Op::Reduce { op: self.pick(ReduceOp::ALL), axes: self.axes() },
            6 => Op::ArgMax { axis },
            7 => Op::TopK { axis },
            8 => Op::Broadcast,
            9 => Op::Reshape,
            10 => Op::Permute { perm: self.axes() },
            11 => Op::Slice { axis, start: self.next() },
            12 => Op::Concat { axis },
            13 => Op::Gather,
            14 => Op::Scatter,
            15 => Op::MatMul { transpose_lhs: self.chance(50), transpose_rhs: self.chance(50) },
            16 => Op::Iota { axis },
            17 if depth > 0 && symbols > 0 => self.region(graph, &operands, depth),
            18 => self.custom(operands.len()),
            19 => Op::ScaledMatMul { block: [self.next() >> 1, self.below(200) as u64] },
            _ => {
                let dtype = match result {
                    Some(ty) if self.chance(80) => ty.dtype,
                    _ => self.pick(&DType::ALL),
                };
                let n = if self.chance(80) { self.below(5) } else { self.below(60) };
                let scalars: Vec<_> = (0..n).map(|_| self.scalar(dtype)).collect();
                return (Op::Literal(Literal::from_scalars(dtype, scalars)), Vec::new());
            }
        };
        (op, operands)
    }

    fn region(&mut self, graph: &Graph, operands: &[Value], depth: usize) -> Op {
        let over = Symbol::new(self.below(graph.symbols().len()));
        let mut body = Graph::with_symbols_of(self.text(), graph);
        let mut params = Vec::new();
        for (i, &operand) in operands.iter().enumerate() {
            let mode = self.pick(&[ParamMode::Row, ParamMode::Whole, ParamMode::Mut]);
            let mut ty = match mode {
                ParamMode::Row => graph.ty(operand).row(),
                _ => graph.ty(operand).clone(),
            };
            if self.chance(10) {
                ty = self.ty(graph.symbols().len());
            }
            let (name, padding) = (self.name(i), self.padding(ty.dtype));
            let role = self.optional_text();
            body.add_input(name, ty, padding, role);
            params.push(mode);
        }
        self.fill(&mut body, depth - 1);
        Op::Region(Box::new(Region { over, params, body }))
    }

    fn custom(&mut self, operands: usize) -> Op {
        let mut attrs = Attrs::new();
        for i in 0..self.below(4) {
            let attr = match self.below(5) {
                0 => Attr::Int(self.next() as i64),
                1 => Attr::Float(f64::from_bits(self.next())),
                2 => Attr::Bool(self.chance(50)),
                3 => Attr::Str(self.text()),
                _ => Attr::DType(self.pick(&DType::ALL)),
            };
            attrs.insert(self.name(i), attr);
        }
        Op::Custom(Box::new(CustomCall {
            name: self.text(),
            attrs,
            mutates: (0..operands).filter(|_| self.chance(30)).collect(),
            rows: self.pick(&RowTreatment::ALL),
            splits: self.chance(50),
            absorbs: (0..operands + 1).filter(|_| self.chance(20)).collect(),
            scatters: (0..self.below(3)).map(|_| (self.below(9), self.below(9))).collect(),
        }))
    }

    /// A module with a random number of its parts.
    pub(crate) fn module(&mut self) -> Module {
        let graph = self.graph(1);
        let values = values_in_order(&graph);
        let nodes: Vec<_> = graph.nodes().collect();
        let symbols = graph.symbols().len();
        let mut module = Module::new(graph);
        if self.chance(80) {
            module.set_stitch(self.stitch(&nodes, &values));
        }
        if self.chance(80) {
            let slots: Vec<_> = values
                .iter()
                .filter(|_| self.chance(70))
                .collect::<Vec<_>>()
                .into_iter()
                .map(|&value| self.slot(value))
                .collect();
            let count = slots.len();
            module.set_slots(SlotTable { slots: slots.into_iter().collect() });
            if self.chance(80) {
                module.set_layout(ArenaLayout {
                    bounds: (0..symbols).map(|_| self.next()).collect(),
                    align: self.next(),
                    counts: self.next(),
                    staged: self.next(),
                    offsets: (0..count).map(|_| self.next()).collect(),
                    sizes: (0..count).map(|_| self.next()).collect(),
                    bytes: self.next(),
                });
            }
        }
        module
    }

    fn slot(&mut self, value: Value) -> SlotData {
        let kinds = [SlotKind::Input, SlotKind::Boundary, SlotKind::Local, SlotKind::Output];
        let live = LiveRange { start: self.below(9), end: self.below(9) };
        SlotData { value, kind: self.pick(&kinds), live }
    }

    fn stitch(&mut self, nodes: &[Node], values: &[Value]) -> Stitch {
        let mut stitch = Stitch::default();
        for _ in 0..self.below(3) {
            let graph = self.graph(1);
            let symbols = graph.symbols().len();
            let over = (symbols > 0 && self.chance(80)).then(|| Symbol::new(self.below(symbols)));
            let hash = std::array::from_fn(|_| self.next() as u8);
            stitch.unique.push(UniquePiece { over, graph, hash });
        }
        if stitch.unique.is_empty() {
            return stitch;
        }
        let kinds: [fn(PieceId) -> Step; 3] = [Step::Prologue, Step::Piece, Step::Split];
        for _ in 0..self.below(5) {
            let unique = UniquePieceId::new(self.below(stitch.unique.len()));
            let nodes = nodes.iter().copied().filter(|_| self.chance(40)).collect();
            let operands = values.iter().copied().filter(|_| self.chance(40)).collect();
            let id = stitch.uses.push(PieceUse { unique, nodes, operands });
            if self.chance(90) {
                stitch.steps.push(self.pick(&kinds)(id));
            }
        }
        if self.chance(30) && !stitch.uses.is_empty() {
            let step = self.pick(&kinds)(PieceId::new(self.below(stitch.uses.len())));
            stitch.steps.insert(0, step);
        }
        stitch
    }
}

fn values_in_sight(graph: &Graph) -> Vec<Value> {
    (0..graph.value_count()).map(Value::new).collect()
}

/// The values that the text shows.
fn values_in_order(graph: &Graph) -> Vec<Value> {
    values_in_sight(graph)
        .into_iter()
        .filter(|&v| graph.defining_node(v).is_none_or(|n| graph.order().contains(&n)))
        .collect()
}
