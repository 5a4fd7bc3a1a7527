//! Values from memory: arguments, literals, shared values, and rows of tables.

use super::super::index::{Index, Run};
use super::emit::{Emitter, Value};
use super::text;
use crate::lower::{ArgKind, LowerError, PlaceKind, RowStep};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use std::fmt::Write;

impl Emitter<'_, '_> {
    /// Where the elements of a leaf start, for this row, and its alignment in bytes.
    fn leaf_start(&self, place: u32) -> (String, u64) {
        let data = &self.source.program.places[place as usize];
        match data.kind {
            PlaceKind::Arg(arg) if data.row_stride > 0 => {
                let bytes = data.row_stride * data.dtype.size() as u64;
                (format!("x{arg}"), 16.min(1 << bytes.trailing_zeros()))
            }
            PlaceKind::Arg(arg) => (format!("a{arg}"), 16),
            _ => (format!("literal{place}"), 16),
        }
    }

    /// The value of the element at `index` of a leaf.
    pub(super) fn leaf(&mut self, place: u32, index: &Index) -> Result<Value, LowerError> {
        let data = self.source.program.places[place as usize];
        if let PlaceKind::Constant(word) = data.kind
            && data.elements == 1
        {
            let bytes: Vec<u8> = self
                .source
                .program
                .constants
                .get(word as usize..)
                .unwrap_or_default()
                .iter()
                .take(1)
                .flat_map(|w| w.to_ne_bytes())
                .collect();
            return Ok(Value::Same(text::constant(data.dtype, &bytes)?));
        }
        if self.product.is_some_and(|arg| data.kind == PlaceKind::Arg(arg)) {
            return match self.flat {
                Some((elements, 1)) if *index == Index::element(elements) => {
                    Ok(Value::Same("value".to_owned()))
                }
                _ => Err(LowerError(
                    "a product that is read at another element than the result's".to_owned(),
                )),
            };
        }
        if let Some((elements, _)) = self.flat
            && let Some(position) =
                self.carried.iter().position(|(p, i, n)| (*p, i, *n) == (place, index, elements))
        {
            let at = if self.width == 1 { "0" } else { "v" };
            let text = format!("widen(c{position}[k].at[{at}])");
            return Ok(if self.width == 1 { Value::Same(text) } else { Value::Each(text) });
        }
        let (start, align) = self.leaf_start(place);
        if matches!(data.kind, PlaceKind::Constant(_)) && data.dtype == DType::F32 {
            let value = self.load(&start, DType::I32, index, align)?;
            let wrap = |text: &str| format!("__int_as_float({text})");
            return Ok(match value {
                Value::Same(text) => Value::Same(wrap(&text)),
                Value::Each(text) => Value::Each(wrap(&text)),
            });
        }
        self.load(&start, data.dtype, index, align)
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
        let (storage, width) = (text::storage(dtype), self.width);
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
            _ => {
                let (name, lane) = (self.name('t')?, text::lane(dtype));
                let scope = self.scope();
                let _ = writeln!(scope.chunk, "const {lane} {name} = widen({start}[{at}]);");
                Ok(Value::Same(name))
            }
        }
    }

    /// The value of the element at `index` of rows gathered from a table.
    pub(super) fn gather(
        &mut self,
        step: usize,
        place: u32,
        index: &Index,
    ) -> Result<Value, LowerError> {
        let RowStep::Gather { table, offset, extent, row, .. } = &self.source.program.steps[step]
        else {
            return Err(LowerError("a gather that is none".to_owned()));
        };
        let (dtype, stored) = (self.dtype(place), self.dtype(*table));
        let Some(((indices, at), inside)) = self.source.gather_inputs(step, index, self.variables)
        else {
            return Err(LowerError("a gather without indices".to_owned()));
        };
        // A table of one element has one row, whatever the index.
        if self.reduced.get(table).is_some_and(|reduced| reduced.whole) {
            return Ok(Value::Same(format!("m{table}")));
        }
        let which = self.read(indices, &at)?;
        let start = match self.source.is_leaf(*table) {
            true => self.leaf_start(*table).0,
            false => format!("s{table}"),
        };
        let extent = match extent {
            Some(extent) => format!("{extent}ull"),
            None => self.extent(*table),
        };
        let which = match which {
            Value::Same(text) => text,
            Value::Each(text) => {
                let inside = self.index_of_each(&inside);
                let (name, lane) = (self.name('t')?, text::lane(dtype));
                let bits = stored == DType::F32
                    && matches!(
                        self.source.program.places[*table as usize].kind,
                        PlaceKind::Constant(_)
                    );
                let element = format!(
                    "{start}[{offset}u + table_row({text}, {extent}) * {row}ull + {inside}]"
                );
                let scope = self.scope();
                let _ = match bits {
                    true => {
                        writeln!(scope.each, "const {lane} {name} = __int_as_float({element});")
                    }
                    false => writeln!(scope.each, "const {lane} {name} = widen({element});"),
                };
                return Ok(Value::Each(name));
            }
        };
        let name = self.name('g')?;
        let bits = stored == DType::F32
            && matches!(self.source.program.places[*table as usize].kind, PlaceKind::Constant(_));
        let storage = if bits { "i32" } else { text::storage(stored) };
        let plus = if *offset == 0 { String::new() } else { format!(" + {offset}u") };
        let scope = self.scope();
        let _ = writeln!(
            scope.chunk,
            "const {storage}* {name} = {start}{plus} + table_row({which}, {extent}) * {row}ull;"
        );
        let size = dtype.size() as u64;
        let align = |n: u64| if n == 0 { 16 } else { 16.min(1 << (n * size).trailing_zeros()) };
        let align = align(*row).min(align(*offset));
        let value = self.load(&name, if bits { DType::I32 } else { stored }, &inside, align)?;
        Ok(match (bits, value) {
            (true, Value::Same(text)) => Value::Same(format!("__int_as_float({text})")),
            (true, Value::Each(text)) => Value::Each(format!("__int_as_float({text})")),
            (false, value) => value,
        })
    }

    /// The rows of a table whose extent is known when the kernel runs.
    pub(super) fn extent(&self, place: u32) -> String {
        let program = self.source.program;
        let PlaceKind::Arg(arg) = program.places[place as usize].kind else {
            return "1ull".to_owned();
        };
        let decl = &program.args[arg as usize];
        match (decl.kind, decl.extent) {
            (ArgKind::Table, Some(_)) if decl.state => format!("extent{arg}"),
            (ArgKind::Table, Some(symbol)) => format!("(u64)counts[{}]", symbol.index()),
            _ => format!("{}ull", decl.rows),
        }
    }
}
