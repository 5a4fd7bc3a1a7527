//! The role map: which input of a graph gets what, found once at load.

use super::error::RoleError;
use crate::roles;
use crate::symbols::{SymbolClass, SymbolTable};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::{Graph, InputDecl};
use piecewise_ir::types::TensorType;
use piecewise_kernels::attention::PAGE_ROWS;

/// What an input gets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InputRole {
    /// [`roles::TOKEN_IDS`]
    TokenIds,
    /// [`roles::TOKEN_FEEDBACK`]
    TokenFeedback,
    /// [`roles::TOKEN_POSITIONS`]
    TokenPositions,
    /// [`roles::KV_SLOTS`]
    KvSlots,
    /// [`roles::KV_BLOCK_TABLE`]
    KvBlockTable,
    /// [`roles::KV_LENGTHS`]
    KvLengths,
    /// [`roles::QUERY_STARTS`]
    QueryStarts,
    /// [`roles::QUERY_LENGTHS`]
    QueryLengths,
    /// [`roles::LOGIT_ROWS`]
    LogitRows,
    /// [`roles::SAMPLE_SLOTS`]
    SampleSlots,
    /// [`roles::SAMPLE_TEMPERATURE`]
    SampleTemperature,
    /// [`roles::SAMPLE_TOP_K`]
    SampleTopK,
    /// [`roles::SAMPLE_TOP_P`]
    SampleTopP,
    /// [`roles::SAMPLE_SEED`]
    SampleSeed,
    /// [`roles::SAMPLE_POSITION`]
    SamplePosition,
}

struct RoleSpec {
    role: InputRole,
    name: &'static str,
    dtype: DType,
    class: SymbolClass,
    /// The type, for people.
    ty: &'static str,
}

const fn spec(
    role: InputRole,
    name: &'static str,
    dtype: DType,
    class: SymbolClass,
    ty: &'static str,
) -> RoleSpec {
    RoleSpec { role, name, dtype, class, ty }
}

use InputRole as Role;
use SymbolClass::{Rows, Sequences, Tokens};

const SPECS: [RoleSpec; 15] = [
    spec(Role::TokenIds, roles::TOKEN_IDS, DType::I32, Tokens, "i32 over tokens"),
    spec(Role::TokenFeedback, roles::TOKEN_FEEDBACK, DType::I32, Tokens, "i32 over tokens"),
    spec(Role::TokenPositions, roles::TOKEN_POSITIONS, DType::I32, Tokens, "i32 over tokens"),
    spec(Role::KvSlots, roles::KV_SLOTS, DType::I32, Tokens, "i32 over tokens"),
    spec(
        Role::KvBlockTable,
        roles::KV_BLOCK_TABLE,
        DType::I32,
        Sequences,
        "i32 over sequences and a constant number of pages",
    ),
    spec(Role::KvLengths, roles::KV_LENGTHS, DType::I32, Sequences, "i32 over sequences"),
    spec(Role::QueryStarts, roles::QUERY_STARTS, DType::I32, Sequences, "i32 over sequences"),
    spec(Role::QueryLengths, roles::QUERY_LENGTHS, DType::I32, Sequences, "i32 over sequences"),
    spec(Role::LogitRows, roles::LOGIT_ROWS, DType::I32, Rows, "i32 over rows"),
    spec(Role::SampleSlots, roles::SAMPLE_SLOTS, DType::I32, Rows, "i32 over rows"),
    spec(Role::SampleTemperature, roles::SAMPLE_TEMPERATURE, DType::F32, Rows, "f32 over rows"),
    spec(Role::SampleTopK, roles::SAMPLE_TOP_K, DType::I32, Rows, "i32 over rows"),
    spec(Role::SampleTopP, roles::SAMPLE_TOP_P, DType::F32, Rows, "f32 over rows"),
    spec(Role::SampleSeed, roles::SAMPLE_SEED, DType::I64, Rows, "i64 over rows"),
    spec(Role::SamplePosition, roles::SAMPLE_POSITION, DType::I32, Rows, "i32 over rows"),
];

/// The roles of a graph's inputs and outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RoleMap {
    /// The role of each input, in the order of the graph's inputs.
    pub inputs: Vec<InputRole>,
    /// The class of each symbol, by symbol index.
    pub classes: Vec<SymbolClass>,
    /// Columns of the block table; `None` where the graph keeps no KV.
    pub table_pages: Option<usize>,
    /// Rows of the KV pool; 0 where the graph keeps no KV.
    pub kv_rows: u64,
    /// Entries of the state of sampled ids; 0 where the graph has none.
    pub sampled_entries: u64,
    /// The output `f32 [R, V]`, and V.
    pub logits: Option<(usize, u64)>,
    /// The output `i32 [R]`.
    pub sampled: Option<usize>,
}

