//! The role map: which input of a graph gets what, found once at load.

use super::error::RoleError;
use super::feedback;
use crate::memory::StateKind;
use crate::words::{FillError, MAX_OWN, SymbolClass, SymbolTable, roles};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::{Graph, InputDecl};
use piecewise_ir::op::Op;
use piecewise_ir::types::TensorType;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_kernels::inputs::{BatchView, StepInput};
use piecewise_kernels::op::{CountRows, OpRegistry};
use piecewise_kernels::sampling::{DETAIL_WORDS, mask_words, token_words};
use std::collections::BTreeSet;
use std::sync::Arc;

/// An input of a graph and the declaration that fills it.
#[derive(Clone, Debug)]
pub struct BoundInput {
    /// The input as the graph names it.
    pub name: String,
    /// Its dtype and its shape, symbols among the extents.
    pub ty: TensorType,
    /// The op that declared its role.
    pub op: String,
    /// What was declared: how it is shaped and filled.
    pub input: StepInput,
}

impl BoundInput {
    /// Why it could not be filled.
    pub(super) fn error(&self, reason: String) -> FillError {
        FillError::Input { op: self.op.clone(), input: self.name.clone(), reason }
    }
}

/// What counts the rows of one of the graph's own kinds.
#[derive(Clone, derive_more::Debug)]
#[debug("CountOwn({symbol} up to {bound})")]
struct CountOwn {
    count: Arc<CountRows>,
    /// The symbol of the kind that leaves room for the fewest, and how many.
    symbol: String,
    bound: u64,
}

/// The roles of a graph's inputs and outputs.
#[derive(Clone, Debug)]
pub struct RoleMap {
    /// What fills each input, in the order of the graph's inputs.
    pub inputs: Vec<BoundInput>,
    /// Which rows each symbol of the graph counts.
    pub symbols: SymbolTable,
    /// What counts the rows of the graph's own kinds, by their place.
    own: Vec<CountOwn>,
    /// Columns of the block table; `None` where the graph keeps no KV.
    pub table_pages: Option<usize>,
    /// Rows of the KV pool; 0 where the graph keeps no KV.
    pub kv_rows: u64,
    /// Slots of the states that each sequence has a row of; 0 where the graph has none.
    pub state_slots: u64,
    /// Entries of the state of sampled ids; 0 where the graph has none.
    pub sampled_entries: u64,
    /// The output `f32 [R, V]`, and V.
    pub logits: Option<(usize, u64)>,
    /// The output `i32 [R]` of sampled ids, by its place; `None` where the graph has none.
    pub sampled: Option<usize>,
    /// The output `i32 [R, DETAIL_WORDS]` that log-probabilities are made from.
    pub details: Option<usize>,
    /// Why the next step can't take the ids that the graph returns, and why rows can ask for nothing,
    /// where the graph has a part of what that needs.
    faults: [Option<RoleError>; 2],
}

impl RoleMap {
    /// Resolves the roles of a graph against the inputs that `ops` declare.
    ///
    /// # Errors
    /// When an input has no role, or one that nothing fills, that two ops declare otherwise, or
    /// whose type or padding is another; or a role is missing that the rest of the graph needs.
    pub fn resolve(
        graph: &Graph,
        symbols: &SymbolTable,
        ops: &OpRegistry,
    ) -> Result<Self, RoleError> {
        let inputs: Vec<_> = graph
            .inputs()
            .iter()
            .map(|input| bind_input(graph, ops, input))
            .collect::<Result<_, _>>()?;
        let rows_of_state = |role: &str| {
            let state = graph.states().iter().find(|s| s.role.as_deref() == Some(role));
            state.and_then(|s| graph.ty(s.value).dims(symbols.bounds()).first().copied())
        };
        let kv_rows = rows_of_state(roles::KV_CACHE).unwrap_or(0);
        let mut tables = inputs.iter().filter(|bound| bound.input.role() == roles::KV_BLOCK_TABLE);
        let table = tables.next().filter(|_| kv_rows > 0);
        let table_pages = table.and_then(|bound| bound.ty.shape[1].as_constant());
        let outputs = || graph.outputs().iter().map(|&value| graph.ty(value));
        let over_rows = |ty: &TensorType, dtype, rank| {
            ty.dtype == dtype
                && ty.rank() == rank
                && ty.outer_symbol().is_some_and(|s| symbols.class(s) == SymbolClass::Rows)
        };
        let sampled = outputs().position(|ty| over_rows(ty, DType::I32, 1));
        let of_rows = outputs().enumerate().filter(|(_, ty)| over_rows(ty, DType::F32, 2));
        let of_rows = of_rows.map(|(i, _)| i).collect();
        let logits = the_logits(graph, of_rows, sampled)?.map(|i| {
            let dims = graph.ty(graph.outputs()[i]).dims(symbols.bounds());
            (i, dims.get(1).copied().unwrap_or(0))
        });
        let mut map = Self {
            symbols: symbols.clone(),
            own: own_counters(graph, symbols, ops)?,
            table_pages: table_pages.map(|pages| pages as usize),
            kv_rows,
            state_slots: slots_of_states(graph, symbols)?,
            sampled_entries: rows_of_state(roles::SAMPLED).unwrap_or(0),
            logits,
            sampled,
            details: outputs().position(|ty| {
                let is_wide = |dim: &Dim| dim.as_constant() == Some(DETAIL_WORDS as u64);
                over_rows(ty, DType::I32, 2) && is_wide(&ty.shape[1])
            }),
            inputs,
            faults: [const { None }; 2],
        };
        map.check_complete()?;
        map.faults = [map.check_feedback(graph).err(), map.check_controls(graph).err()];
        Ok(map)
    }

