//! A row's computation as the emitter pulls it: what an element of a value is made of.
//!
//! A value's elements are counted in row-major order of its shape. Remaps are arithmetic on that
//! index, so every read ends at a value that is in memory or is computed.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::super::index::{Index, Variables};
use crate::lower::{ArgDecl, ArgKind, LowerError, RowBody, fail};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::types::TensorType;

/// The number of a value: the operands in order, then results of statements in order.
pub(super) type Id = u32;

/// Where the elements of a value come from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum From<'a> {
    /// The argument at this position.
    Operand(u32),
    /// An index along the outermost axis.
    RowNumber,
    /// A constant.
    Literal(&'a Literal),
    /// The statement at this position.
    Statement(usize),
}

/// A value of one row.
#[derive(Debug)]
pub(super) struct Value<'a> {
    pub(super) dtype: DType,
    /// Of one row of it, where it is a table.
    pub(super) shape: Vec<u64>,
    pub(super) elements: u64,
    pub(super) from: From<'a>,
    /// About what computing an element again costs.
    pub(super) cost: u64,
    /// Whether it lies in memory: an operand, or what is stored as a result as it is.
    pub(super) in_memory: bool,
    /// Whether a gather reads rows of it.
    pub(super) is_table: bool,
}

/// A statement of the row's computation.
#[derive(Debug)]
pub(super) struct Statement<'a> {
    pub(super) op: &'a Op,
    pub(super) operands: Vec<Id>,
    pub(super) results: Vec<Id>,
}

/// The computation of one row.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) over: Option<Symbol>,
    /// Operands, then results.
    pub(super) args: Vec<ArgDecl>,
    pub(super) values: Vec<Value<'a>>,
    pub(super) statements: Vec<Statement<'a>>,
    /// What each result is, in order.
    pub(super) results: Vec<Id>,
    /// For each result, the computed value that it is as it is, if no result before is it.
    pub(super) exact: Vec<Option<Id>>,
    /// Whether it is a kernel by itself, which has lengths of tables as parameters.
    pub(super) is_kernel: bool,
    operands: usize,
}

/// About what an element of an op costs, besides its operands.
fn op_cost(op: &Op) -> u64 {
    match op {
        Op::Unary(op) => op.cost(),
        Op::Binary(op) => op.cost(),
        Op::Compare(_) | Op::Select | Op::Cast | Op::Iota { .. } | Op::Literal(_) => 1,
        // Remaps cost what they read, and what a loop of its own makes costs nothing to read.
        Op::Broadcast | Op::Reshape | Op::Permute { .. } | Op::Slice { .. } => 0,
        Op::Concat { .. } | Op::Reduce { .. } | Op::ArgMax { .. } | Op::TopK { .. } => 0,
        Op::Gather | Op::Scatter | Op::Region(_) | Op::Custom(_) => 0,
        Op::MatMul { .. } | Op::ScaledMatMul { .. } => 0,
    }
}

/// Whether all elements of a constant are the same.
pub(super) fn is_uniform(literal: &Literal) -> bool {
    let mut elements = literal.bytes().chunks_exact(literal.dtype().size());
    let first = elements.next();
    elements.all(|element| Some(element) == first)
}

impl<'a> Source<'a> {
    /// The rows of a table that the kernel has as a parameter, so that tables of other lengths have the same
    /// kernel.
    pub(super) fn length(&self, arg: usize) -> Option<Dim> {
        let decl = self.args.get(arg).filter(|_| self.is_kernel)?;
        match (decl.kind, decl.extent) {
            (ArgKind::Table, None) => Some(Dim::constant(decl.rows)),
            (ArgKind::Table, Some(symbol)) => decl.state.then(|| Dim::from(symbol)),
            (ArgKind::Whole, _) => self.gathered_rows(arg).map(Dim::constant),
            (ArgKind::Row, _) => None,
        }
    }

