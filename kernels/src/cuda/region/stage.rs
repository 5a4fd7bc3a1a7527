//! Stages as loops: stores, scatters, shared values, reductions and searches.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::super::index::{Index, Run};
use super::component::{Mapping, Stage, StageKind};
use super::emit::{Emitter, Reduced, Scope, Value, chunk_text, indented};
use super::load::alignment;
use super::reads::Scattered;
use super::source::{From, Id};
use super::text;
use super::widths::segment_lanes;
use crate::cuda::text::{float, lane, storage};
use crate::lower::{ArgKind, LowerError, fail};
use piecewise_ir::dtype::DType;
use piecewise_ir::op::{Op, ReduceOp};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Shared memory of one group, as it is laid out.
#[derive(Default)]
pub(super) struct Pool {
    bytes: u64,
    /// Name, type and first byte of each part.
    parts: Vec<(String, &'static str, u64)>,
}

impl Pool {
    fn take(&mut self, name: String, storage: &'static str, bytes: u64) {
        self.parts.push((name, storage, self.bytes));
        self.bytes = (self.bytes + bytes.max(1)).next_multiple_of(16);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pointers to the parts, where groups have `bytes` each.
    pub(super) fn declarations(&self, bytes: u64) -> String {
        let declare = |(name, storage, at): &(String, &str, u64)| {
            format!("{storage}* const {name} = ({storage}*)(pool + group * {bytes}u + {at});\n")
        };
        self.parts.iter().map(declare).collect()
    }
}

/// What the stages of a component add to its text.
#[derive(Default)]
pub(super) struct Stages {
    pub(super) pool: Pool,
    /// Registers declared before the first stage.
    pub(super) registers: String,
    pub(super) code: String,
    /// Whether shared memory was written since the group last met.
    unmet: bool,
}

impl Emitter<'_, '_> {
    fn threads(&self) -> u64 {
        self.component.threads.unwrap_or(1)
    }

    pub(super) fn stage(&mut self, stage: &Stage, out: &mut Stages) -> Result<(), LowerError> {
        self.scopes.clear();
        self.scopes.push(Scope::default());
        (self.flat, self.width) = match stage.mapping {
            Mapping::Flat { width } => (Some((stage.elements, width)), width),
            Mapping::Warps | Mapping::Threads => (None, 1),
        };
        if out.unmet && self.component.threads.is_some() {
            let _ = writeln!(out.code, "meet<{}>(group);", self.threads());
            out.unmet = false;
        }
        match stage.kind {
            StageKind::Store { result } => self.store(stage, result, out)?,
            StageKind::Share { value } => self.share(stage, value, out)?,
            StageKind::Scatter { statement } => self.scatter(stage, statement, out)?,
            StageKind::Reduce { statement } => self.reduce(stage, statement, out)?,
            StageKind::TopK { statement } => self.top_k(statement, out)?,
        }
        self.in_registers.append(&mut self.computed);
        Ok(())
    }

    /// A loop over chunks around `body`.
    fn chunks(&self, elements: u64, body: &str) -> String {
        let (width, rounds) = (self.width, self.component.rounds(elements, self.width));
        let chunks = elements / width;
        let threads = self.threads();
        let mut code = String::new();
        let unroll = if rounds <= 16 { "#pragma unroll" } else { "#pragma unroll 4" };
        let _ = writeln!(code, "{unroll}\nfor (u32 k = 0; k < {rounds}; ++k) {{");
        match self.component.threads {
            Some(_) => {
                let _ = writeln!(code, "  const u32 c = lane + k * {threads}u;");
            }
            None => code.push_str("  const u32 c = lane;\n"),
        }
        let whole = self.component.threads.is_none() || chunks == rounds * threads;
        if !whole {
            let _ = writeln!(code, "  if (c < {chunks}u) {{");
        }
        let by = if whole { 2 } else { 4 };
        let e = if width == 1 { "c".to_owned() } else { format!("c * {width}u") };
        let _ = writeln!(code, "{:by$}const u32 e = {e};", "");
        code.push_str(&indented(body, by));
        if !whole {
            code.push_str("  }\n");
        }
        code.push_str("}\n");
        code
    }

