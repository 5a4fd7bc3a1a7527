//! Regions as parts of another kernel: rows that a block makes for itself before a product, what
//! becomes of the elements of the product that a thread has, and elements that a thread makes for
//! itself.

use super::component::{Component, Frame, Held};
use super::emit::indented;
use super::plan::plan;
use super::source::Source;
use super::{Body, OperandRole, arguments, component_body, groups_of, literals, pointer, states};
use crate::cuda::index::Variables;
use crate::cuda::text::{lane, storage};
use crate::lower::{ArgKind, LowerError, RowBody, fail};
use piecewise_ir::dtype::DType;
use piecewise_ir::region::Region;
use std::collections::BTreeSet;
use std::fmt::Write;

/// A region whose one result's rows a block of threads computes into memory of its own:
/// `struct Before`, whose `ahead` loads what no kernel of the step writes, and whose `rows` does
/// the rest, and leaves the block to meet.
pub(in crate::cuda) struct AbsorbedBefore {
    pub(in crate::cuda) text: String,
    /// The parameters of the operands, without names.
    pub(in crate::cuda) operands: Vec<String>,
    /// Those that `ahead` loads.
    pub(in crate::cuda) ahead: BTreeSet<u32>,
    /// The row of the result.
    pub(in crate::cuda) dtype: DType,
    pub(in crate::cuda) elements: u64,
    /// Bytes of shared memory besides the rows.
    pub(in crate::cuda) shared: u64,
}

/// How a block has the rows that it makes.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct RowsOfBlock {
    /// Threads of the block that compute them.
    pub(in crate::cuda) block: u64,
    /// The most.
    pub(in crate::cuda) rows: u64,
    /// Elements of memory between one and the next.
    pub(in crate::cuda) padding: u64,
    /// The most elements of one value that a thread keeps, and its registers for all and for what it
    /// loads ahead.
    pub(in crate::cuda) kept: u64,
    pub(in crate::cuda) registers: u64,
}

/// A region of which a thread computes elements.
pub(in crate::cuda) struct OfThread {
    pub(in crate::cuda) text: String,
    /// The parameters without names, of operands that the thread does not have, then of results that
    /// it writes.
    pub(in crate::cuda) arguments: Vec<String>,
}

fn one_component(components: Vec<Component>) -> Result<Component, LowerError> {
    let [component] = <[Component; 1]>::try_from(components).map_err(|all| {
        LowerError(format!("a region of {} parts that share no work, beside a product", all.len()))
    })?;
    Ok(component)
}

impl AbsorbedBefore {
    /// The rows of a region of one result.
    ///
    /// # Errors
    /// When the region has another number of results, writes a state, or is none of rows.
    pub(in crate::cuda) fn of(
        region: &Region,
        roles: &[OperandRole],
        RowsOfBlock { block, rows, padding, kept, registers }: RowsOfBlock,
    ) -> Result<Self, LowerError> {
        let made = Made::of(region, roles, |elements| Frame {
            threads: (block / rows.next_power_of_two()).clamp(32, block),
            kept,
            registers,
            alone: false,
            apart: Some(elements + padding),
            ..Frame::KERNEL
        })?;
        let Made { threads, ref body, .. } = made;
        let groups = groups_of(block, threads, body.shared).min(rows);
        // One group's barrier is a constant, which leaves others to the blocks beside this one.
        let group = if groups > 1 { format!("threadIdx.x / {threads}u") } else { "0".to_owned() };
        let place = format!("const u32 group = {group}, lane = threadIdx.x % {threads}u;\n");
        let mut each = made.row();
        if body.shared > 0 {
            // The next row takes the same shared memory.
            let _ = writeln!(each, "meet<{threads}>(group);");
        }
        let mut code = place.clone();
        if groups * threads < block {
            let _ = writeln!(code, "if (threadIdx.x >= {}u) return;", groups * threads);
        }
        code.push_str(&body.pool);
        let _ = writeln!(code, "for (u32 row = group; row < real; row += {groups}u) {{");
        code.push_str(&indented(&each, 2));
        code.push_str("}\n");
        let ahead = place + &body.weights[1];
        Ok(made.text("rows", "u32 real", &ahead, &code, groups))
    }

    /// A row of such a region, by `row` in place of `rows`, of a block of `block` threads along its
    /// first axis. Where they are as many as the region's kernel has for a row, the bits are its own.
    ///
    /// # Errors
    /// As for [`Self::of`], and when they are no whole warps.
    pub(in crate::cuda) fn row_of(
        region: &Region,
        roles: &[OperandRole],
        block: u64,
    ) -> Result<Self, LowerError> {
        if block == 0 || !block.is_multiple_of(32) {
            return fail(format!("a row of a block of {block} threads, which are no whole warps"));
        }
        let most = Frame::KERNEL.threads.min(1 << block.ilog2());
        let frame = |_| Frame { threads: most, alone: false, apart: Some(0), ..Frame::KERNEL };
        let made = Made::of(region, roles, frame)?;
        let Made { threads, ref body, .. } = made;
        let place = "const u32 group = 0, lane = threadIdx.x;\n".to_owned();
        let mut code = place.clone();
        if threads < block {
            let _ = writeln!(code, "if (threadIdx.x >= {threads}u) return;");
        }
        code.push_str(&body.pool);
        code.push_str(&made.row());
        let mut ahead = place;
        if threads < block && !body.weights[1].is_empty() {
            let _ = writeln!(ahead, "if (threadIdx.x >= {threads}u) return;");
        }
        ahead.push_str(&body.weights[1]);
        Ok(made.text("row", "u32 row", &ahead, &code, 1))
    }
}