impl RoleMap {
    /// Resolves the roles of a graph.
    ///
    /// # Errors
    /// When an input has no role, an unknown one or another type than its role, or a role is
    /// missing that the rest of the graph needs.
    pub fn resolve(graph: &Graph, symbols: &SymbolTable) -> Result<Self, RoleError> {
        let inputs: Vec<_> = graph
            .inputs()
            .iter()
            .map(|input| resolve_input(graph, symbols, input))
            .collect::<Result<_, _>>()?;
        let table = graph.inputs().iter().zip(&inputs).find(|(_, r)| **r == Role::KvBlockTable);
        let table_pages = table.and_then(|(input, _)| graph.ty(input.value).shape[1].as_constant());
        let rows_of_state = |role: &str| {
            let state = graph.states().iter().find(|s| s.role.as_deref() == Some(role));
            state.and_then(|s| graph.ty(s.value).dims(symbols.bounds()).first().copied())
        };
        let kv_rows = rows_of_state(roles::KV_CACHE).unwrap_or(0);
        let output = |wanted: &dyn Fn(&TensorType) -> bool| {
            graph.outputs().iter().position(|&value| wanted(graph.ty(value)))
        };
        let over_rows = |ty: &TensorType, dtype, rank| {
            ty.dtype == dtype
                && ty.rank() == rank
                && ty.outer_symbol().is_some_and(|s| symbols.class(s) == Rows)
        };
        let logits = output(&|ty| over_rows(ty, DType::F32, 2)).map(|i| {
            let dims = graph.ty(graph.outputs()[i]).dims(symbols.bounds());
            (i, dims.get(1).copied().unwrap_or(0))
        });
        let map = Self {
            classes: (0..symbols.len()).map(|i| symbols.class_at(i)).collect(),
            table_pages: table_pages.map(|pages| pages as usize),
            kv_rows,
            sampled_entries: rows_of_state(roles::SAMPLED).unwrap_or(0),
            logits,
            sampled: output(&|ty| over_rows(ty, DType::I32, 1)),
            inputs,
        };
        map.check_complete()?;
        Ok(map)
    }

    /// Whether an input has this role.
    pub fn has(&self, role: InputRole) -> bool {
        self.inputs.contains(&role)
    }

    /// Whether a step can take ids that the step before it sampled, before they are read back.
    pub fn has_feedback(&self) -> bool {
        self.sampled_entries > 0 && self.has(Role::TokenFeedback) && self.has(Role::SampleSlots)
    }

    /// Whether ids can be drawn rather than the largest logit taken.
    pub fn has_sampling(&self) -> bool {
        [Role::SampleTemperature, Role::SampleTopK, Role::SampleTopP, Role::SampleSeed]
            .into_iter()
            .all(|role| self.has(role))
            && self.has(Role::SamplePosition)
    }

    /// The most positions that a sequence can have; `None` where the graph keeps no KV.
    pub fn max_positions(&self) -> Option<u64> {
        let pages = self.table_pages? as u64;
        Some((pages * PAGE_ROWS).min(self.kv_rows / PAGE_ROWS * PAGE_ROWS))
    }

    fn check_complete(&self) -> Result<(), RoleError> {
        let need = |role: InputRole, because: &str| {
            if self.has(role) {
                return Ok(());
            }
            Err(RoleError::Missing { role: name(role), because: because.to_owned() })
        };
        need(Role::TokenIds, "tokens can't get in without it")?;
        if self.logits.is_some() || self.sampled.is_some() {
            need(Role::LogitRows, "the graph returns a row for each token that wants logits")?;
        }
        if self.kv_rows > 0 {
            let because = "a state has the role \"kv.cache\"";
            let needed = [Role::KvSlots, Role::KvBlockTable, Role::KvLengths];
            needed.into_iter().try_for_each(|role| need(role, because))?;
            let both = "sequences of different lengths share a step";
            need(Role::QueryStarts, both)?;
            need(Role::QueryLengths, both)?;
        }
        if self.has(Role::TokenFeedback) {
            need(Role::SampleSlots, "an input has the role \"tokens.feedback\"")?;
        }
        Ok(())
    }
}

fn name(role: InputRole) -> &'static str {
    SPECS.iter().find(|spec| spec.role == role).map_or("", |spec| spec.name)
}

fn resolve_input(
    graph: &Graph,
    symbols: &SymbolTable,
    decl: &InputDecl,
) -> Result<InputRole, RoleError> {
    let known = || SPECS.map(|spec| spec.name).join(", ");
    let input = decl.name.clone();
    let Some(role) = decl.role.as_deref() else {
        return Err(RoleError::NoRole { input, known: known() });
    };
    let Some(spec) = SPECS.iter().find(|spec| spec.name == role) else {
        return Err(RoleError::Unknown { input, role: role.to_owned(), known: known() });
    };
    let ty = graph.ty(decl.value);
    let rank = if spec.role == Role::KvBlockTable { 2 } else { 1 };
    let fits = ty.dtype == spec.dtype
        && ty.rank() == rank
        && ty.outer_symbol().is_some_and(|s| symbols.class(s) == spec.class)
        && ty.shape.iter().skip(1).all(|dim| dim.as_constant().is_some());
    if !fits {
        let found = ty.display(graph.symbols()).to_string();
        return Err(RoleError::Type { input, role: spec.name, found, expected: spec.ty });
    }
    Ok(spec.role)
}