    /// How many rows of each of the graph's own kinds a batch brings. What a function counts is held
    /// against its symbol's bound before anything is made of it.
    ///
    /// # Errors
    /// When they are more than the bound.
    pub(super) fn count_own(&self, batch: &BatchView<'_>) -> Result<[u64; MAX_OWN], FillError> {
        let mut counts = [0; MAX_OWN];
        for (kind, (own, rows)) in self.own.iter().zip(&mut counts).enumerate() {
            *rows = (own.count)(batch);
            if *rows > own.bound {
                return Err(self.too_many(kind, own, *rows));
            }
        }
        Ok(counts)
    }

    fn too_many(&self, kind: usize, own: &CountOwn, count: u64) -> FillError {
        let class = SymbolClass::Own(kind);
        let is_over =
            |dim: &Dim| dim.terms().iter().any(|&(symbol, _)| self.symbols.class(symbol) == class);
        let inputs = self.inputs.iter().filter(|bound| bound.ty.shape.iter().any(is_over));
        let ops: BTreeSet<String> = inputs.map(|bound| format!("`{}`", bound.op)).collect();
        FillError::Rows {
            role: self.symbols.own()[kind].clone(),
            symbol: own.symbol.clone(),
            ops: if ops.is_empty() { "no op".to_owned() } else { Vec::from_iter(ops).join(", ") },
            count,
            bound: own.bound,
        }
    }

    /// Whether steps bring rows of the graph's own kinds.
    pub fn has_own_rows(&self) -> bool {
        !self.own.is_empty()
    }

    /// Whether an input has this role.
    pub fn has(&self, role: &str) -> bool {
        self.inputs.iter().any(|bound| bound.input.role() == role)
    }

    /// Whether a step can take ids that the step before it sampled, before they are read back.
    pub fn has_feedback(&self) -> bool {
        self.declares_feedback() && self.faults[0].is_none()
    }

    fn declares_feedback(&self) -> bool {
        self.sampled_entries > 0 && self.has(roles::TOKEN_FEEDBACK) && self.has(roles::SAMPLE_SLOTS)
    }

    /// Whether ids can be drawn rather than the largest logit taken.
    pub fn has_sampling(&self) -> bool {
        [
            roles::SAMPLE_TEMPERATURE,
            roles::SAMPLE_TOP_K,
            roles::SAMPLE_TOP_P,
            roles::SAMPLE_SEED,
            roles::SAMPLE_POSITION,
        ]
        .into_iter()
        .all(|role| self.has(role))
    }

    /// Whether rows can ask for penalties, biases, masks, `min_p` and log-probabilities.
    pub fn has_controls(&self) -> bool {
        self.declares_controls() && self.faults[1].is_none()
    }

    fn declares_controls(&self) -> bool {
        self.details.is_some() || self.has(roles::SAMPLE_CONTROLS)
    }