    /// The statements of a chunk with a write of `value` to the elements at `index` of `start`,
    /// under a condition if there is one.
    fn written(
        &mut self,
        (start, align): (&str, u64),
        dtype: DType,
        index: &Index,
        value: &Value,
        condition: &str,
    ) -> String {
        let at = self.index(index);
        let storage = storage(dtype);
        let (width, text) = (self.width, value.text().to_owned());
        let scope = &mut self.scopes[0];
        let mut after = String::new();
        if width == 1 {
            let _ = writeln!(scope.chunk, "{condition}narrow({start}[{at}], {text});");
        } else {
            let _ = writeln!(scope.chunk, "Pack<{storage}, {width}> out;");
            let _ = writeln!(scope.each, "narrow(out.at[v], {text});");
            let piece = self.piece(dtype, index, align);
            after = format!("{condition}store<{piece}>({start} + ({at}), out);\n");
        }
        chunk_text(&self.scopes[0], width, &after)
    }

    fn store(&mut self, stage: &Stage, result: usize, out: &mut Stages) -> Result<(), LowerError> {
        let arg = self.source.result_argument(result);
        let (value, index) = self.source.stored(result, self.variables);
        let value = self.read(value, &index)?;
        let decl = self.source.args[arg];
        let align = alignment(decl.elements * decl.dtype.size() as u64);
        let e = Index::element(stage.elements);
        let body = match self.held.get(&(arg as u32)).and_then(|registers| registers.first()) {
            Some((_, register)) => {
                let _ = writeln!(self.scopes[0].chunk, "narrow({register}, {});", value.text());
                chunk_text(&self.scopes[0], self.width, "")
            }
            None => self.written((&format!("x{arg}"), align), decl.dtype, &e, &value, ""),
        };
        let _ = writeln!(out.code, "// result {arg}");
        out.code.push_str(&self.chunks(stage.elements, &body));
        Ok(())
    }

    fn share(&mut self, stage: &Stage, value: Id, out: &mut Stages) -> Result<(), LowerError> {
        let (dtype, name) = (self.source.value(value).dtype, self.named('s', value));
        out.pool.take(name.clone(), storage(dtype), stage.elements * dtype.size() as u64);
        let e = Index::element(stage.elements);
        self.making = Some(value);
        let made = self.read(value, &e)?;
        self.making = None;
        let body = self.written((&name, 16), dtype, &e, &made, "");
        let _ = writeln!(out.code, "// shared {name}: read at several indices");
        out.code.push_str(&self.chunks(stage.elements, &body));
        out.unmet = true;
        Ok(())
    }

    fn scatter(
        &mut self,
        stage: &Stage,
        statement: usize,
        out: &mut Stages,
    ) -> Result<(), LowerError> {
        let scatter = self.source.scattered(statement, self.variables);
        let (state, row) = (scatter.state, scatter.row);
        let Some(arg) = self.source.operand(state) else {
            return fail("a scatter into something that is no state");
        };
        let extent = match self.source.args[arg as usize].kind {
            ArgKind::Table => self.extent(state),
            ArgKind::Row | ArgKind::Whole => {
                format!("{}ull", self.source.value(state).shape.first().unwrap_or(&0))
            }
        };
        let dtype = self.source.value(state).dtype;
        let slot = self.read(scatter.slot.0, &scatter.slot.1)?;
        let value = self.read(scatter.value.0, &scatter.value.1)?;
        let _ = writeln!(out.code, "// scatter into operand {arg}");
        let stays = self.stays(statement, &scatter, out)?;
        let condition = format!("if ((u64)(i64){} < {extent}{stays}) ", slot.text());
        let start = format!("(a{arg} + (u64)(i64){} * {row}ull)", slot.text());
        let body = match slot {
            Value::Each(_) => {
                let at = self.index_of_each(&scatter.inside);
                let scope = &mut self.scopes[0];
                let _ = writeln!(scope.each, "{condition}narrow({start}[{at}], {});", value.text());
                chunk_text(&self.scopes[0], self.width, "")
            }
            Value::Same(_) => {
                let align = alignment(row * dtype.size() as u64);
                self.written((&start, align), dtype, &scatter.inside, &value, &condition)
            }
        };
        out.code.push_str(&self.chunks(stage.elements, &body));
        Ok(())
    }

