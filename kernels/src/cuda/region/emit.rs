//! From a plan to CUDA C++: values inside a stage's loop.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::super::index::{Index, Run, Variables};
use super::component::{Component, Held, Kept};
use super::source::{From, Id, Source};
use super::text;
use crate::cuda::text::lane;
use crate::lower::{LowerError, fail};
use crate::op::cuda::OperandRole;
use piecewise_ir::dtype::DType;
use piecewise_ir::op::{Op, OpClass};
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
    chunk_values: FxHashMap<(Id, Index), Value>,
    each_values: FxHashMap<(Id, Index), Value>,
    variables: BTreeSet<u32>,
}

/// Where the results of a reduction are.
pub(super) enum Reduced {
    /// In a register of every thread: the only one.
    Whole,
    /// In shared memory.
    Shared,
    /// In registers, one for each chunk of loops like the reduction's own, at this index; in shared
    /// memory, too, where another loop or index asks for them.
    Chunks { elements: u64, width: u64, index: Index },
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
    pub(super) making: Option<Id>,
    /// Values in registers that earlier stages have computed.
    pub(super) in_registers: BTreeSet<Id>,
    /// Values that this stage puts in registers.
    pub(super) computed: BTreeSet<Id>,
    pub(super) reduced: BTreeMap<Id, Reduced>,
    /// Arguments that the threads hold.
    pub(super) held: &'b Held,
    /// What the operands are.
    pub(super) roles: &'b [OperandRole],
    pub(super) names: usize,
}

pub(super) fn indented(text: &str, by: usize) -> String {
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
        out.push_str(&indented(&scope.each, 2));
        out.push_str("}\n");
    }
    out.push_str(after);
    out
}

impl Emitter<'_, '_> {
    pub(super) fn name(&mut self, prefix: char) -> Result<String, LowerError> {
        self.names += 1;
        if self.names > MOST_STATEMENTS {
            return fail("a region with too many statements for one kernel; cut it");
        }
        Ok(format!("{prefix}{}", self.names))
    }

