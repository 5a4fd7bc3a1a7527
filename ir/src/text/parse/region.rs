//! Regions: parameters, and the body as a graph under the symbols of the one around it.

use super::cursor::{Parsed, Parser};
use super::graph::Scope;
use super::op::ParsedOp;
use crate::graph::Graph;
use crate::op::Op;
use crate::region::{ParamMode, Region};
use crate::text::print::param_type;
use crate::types::TensorType;

impl<'t> Parser<'t> {
    /// `region @name over T (%a: row v1, %w: w0, %s: mut s0) { ... }`
    pub(super) fn region(&mut self, scope: &Scope) -> Parsed<ParsedOp> {
        let name = self.optional_at().unwrap_or_default();
        self.expect_word("over")?;
        let over = self.symbol(scope)?;
        let failed: usize = scope.failed.iter().map(|name| name.len() + size_of::<String>()).sum();
        self.charge(symbol_bytes(&scope.graph) + failed)?;
        let mut body = Scope::new(Graph::with_symbols_of(name, &scope.graph), 'a');
        body.failed.clone_from(&scope.failed);
        let (mut params, mut operands) = (Vec::new(), Vec::new());
        self.expect('(')?;
        self.list(')', |p| {
            let name = p.input_name(&body)?;
            p.expect(':')?;
            let mode = match () {
                () if p.eat_word("row") => ParamMode::Row,
                () if p.eat_word("mut") => ParamMode::Mut,
                () => ParamMode::Whole,
            };
            let operand = p.operand(scope)?;
            let ty = if p.eat_word("as") {
                p.ty(scope)?
            } else {
                p.charge(type_bytes(scope.graph.ty(operand)))?;
                param_type(mode, scope.graph.ty(operand))
            };
            let (padding, role) = p.padding_and_role(ty.dtype)?;
            let value = body.graph.add_input(name.clone(), ty, padding, role);
            body.values.insert(format!("%{name}"), value);
            params.push(mode);
            operands.push(operand);
            Ok(())
        })?;
        self.expect('{')?;
        let loc = self.loc();
        self.block(&mut body)?;
        let region = Region { over, params, body: body.graph };
        Ok(ParsedOp { op: Op::Region(Box::new(region)), operands, loc: Some(loc) })
    }
}

fn symbol_bytes(graph: &Graph) -> usize {
    let strings = |decl: &crate::dim::SymbolDecl| {
        2 * decl.name.len() + decl.role.as_ref().map_or(0, String::len)
    };
    graph.symbols().values().map(|decl| strings(decl) + 2 * size_of_val(decl)).sum()
}

fn type_bytes(ty: &TensorType) -> usize {
    ty.shape.iter().map(|dim| size_of_val(dim) + size_of_val(dim.terms())).sum()
}
