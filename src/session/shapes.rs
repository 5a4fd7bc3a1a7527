//! From the lengths of a step's inputs to the values of the graph's symbols.

use super::SessionError;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::graph::Graph;
use piecewise_ir::types::TensorType;
use piecewise_runtime::symbols::{SymbolClass, SymbolTable};

/// How a graph's symbol follows from its inputs.
#[derive(Debug)]
pub(super) struct StepSymbol {
    symbol: Symbol,
    name: String,
    min: u64,
    max: u64,
}

impl StepSymbol {
    /// The one symbol that varies from step to step; `None` where all shapes are static.
    pub(super) fn of(graph: &Graph, table: &SymbolTable) -> Result<Option<Self>, SessionError> {
        let mut found: Option<Self> = None;
        for (symbol, decl) in graph.symbols().iter() {
            let refuse =
                |reason: String| SessionError::Symbol { symbol: decl.name.clone(), reason };
            match table.class(symbol) {
                SymbolClass::Fixed => continue,
                SymbolClass::Tokens => {}
                SymbolClass::Rows | SymbolClass::Sequences | SymbolClass::Own(_) => {
                    let role = decl.role.as_deref().unwrap_or_default();
                    return Err(refuse(format!(
                        "has the role \"{role}\", but a session runs steps of rows alone; serve \
                         graphs over sequences with `Engine`"
                    )));
                }
            }
            if let Some(other) = &found {
                return Err(refuse(format!(
                    "and symbol {} both vary from step to step, but the steps of a session have \
                     one size; use one symbol for both",
                    other.name
                )));
            }
            let says = |value| row_elements(graph.ty(value), symbol).is_some();
            if !graph.inputs().iter().any(|input| says(input.value)) {
                return Err(refuse(
                    "is the outermost dimension of no input whose other dimensions are static, so \
                     no step says how large it is"
                        .to_owned(),
                ));
            }
            found = Some(Self { symbol, name: decl.name.clone(), min: decl.min, max: decl.max });
        }
        Ok(found)
    }

    /// Its value where `input` of type `ty` holds `elements` values; `None` where `input` does not
    /// say.
    pub(super) fn count(
        &self,
        input: &str,
        ty: &TensorType,
        elements: usize,
    ) -> Result<Option<u64>, SessionError> {
        let Some(row) = row_elements(ty, self.symbol) else { return Ok(None) };
        let refuse =
            |reason| Err(SessionError::InputLength { input: input.to_owned(), elements, reason });
        let elements = elements as u64;
        if !elements.is_multiple_of(row) {
            return refuse(format!("a row of it has {row}, so give a multiple of that"));
        }
        let (count, Self { name, min, max, .. }) = (elements / row, self);
        if !(*min..=*max).contains(&count) {
            return refuse(format!("that makes {name} = {count}, declared from {min} to {max}"));
        }
        Ok(Some(count))
    }

    /// Puts its value among the counts by symbol index.
    pub(super) fn set(&self, counts: &mut [u64], value: u64) {
        counts[self.symbol.index()] = value;
    }

    /// The largest value.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// Its name in the graph.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// The elements of a row of `ty`, where rows are counted by `symbol` and hold elements.
fn row_elements(ty: &TensorType, symbol: Symbol) -> Option<u64> {
    let elements = ty.row().static_elements().filter(|&elements| elements > 0);
    elements.filter(|_| ty.outer_symbol() == Some(symbol))
}
