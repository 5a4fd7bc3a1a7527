//! From the lengths of a step's inputs to the values of the graph's symbols.

use super::error::SessionError;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::graph::Graph;
use piecewise_ir::types::TensorType;
use piecewise_runtime::words::{Over, SymbolClass, SymbolTable};

/// How a graph's symbol follows from its inputs.
#[derive(Debug)]
pub(crate) struct StepSymbol {
    symbol: Symbol,
    pub(super) name: String,
    min: u64,
    max: u64,
}

impl StepSymbol {
    /// The symbols that vary from step to step.
    pub(crate) fn all(graph: &Graph, table: &SymbolTable) -> Result<Vec<Self>, SessionError> {
        let mut found: Vec<(Over, Self)> = Vec::new();
        for (symbol, decl) in graph.symbols().iter() {
            let over = table.over(symbol);
            if over.class == SymbolClass::Fixed {
                continue;
            }
            let refuse =
                |reason: String| SessionError::Symbol { symbol: decl.name.clone(), reason };
            if let Some((_, other)) = found.iter().find(|(other, _)| *other == over) {
                return Err(refuse(format!(
                    "and symbol {} both count the same kind of rows, which a step has one size \
                     of; use one symbol for both",
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
            let name = decl.name.clone();
            found.push((over, Self { symbol, name, min: decl.min, max: decl.max }));
        }
        Ok(found.into_iter().map(|(_, symbol)| symbol).collect())
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
}

/// The elements of a row of `ty`, where rows are counted by `symbol` and hold elements.
fn row_elements(ty: &TensorType, symbol: Symbol) -> Option<u64> {
    let elements = ty.row().static_elements().filter(|&elements| elements > 0);
    elements.filter(|_| ty.outer_symbol() == Some(symbol))
}
