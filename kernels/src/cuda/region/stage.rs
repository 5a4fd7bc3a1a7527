//! Stages as loops: stores, scatters, shared values, reductions and searches.

use super::super::index::{Index, Run};
use super::emit::{Emitter, Reduced, Scope, Value, chunk_text, indented};
use super::plan::{Mapping, Stage, StageKind};
use super::source::indexed;
use super::text;
use super::widths::segment_lanes;
use crate::lower::{LowerError, PlaceKind, RowStep};
use piecewise_ir::dtype::DType;
use piecewise_ir::op::ReduceOp;
use std::fmt::Write;

/// Shared memory of one group, as it is laid out.
#[derive(Default)]
pub(super) struct Pool {
    bytes: u64,
    pub(super) declarations: String,
}

impl Pool {
    fn take(&mut self, name: &str, storage: &str, bytes: u64) {
        let _ = writeln!(
            self.declarations,
            "{storage}* const {name} = ({storage}*)(pool + group * POOL_BYTES + {});",
            self.bytes
        );
        self.bytes = (self.bytes + bytes.max(1)).next_multiple_of(16);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
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

    /// Rounds in which all threads go through the chunks of a loop.
    pub(super) fn rounds(&self, elements: u64, width: u64) -> u64 {
        match self.component.threads {
            Some(threads) => (elements / width).div_ceil(threads).max(1),
            None => 1,
        }
    }

    pub(super) fn stage(&mut self, stage: &Stage, out: &mut Stages) -> Result<(), LowerError> {
        self.scopes.clear();
        self.scopes.push(Scope::default());
        (self.flat, self.width) = match stage.mapping {
            Mapping::Flat { width } => (Some((stage.elements, width)), width),
            _ => (None, 1),
        };
        if out.unmet && self.component.threads.is_some() {
            let _ = writeln!(out.code, "meet<{}>(group);", self.threads());
            out.unmet = false;
        }
        match stage.kind {
            StageKind::Store { place } => self.store(stage, place, out)?,
            StageKind::Share { place } => self.share(stage, place, out)?,
            StageKind::Scatter { step } => self.scatter(stage, step, out)?,
            StageKind::Reduce { step } => self.reduce(stage, step, out)?,
            StageKind::TopK { step } => self.top_k(step, out)?,
        }
        self.in_registers.append(&mut self.computed);
        Ok(())
    }

    /// A loop over chunks around `body`.
    fn chunks(&self, elements: u64, body: &str) -> String {
        let (width, rounds) = (self.width, self.rounds(elements, self.width));
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

    /// Writes `value` to the elements at `index` of `start`.
    fn write(
        &mut self,
        start: &str,
        dtype: DType,
        index: &Index,
        align: u64,
        value: &Value,
    ) -> String {
        let at = self.index(index);
        let storage = text::storage(dtype);
        let (width, text) = (self.width, value.text().to_owned());
        let scope = &mut self.scopes[0];
        match width {
            1 => {
                let _ = writeln!(scope.chunk, "narrow({start}[{at}], {text});");
                String::new()
            }
            _ => {
                let _ = writeln!(scope.chunk, "Pack<{storage}, {width}> out;");
                let _ = writeln!(scope.each, "narrow(out.at[v], {text});");
                let piece = self.piece(dtype, index, align);
                format!("store<{piece}>({start} + ({at}), out);\n")
            }
        }
    }

    fn store(&mut self, stage: &Stage, place: u32, out: &mut Stages) -> Result<(), LowerError> {
        let data = self.source.program.places[place as usize];
        let PlaceKind::Arg(arg) = data.kind else {
            return Err(LowerError("a stored value that is no result".to_owned()));
        };
        let index = Index::element(stage.elements);
        let value = self.read(place, &index)?;
        let bytes = data.elements * data.dtype.size() as u64;
        let align = 16.min(1 << bytes.trailing_zeros());
        let after = self.write(&format!("x{arg}"), data.dtype, &index, align, &value);
        let body = chunk_text(&self.scopes[0], self.width, &after);
        let _ = writeln!(out.code, "// result {arg}");
        out.code.push_str(&self.chunks(stage.elements, &body));
        Ok(())
    }

    fn share(&mut self, stage: &Stage, place: u32, out: &mut Stages) -> Result<(), LowerError> {
        let dtype = self.source.program.places[place as usize].dtype;
        let name = format!("s{place}");
        out.pool.take(&name, text::storage(dtype), stage.elements * dtype.size() as u64);
        let index = Index::element(stage.elements);
        self.making = Some(place);
        let value = self.read(place, &index)?;
        self.making = None;
        let after = self.write(&name, dtype, &index, 16, &value);
        let body = chunk_text(&self.scopes[0], self.width, &after);
        let _ = writeln!(out.code, "// shared {name}: read at several indices");
        out.code.push_str(&self.chunks(stage.elements, &body));
        out.unmet = true;
        Ok(())
    }

    fn scatter(&mut self, stage: &Stage, step: usize, out: &mut Stages) -> Result<(), LowerError> {
        let RowStep::Scatter { table, extent, row, nest, slots, rows } =
            &self.source.program.steps[step]
        else {
            return Err(LowerError("a scatter that is none".to_owned()));
        };
        let data = self.source.program.places[*table as usize];
        let PlaceKind::Arg(arg) = data.kind else {
            return Err(LowerError("a scatter into something that is no state".to_owned()));
        };
        let extent = match extent {
            Some(extent) => format!("{extent}ull"),
            None => self.extent(*table),
        };
        let e = Index::element(stage.elements);
        let (which, inside) = self.variables.div_rem(&e, *row);
        let counters = self.variables.coordinates(&which, &nest.extents);
        let slot = self.read(slots.place, &indexed(slots, &counters))?;
        let value = self.read(rows.0, &e.plus(&Index::constant(rows.1)))?;
        let _ = writeln!(out.code, "// scatter into operand {arg}");
        let body = match (&slot, self.width) {
            (Value::Each(slot), _) => {
                let at = self.index_of_each(&inside);
                let (slot, value) = (slot.clone(), value.text().to_owned());
                let scope = &mut self.scopes[0];
                let _ = writeln!(
                    scope.each,
                    "if ((u64)(i64){slot} < {extent}) narrow(a{arg}[(u64)(i64){slot} * {row}ull + {at}], {value});"
                );
                chunk_text(&self.scopes[0], self.width, "")
            }
            (Value::Same(slot), _) => {
                let slot = slot.clone();
                let start = format!("(a{arg} + (u64)(i64){slot} * {row}ull)");
                let bytes = row * data.dtype.size() as u64;
                let align = 16.min(1 << bytes.trailing_zeros());
                let condition = format!("if ((u64)(i64){slot} < {extent}) ");
                let before = self.scopes[0].chunk.len();
                let after = self.write(&start, data.dtype, &inside, align, &value);
                match self.width {
                    1 => {
                        let at =
                            self.scopes[0].chunk[before..].rfind("narrow(").unwrap_or(0) + before;
                        self.scopes[0].chunk.insert_str(at, &condition);
                        chunk_text(&self.scopes[0], 1, "")
                    }
                    width => chunk_text(&self.scopes[0], width, &format!("{condition}{after}")),
                }
            }
        };
        out.code.push_str(&self.chunks(stage.elements, &body));
        Ok(())
    }

    fn reduce(&mut self, stage: &Stage, step: usize, out: &mut Stages) -> Result<(), LowerError> {
        let RowStep::Reduce { op, nest, kept, input, out: to } = &self.source.program.steps[step]
        else {
            return Err(LowerError("a reduction that is none".to_owned()));
        };
        let (outer, inner) = nest.extents.split_at(*kept as usize);
        let (segments, len): (u64, u64) = (outer.iter().product(), inner.iter().product());
        let dtype = self.source.program.places[to.place as usize].dtype;
        let from = self.source.program.places[input.place as usize].dtype;
        let (functor, identity, nothing) = text::reduction(*op, from);
        let (lane, place) = (text::lane(from), to.place);
        let finished = |sum: &str| {
            let value = match op {
                _ if len == 0 => nothing.clone(),
                ReduceOp::Mean => format!("{sum} / {}", text::float(len as f32)),
                _ => sum.to_owned(),
            };
            text::rounded(dtype, &value)
        };
        let _ = writeln!(out.code, "// m{place} = {}", op.mnemonic());
        let e = Index::element(stage.elements);
        let counters = self.variables.coordinates(&e, &nest.extents);
        let value = match len {
            0 => Value::Same(identity.clone()),
            _ => self.read(input.place, &indexed(input, &counters))?,
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
                    out.pool.take(&format!("exchange{place}"), lane, threads / 32 * 8);
                    let _ = writeln!(out.registers, "{} m{place};", text::lane(dtype));
                    let body = self.chunks(stage.elements, &body);
                    let sum = format!(
                        "group_of<{functor}, {threads}>(sum[0], lane, group, exchange{place})"
                    );
                    let code = format!("{start}{body}{fold}m{place} = {};\n", finished(&sum));
                    let _ = write!(out.code, "{{\n{}}}\n", indented(&code, 2));
                    let index = Index::constant(0);
                    let reduced = Reduced { elements: 0, width: 0, index, whole: true };
                    self.reduced.insert(place, reduced);
                    return Ok(());
                }
                let lanes = segment_lanes(len, width).unwrap_or(1);
                let rounds = self.rounds(stage.elements, width);
                let chunks = stage.elements / width;
                let (index, _) = self.variables.div_rem(&e, len);
                let shared = self.is_read_elsewhere(place, stage.elements, &index);
                let _ = writeln!(out.registers, "{} m{place}[{rounds}];", text::lane(dtype));
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
                let _ = writeln!(inside, "m{place}[k] = {};", finished(&sum));
                if shared {
                    out.pool.take(
                        &format!("s{place}"),
                        text::storage(dtype),
                        segments * dtype.size() as u64,
                    );
                    let _ = writeln!(
                        inside,
                        "if (c < {chunks}u && c % {lanes}u == 0) narrow(s{place}[c / {lanes}u], m{place}[k]);"
                    );
                    out.unmet = true;
                }
                code.push_str(&indented(&inside, 2));
                code.push_str("}\n");
                out.code.push_str(&code);
                let reduced = Reduced { elements: stage.elements, width, index, whole: false };
                self.reduced.insert(place, reduced);
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
                let _ = writeln!(code, "  {one}narrow(s{place}[s], {});\n}}", finished("sum"));
                out.pool.take(
                    &format!("s{place}"),
                    text::storage(dtype),
                    segments * dtype.size() as u64,
                );
                out.code.push_str(&code);
                out.unmet = true;
                let index = Index::constant(0);
                let reduced = Reduced { elements: 0, width: 0, index, whole: false };
                self.reduced.insert(place, reduced);
            }
        }
        Ok(())
    }