    /// The rows of an operand of static extent, where a gather reads one of them.
    fn gathered_rows(&self, arg: usize) -> Option<u64> {
        let tables = self.statements.iter().filter(|statement| matches!(statement.op, Op::Gather));
        let mut tables = tables.map(|statement| statement.operands[0]);
        let table = tables.find(|table| self.operand(*table) == Some(arg as u32))?;
        self.value(table).shape.first().copied()
    }

    /// # Errors
    /// When a row has a symbolic extent or too many elements, or an op has no rows.
    pub(super) fn new(body: &'a RowBody<'_>) -> Result<Self, LowerError> {
        let graph = &body.graph;
        let mut source = Self {
            over: body.over,
            args: body.operands.clone(),
            values: Vec::new(),
            statements: Vec::new(),
            results: Vec::new(),
            exact: Vec::new(),
            is_kernel: false,
            operands: body.operands.len(),
        };
        let mut ids: Vec<Id> = vec![0; graph.value_count()];
        for (i, input) in graph.inputs().iter().enumerate() {
            ids[input.value.index()] = source.values.len() as Id;
            let number = body.row_number == Some(input.value);
            let from = if number { From::RowNumber } else { From::Operand(i as u32) };
            let ty = graph.ty(input.value);
            let table = source.args.get(i).is_some_and(|decl| decl.kind == ArgKind::Table);
            source.push(if table { ty.row() } else { ty.clone() }, from, 2)?;
        }
        for node in graph.nodes() {
            let data = graph.node(node);
            let operands: Vec<Id> = data.operands.iter().map(|v| ids[v.index()]).collect();
            source.check(&data.op, &operands)?;
            let is_same = |v| graph.ty(v).dtype == graph.ty(data.operands[0]).dtype;
            let mut costs = operands.iter().map(|&v| source.values[v as usize].cost);
            let all = |costs: &mut dyn Iterator<Item = u64>| {
                (op_cost(&data.op) + costs.sum::<u64>()).min(1 << 20)
            };
            let cost = match &data.op {
                Op::Gather => 4,
                Op::Reduce { .. } => 0,
                Op::TopK { .. } | Op::ArgMax { .. } | Op::Literal(_) => 2,
                Op::Concat { .. } => costs.next_back().unwrap_or(0) + 1,
                Op::Cast if data.results.iter().all(|&v| is_same(v)) => costs.sum(),
                Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast => {
                    all(&mut costs)
                }
                Op::Broadcast | Op::Reshape | Op::Permute { .. } | Op::Slice { .. } => {
                    all(&mut costs)
                }
                Op::Iota { .. } | Op::Scatter => all(&mut costs),
                Op::MatMul { .. } | Op::ScaledMatMul { .. } => all(&mut costs),
                Op::Region(_) | Op::Custom(_) => all(&mut costs),
            };
            let from = if let Op::Literal(literal) = &data.op {
                From::Literal(literal)
            } else {
                From::Statement(source.statements.len())
            };
            let first = source.values.len() as Id;
            for (&value, ty) in data.results.iter().zip(graph.result_types(node)) {
                ids[value.index()] = source.values.len() as Id;
                source.push(ty, from, cost)?;
            }
            let results = (first..source.values.len() as Id).collect();
            source.statements.push(Statement { op: &data.op, operands, results });
        }
        source.results = graph.outputs().iter().map(|v| ids[v.index()]).collect();
        source.finish()?;
        Ok(source)
    }

    fn push(&mut self, ty: TensorType, from: From<'a>, cost: u64) -> Result<(), LowerError> {
        let (Some(shape), Some(elements)) = (ty.static_shape(), ty.static_elements()) else {
            return fail("a row has a symbolic extent; only the outermost axis may be symbolic");
        };
        if elements > 1 << 31 {
            return fail("a row of more than 2^31 elements; split the axis");
        }
        let in_memory = matches!(from, From::Operand(_));
        let (dtype, is_table) = (ty.dtype, false);
        self.values.push(Value { dtype, shape, elements, from, cost, in_memory, is_table });
        Ok(())
    }

