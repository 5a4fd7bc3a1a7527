//! Custom ops: definitions that live outside the IR, and calls that carry their whole signature.

use crate::array::Array;
use crate::dtype::DType;
use crate::treatment::RowTreatment;
use crate::types::TensorType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An attribute of a custom op call.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Attr {
    /// `key=3`
    Int(i64),
    /// `key=0.125`, printed by shortest round trip.
    Float(f64),
    /// `key=true`
    Bool(bool),
    /// `key="text"`
    Str(String),
    /// `key=bf16`
    DType(DType),
}

/// Attributes by name, in the order of names.
pub type Attrs = BTreeMap<String, Attr>;

/// A use of a custom op. It repeats what its definition says, so that a graph with an
/// unregistered op still parses, verifies, splits and plans.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct CustomCall {
    /// With its namespace, such as `piecewise.paged_attention`, by which its definition is found.
    pub name: String,
    /// What the op was called with besides its operands, by name.
    pub attrs: Attrs,
    /// The operand positions, ascending, that it mutates; each is a state.
    pub mutates: Vec<usize>,
    /// What it does with the rows of a symbol's dimension.
    pub rows: RowTreatment,
    /// Whether the splitter cuts here unless configured otherwise.
    pub splits: bool,
    /// The positions, ascending, operands first and then results, at which its kernels may absorb a
    /// region: the one that makes the operand, or the one that reads the result.
    pub absorbs: Vec<usize>,
    /// Each state among its operands whose rows it writes at slots that another operand gives, with that
    /// operand, by positions.
    pub scatters: Vec<(usize, usize)>,
}

/// What a custom op computes, as far as the IR needs to know.
///
/// Implementations for a backend are registered separately under the same name.
pub trait CustomOpDef: Send + Sync + std::fmt::Debug {
    /// With a namespace, such as `piecewise.paged_attention`: what graphs and texts call it by.
    fn name(&self) -> &str;

    /// The result types for these operand types and attributes.
    ///
    /// # Errors
    /// A sentence that says which operand or attribute does not fit and what would.
    fn infer(&self, operands: &[TensorType], attrs: &Attrs) -> Result<Vec<TensorType>, String>;

    /// The operand positions that it mutates, ascending; each must be a state.
    fn mutates(&self) -> Vec<usize> {
        Vec::new()
    }

    /// What it does with rows.
    fn rows(&self) -> RowTreatment;

    /// Whether the splitter cuts here unless configured otherwise.
    fn splits(&self) -> bool {
        self.rows() == RowTreatment::Mixed
    }

    /// The positions, ascending, operands first and then results, that an implementation may do
    /// without in memory: an operand whose elements a region before it computes, one by one, or a
    /// result whose elements a region after it takes. What such regions read and write lives as
    /// long as they and the op together. A region that makes nothing but such operands of a split op,
    /// or alone reads what it makes, runs with it, between the pieces. Whether one is absorbed is the
    /// backend's choice.
    fn absorbs(&self) -> Vec<usize> {
        Vec::new()
    }

    /// The states that it mutates by rows at slots, as `scatter` does, each with the operand that has the
    /// slots, by positions: integers, of which two that name one row of the state are refused by name
    /// where the host stages them. So its kernels need not say which of two rows stays.
    fn scatters(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// Evaluates it in f64 for the reference evaluator. `operands` are the values of all
    /// operands; the returned vector holds the results, then the new values of the mutated
    /// operands in the order of [`Self::mutates`]. `counts` are the true sizes by symbol.
    ///
    /// # Errors
    /// A sentence that says what can't be evaluated; the default can evaluate nothing.
    fn evaluate(
        &self,
        operands: &[Array],
        attrs: &Attrs,
        counts: &[u64],
    ) -> Result<Vec<Array>, String> {
        let _ = (operands, attrs, counts);
        Err(format!("`{}` has no reference implementation", self.name()))
    }
}

/// The custom op definitions known to a program, by name.
#[derive(Clone, Default, Debug)]
pub struct OpDefs {
    defs: BTreeMap<String, Arc<dyn CustomOpDef>>,
}

impl OpDefs {
    /// Definitions of no op: every custom op is unknown to the verifier.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `def` under its name; a definition of the same name is replaced and returned.
    pub fn register(&mut self, def: Arc<dyn CustomOpDef>) -> Option<Arc<dyn CustomOpDef>> {
        self.defs.insert(def.name().to_owned(), def)
    }

    /// The definition that is registered under `name`; `None` where there is none.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn CustomOpDef>> {
        self.defs.get(name)
    }

    /// The definitions in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn CustomOpDef>> {
        self.defs.values()
    }
}