    /// Whether some stage reads a reduction other than in the chunks that made it.
    fn is_read_elsewhere(&self, place: u32, elements: u64, index: &Index) -> bool {
        self.source.is_table(place)
            || self.component.stages.iter().any(|stage| {
                let same =
                    stage.elements == elements && matches!(stage.mapping, Mapping::Flat { .. });
                stage.reads(place).any(|at| !same || at != index)
            })
    }

    fn top_k(&mut self, step: usize, out: &mut Stages) -> Result<(), LowerError> {
        let RowStep::TopK { nest, k, input, values, indices, .. } =
            &self.source.program.steps[step]
        else {
            return Err(LowerError("a search that is none".to_owned()));
        };
        let Some((&len, outer)) = nest.extents.split_last() else {
            return Err(LowerError("a search without loops".to_owned()));
        };
        let segments: u64 = outer.iter().product();
        let from = self.source.program.places[input.place as usize].dtype;
        let (lane, threads) = (text::lane(from), self.threads());
        let e = Index::element(segments * len);
        let counters = self.variables.coordinates(&e, &nest.extents);
        let value = self.read(input.place, &indexed(input, &counters))?;
        let text = value.text().to_owned();
        let scope = &mut self.scopes[0];
        let _ = writeln!(scope.chunk, "const {lane} x = {text};");
        scope.chunk.push_str(
            "if ((r == 0 || before(last, last_index, x, (i32)d)) &&\n    (best_index == 0x7fffffff || before(x, (i32)d, best, best_index))) {\n  best = x;\n  best_index = (i32)d;\n}\n",
        );
        let body = chunk_text(&self.scopes[0], 1, "");
        let (one, two) = (format!("values{step}"), format!("indices{step}"));
        out.pool.take(&one, lane, threads / 32 * 8);
        out.pool.take(&two, "i32", threads / 32 * 4);
        let mut code = format!(
            "// the {k} largest of {len}\nfor (u32 s = 0; s < {segments}u; ++s) {{\n  {lane} last = 0;\n  i32 last_index = 0;\n  for (u32 r = 0; r < {k}u; ++r) {{\n    {lane} best = 0;\n    i32 best_index = 0x7fffffff;\n    for (u32 d = lane; d < {len}u; d += {threads}u) {{\n      const u32 e = s * {len}u + d;\n"
        );
        code.push_str(&indented(&body, 6));
        let _ = write!(
            code,
            "    }}\n    first_of<{threads}>(best, best_index, lane, group, {one}, {two});\n    last = best;\n    last_index = best_index;\n    if (lane == 0) {{\n      const u32 e = s;\n"
        );
        let counters = self.variables.coordinates(&Index::element(segments), outer);
        for (access, found) in [(values, "best"), (indices, "best_index")] {
            let Some(access) = access else { continue };
            let data = self.source.program.places[access.place as usize];
            out.pool.take(
                &format!("s{}", access.place),
                text::storage(data.dtype),
                data.elements * data.dtype.size() as u64,
            );
            let at = indexed(access, &counters);
            if at.variables().next().is_some() {
                return Err(LowerError("a search over axes that have no plain order".to_owned()));
            }
            let along = access.strides.last().copied().unwrap_or(1);
            let _ = writeln!(
                code,
                "      narrow(s{}[{} + r * {along}u], {found});",
                access.place,
                at.print()
            );
            let index = Index::constant(0);
            let reduced = Reduced { elements: 0, width: 0, index, whole: false };
            self.reduced.insert(access.place, reduced);
        }
        code.push_str("      (void)e;\n    }\n  }\n}\n");
        out.code.push_str(&code);
        out.unmet = true;
        Ok(())
    }