    /// A condition by which of rows with one slot the last stays: the host holds apart what it stages, and
    /// nothing else. Written at once, rows of several would mix.
    fn stays(
        &mut self,
        statement: usize,
        scatter: &Scattered,
        out: &mut Stages,
    ) -> Result<String, LowerError> {
        let (slots, at) = &scatter.slot;
        let arg = self.source.operand(*slots);
        if arg.is_some_and(|arg| self.roles.get(arg as usize).is_some_and(|role| role.staged)) {
            return Ok(String::new());
        }
        let Some(arg) = arg.filter(|_| self.source.is_kernel) else {
            return fail("a scatter by slots that its own kernel computes; give them from outside");
        };
        let of_row = self.source.args[arg as usize].elements;
        let rows = if self.source.over.is_some() { "(u32)real" } else { "rows" };
        let _ = writeln!(
            out.code,
            "const auto stays{statement} = [&](u32 at) {{\n  for (u32 i = at + 1; i < {rows} * {of_row}u; ++i) \
             if (a{arg}[i] == a{arg}[at]) return false;\n  return true;\n}};"
        );
        let at = self.index_of_each(at);
        Ok(format!(" && stays{statement}(row * {of_row}u + {at})"))
    }

    fn reduce(
        &mut self,
        stage: &Stage,
        statement: usize,
        out: &mut Stages,
    ) -> Result<(), LowerError> {
        let (Op::Reduce { op, .. }, &[to]) =
            (self.source.statements[statement].op, &self.source.statements[statement].results[..])
        else {
            return fail("a reduction that is none");
        };
        let (segments, len) = self.source.segments(statement);
        let (input, index) = self.source.taken(statement, self.variables);
        let (dtype, from) = (self.source.value(to).dtype, self.source.value(input).dtype);
        let (functor, identity, nothing) = text::reduction(*op, from);
        let (lane, held) = (lane(from), lane(dtype));
        let (found, shared_name) = (self.named('m', to), self.named('s', to));
        let finished = |sum: &str| {
            let value = match op {
                _ if len == 0 => nothing.clone(),
                ReduceOp::Mean => format!("{sum} / {}", float(len as f32)),
                ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min => sum.to_owned(),
            };
            text::rounded(dtype, &value)
        };
        let _ = writeln!(out.code, "// {found} = {}", op.mnemonic());
        let e = Index::element(stage.elements);
        let value = match len {
            0 => Value::Same(identity.clone()),
            _ => self.read(input, &index)?,
        };
        let (width, threads) = (self.width, self.threads());
        match stage.mapping {
            Mapping::Flat { .. } => {
                let text = value.text().to_owned();
                let scope = &mut self.scopes[0];
                let sum = format!("sum[v] = {functor}::of(sum[v], {text});");
                let _ = match width {
                    1 => writeln!(scope.chunk, "sum[0] = {functor}::of(sum[0], {text});"),
                    _ => writeln!(scope.each, "{sum}"),
                };
                let body = chunk_text(&self.scopes[0], width, "");
                let start = format!(
                    "{lane} sum[{width}];\n#pragma unroll\nfor (int v = 0; v < {width}; ++v) sum[v] = {identity};\n"
                );
                let fold = format!(
                    "#pragma unroll\nfor (int v = 1; v < {width}; ++v) sum[0] = {functor}::of(sum[0], sum[v]);\n"
                );
                if segments == 1 {
                    let exchange = format!("exchange{}", self.source.number(to));
                    let _ = writeln!(out.registers, "{held} {found};");
                    let body = self.chunks(stage.elements, &body);
                    let sum =
                        format!("group_of<{functor}, {threads}>(sum[0], lane, group, {exchange})");
                    out.pool.take(exchange, lane, threads / 32 * 8);
                    let code = format!("{start}{body}{fold}{found} = {};\n", finished(&sum));
                    let _ = write!(out.code, "{{\n{}}}\n", indented(&code, 2));
                    self.reduced.insert(to, Reduced::Whole);
                    return Ok(());
                }
                let lanes = segment_lanes(len, width).unwrap_or(1);
                let rounds = self.component.rounds(stage.elements, width);
                let chunks = stage.elements / width;
                let (index, _) = self.variables.div_rem(&e, len);
                let shared = self.is_read_elsewhere(to, stage.elements, &index);
                let _ = writeln!(out.registers, "{held} {found}[{rounds}];");
                let unroll = if rounds <= 16 { "#pragma unroll" } else { "#pragma unroll 4" };
                let mut code = format!("{unroll}\nfor (u32 k = 0; k < {rounds}; ++k) {{\n");
                let mut inside = format!("const u32 c = lane + k * {threads}u;\n{start}");
                let _ = writeln!(inside, "if (c < {chunks}u) {{");
                let by = if width == 1 { "c".to_owned() } else { format!("c * {width}u") };
                let _ = writeln!(inside, "  const u32 e = {by};");
                inside.push_str(&indented(&body, 2));
                inside.push_str("}\n");
                inside.push_str(&fold);
                let sum = format!("lanes<{functor}, {lanes}>(sum[0])");
                let _ = writeln!(inside, "{found}[k] = {};", finished(&sum));
                if shared {
                    let _ = writeln!(
                        inside,
                        "if (c < {chunks}u && c % {lanes}u == 0) narrow({shared_name}[c / {lanes}u], {found}[k]);"
                    );
                    let bytes = segments * dtype.size() as u64;
                    out.pool.take(shared_name, storage(dtype), bytes);
                    out.unmet = true;
                }
                code.push_str(&indented(&inside, 2));
                code.push_str("}\n");
                out.code.push_str(&code);
                let elements = stage.elements;
                self.reduced.insert(to, Reduced::Chunks { elements, width, index });
            }
            Mapping::Threads | Mapping::Warps => {
                let warps = stage.mapping == Mapping::Warps;
                let text = value.text().to_owned();
                let scope = &mut self.scopes[0];
                let _ = writeln!(scope.chunk, "sum = {functor}::of(sum, {text});");
                let body = chunk_text(&self.scopes[0], 1, "");
                let (first, step, at, by) = match warps {
                    true => ("lane / 32", threads / 32, "lane % 32", 32),
                    false => ("lane", threads, "0", 1),
                };
                let mut code = format!("for (u32 s = {first}; s < {segments}u; s += {step}u) {{\n");
                let _ = writeln!(code, "  {lane} sum = {identity};");
                let _ = writeln!(code, "  for (u32 d = {at}; d < {len}u; d += {by}u) {{");
                let _ = writeln!(code, "    const u32 e = s * {len}u + d;");
                code.push_str(&indented(&body, 4));
                code.push_str("  }\n");
                let one = match warps {
                    true => {
                        let _ = writeln!(code, "  sum = lanes<{functor}, 32>(sum);");
                        "if (lane % 32 == 0) "
                    }
                    false => "",
                };
                let _ = writeln!(code, "  {one}narrow({shared_name}[s], {});\n}}", finished("sum"));
                let bytes = segments * dtype.size() as u64;
                out.pool.take(shared_name, storage(dtype), bytes);
                out.code.push_str(&code);
                out.unmet = true;
                self.reduced.insert(to, Reduced::Shared);
            }
        }
        Ok(())
    }

