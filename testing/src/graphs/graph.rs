//! Random graphs that look like steps of a model.

use super::draft::{Draft, Rows};
use piecewise_ir::dim::SymbolDecl;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Value;
use piecewise_ir::graph::Graph;
use piecewise_ir::op::Op;
use piecewise_ir::random::Rng;
use piecewise_ir::types::TensorType;

/// What random graphs are made of. Every graph keeps the verifier's rules, computes rows of the
/// symbol `T` independently but for [`super::MixOp`], and keeps its values small.
#[derive(Clone, PartialEq, Debug)]
pub struct RandomGraph {
    /// About how many nodes; a block that was begun is ended.
    pub nodes: usize,
    /// Whether there are products with weights.
    pub matmuls: bool,
    /// Whether there are calls of [`super::MixOp`]; they need states.
    pub custom_ops: bool,
    /// Whether there are states, and scatters into them.
    pub states: bool,
    /// Whether the graph ends with a part over a second symbol `R`, whose rows are gathered.
    pub second_symbol: bool,
    /// The float dtypes of values, at least one.
    pub dtypes: Vec<DType>,
}

impl Default for RandomGraph {
    fn default() -> Self {
        Self {
            nodes: 60,
            matmuls: true,
            custom_ops: true,
            states: true,
            second_symbol: true,
            dtypes: vec![DType::F32, DType::BF16, DType::F16],
        }
    }
}

/// Rows of every state.
const STATE_ROWS: usize = 24;

impl RandomGraph {
    /// The largest `T` of every graph.
    pub const MAX_T: u64 = 32;
    /// The largest `R` of a graph that has it.
    pub const MAX_R: u64 = 8;

    /// All values f32: results differ by the order of sums alone.
    pub fn f32() -> Self {
        Self { dtypes: vec![DType::F32], ..Self::default() }
    }

    /// The graph of `seed`. Its symbols are `T`, then `R` if it has it.
    pub fn generate(&self, seed: u64) -> Graph {
        let mut graph = Graph::new("random");
        let symbol = |name: &str, max| SymbolDecl { name: name.into(), min: 1, max, role: None };
        let over = graph.add_symbol(symbol("T", Self::MAX_T));
        let second = self.second_symbol.then(|| graph.add_symbol(symbol("R", Self::MAX_R)));
        let mut draft = Draft { graph, rng: Rng::new(seed) };

        let ids = draft.input("ids", DType::I32, [over], Some(0));
        let slots = self.states.then(|| draft.input("slots", DType::I32, [over], Some(-1)));
        let (width, dtype) = (draft.rng.pick(&[8, 16]), draft.rng.pick(&self.dtypes));
        let x = draft.input("x", dtype, (over, width), None);
        let chosen = second.map(|r| draft.input("rows", DType::I32, [r], Some(0)));
        let states = self.declare_states(&mut draft);

        let mut pool = vec![Rows { value: x, width, dtype, bound: 1.0 }];
        pool.push(draft.embedding(ids, width, dtype));
        self.grow(&mut draft, &mut pool, self.nodes, &states, slots, ids);
        let mut outputs = vec![pool[pool.len() - 1].value];
        if draft.rng.one_in(2) {
            outputs.push(pool[1 + draft.rng.below(pool.len() - 1)].value);
        }
        if let Some(chosen) = chosen {
            let last = pool[pool.len() - 1];
            let value = draft.op(Op::Gather, &[last.value, chosen]);
            let mut pool = vec![Rows { value, ..last }];
            let nodes = draft.len() + self.nodes / 4;
            self.grow(&mut draft, &mut pool, nodes, &[], None, chosen);
            outputs.push(pool[pool.len() - 1].value);
        }
        outputs.sort_unstable();
        outputs.dedup();
        draft.graph.set_outputs(outputs);
        draft.graph.compact();
        draft.graph
    }

    fn declare_states(&self, draft: &mut Draft) -> Vec<Rows> {
        if !self.states {
            return Vec::new();
        }
        (0..1 + draft.rng.below(2))
            .map(|i| {
                let (width, dtype) = (draft.rng.pick(&[8, 16]), draft.rng.pick(&self.dtypes));
                let ty = TensorType::new(dtype, [STATE_ROWS, width]);
                let value = draft.graph.add_state(format!("layers.{i}.cache"), ty, None);
                Rows { value, width, dtype, bound: 8.0 }
            })
            .collect()
    }

    /// Adds blocks until there are `nodes` nodes.
    fn grow(
        &self,
        draft: &mut Draft,
        pool: &mut Vec<Rows>,
        nodes: usize,
        states: &[Rows],
        slots: Option<Value>,
        indices: Value,
    ) {
        loop {
            // Recent values are likelier, so that chains get long.
            let back = draft.rng.below(pool.len().min(3));
            let a = pool[pool.len() - 1 - back];
            let b = pool[draft.rng.below(pool.len())];
            let made = match draft.rng.below(13) {
                0 | 1 => draft.elementwise(a),
                2 | 3 => draft.combined(a, b),
                4 => draft.rms_norm(a),
                5 => draft.softmax(a),
                6 => draft.gated(a, b),
                7 => draft.heads(a),
                8 => {
                    let dtype = draft.rng.pick(&self.dtypes);
                    Rows { value: draft.cast(a.value, dtype), dtype, ..a }
                }
                9 => {
                    let width = draft.rng.pick(&[8, 16, 32]);
                    match draft.rng.one_in(3) {
                        true => draft.embedding(indices, width, a.dtype),
                        false => draft.fitted(a, width),
                    }
                }
                10 | 11 if self.matmuls => {
                    pool.extend(draft.projected(a, &self.dtypes));
                    pool[pool.len() - 1]
                }
                _ => self.stateful(draft, a, states, slots),
            };
            pool.push(made);
            if draft.len() >= nodes && draft.graph.defining_node(made.value).is_some() {
                break;
            }
        }
    }

    /// A scatter into a state, and mostly a mix of it; without states, an elementwise op.
    fn stateful(&self, draft: &mut Draft, a: Rows, states: &[Rows], slots: Option<Value>) -> Rows {
        let (Some(slots), false) = (slots, states.is_empty()) else {
            return draft.elementwise(a);
        };
        let state = draft.rng.pick(states);
        draft.scattered(a, state, slots);
        if self.custom_ops && !draft.rng.one_in(4) {
            return draft.mixed(a, state, slots);
        }
        let rows = draft.op(Op::Gather, &[state.value, slots]);
        Rows { value: rows, ..state }
    }
}