    /// Holds a graph that is to generate to what that rests on: it returns the ids that it samples,
    /// where it keeps ids for the next step they are these, and where rows can ask for more of
    /// sampling, all is there that this takes.
    ///
    /// # Errors
    /// Says what the graph is to return.
    pub fn check_generates(&self) -> Result<(), RoleError> {
        self.check_samples()?;
        self.faults.iter().flatten().next().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// The place of the logits among the outputs.
    ///
    /// # Errors
    /// When the graph returns none.
    pub fn logits_output(&self) -> Result<usize, RoleError> {
        let missing = RoleError::NoOutput { what: "logits", expected: "f32 [rows, vocabulary]" };
        self.logits.map(|(output, _)| output).ok_or(missing)
    }

    /// # Errors
    /// When no output is of sampled ids.
    pub(crate) fn check_samples(&self) -> Result<(), RoleError> {
        let expected = "what `StepInputs::sample(logits)` gives, i32 [rows]";
        let missing = RoleError::NoOutput { what: "sampled ids", expected };
        self.sampled.map(|_| ()).ok_or(missing)
    }

    fn check_feedback(&self, graph: &Graph) -> Result<(), RoleError> {
        let sampled = self.sampled.filter(|_| self.declares_feedback());
        let Some(sampled) = sampled.map(|output| graph.outputs()[output]) else { return Ok(()) };
        match feedback::fault(graph, sampled) {
            Some(fault) => Err(RoleError::Feedback { because: fault.because() }),
            None => Ok(()),
        }
    }

    fn check_controls(&self, graph: &Graph) -> Result<(), RoleError> {
        if !self.declares_controls() {
            return Ok(());
        }
        let controls = "rows can ask for more of sampling";
        let expected =
            "both that `StepInputs::sample_controlled` gives, i32 [rows] and i32 [rows, 46]";
        let lacks = |what| Err(RoleError::NoOutput { what, expected });
        if self.details.is_none() {
            return lacks("numbers that log-probabilities are made from");
        }
        let needed = [roles::SAMPLE_CONTROLS, roles::SAMPLE_PENALTIES, roles::SAMPLE_TEMPERATURE];
        needed.into_iter().try_for_each(|role| self.need(role, controls))?;
        let Some((_, vocabulary)) = self.logits else {
            return lacks("logits f32 [rows, vocabulary]");
        };
        let entries = self.sampled_entries.max(1);
        for (role, words) in [
            (roles::SAMPLED, 1),
            (roles::SAMPLE_MASKS, mask_words(vocabulary)),
            (roles::SAMPLE_TOKENS, token_words(vocabulary)),
        ] {
            let mut states = graph.states().iter();
            let state = states.find(|state| state.role.as_deref() == Some(role));
            let fits = state.map(|state| graph.ty(state.value)).is_some_and(|ty| {
                let (bounds, row) = (self.symbols.bounds(), ty.row());
                row.bytes(bounds) == 4 * words && ty.dims(bounds)[0] >= entries
            });
            if !fits {
                return Err(RoleError::NoState { role, entries, words, because: controls });
            }
        }
        Ok(())
    }

    fn need(&self, role: &'static str, because: &str) -> Result<(), RoleError> {
        if self.has(role) {
            return Ok(());
        }
        Err(RoleError::Missing { role, because: because.to_owned() })
    }

    /// The most positions that a sequence can have; `None` where the graph keeps no KV.
    pub fn max_positions(&self) -> Option<u64> {
        let pages = self.table_pages? as u64;
        Some((pages * PAGE_ROWS).min(self.kv_rows / PAGE_ROWS * PAGE_ROWS))
    }

    fn check_complete(&self) -> Result<(), RoleError> {
        let need = |role, because: &str| self.need(role, because);
        need(roles::TOKEN_IDS, "tokens can't get in without it")?;
        if self.logits.is_some() || self.sampled.is_some() {
            let because = "the graph returns a row for each token that wants logits";
            need(roles::LOGIT_ROWS, because)?;
        }
        if self.kv_rows > 0 {
            let because = "a state has the role \"kv.cache\"";
            let needed = [roles::KV_SLOTS, roles::KV_BLOCK_TABLE, roles::KV_LENGTHS];
            needed.into_iter().try_for_each(|role| need(role, because))?;
            let both = "sequences of different lengths share a step";
            need(roles::QUERY_STARTS, both)?;
            need(roles::QUERY_LENGTHS, both)?;
        }
        if self.has(roles::TOKEN_FEEDBACK) {
            need(roles::SAMPLE_SLOTS, "an input has the role \"tokens.feedback\"")?;
        }
        Ok(())
    }
}

/// Which of the outputs that could be logits are: the only one, or the one that the ids are sampled
/// from.
fn the_logits(
    graph: &Graph,
    mut outputs: Vec<usize>,
    sampled: Option<usize>,
) -> Result<Option<usize>, RoleError> {
    if outputs.len() > 1 {
        let sampler = sampled.and_then(|output| graph.defining_node(graph.outputs()[output]));
        let reads = |&output: &usize| {
            sampler.is_some_and(|node| graph.node(node).operands.contains(&graph.outputs()[output]))
        };
        let read = Vec::from_iter(outputs.iter().copied().filter(reads));
        let [_] = *read else {
            return Err(RoleError::Ambiguous { outputs: format!("{outputs:?}") });
        };
        outputs = read;
    }
    Ok(outputs.pop())
}

/// The slots that every state of role `sequence.state` has rows for.
fn slots_of_states(graph: &Graph, symbols: &SymbolTable) -> Result<u64, RoleError> {
    let mut slots = None;
    for state in graph.states().iter().filter(|s| StateKind::of(s) == StateKind::Slots) {
        let found = graph.ty(state.value).outer_symbol();
        let decl = found.and_then(|symbol| graph.symbols().get(symbol));
        let counts_slots = decl.is_some_and(|d| d.role.as_deref() == Some(roles::SLOT_ROWS));
        if !counts_slots || slots.is_some_and(|slots| Some(slots) != found) {
            return Err(RoleError::NoSlots { state: state.name.clone() });
        }
        slots = found;
    }
    Ok(slots.map_or(0, |symbol| symbols.bound(symbol)))
}

fn own_counters(
    graph: &Graph,
    symbols: &SymbolTable,
    ops: &OpRegistry,
) -> Result<Vec<CountOwn>, RoleError> {
    let counter = |(kind, role): (usize, &String)| {
        let is_own = |at: &usize| symbols.at(*at).class == SymbolClass::Own(kind);
        let bound = |at: usize| symbols.bounds()[at] / symbols.at(at).times;
        let bounds = (0..symbols.bounds().len()).filter(is_own).map(|at| (bound(at), at));
        let (bound, at) = bounds.min().unwrap_or_default();
        let decl = graph.symbols().values().nth(at);
        let symbol = decl.map_or_else(String::new, |decl| decl.name.clone());
        let Some(count) = ops.row_counter(role)? else {
            return Err(RoleError::Uncounted { symbol, role: role.clone() });
        };
        Ok(CountOwn { count: Arc::clone(count), symbol, bound })
    };
    symbols.own().iter().enumerate().map(counter).collect()
}

fn bind_input(graph: &Graph, ops: &OpRegistry, decl: &InputDecl) -> Result<BoundInput, RoleError> {
    let known = || {
        let roles: BTreeSet<_> = ops.input_roles().collect();
        Vec::from_iter(roles).join(", ")
    };
    let name = decl.name.clone();
    let Some(role) = decl.role.as_deref() else {
        return Err(RoleError::NoRole { input: name, known: known() });
    };
    let Some((op, input)) = ops.step_input(role)? else {
        let readers = readers(graph, decl);
        return Err(RoleError::Unknown {
            input: name,
            role: role.to_owned(),
            readers,
            known: known(),
        });
    };
    if !input.is_filled() {
        let (op, role) = (op.to_owned(), role.to_owned());
        return Err(RoleError::NoFill { input: name, role, op });
    }
    let ty = graph.ty(decl.value);
    // Padding of floats may be anything.
    let pads = ty.dtype.is_float() || decl.padding == Some(input.padding());
    if !input.fits(ty, graph.symbols()) || !pads {
        let padding = decl.padding.map_or("unset".to_owned(), |p| p.to_f64().to_string());
        let found = format!("{} padded with {padding}", ty.display(graph.symbols()));
        let (role, expected) = (role.to_owned(), format!("{op} declares {input}"));
        return Err(RoleError::Type { input: name, role, found, expected });
    }
    Ok(BoundInput { name, ty: ty.clone(), op: op.to_owned(), input: input.clone() })
}

/// The custom ops that read an input, for people.
fn readers(graph: &Graph, decl: &InputDecl) -> String {
    let nodes = graph.nodes().map(|node| graph.node(node));
    let readers: BTreeSet<String> = nodes
        .filter(|node| node.operands.contains(&decl.value))
        .map(|node| match &node.op {
            Op::Custom(call) => format!("`{}`", call.name),
            _ => "ops of the graph".to_owned(),
        })
        .collect();
    if readers.is_empty() { "nothing".to_owned() } else { Vec::from_iter(readers).join(", ") }
}
