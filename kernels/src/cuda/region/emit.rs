//! From a plan to CUDA C++: values inside a stage's loop.

use super::super::index::{Definition, Index, Run, Variables};
use super::plan::{Component, Kept};
use super::source::Source;
use super::text;
use crate::lower::{ArgKind, LowerError, MapOp, PlaceKind, RowStep};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The most statements of a kernel.
const MOST_STATEMENTS: usize = 50_000;

/// A value inside a loop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// The same for all elements of a chunk.
    Same(String),
    /// An expression of `v`.
    Each(String),
}

impl Value {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Same(text) | Self::Each(text) => text,
        }
    }
}

/// Statements for a chunk, then for each of its elements.
#[derive(Default)]
pub(super) struct Scope {
    pub(super) chunk: String,
    pub(super) each: String,
    chunk_values: FxHashMap<(u32, Index), Value>,
    each_values: FxHashMap<(u32, Index), Value>,
    variables: BTreeSet<u32>,
}

/// How the result of a reduction over segments is found.
pub(super) struct Reduced {
    /// The loop whose threads have it in `m<place>[k]`.
    pub(super) elements: u64,
    pub(super) width: u64,
    pub(super) index: Index,
    /// Whether it is one value, which every thread of the group has.
    pub(super) whole: bool,
}

/// The state of one component's emission.
pub(super) struct Emitter<'a, 'b> {
    pub(super) source: &'b Source<'a>,
    pub(super) variables: &'b mut Variables,
    pub(super) component: &'b Component,
    pub(super) scopes: Vec<Scope>,
    /// Elements and chunk width of the loop, where threads work on chunks.
    pub(super) flat: Option<(u64, u64)>,
    pub(super) width: u64,
    /// The shared value that is being made.
    pub(super) making: Option<u32>,
    /// Values in registers that earlier stages have computed.
    pub(super) in_registers: BTreeSet<u32>,
    /// Values that this stage puts in registers.
    pub(super) computed: BTreeSet<u32>,
    pub(super) reduced: BTreeMap<u32, Reduced>,
    /// The argument whose element of the loop is `value`.
    pub(super) product: Option<u32>,
    /// Leaves loaded ahead, by place, index and loop.
    pub(super) carried: &'b [(u32, Index, u64)],
    pub(super) names: usize,
}

fn indent(text: &str, by: usize) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for line in text.lines() {
        match line.is_empty() || line.starts_with('#') && by == 0 {
            true => out.push('\n'),
            false => {
                let _ = writeln!(out, "{:by$}{line}", "");
            }
        }
    }
    out
}

/// Statements for a chunk of `width` elements, then `after`.
pub(super) fn chunk_text(scope: &Scope, width: u64, after: &str) -> String {
    let mut out = scope.chunk.clone();
    if !scope.each.is_empty() {
        out.push_str("#pragma unroll\n");
        let _ = writeln!(out, "for (int v = 0; v < {width}; ++v) {{");
        out.push_str(&indent(&scope.each, 2));
        out.push_str("}\n");
    }
    out.push_str(after);
    out
}

pub(super) fn indented(text: &str, by: usize) -> String {
    indent(text, by)
}

impl Emitter<'_, '_> {
    fn name(&mut self, prefix: char) -> Result<String, LowerError> {
        self.names += 1;
        if self.names > MOST_STATEMENTS {
            return Err(LowerError(
                "a region with too many statements for one kernel; cut it".to_owned(),
            ));
        }
        Ok(format!("{prefix}{}", self.names))
    }

