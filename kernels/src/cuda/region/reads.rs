//! What an element of a value is made of: remaps followed to what is in memory, constant or
//! computed, and what each other op reads there.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::super::index::{Index, Variables};
use super::source::{From, Id, Source, Value, is_uniform};
use crate::lower::strides;
use piecewise_ir::op::{Op, OpClass};

/// What a gather reads rows of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) value: Id,
    /// The first element.
    pub(super) offset: u64,
    /// Its rows, where they are known.
    pub(super) extent: Option<u64>,
}

/// What a scatter writes at an element of the loop over its rows.
pub(super) struct Scattered {
    pub(super) state: Id,
    /// Elements of a row of the state.
    pub(super) row: u64,
    /// Which row, what, and where in it.
    pub(super) slot: (Id, Index),
    pub(super) value: (Id, Index),
    pub(super) inside: Index,
}

/// What an element of a computed value is made of.
#[derive(Default)]
pub(super) struct Inputs {
    /// Elements of other values.
    pub(super) reads: Vec<(Id, Index)>,
    /// Indices that are computed and read nothing.
    pub(super) computed: Vec<Index>,
    /// Indices by which the value branches: each part's first element and length.
    pub(super) branches: Vec<(Index, u64, u64)>,
}

impl Source<'_> {
    /// The element that a result stores at each index, and where it comes from.
    pub(super) fn stored(&self, result: usize, variables: &mut Variables) -> (Id, Index) {
        let value = self.results[result];
        self.resolve(value, Index::element(self.value(value).elements), variables)
    }

    /// The value that is in memory, constant or computed, and its element, that is the element at
    /// `index` of a value.
    pub(super) fn resolve(
        &self,
        mut value: Id,
        mut index: Index,
        variables: &mut Variables,
    ) -> (Id, Index) {
        while let Some((operand, at)) = self.remap(value, &index, variables) {
            (value, index) = (operand, at);
        }
        match self.value(value).from {
            From::Literal(literal) if is_uniform(literal) => (value, Index::constant(0)),
            From::Operand(_) | From::RowNumber | From::Literal(_) | From::Statement(_) => {
                (value, index)
            }
        }
    }

    /// The element of its operand that the element of a remap is.
    fn remap(&self, value: Id, index: &Index, variables: &mut Variables) -> Option<(Id, Index)> {
        let (_, statement) = self.statement(value)?;
        let &operand = statement.operands.first()?;
        let (from, to) = (&self.value(operand).shape, &self.value(value).shape);
        let flat = |strides: &mut dyn Iterator<Item = (Index, u64)>| {
            strides.fold(Index::constant(0), |sum, (at, stride)| sum.plus(&at.times(stride)))
        };
        let index = match statement.op {
            Op::Reshape => index.clone(),
            Op::Cast if self.value(operand).dtype == self.value(value).dtype => index.clone(),
            Op::Broadcast => {
                let at = variables.coordinates(index, to).split_off(to.len() - from.len());
                let strides = strides(from);
                let kept = at.into_iter().zip(from).zip(strides);
                flat(&mut kept.filter(|((_, n), _)| **n != 1).map(|((at, _), s)| (at, s)))
            }
            Op::Permute { perm } => {
                let at = variables.coordinates(index, to);
                let strides = strides(from);
                flat(&mut at.into_iter().zip(perm.iter().map(|&axis| strides[axis])))
            }
            Op::Slice { axis, start } => {
                let strides = strides(from);
                let first = Index::constant(start * strides[*axis]);
                let at = variables.coordinates(index, to);
                flat(&mut at.into_iter().zip(strides)).plus(&first)
            }
            Op::Concat { .. } if statement.operands.len() == 1 => index.clone(),
            Op::Concat { .. } | Op::Cast | Op::Select | Op::Iota { .. } | Op::Literal(_) => {
                return None;
            }
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Reduce { .. } => return None,
            Op::ArgMax { .. } | Op::TopK { .. } | Op::Gather | Op::Scatter => return None,
            Op::MatMul { .. } | Op::ScaledMatMul { .. } => return None,
            Op::Region(_) | Op::Custom(_) => return None,
        };
        Some((operand, index))
    }

    /// What a gather reads: its operand, or what that is a range of rows of.
    pub(super) fn table(&self, gather: usize, variables: &mut Variables) -> Table {
        let value = self.statements[gather].operands[0];
        if self.is_whole_table(value) {
            return Table { value, offset: 0, extent: None };
        }
        let Value { shape, elements, .. } = self.value(value);
        let extent = shape.first().copied();
        let (base, mut index) = self.resolve(value, Index::element(*elements), variables);
        let offset = std::mem::take(&mut index.constant);
        let uniform = matches!(self.value(base).from, From::Literal(l) if is_uniform(l));
        match index == Index::element(*elements) && !uniform {
            true => Table { value: base, offset, extent },
            false => Table { value, offset: 0, extent },
        }
    }

    /// Elements of one row of a gather's table.
    pub(super) fn table_row(&self, gather: usize) -> u64 {
        let table = self.statements[gather].operands[0];
        match self.is_whole_table(table) {
            true => self.value(table).elements,
            false => self.value(table).shape[1..].iter().product(),
        }
    }

    /// The index operand of a gather for the element at `index` of its result, and the element
    /// inside the table's row.
    pub(super) fn gathered(
        &self,
        gather: usize,
        index: &Index,
        variables: &mut Variables,
    ) -> ((Id, Index), Index) {
        let (which, inside) = variables.div_rem(index, self.table_row(gather));
        let indices = self.statements[gather].operands[1];
        (self.resolve(indices, which, variables), inside)
    }

    /// Whether the element at `index` of a value is one of a row of a table in memory that the region
    /// does not write, by an index in memory that is the same wherever in the row it is.
    pub(super) fn is_gathered_of_operands(
        &self,
        value: Id,
        index: &Index,
        variables: &mut Variables,
    ) -> bool {
        let From::Statement(statement) = self.value(value).from else { return false };
        if !matches!(self.statements[statement].op, Op::Gather) {
            return false;
        }
        let is_read = |value: Id| {
            let decl = self.operand(value).map(|arg| &self.args[arg as usize]);
            decl.is_some_and(|decl| !decl.written && !decl.state)
        };
        let table = self.table(statement, variables);
        let ((indices, at), inside) = self.gathered(statement, index, variables);
        let plain = |index: &Index| index.variables().next().is_none();
        is_read(table.value) && is_read(indices) && at == Index::constant(0) && plain(&inside)
    }

    /// The axes that a reduction or a search goes along.
    fn along(&self, statement: usize) -> &[usize] {
        match self.statements[statement].op {
            Op::Reduce { axes, .. } => axes,
            Op::ArgMax { axis } | Op::TopK { axis } => std::slice::from_ref(axis),
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast => &[],
            Op::Broadcast | Op::Reshape | Op::Permute { .. } | Op::Slice { .. } => &[],
            Op::Concat { .. } | Op::Gather | Op::Scatter => &[],
            Op::MatMul { .. } | Op::ScaledMatMul { .. } => &[],
            Op::Iota { .. } | Op::Literal(_) | Op::Region(_) | Op::Custom(_) => &[],
        }
    }

    /// How many segments a reduction or a search goes along, and their elements.
    pub(super) fn segments(&self, statement: usize) -> (u64, u64) {
        let along = self.along(statement);
        let shape = self.value(self.statements[statement].operands[0]).shape.iter().enumerate();
        shape.fold((1, 1), |(segments, len), (axis, &extent)| match along.contains(&axis) {
            true => (segments, len * extent),
            false => (segments * extent, len),
        })
    }

    /// What a reduction or a search takes at each element of a loop over its segments.
    pub(super) fn taken(&self, statement: usize, variables: &mut Variables) -> (Id, Index) {
        let (along, operand) = (self.along(statement), self.statements[statement].operands[0]);
        let Value { shape, elements, .. } = self.value(operand);
        let mut axes: Vec<usize> = (0..shape.len()).filter(|a| !along.contains(a)).collect();
        axes.extend(along);
        let extents: Vec<u64> = axes.iter().map(|&axis| shape[axis]).collect();
        let at = variables.coordinates(&Index::element(*elements), &extents);
        let strides = strides(shape);
        let index = at
            .iter()
            .zip(axes)
            .fold(Index::constant(0), |sum, (at, axis)| sum.plus(&at.times(strides[axis])));
        self.resolve(operand, index, variables)
    }

    /// What a scatter writes at each element of a loop over its rows.
    pub(super) fn scattered(&self, scatter: usize, variables: &mut Variables) -> Scattered {
        let [state, slots, rows] = [0, 1, 2].map(|i| self.statements[scatter].operands[i]);
        let row = match self.is_whole_table(state) {
            true => self.value(state).elements,
            false => self.value(state).shape.iter().skip(1).product(),
        };
        let e = Index::element(self.value(rows).elements);
        let (which, inside) = variables.div_rem(&e, row);
        Scattered {
            state,
            row,
            slot: self.resolve(slots, which, variables),
            value: self.resolve(rows, e, variables),
            inside,
        }
    }

    /// What the element at `index` of a computed value is made of.
    pub(super) fn inputs(&self, value: Id, index: &Index, variables: &mut Variables) -> Inputs {
        let mut inputs = Inputs::default();
        let Some((i, statement)) = self.statement(value) else { return inputs };
        if let Some((operand, at)) = self.remap(value, index, variables) {
            inputs.reads.push(self.resolve(operand, at, variables));
            return inputs;
        }
        match (statement.op, statement.op.class()) {
            (_, OpClass::Elementwise) => {
                for &operand in &statement.operands {
                    inputs.reads.push(self.resolve(operand, index.clone(), variables));
                }
            }
            (Op::Concat { axis }, _) => {
                let shape = &self.value(value).shape;
                let inner: u64 = shape[axis + 1..].iter().product();
                let (outer, within) = variables.div_rem(index, shape[*axis] * inner);
                let mut start = 0;
                for &operand in &statement.operands {
                    let len = self.value(operand).shape[*axis] * inner;
                    if len > 0 {
                        let at = variables.minus(&within, start, len);
                        let at = outer.times(len).plus(&at);
                        inputs.branches.push((within.clone(), start, len));
                        inputs.reads.push(self.resolve(operand, at, variables));
                    }
                    start += len;
                }
            }
            (Op::Gather, _) => {
                let ((indices, at), inside) = self.gathered(i, index, variables);
                inputs.reads.push((indices, at));
                // Which row is known on the device only.
                let table = self.table(i, variables).value;
                if !self.is_array(table) {
                    inputs.reads.push((table, inside.clone()));
                }
                inputs.computed.push(inside);
            }
            (Op::Iota { axis }, _) => {
                let mut at = variables.coordinates(index, &self.value(value).shape);
                inputs.computed.push(at.swap_remove(*axis));
            }
            (_, OpClass::Remap | OpClass::Reduction | OpClass::Search | OpClass::Gather) => {}
            (_, OpClass::Scatter | OpClass::Product { .. } | OpClass::Constant) => {}
            (_, OpClass::Region(_) | OpClass::Custom(_)) => {}
        }
        inputs
    }
}