    fn check(&self, op: &Op, operands: &[Id]) -> Result<(), LowerError> {
        let skipped = match op.class() {
            OpClass::Elementwise | OpClass::Remap | OpClass::Reduction => 0,
            OpClass::Search | OpClass::Constant => 0,
            OpClass::Gather | OpClass::Scatter => 1,
            OpClass::Product { .. } | OpClass::Region(_) | OpClass::Custom(_) => {
                return fail(format!("`{}` has no row program", op.mnemonic()));
            }
        };
        if operands.iter().skip(skipped).any(|&v| self.is_whole_table(v)) {
            return fail("a whole operand of symbolic extent can only be gathered from");
        }
        Ok(())
    }

    /// Declares the results and finds the tables.
    fn finish(&mut self) -> Result<(), LowerError> {
        let mut variables = Variables::default();
        for i in 0..self.results.len() {
            let value = self.results[i];
            if self.is_whole_table(value) {
                return fail("a whole operand of symbolic extent can't be a row of a result");
            }
            let Value { dtype, elements, .. } = self.values[value as usize];
            self.args.push(ArgDecl::result(dtype, elements));
            let (stored, index) = self.stored(i, &mut variables);
            let exact = self.statement(stored).is_some()
                && self.value(stored).elements == elements
                && index == Index::element(elements)
                && !self.exact.contains(&Some(stored));
            self.values[stored as usize].in_memory |= exact;
            self.exact.push(exact.then_some(stored));
        }
        for i in 0..self.statements.len() {
            let statement = &self.statements[i];
            match statement.op.class() {
                OpClass::Gather => {
                    let table = self.table(i, &mut variables).value;
                    self.values[table as usize].is_table = true;
                }
                OpClass::Scatter => {
                    let state = statement.operands[0];
                    let reads = |s: &Statement<'_>| {
                        let skipped = usize::from(matches!(s.op, Op::Scatter));
                        s.operands.iter().skip(skipped).any(|&v| v == state)
                    };
                    if self.statements.iter().any(reads) || self.results.contains(&state) {
                        return fail(
                            "reads a state that it scatters into; split it into two regions",
                        );
                    }
                }
                OpClass::Elementwise | OpClass::Remap | OpClass::Reduction => {}
                OpClass::Search | OpClass::Constant | OpClass::Product { .. } => {}
                OpClass::Region(_) | OpClass::Custom(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn value(&self, value: Id) -> &Value<'a> {
        &self.values[value as usize]
    }

    /// What names of a computed value end in: its number in the listing of the body.
    pub(super) fn number(&self, value: Id) -> u32 {
        value - self.operands as u32
    }

    /// The argument that a value is.
    pub(super) fn operand(&self, value: Id) -> Option<u32> {
        match self.value(value).from {
            From::Operand(arg) => Some(arg),
            From::RowNumber | From::Literal(_) | From::Statement(_) => None,
        }
    }

    /// The argument of the result at this position.
    pub(super) fn result_argument(&self, result: usize) -> usize {
        self.operands + result
    }

    /// The statement that computes a value.
    pub(super) fn statement(&self, value: Id) -> Option<(usize, &Statement<'a>)> {
        match self.value(value).from {
            From::Statement(i) => Some((i, &self.statements[i])),
            From::Operand(_) | From::RowNumber | From::Literal(_) => None,
        }
    }

    pub(super) fn is_whole_table(&self, value: Id) -> bool {
        let decl = |arg: u32| &self.args[arg as usize];
        self.operand(value).is_some_and(|arg| decl(arg).kind == ArgKind::Table)
    }

    /// Whether a value is made by a stage of its own whatever reads it.
    pub(super) fn is_staged(&self, value: Id) -> bool {
        self.statement(value)
            .is_some_and(|(_, s)| matches!(s.op.class(), OpClass::Reduction | OpClass::Search))
    }

    /// Whether the elements of a value lie in memory before the kernel runs.
    pub(super) fn is_array(&self, value: Id) -> bool {
        match self.value(value).from {
            From::Operand(_) => true,
            From::Literal(literal) => !is_uniform(literal),
            From::RowNumber | From::Statement(_) => false,
        }
    }
}