    /// The registers of the leaves that go ahead and their loads: of those that no kernel writes,
    /// or of the others.
    pub(super) fn load_ahead(
        &mut self,
        weights: bool,
        is_weight: impl Fn(u32) -> bool,
    ) -> [String; 2] {
        let (mut registers, mut code) = (String::new(), String::new());
        let carried = self.carried;
        for (i, (place, index, elements)) in carried.iter().enumerate() {
            let data = self.source.program.places[*place as usize];
            let PlaceKind::Arg(arg) = data.kind else { continue };
            if (data.row_stride == 0 && is_weight(arg)) != weights {
                continue;
            }
            self.width = self.component.width(*elements);
            self.flat = Some((*elements, self.width));
            let (start, align) = match data.row_stride {
                0 => (format!("a{arg}"), 16),
                stride => {
                    let bytes = stride * data.dtype.size() as u64;
                    (format!("x{arg}"), 16.min(1 << bytes.trailing_zeros()))
                }
            };
            debug_assert!(
                self.width == 1 || self.variables.run(index, self.width) == Run::Stride(1)
            );
            let piece = self.piece(data.dtype, index, align);
            let body = format!("load<{piece}>(c{i}[k], {start} + ({}));\n", index.print());
            code.push_str(&self.chunks(*elements, &body));
            let (storage, rounds) = (text::storage(data.dtype), self.rounds(*elements, self.width));
            let _ = writeln!(registers, "Pack<{storage}, {}> c{i}[{rounds}];", self.width);
        }
        [registers, code]
    }
}
