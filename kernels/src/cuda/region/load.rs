//! Values from memory: operands, constants, shared values, and rows of tables.

use super::super::index::{Index, Run};
use super::emit::{Emitter, Reduced, Value};
use super::reads::Table;
use super::source::{From, Id, is_uniform};
use super::text;
use crate::cuda::text::{lane, storage};
use crate::lower::{ArgKind, LowerError, fail};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::literal::Literal;
use std::fmt::Write;

/// The alignment in bytes of what starts at a multiple of so many, up to 16.
pub(super) fn alignment(bytes: u64) -> u64 {
    if bytes == 0 { 16 } else { 16.min(1 << bytes.trailing_zeros()) }
}

impl Emitter<'_, '_> {
    /// Where the elements of a value in memory start, for this row, its alignment in bytes, and
    /// how its elements are stored.
    pub(super) fn start(&self, value: Id) -> (String, u64, DType) {
        let data = self.source.value(value);
        match data.from {
            From::Operand(arg) if self.source.args[arg as usize].kind == ArgKind::Row => {
                let bytes = data.elements * data.dtype.size() as u64;
                (format!("x{arg}"), alignment(bytes), data.dtype)
            }
            From::Operand(arg) => (format!("a{arg}"), 16, data.dtype),
            // Floats of a constant are stored as their bits.
            From::Literal(literal) if !is_uniform(literal) => {
                let dtype = if data.dtype == DType::F32 { DType::I32 } else { data.dtype };
                (self.named('l', value), 16, dtype)
            }
            From::RowNumber | From::Literal(_) | From::Statement(_) => {
                (self.named('s', value), 16, data.dtype)
            }
        }
    }

    /// The value of an element of a constant.
    pub(super) fn literal(
        &mut self,
        value: Id,
        literal: &Literal,
        index: &Index,
    ) -> Result<Value, LowerError> {
        if is_uniform(literal) {
            return Ok(Value::Same(text::constant(literal.dtype(), literal.bytes())?));
        }
        let (start, align, stored) = self.start(value);
        let loaded = self.load(&start, stored, index, align)?;
        Ok(as_dtype(loaded, stored, literal.dtype()))
    }

    /// The value of an element of an operand.
    pub(super) fn operand(
        &mut self,
        value: Id,
        arg: u32,
        index: &Index,
    ) -> Result<Value, LowerError> {
        if let Some(registers) = self.held.get(&arg) {
            let after = |elements: u64, n: u64| Index::element(elements).plus(&Index::constant(n));
            let held = self.flat.and_then(|(elements, _)| {
                registers.iter().find(|(n, _)| *index == after(elements, *n))
            });
            let Some((_, text)) = held else {
                return fail(
                    "a value in registers that is read at another element than the result's",
                );
            };
            return Ok(if self.width == 1 { Value::Same } else { Value::Each }(text.clone()));
        }
        if let Some(position) = self.carried_at(value, index) {
            return Ok(match self.width {
                1 => Value::Same(format!("widen(c{position}[k].at[0])")),
                _ => Value::Each(format!("widen(c{position}[k].at[v])")),
            });
        }
        let (start, align, stored) = self.start(value);
        self.load(&start, stored, index, align)
    }

    /// The position of what is loaded ahead for the element at `index` of a value.
    pub(super) fn carried_at(&self, value: Id, index: &Index) -> Option<usize> {
        let (elements, _) = self.flat?;
        self.component.carried.iter().position(|(v, i, n)| (*v, i, *n) == (value, index, elements))
    }

    /// Bytes that loads and stores at `index` may move at once.
    pub(super) fn piece(&self, dtype: DType, index: &Index, align: u64) -> u64 {
        let size = dtype.size() as u64;
        let aligned = self.variables.alignment(index, self.width, 16) * size;
        aligned.min(align).min(16).min(self.width * size)
    }