    /// Whether some stage reads a reduction other than in the chunks that made it.
    fn is_read_elsewhere(&self, value: Id, elements: u64, index: &Index) -> bool {
        self.source.value(value).is_table
            || self.component.stages.iter().any(|stage| {
                let same =
                    stage.elements == elements && matches!(stage.mapping, Mapping::Flat { .. });
                stage.reads(value).any(|at| !same || at != index)
            })
    }

    fn top_k(&mut self, statement: usize, out: &mut Stages) -> Result<(), LowerError> {
        let results = self.source.statements[statement].results.clone();
        let operand = self.source.statements[statement].operands[0];
        let (segments, len) = self.source.segments(statement);
        // How many are found along which axis, and what they are.
        let op = self.source.statements[statement].op;
        let (k, axis, found) = if let Op::TopK { axis } = op {
            (self.source.value(results[0]).shape[*axis], *axis, &["best", "best_index"][..])
        } else if let Op::ArgMax { axis } = op {
            (1, *axis, &["best_index"][..])
        } else {
            return fail("a search that is none");
        };
        let (input, index) = self.source.taken(statement, self.variables);
        let (lane, threads) = (lane(self.source.value(input).dtype), self.threads());
        let value = self.read(input, &index)?;
        let text = value.text().to_owned();
        let scope = &mut self.scopes[0];
        let _ = writeln!(scope.chunk, "const {lane} x = {text};");
        scope.chunk.push_str(
            "if ((r == 0 || before(last, last_index, x, (i32)d)) &&\n    (best_index == 0x7fffffff || before(x, (i32)d, best, best_index))) {\n  best = x;\n  best_index = (i32)d;\n}\n",
        );
        let body = chunk_text(&self.scopes[0], 1, "");
        let (one, two) = (format!("values{statement}"), format!("indices{statement}"));
        out.pool.take(one.clone(), lane, threads / 32 * 8);
        out.pool.take(two.clone(), "i32", threads / 32 * 4);
        let mut code = format!(
            "// the {k} largest of {len}\nfor (u32 s = 0; s < {segments}u; ++s) {{\n  {lane} last = 0;\n  i32 last_index = 0;\n  for (u32 r = 0; r < {k}u; ++r) {{\n    {lane} best = 0;\n    i32 best_index = 0x7fffffff;\n    for (u32 d = lane; d < {len}u; d += {threads}u) {{\n      const u32 e = s * {len}u + d;\n"
        );
        code.push_str(&indented(&body, 6));
        let _ = write!(
            code,
            "    }}\n    first_of<{threads}>(best, best_index, lane, group, {one}, {two});\n    last = best;\n    last_index = best_index;\n    if (lane == 0) {{\n      const u32 e = s;\n"
        );
        // A segment is a place around the axis, of which `inner` follow one another inside it.
        let inner = self.source.value(operand).shape[axis + 1..].iter().product();
        let (around, inside) = self.variables.div_rem(&Index::element(segments), inner);
        let at = around.times(k * inner).plus(&inside);
        for (&result, found) in results.iter().zip(found) {
            let (dtype, elements) =
                (self.source.value(result).dtype, self.source.value(result).elements);
            let name = self.named('s', result);
            let _ = writeln!(code, "      narrow({name}[{} + r * {inner}u], {found});", at.print());
            out.pool.take(name, storage(dtype), elements * dtype.size() as u64);
            self.reduced.insert(result, Reduced::Shared);
        }
        code.push_str("      (void)e;\n    }\n  }\n}\n");
        out.code.push_str(&code);
        out.unmet = true;
        Ok(())
    }

