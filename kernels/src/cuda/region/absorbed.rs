//! Regions as parts of another kernel: rows that a block makes for itself before a product, and
//! what becomes of each element of the product.

use super::component_body;
use super::emit::indented;
use super::plan::{Component, Frame, plan};
use super::source::Source;
use super::text;
use super::{OperandRole, arguments, groups_of, literals};
use crate::cuda::index::Variables;
use crate::lower::{ArgKind, LowerError, RowBody};
use piecewise_ir::dtype::DType;
use piecewise_ir::region::Region;
use std::fmt::Write;

/// Threads of the block around it.
const BLOCK: u64 = 256;
/// The block's registers that weights do not take.
const REGISTERS: u64 = 32;

/// A region whose one result's rows a block of 256 threads computes into memory of its own:
/// `struct Before`, whose `ahead` loads what no kernel of the step writes, and whose `rows` does
/// the rest, and leaves the block to meet.
pub(in crate::cuda) struct AbsorbedBefore {
    pub(in crate::cuda) text: String,
    /// The parameters of the operands, without names.
    pub(in crate::cuda) operands: Vec<String>,
    /// The row of the result.
    pub(in crate::cuda) dtype: DType,
    pub(in crate::cuda) elements: u64,
    /// Bytes of shared memory besides the rows.
    pub(in crate::cuda) shared: u64,
}

/// A region that computes elements of its results from the same element of a product:
/// `struct After`, whose `ahead` loads the other operands of an element, and whose `store` takes
/// the product's and writes the results'.
pub(in crate::cuda) struct AbsorbedAfter {
    pub(in crate::cuda) text: String,
    /// The parameters of the operands other than the product, then of the results.
    pub(in crate::cuda) arguments: Vec<String>,
}

fn states(roles: &[OperandRole]) -> Vec<bool> {
    roles.iter().map(|r| r.state).collect()
}

/// The types of a list of parameters.
fn types(params: &[String]) -> Vec<String> {
    let ty = |param: &String| param.rsplit_once(' ').map_or("", |(ty, _)| ty).to_owned();
    params.iter().map(ty).collect()
}

fn one_component(components: Vec<Component>) -> Result<Component, LowerError> {
    let [component] = <[Component; 1]>::try_from(components).map_err(|all| {
        LowerError(format!("a region of {} parts that share no work, beside a product", all.len()))
    })?;
    Ok(component)
}

impl AbsorbedBefore {
    /// The rows of a region of one result, for up to `rows` rows at once.
    ///
    /// # Errors
    /// When the region has another number of results, writes a state, or is none of rows.
    pub(in crate::cuda) fn of(
        region: &Region,
        roles: &[OperandRole],
        rows: u64,
    ) -> Result<Self, LowerError> {
        let row = RowBody::of_region(region, &states(roles))?;
        let source = Source::new(&row)?;
        let result = source.args.last().filter(|_| region.body.outputs().len() == 1);
        let result = result.filter(|r| r.kind == ArgKind::Row);
        let only_reads = !roles.is_empty() && !roles.iter().any(|r| r.state);
        let Some(result) = result.filter(|_| only_reads) else {
            return Err(LowerError(
                "a region before a product that does not make its rows of operands alone"
                    .to_owned(),
            ));
        };
        let mut variables = Variables::default();
        let frame = Frame {
            threads: (BLOCK / rows.next_power_of_two()).clamp(32, BLOCK),
            kept: 16,
            registers: REGISTERS,
            alone: false,
            ..Frame::KERNEL
        };
        let component = one_component(plan(&source, &mut variables, frame)?)?;
        let body = component_body(&source, &mut variables, &component, roles, None)?;
        let threads = component.threads.unwrap_or(BLOCK);
        let groups = groups_of(BLOCK, threads, body.shared).min(rows);
        let params = arguments(&source).join(", ");
        // One group's barrier is a constant, which leaves others to the blocks beside this one.
        let group = if groups > 1 { format!("threadIdx.x / {threads}u") } else { "0".to_owned() };
        let place = format!("const u32 group = {group}, lane = threadIdx.x % {threads}u;\n");
        let mut each = String::new();
        for part in [&body.registers, &body.others[0], &body.rows, &body.others[1], &body.code] {
            each.push_str(part);
        }
        if body.shared > 0 {
            // The next row takes the same shared memory.
            let _ = writeln!(each, "meet<{threads}>(group);");
        }
        let mut made = place.clone();
        if groups * threads < BLOCK {
            let _ = writeln!(made, "if (threadIdx.x >= {}u) return;", groups * threads);
        }
        made.push_str(&body.pool);
        let _ = writeln!(made, "for (u32 row = group; row < real; row += {groups}u) {{");
        made.push_str(&indented(&each, 2));
        made.push_str("}\n");
        let mut text = literals(&source)?;
        let _ = writeln!(text, "struct Before {{\n{}", indented(&body.weights[0], 2).trim_end());
        let ahead = indented(&(place + &body.weights[1]), 4);
        let _ = writeln!(text, "  DEVICE void ahead({params}) {{\n{ahead}  }}");
        let _ = writeln!(
            text,
            "  DEVICE void rows({params}, const i32* counts, u32 real, u8* pool) {{\n{}  }}\n}};",
            indented(&made, 4)
        );
        let mut operands = types(&arguments(&source));
        operands.pop();
        Ok(Self {
            text,
            operands,
            dtype: result.dtype,
            elements: result.elements,
            shared: body.shared * groups,
        })
    }
}