    /// Loads the elements at `index` from `start`, whose address is a multiple of `align`.
    pub(super) fn load(
        &mut self,
        start: &str,
        dtype: DType,
        index: &Index,
        align: u64,
    ) -> Result<Value, LowerError> {
        let at = self.index(index);
        let (storage, width) = (storage(dtype), self.width);
        match self.variables.run(index, width) {
            Run::Stride(stride) => {
                let name = self.name('p')?;
                let piece = self.piece(dtype, index, align);
                let scope = self.scope();
                let _ = writeln!(scope.chunk, "Pack<{storage}, {width}> {name};");
                let _ = match stride {
                    1 => writeln!(scope.chunk, "load<{piece}>({name}, {start} + ({at}));"),
                    _ => writeln!(
                        scope.chunk,
                        "#pragma unroll\nfor (int v = 0; v < {width}; ++v) {name}.at[v] = {start}[{at} + v * {stride}u];"
                    ),
                };
                Ok(Value::Each(format!("widen({name}.at[v])")))
            }
            Run::Uniform | Run::Irregular => {
                let (name, lane) = (self.name('t')?, lane(dtype));
                let scope = self.scope();
                let _ = writeln!(scope.chunk, "const {lane} {name} = widen({start}[{at}]);");
                Ok(Value::Same(name))
            }
        }
    }

    /// The value of the element at `index` of rows gathered from a table.
    pub(super) fn gather(
        &mut self,
        statement: usize,
        index: &Index,
        dtype: DType,
    ) -> Result<Value, LowerError> {
        let table = self.source.table(statement, self.variables);
        let row = self.source.table_row(statement);
        let ((indices, at), inside) = self.source.gathered(statement, index, self.variables);
        // A table of one element has one row, whatever the index.
        if matches!(self.reduced.get(&table.value), Some(Reduced::Whole)) {
            return Ok(Value::Same(self.named('m', table.value)));
        }
        let which = self.read(indices, &at)?;
        let (start, _, stored) = match self.source.is_array(table.value) {
            true => self.start(table.value),
            false => (self.named('s', table.value), 16, dtype),
        };
        let extent = match table.extent {
            Some(extent) if !self.has_rows(&table, extent) => format!("{extent}ull"),
            _ => self.extent(table.value),
        };
        let plus = if table.offset == 0 { String::new() } else { format!(" + {}u", table.offset) };
        let size = dtype.size() as u64;
        let loaded = match which {
            Value::Same(which) => {
                let (name, storage) = (self.name('g')?, storage(stored));
                let scope = self.scope();
                let _ = writeln!(
                    scope.chunk,
                    "const {storage}* {name} = {start}{plus} + table_row({which}, {extent}) * {row}ull;"
                );
                let align = alignment(row * size).min(alignment(table.offset * size));
                self.load(&name, stored, &inside, align)?
            }
            Value::Each(which) => {
                let inside = self.index_of_each(&inside);
                let (name, lane) = (self.name('t')?, lane(stored));
                let scope = self.scope();
                let _ = writeln!(
                    scope.each,
                    "const {lane} {name} = widen({start}[table_row({which}, {extent}) * {row}ull + {inside}{plus}]);"
                );
                Value::Each(name)
            }
        };
        Ok(as_dtype(loaded, stored, dtype))
    }

    /// Whether so many rows are all that an operand has which the kernel has the length of.
    fn has_rows(&self, table: &Table, rows: u64) -> bool {
        let arg = self.source.operand(table.value).filter(|_| table.offset == 0);
        let length = arg.and_then(|arg| self.source.length(arg as usize));
        length.and_then(|length| length.as_constant()) == Some(rows)
    }

    /// The rows of a table whose extent is known when the kernel runs.
    pub(super) fn extent(&self, value: Id) -> String {
        let Some(arg) = self.source.operand(value) else { return "1ull".to_owned() };
        let decl = &self.source.args[arg as usize];
        match (decl.kind, decl.extent) {
            _ if self.source.length(arg as usize).is_some() => format!("extent{arg}"),
            (ArgKind::Table, Some(symbol)) => format!("(u64)counts[{}]", symbol.index()),
            _ => format!("{}ull", decl.rows),
        }
    }
}

/// What was loaded as `stored`, as the dtype that it is.
fn as_dtype(value: Value, stored: DType, dtype: DType) -> Value {
    let wrap = |text: &str| format!("__int_as_float({text})");
    match value {
        value if stored == dtype => value,
        Value::Same(text) => Value::Same(wrap(&text)),
        Value::Each(text) => Value::Each(wrap(&text)),
    }
}