    fn scope(&mut self) -> &mut Scope {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    fn dtype(&self, place: u32) -> DType {
        self.source.program.places[place as usize].dtype
    }

    /// Prints an index, after the variables that it is made of.
    pub(super) fn index(&mut self, index: &Index) -> String {
        let used: Vec<u32> = index.variables().collect();
        for number in used {
            if self.scopes.iter().any(|s| s.variables.contains(&number)) {
                continue;
            }
            let text = match self.variables.definitions[number as usize].clone() {
                Definition::Whole(whole) => self.index(&whole),
                Definition::Minus(whole, start) => format!("{} - {start}u", self.index(&whole)),
            };
            let scope = self.scope();
            let _ = writeln!(scope.chunk, "const u32 i{number} = {text};");
            scope.variables.insert(number);
        }
        index.print()
    }

    /// An index for the element `v` of a chunk.
    pub(super) fn index_of_each(&mut self, index: &Index) -> String {
        let text = self.index(index);
        match self.variables.run(index, self.width) {
            Run::Stride(1) => format!("{text} + v"),
            Run::Stride(stride) => format!("{text} + v * {stride}u"),
            _ => text,
        }
    }

    /// The value of the element at `index` of a place.
    pub(super) fn read(&mut self, place: u32, index: &Index) -> Result<Value, LowerError> {
        let key = (place, index.clone());
        let deepest = self.scopes.len().saturating_sub(1);
        for (depth, scope) in self.scopes.iter().enumerate() {
            if let Some(value) = scope.chunk_values.get(&key) {
                return Ok(value.clone());
            }
            if depth == deepest
                && let Some(value) = scope.each_values.get(&key)
            {
                return Ok(value.clone());
            }
        }
        let value = self.fresh(place, index)?;
        let scope = self.scope();
        match &value {
            Value::Same(_) => scope.chunk_values.insert(key, value.clone()),
            Value::Each(_) => scope.each_values.insert(key, value.clone()),
        };
        Ok(value)
    }

    fn fresh(&mut self, place: u32, index: &Index) -> Result<Value, LowerError> {
        let dtype = self.dtype(place);
        if let Some(reduced) = self.reduced.get(&place) {
            if reduced.whole {
                return Ok(Value::Same(format!("m{place}")));
            }
            let here = self.flat == Some((reduced.elements, reduced.width));
            if here && reduced.index == *index && reduced.width > 0 {
                return Ok(Value::Same(format!("m{place}[k]")));
            }
            return self.load(&format!("s{place}"), dtype, index, 16);
        }
        match self.component.kept.get(&place) {
            Some(Kept::Shared) if self.making != Some(place) => {
                return self.load(&format!("s{place}"), dtype, index, 16);
            }
            Some(Kept::Registers { elements })
                if self.flat.is_some_and(|(n, _)| n == *elements)
                    && *index == Index::element(*elements) =>
            {
                if self.in_registers.contains(&place) {
                    let at = if self.width == 1 { "0" } else { "v" };
                    let text = format!("r{place}[k][{at}]");
                    return Ok(if self.width == 1 { Value::Same(text) } else { Value::Each(text) });
                }
                let value = self.compute(place, index)?;
                if self.scopes.len() == 1 {
                    let (width, text) = (self.width, value.text().to_owned());
                    self.computed.insert(place);
                    let scope = self.scope();
                    let _ = match width {
                        1 => writeln!(scope.chunk, "r{place}[k][0] = {text};"),
                        _ => writeln!(scope.each, "r{place}[k][v] = {text};"),
                    };
                }
                return Ok(value);
            }
            _ => {}
        }
        match self.source.is_leaf(place) {
            true => self.leaf(place, index),
            false => self.compute(place, index),
        }
    }

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

    fn leaf(&mut self, place: u32, index: &Index) -> Result<Value, LowerError> {
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
    fn load(
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

    fn compute(&mut self, place: u32, index: &Index) -> Result<Value, LowerError> {
        let writers = self.source.writers[place as usize].clone();
        match writers[..] {
            [writer] => self.statement(writer, place, index),
            _ => self.branches(&writers, place, index),
        }
    }

    /// One value out of several parts, by the index.
    fn branches(
        &mut self,
        writers: &[usize],
        place: u32,
        index: &Index,
    ) -> Result<Value, LowerError> {
        let (name, lane) = (self.name('t')?, text::lane(self.dtype(place)));
        let same = self.variables.run(index, self.width) == Run::Uniform;
        let width = self.width;
        let mut code = match same {
            true => format!("{lane} {name};\n"),
            false => format!("{lane} {name}[{width}];\n"),
        };
        for (i, &writer) in writers.iter().enumerate() {
            let RowStep::Map { nest, out, .. } = &self.source.program.steps[writer] else {
                return Err(LowerError("parts of a value that are not elementwise".to_owned()));
            };
            let part = self.source.part(&nest.extents, out);
            let (_, inner) = self.variables.div_rem(index, part.period);
            let inner = self.index(&inner);
            let head = match (i, i + 1 == writers.len()) {
                (0, true) => "{".to_owned(),
                (_, true) => " else {".to_owned(),
                (0, false) => format!("if ({}) {{", in_part(&inner, part.start, part.len)),
                _ => format!(" else if ({}) {{", in_part(&inner, part.start, part.len)),
            };
            self.scopes.push(Scope::default());
            let value = self.statement(writer, place, index)?;
            let mut scope = self.scopes.pop().unwrap_or_default();
            let text = value.text();
            let _ = match same {
                true => writeln!(scope.chunk, "{name} = {text};"),
                false => writeln!(scope.each, "{name}[v] = {text};"),
            };
            let body = indented(&chunk_text(&scope, width, ""), 2);
            let _ = write!(code, "{head}\n{body}}}");
        }
        code.push('\n');
        let scope = self.scope();
        scope.chunk.push_str(&code);
        Ok(if same { Value::Same(name) } else { Value::Each(format!("{name}[v]")) })
    }

    fn statement(&mut self, step: usize, place: u32, index: &Index) -> Result<Value, LowerError> {
        match &self.source.program.steps[step] {
            RowStep::Map { op, nest, inputs, out, .. } => {
                let to = self.dtype(place);
                let mut from = match op {
                    MapOp::Select => inputs.get(1),
                    _ => inputs.first(),
                }
                .map_or(DType::I64, |access| self.dtype(access.place));
                let mut operands = Vec::new();
                match op {
                    MapOp::RowNumber => operands.push(Value::Same("(i64)row".to_owned())),
                    MapOp::Index => {
                        let counters =
                            self.source.counters(&nest.extents, out, index, self.variables);
                        let line = counters.last().cloned().unwrap_or_default();
                        let text = format!("(i64)({})", self.index_of_each(&line));
                        operands.push(match self.variables.run(&line, self.width) {
                            Run::Stride(_) => Value::Each(text),
                            _ => Value::Same(text),
                        });
                        from = DType::I64;
                    }
                    _ => {
                        for (place, at) in self.source.map_inputs(step, index, self.variables) {
                            operands.push(self.read(place, &at)?);
                        }
                    }
                }
                let each = operands.iter().any(|v| matches!(v, Value::Each(_)));
                let texts: Vec<String> = operands.iter().map(|v| v.text().to_owned()).collect();
                let text = text::map(*op, from, to, &texts)?;
                // A copy needs no name.
                if texts.len() == 1 && texts[0] == text {
                    return Ok(operands.swap_remove(0));
                }
                let (name, lane) = (self.name('t')?, text::lane(to));
                let scope = self.scope();
                let code = if each { &mut scope.each } else { &mut scope.chunk };
                let _ = writeln!(code, "const {lane} {name} = {text};");
                Ok(if each { Value::Each(name) } else { Value::Same(name) })
            }
            RowStep::Gather { .. } => self.gather(step, place, index),
            _ => Err(LowerError("a value that its own stage should have made".to_owned())),
        }
    }

    fn gather(&mut self, step: usize, place: u32, index: &Index) -> Result<Value, LowerError> {
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

fn in_part(inner: &str, start: u64, len: u64) -> String {
    match start {
        0 => format!("{inner} < {len}u"),
        _ => format!("({inner}) - {start}u < {len}u"),
    }
}