    pub(super) fn scope(&mut self) -> &mut Scope {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// The name of a computed value with this prefix.
    pub(super) fn named(&self, prefix: char, value: Id) -> String {
        format!("{prefix}{}", self.source.number(value))
    }

    /// Prints an index, after the variables that it is made of.
    pub(super) fn index(&mut self, index: &Index) -> String {
        let used: Vec<u32> = index.variables().collect();
        for number in used {
            if self.scopes.iter().any(|s| s.variables.contains(&number)) {
                continue;
            }
            let (whole, start) = self.variables.definitions[number as usize].clone();
            let mut text = self.index(&whole);
            if start > 0 {
                let _ = write!(text, " - {start}u");
            }
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
            Run::Uniform | Run::Irregular => text,
        }
    }

    /// The value of the element at `index` of what is in memory, constant or computed.
    pub(super) fn read(&mut self, value: Id, index: &Index) -> Result<Value, LowerError> {
        let key = (value, index.clone());
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
        let value = self.fresh(value, index)?;
        let scope = self.scope();
        match &value {
            Value::Same(_) => scope.chunk_values.insert(key, value.clone()),
            Value::Each(_) => scope.each_values.insert(key, value.clone()),
        };
        Ok(value)
    }

    fn fresh(&mut self, value: Id, index: &Index) -> Result<Value, LowerError> {
        let dtype = self.source.value(value).dtype;
        if let Some(reduced) = self.reduced.get(&value) {
            return match reduced {
                Reduced::Whole => Ok(Value::Same(self.named('m', value))),
                Reduced::Chunks { elements, width, index: of_chunk }
                    if self.flat == Some((*elements, *width)) && of_chunk == index =>
                {
                    Ok(Value::Same(self.named('m', value) + "[k]"))
                }
                Reduced::Chunks { .. } | Reduced::Shared => {
                    self.load(&self.named('s', value), dtype, index, 16)
                }
            };
        }
        match self.component.kept.get(&value) {
            Some(Kept::Shared) if self.making != Some(value) => {
                return self.load(&self.named('s', value), dtype, index, 16);
            }
            Some(Kept::Registers { elements })
                if self.flat.is_some_and(|(n, _)| n == *elements)
                    && *index == Index::element(*elements) =>
            {
                let register = self.named('r', value);
                if self.in_registers.contains(&value) {
                    return Ok(match self.width {
                        1 => Value::Same(format!("{register}[k][0]")),
                        _ => Value::Each(format!("{register}[k][v]")),
                    });
                }
                let made = self.compute(value, index)?;
                if self.scopes.len() == 1 {
                    let (width, text) = (self.width, made.text().to_owned());
                    self.computed.insert(value);
                    let scope = self.scope();
                    let _ = match width {
                        1 => writeln!(scope.chunk, "{register}[k][0] = {text};"),
                        _ => writeln!(scope.each, "{register}[k][v] = {text};"),
                    };
                }
                return Ok(made);
            }
            _ => {}
        }
        self.compute(value, index)
    }

    fn compute(&mut self, value: Id, index: &Index) -> Result<Value, LowerError> {
        let data = self.source.value(value);
        let to = data.dtype;
        let (i, statement) = match data.from {
            From::Operand(arg) => return self.operand(value, arg, index),
            From::RowNumber => return Ok(Value::Same("(i64)row".to_owned())),
            From::Literal(literal) => return self.literal(value, literal, index),
            From::Statement(i) => (i, &self.source.statements[i]),
        };
        let inputs = self.source.inputs(value, index, self.variables);
        if !inputs.branches.is_empty() {
            return self.branches(&inputs.reads, &inputs.branches, to, index);
        }
        let (mut operands, mut from) = (Vec::new(), DType::I64);
        match (statement.op, statement.op.class()) {
            (Op::Gather, _) => {
                return match self.carried_at(value, index) {
                    Some(position) if self.width == 1 => {
                        Ok(Value::Same(format!("c{position}[k][0]")))
                    }
                    Some(position) => Ok(Value::Each(format!("c{position}[k][v]"))),
                    None => self.gather(i, index, to),
                };
            }
            (_, OpClass::Reduction | OpClass::Search) => {
                return fail("a value that its own stage should have made");
            }
            (Op::Iota { .. }, _) => {
                let line = inputs.computed.into_iter().next().unwrap_or_default();
                let text = format!("(i64)({})", self.index_of_each(&line));
                operands.push(match self.variables.run(&line, self.width) {
                    Run::Stride(_) => Value::Each(text),
                    Run::Uniform | Run::Irregular => Value::Same(text),
                });
            }
            (_, OpClass::Elementwise | OpClass::Remap | OpClass::Gather | OpClass::Scatter)
            | (_, OpClass::Constant | OpClass::Product { .. })
            | (_, OpClass::Region(_) | OpClass::Custom(_)) => {
                for (operand, at) in inputs.reads {
                    from = self.source.value(operand).dtype;
                    operands.push(self.read(operand, &at)?);
                }
            }
        }
        let each = operands.iter().any(|v| matches!(v, Value::Each(_)));
        let texts: Vec<&str> = operands.iter().map(Value::text).collect();
        let text = text::element(statement.op, from, to, &texts)?;
        // A copy needs no name.
        if texts == [&text] {
            return Ok(operands.swap_remove(0));
        }
        let (name, lane) = (self.name('t')?, lane(to));
        let scope = self.scope();
        let code = if each { &mut scope.each } else { &mut scope.chunk };
        let _ = writeln!(code, "const {lane} {name} = {text};");
        Ok(if each { Value::Each(name) } else { Value::Same(name) })
    }

    /// One value out of several parts, by the index.
    fn branches(
        &mut self,
        reads: &[(Id, Index)],
        parts: &[(Index, u64, u64)],
        dtype: DType,
        index: &Index,
    ) -> Result<Value, LowerError> {
        let (name, lane) = (self.name('t')?, lane(dtype));
        let same = self.variables.run(index, self.width) == Run::Uniform;
        let width = self.width;
        let mut code = match same {
            true => format!("{lane} {name};\n"),
            false => format!("{lane} {name}[{width}];\n"),
        };
        for (i, ((value, at), (inner, start, len))) in reads.iter().zip(parts).enumerate() {
            let inner = self.index(inner);
            let head = match (i, i + 1 == parts.len()) {
                (0, true) => "{".to_owned(),
                (_, true) => " else {".to_owned(),
                (0, false) => format!("if ({}) {{", in_part(&inner, *start, *len)),
                _ => format!(" else if ({}) {{", in_part(&inner, *start, *len)),
            };
            self.scopes.push(Scope::default());
            let value = self.read(*value, at)?;
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
}

fn in_part(inner: &str, start: u64, len: u64) -> String {
    match start {
        0 => format!("{inner} < {len}u"),
        _ => format!("({inner}) - {start}u < {len}u"),
    }
}