/// A region of one result as groups of threads make its rows.
struct Made {
    literals: String,
    /// Its parameters with their names, and those of its operands without.
    params: String,
    operands: Vec<String>,
    body: Body,
    threads: u64,
    dtype: DType,
    elements: u64,
}

impl Made {
    fn of<'a>(
        region: &Region,
        roles: &[OperandRole],
        frame: impl FnOnce(u64) -> Frame<'a>,
    ) -> Result<Self, LowerError> {
        let row = RowBody::of_region(region, &states(roles))?;
        let source = Source::new(&row)?;
        let result = source.args.last().filter(|_| region.body.outputs().len() == 1);
        let result = result.filter(|r| r.kind == ArgKind::Row);
        let only_reads = !roles.is_empty() && !roles.iter().any(|r| r.state);
        let Some(result) = result.filter(|_| only_reads) else {
            return fail("a region before an op that does not make its rows of operands alone");
        };
        let mut variables = Variables::default();
        let frame = frame(result.elements);
        let component = one_component(plan(&source, &mut variables, frame)?)?;
        let body = component_body(&source, &mut variables, &component, roles, frame)?;
        Ok(Self {
            literals: literals(&source)?,
            params: arguments(&source).join(", "),
            operands: source.args[..region.params.len()].iter().map(pointer).collect(),
            body,
            threads: component.threads.unwrap_or(frame.threads),
            dtype: result.dtype,
            elements: result.elements,
        })
    }

    /// What makes one row.
    fn row(&self) -> String {
        let Body { registers, others, rows, code, .. } = &self.body;
        [registers, &others[0], rows, &others[1], code].into_iter().map(String::as_str).collect()
    }

    fn text(self, name: &str, rows: &str, ahead: &str, code: &str, groups: u64) -> AbsorbedBefore {
        let Self { literals: mut text, params, operands, body, dtype, elements, .. } = self;
        let _ = writeln!(text, "struct Before {{\n{}", indented(&body.weights[0], 2).trim_end());
        let _ = writeln!(text, "  DEVICE void ahead({params}) {{\n{}  }}", indented(ahead, 4));
        let _ = writeln!(
            text,
            "  DEVICE void {name}({params}, const i32* counts, {rows}, u8* pool) {{\n{}  }}\n}};",
            indented(code, 4)
        );
        AbsorbedBefore {
            text,
            operands,
            ahead: body.ahead,
            dtype,
            elements,
            shared: body.shared * groups,
        }
    }
}

impl OfThread {
    /// `struct Before`, whose `load` gives the element at `lane` of `row` of a region of one result,
    /// rounded as if it had been stored.
    ///
    /// # Errors
    /// When the region has another number of results or a state, or an element is made of more than
    /// a thread has.
    pub(in crate::cuda) fn before(
        region: &Region,
        roles: &[OperandRole],
    ) -> Result<Self, LowerError> {
        let row = RowBody::of_region(region, &states(roles))?;
        let source = Source::new(&row)?;
        let result = source.result_argument(0);
        let decl = source.args.get(result).filter(|_| region.body.outputs().len() == 1);
        let Some(decl) = decl.filter(|d| d.kind == ArgKind::Row) else {
            return fail("a region that does not make the rows of one value");
        };
        if roles.iter().any(|role| role.state) {
            return fail("a region that has a state");
        }
        let held = Held::from([(result as u32, vec![(0, "made".to_owned())])]);
        let mut variables = Variables::default();
        let frame = Frame { width: 1, registers: 0, held: &held, ..Frame::KERNEL };
        let component = one_component(plan(&source, &mut variables, frame)?)?;
        if component.threads.is_some() {
            return fail("a region whose elements share work");
        }
        let body = component_body(&source, &mut variables, &component, roles, frame)?;
        let params = arguments(&source)[..result].join(", ");
        let mut text = literals(&source)?;
        let made = format!(
            "{} made;\n{}{}{}return widen(made);\n",
            storage(decl.dtype),
            body.registers,
            body.rows,
            body.code
        );
        let _ = writeln!(
            text,
            "struct Before {{\n  DEVICE {} load({params}, const i32* counts, u32 row, u32 lane) {{\n{}  }}\n}};",
            lane(decl.dtype),
            indented(&made, 4)
        );
        let arguments = source.args[..result].iter().map(pointer).collect();
        Ok(Self { text, arguments })
    }

