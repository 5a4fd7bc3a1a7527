//! A region's row as part of another kernel: some neighbouring threads of a block make a range of
//! its elements in memory of their own.

use super::absorbed::{one_component, states};
use super::component::Frame;
use super::emit::indented;
use super::plan::plan;
use super::source::Source;
use super::{OperandRole, arguments, component_body, literals, pointer};
use crate::cuda::index::Variables;
use crate::cuda::text::storage;
use crate::lower::{ArgKind, LowerError, RowBody};
use piecewise_ir::region::Region;
use std::fmt::Write;

/// Registers of a thread for values kept and loaded ahead.
const REGISTERS: u64 = 48;

/// Who makes a row.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct RowMakers<'a> {
    /// The name of the structure.
    pub(in crate::cuda) name: &'a str,
    /// The most threads; those of a warp at least.
    pub(in crate::cuda) threads: u64,
    /// Equal ranges of the elements, of which they make one.
    pub(in crate::cuda) parts: u64,
    /// Their number among such threads of the block, whose barrier they take.
    pub(in crate::cuda) group: u64,
}

/// Row 0 of a region of one result: a structure whose `ask` and then `ahead` load what no kernel of
/// the step writes, whose `fetch` loads what others write, and whose `make` does the rest, for the
/// thread `lane` of those that make it and the range `part`. The result's address is that of the
/// whole row.
pub(in crate::cuda) struct AbsorbedRow {
    pub(in crate::cuda) text: String,
    /// The parameters of the operands, without names.
    pub(in crate::cuda) operands: Vec<String>,
    /// Which operands `ahead` reads.
    pub(in crate::cuda) ahead: Vec<usize>,
    /// Threads that make it.
    pub(in crate::cuda) threads: u64,
    /// Elements of the whole row.
    pub(in crate::cuda) elements: u64,
    /// The type of the result in memory.
    pub(in crate::cuda) storage: &'static str,
    /// Bytes of shared memory besides the row.
    pub(in crate::cuda) shared: u64,
}

impl AbsorbedRow {
    /// # Errors
    /// When the region has another number of results, touches a state, is none of rows, or its
    /// parts are not apart.
    pub(in crate::cuda) fn of(
        region: &Region,
        roles: &[OperandRole],
        makers: RowMakers<'_>,
    ) -> Result<Self, LowerError> {
        let RowMakers { name, parts, group, .. } = makers;
        let row = RowBody::of_region(region, &states(roles))?;
        let source = Source::new(&row)?;
        let result = source.args.last().filter(|_| region.body.outputs().len() == 1);
        let result = result.filter(|r| r.kind == ArgKind::Row && r.elements.is_multiple_of(parts));
        let Some(result) = result.filter(|_| !roles.iter().any(|r| r.state)) else {
            return Err(LowerError("a region that does not make one row".to_owned()));
        };
        let mut variables = Variables::default();
        let frame = Frame {
            threads: makers.threads,
            kept: 16,
            registers: REGISTERS,
            alone: false,
            parts,
            gathers: Some(roles),
            ..Frame::KERNEL
        };
        let component = one_component(plan(&source, &mut variables, frame)?)?;
        let body = component_body(&source, &mut variables, &component, roles, frame.held)?;
        let params = arguments(&source).join(", ");
        let row = format!("const u32 row = 0;\n{}", body.rows);
        let mut text = format!("namespace of_{name} {{\n{}", literals(&source)?);
        let registers = format!("{}{}", body.weights[0], body.others[0]);
        let _ = writeln!(text, "struct Row {{\n{}", indented(&registers, 2).trim_end());
        let loads =
            [("ask", &body.weights[2]), ("ahead", &body.weights[1]), ("fetch", &body.others[1])];
        for (load, code) in loads {
            let code = indented(&format!("{row}{code}"), 4);
            let _ =
                writeln!(text, "  DEVICE void {load}({params}, u32 lane, u32 part) {{\n{code}  }}");
        }
        // Its shared memory is its own, whatever group it is.
        let mut made = format!("const u32 group = {group}u;\npool -= group * {}u;\n", body.shared);
        for code in [&body.registers, &row, &body.pool, &body.code] {
            made.push_str(code);
        }
        let _ = writeln!(
            text,
            "  DEVICE void make({params}, const i32* counts, u8* pool, u32 lane, u32 part) {{\n{}  }}\n}};\n}}",
            indented(&made, 4)
        );
        let of_operands = &source.args[..region.params.len()];
        let mut ahead = Vec::new();
        for (i, role) in roles.iter().enumerate() {
            if role.weight || role.staged {
                ahead.push(i);
            }
        }
        Ok(Self {
            text,
            operands: of_operands.iter().map(pointer).collect(),
            ahead,
            threads: component.threads.unwrap_or(makers.threads),
            elements: result.elements,
            storage: storage(result.dtype),
            shared: body.shared,
        })
    }
}