impl AbsorbedAfter {
    /// The elements of a region over a product of `columns` columns, which is its operand at
    /// `product`.
    ///
    /// # Errors
    /// When a result is not element by element of the product, or another reader needs it whole.
    pub(in crate::cuda) fn of(
        region: &Region,
        roles: &[OperandRole],
        product: usize,
        columns: u64,
    ) -> Result<Self, LowerError> {
        let row = RowBody::of_region(region, &states(roles))?;
        let source = Source::new(&row)?;
        check_elements(&source, region.params.len(), product, columns)?;
        let mut variables = Variables::default();
        let product = product as u32;
        let frame = Frame { width: 1, product: Some(product), ..Frame::KERNEL };
        let component = one_component(plan(&source, &mut variables, frame)?)?;
        if component.threads.is_some() {
            return Err(LowerError("a region after a product that is no map of it".to_owned()));
        }
        let body = component_body(&source, &mut variables, &component, roles, Some(product))?;
        let mut all = arguments(&source);
        all.remove(product as usize);
        let params = all.join(", ");
        let mut text = literals(&source)?;
        let registers = format!("{}{}", body.weights[0], body.others[0]);
        let _ = writeln!(text, "struct After {{\n{}", indented(&registers, 2).trim_end());
        let ahead = format!("{}{}{}", body.rows, body.weights[1], body.others[1]);
        let _ = writeln!(
            text,
            "  DEVICE void ahead({params}, u32 row, u32 lane) {{\n{}  }}",
            indented(&ahead, 4)
        );
        let lane = text::lane(source.args[product as usize].dtype);
        let store = format!("{}{}{}", body.registers, body.rows, body.code);
        let _ = writeln!(
            text,
            "  DEVICE void store({params}, const i32* counts, u32 row, u32 lane, {lane} value) {{\n{}  }}\n}};",
            indented(&store, 4)
        );
        Ok(Self { text, arguments: types(&all) })
    }
}

/// That every result has an element for each of the product, which nothing reads as a table.
fn check_elements(
    source: &Source<'_>,
    operands: usize,
    product: usize,
    columns: u64,
) -> Result<(), LowerError> {
    let fails = |reason: &str| Err(LowerError(format!("a region after a product {reason}")));
    let is_row = |arg: usize| {
        let decl = source.args.get(arg);
        decl.is_some_and(|d| d.kind == ArgKind::Row && d.elements == columns)
    };
    if !is_row(product) || !(operands..source.args.len()).all(is_row) {
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