    /// `struct After` of a region over a product of so many columns, which is its operand at
    /// `product`: `ahead` loads the other operands, and `store` takes elements of the product and
    /// writes the results'. `parts` is 2 for a gate beside what it gates, equal ranges of the columns:
    /// a result has as many elements as one, and a thread has the same element of all. Of one part it
    /// is the parameter `value`, of more `value[part][0]`.
    ///
    /// # Errors
    /// When a result is not element by element of the product's parts, or another reader needs the
    /// product whole.
    pub(in crate::cuda) fn after(
        region: &Region,
        roles: &[OperandRole],
        product: usize,
        [columns, parts]: [u64; 2],
    ) -> Result<Self, LowerError> {
        let row = RowBody::of_region(region, &states(roles))?;
        let source = Source::new(&row)?;
        check_elements(&source, product, [columns, parts])?;
        let elements = columns / parts;
        let lane = lane(source.args[product].dtype);
        let (value, name): (_, fn(u64) -> String) = match parts {
            1 => (format!("{lane} value"), |_| "value".to_owned()),
            _ => (format!("const {lane} (&value)[{parts}][1]"), |i| format!("value[{i}][0]")),
        };
        let registers = (0..parts).map(|i| (i * elements, name(i))).collect();
        let held = Held::from([(product as u32, registers)]);
        let mut variables = Variables::default();
        let frame = Frame { width: 1, held: &held, ..Frame::KERNEL };
        let component = one_component(plan(&source, &mut variables, frame)?)?;
        if component.threads.is_some() {
            return fail("a region after a product that is no map of it");
        }
        let body = component_body(&source, &mut variables, &component, roles, frame)?;
        let of_kernel = |all: Vec<String>| -> Vec<String> {
            let others = (0..).zip(all).filter(|(arg, _)| !held.contains_key(arg));
            others.map(|(_, one)| one).collect()
        };
        let params = of_kernel(arguments(&source)).join(", ");
        let mut text = literals(&source)?;
        let registers = format!("{}{}", body.weights[0], body.others[0]);
        let _ = writeln!(text, "struct After {{\n{}", indented(&registers, 2).trim_end());
        let ahead = format!("{}{}{}", body.rows, body.weights[1], body.others[1]);
        let _ = writeln!(
            text,
            "  DEVICE void ahead({params}, u32 row, u32 lane) {{\n{}  }}",
            indented(&ahead, 4)
        );
        let store = format!("{}{}{}", body.registers, body.rows, body.code);
        let _ = writeln!(
            text,
            "  DEVICE void store({params}, const i32* counts, u32 row, u32 lane, {value}) {{\n{}  }}\n}};",
            indented(&store, 4)
        );
        let arguments = of_kernel(source.args.iter().map(pointer).collect());
        Ok(Self { text, arguments })
    }
}

/// That every result has an element for each of a part of the product, which nothing reads as a
/// table.
fn check_elements(
    source: &Source<'_>,
    product: usize,
    [columns, parts]: [u64; 2],
) -> Result<(), LowerError> {
    let fails = |reason: &str| fail(format!("a region after a product {reason}"));
    let operands = source.args.len() - source.results.len();
    let is_row = |arg: usize, elements: u64| {
        let decl = source.args.get(arg);
        decl.is_some_and(|d| d.kind == ArgKind::Row && d.elements == elements)
    };
    if !columns.is_multiple_of(parts)
        || product >= operands
        || !is_row(product, columns)
        || !(operands..source.args.len()).all(|arg| is_row(arg, columns / parts))
    {
        return fails("whose rows have another length");
    }
    if source.args[..operands].iter().any(|decl| decl.written || decl.state) {
        return fails("that has a state");
    }
    if source.value(product as u32).is_table {
        return fails("that gathers from it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::op::Op;
    use piecewise_ir::text::parse_graph;

    /// `relu(gate) * up + residual`, where a product's first half is the gate.
    const GATED: &str = "graph @gated {
  dim T in [1..64]
  input %y: bf16[T,64]
  input %r: bf16[T,32]
  v0: bf16[T,32] = region over T (%a: row %y, %b: row %r) {
    a0: bf16[32] = slice %a {axis=0, start=0}
    a1: bf16[32] = slice %a {axis=0, start=32}
    a2: bf16[] = literal [0.0]
    a3: bf16[32] = broadcast a2
    a4: bf16[32] = max a0, a3
    a5: bf16[32] = mul a4, a1
    a6: bf16[32] = add a5, %b
    ret a6
  }
  ret v0
}
";

    fn gated() -> Region {
        let graph = parse_graph(GATED).unwrap();
        let node = graph.nodes().next().unwrap();
        let Op::Region(region) = &graph.node(node).op else { panic!("{GATED}") };
        (**region).clone()
    }

    #[test]
    fn halves_of_a_product() {
        let region = gated();
        let roles = vec![OperandRole::default(); 2];
        let after = |parts| OfThread::after(&region, &roles, 0, [64, parts]);
        insta::assert_snapshot!(after(2).map(|a| a.text).unwrap());
        for refused in [1, 3, 4] {
            assert!(after(refused).is_err());
        }
    }
}