    /// The registers of the leaves that go ahead and their loads: of the arguments that no kernel
    /// writes, or of the others.
    pub(super) fn load_ahead(
        &mut self,
        weights: bool,
        unwritten: &BTreeSet<u32>,
    ) -> Result<[String; 2], LowerError> {
        let (mut registers, mut code) = (String::new(), String::new());
        for (i, (value, index, elements)) in self.component.carried.iter().enumerate() {
            self.width = self.component.width(*elements);
            self.flat = Some((*elements, self.width));
            let (width, rounds) = (self.width, self.component.rounds(*elements, self.width));
            let Some(arg) = self.source.operand(*value) else {
                if !weights {
                    let dtype = self.source.value(*value).dtype;
                    let body = self.row_ahead(i, *value, index, dtype)?;
                    code.push_str(&self.chunks(*elements, &body));
                    let _ = writeln!(registers, "{} c{i}[{rounds}][{width}];", lane(dtype));
                }
                continue;
            };
            if unwritten.contains(&arg) != weights {
                continue;
            }
            let (start, align, dtype) = self.start(*value);
            debug_assert!(width == 1 || self.variables.run(index, width) == Run::Stride(1));
            let piece = self.piece(dtype, index, align);
            let body = format!("load<{piece}>(c{i}[k], {start} + ({}));\n", index.print());
            code.push_str(&self.chunks(*elements, &body));
            let _ = writeln!(registers, "Pack<{}, {width}> c{i}[{rounds}];", storage(dtype));
        }
        Ok([registers, code])
    }

    /// Loads a chunk of a row of a table into the registers of what is carried `i`th.
    fn row_ahead(
        &mut self,
        i: usize,
        value: Id,
        index: &Index,
        dtype: DType,
    ) -> Result<String, LowerError> {
        let From::Statement(statement) = self.source.value(value).from else {
            return fail("a value loaded ahead that is not in memory");
        };
        let outer = std::mem::replace(&mut self.scopes, vec![Scope::default()]);
        let loaded = self.gather(statement, index, dtype)?;
        let mut scope = std::mem::replace(&mut self.scopes, outer).pop().unwrap_or_default();
        let _ = match self.width {
            1 => writeln!(scope.chunk, "c{i}[k][0] = {};", loaded.text()),
            _ => writeln!(scope.each, "c{i}[k][v] = {};", loaded.text()),
        };
        Ok(chunk_text(&scope, self.width, ""))
    }
}
