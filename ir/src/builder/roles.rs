//! What was declared with a role, by the role.

use super::{Builder, Tensor};
use crate::entity::Symbol;

impl Builder {
    /// The symbol that was declared first with a role; `None` where none was.
    pub fn symbol_of_role(&self, role: &str) -> Option<Symbol> {
        let state = self.state.borrow();
        let mut symbols = state.graph.symbols().iter();
        symbols.find(|(_, decl)| decl.role.as_deref() == Some(role)).map(|(symbol, _)| symbol)
    }

    /// The input that was declared first with a role; `None` where none was.
    pub fn input_of_role(&self, role: &str) -> Option<Tensor<'_>> {
        let state = self.state.borrow();
        let mut inputs = state.graph.inputs().iter();
        let found = inputs.find(|decl| decl.role.as_deref() == Some(role));
        found.map(|decl| Tensor::new(self, decl.value))
    }
}
