//! Regions and single nodes as CUDA C++.
//!
//! A kernel computes the rows of a region's body. Values are pulled: a result is an expression of its
//! index, index remaps are arithmetic, and only what several threads need is a loop of its own.
//! Each typed value is rounded to its dtype where the unfused ops would round it. Sums have a
//! fixed order that depends on the region alone, never on the number of rows.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

mod absorbed;
mod component;
mod cut;
mod emit;
mod load;
mod plan;
mod planner;
mod reads;
mod roots;
mod source;
mod stage;
pub(super) mod text;
mod widths;

pub(super) use absorbed::{AbsorbedBefore, OfThread, RowsOfBlock};
pub use cut::{PartParam, RegionPart};

use super::index::Variables;
use crate::cuda::text::{lane, storage};
use crate::lower::{ArgDecl, ArgKind, LowerError, RowBody, fail};
use crate::op::Blocks;
use crate::op::cuda::{GridAxis, LaunchRecipe, OperandRole, Param, Scalar};
use component::{Component, Frame, Kept};
use emit::{Emitter, indented};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::op::Op;
use piecewise_ir::region::Region;
use piecewise_ir::text::print_graph;
use piecewise_ir::types::TensorType;
use source::{From, Source, is_uniform};
use stage::Stages;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Threads of a block that works on small rows.
const SMALL_BLOCK: u64 = 128;
/// Threads of a block whose threads work alone.
const ALONE_BLOCK: u64 = 256;
/// The most groups of threads of a block: each needs a barrier of its own.
const MOST_GROUPS: u64 = 8;
/// Shared memory of a block.
const POOL_BYTES: u64 = 48 << 10;

/// The kernel of a region. `roles[i]` says what operand `i` of its node is. Arguments are the
/// operands, then the results; every address is a multiple of 16.
///
/// # Errors
/// When a statement is none of rows, or the region is too large for one kernel.
pub fn region_kernel(region: &Region, roles: &[OperandRole]) -> Result<LaunchRecipe, LowerError> {
    region_kernel_in(region, roles, Frame::KERNEL)
}

/// The same with fewer threads for each row, in which sums have another order; `None` where no row is so
/// long that it is another kernel than `usual`, what [`region_kernel`] gives.
///
/// # Errors
/// As for [`region_kernel`].
pub fn narrow_region_kernel(
    region: &Region,
    roles: &[OperandRole],
    usual: &LaunchRecipe,
) -> Result<Option<LaunchRecipe>, LowerError> {
    let narrow = region_kernel_in(region, roles, Frame::NARROW)?;
    Ok((narrow != *usual).then_some(narrow))
}

fn region_kernel_in(
    region: &Region,
    roles: &[OperandRole],
    frame: Frame<'_>,
) -> Result<LaunchRecipe, LowerError> {
    let body = RowBody::of_region(region, &states(roles))?;
    row_kernel(&body, roles, "region", &listing(region), frame)
}

/// The kernel of a primitive node outside regions, other than a matmul.
///
/// # Errors
/// When its rows mix, or it is too large for one kernel.
pub fn node_kernel(
    op: &Op,
    operands: &[TensorType],
    roles: &[OperandRole],
    results: &[TensorType],
) -> Result<LaunchRecipe, LowerError> {
    let body = RowBody::of_node(op, operands, &states(roles), results)?;
    row_kernel(&body, roles, &format!("node_{}", op.mnemonic()), op.mnemonic(), Frame::KERNEL)
}

fn states(roles: &[OperandRole]) -> Vec<bool> {
    roles.iter().map(|role| role.state).collect()
}

/// The statements of a region's body, without names that only people need.
fn listing(region: &Region) -> String {
    print_graph(&region.body)
        .lines()
        .filter(|line| {
            let line = line.trim_start();
            !line.starts_with("graph") && !line.starts_with("dim") && line != "}"
        })
        .map(|line| {
            let end = line.find("  #").or_else(|| line.find("  @")).unwrap_or(line.len());
            format!("{}\n", line[..end].trim())
        })
        .collect()
}

/// One component's text and what its blocks work on.
struct Part {
    code: String,
    /// The arguments that it reads before the wait.
    ahead: BTreeSet<u32>,
    /// Units of work for each row, and how many a block takes.
    units: u64,
    per_block: u64,
}

fn row_kernel(
    body: &RowBody<'_>,
    roles: &[OperandRole],
    name: &str,
    listing: &str,
    frame: Frame<'_>,
) -> Result<LaunchRecipe, LowerError> {
    let mut source = Source::new(body)?;
    source.is_kernel = true;
    let mut variables = Variables::default();
    let components = plan::plan(&source, &mut variables, frame)?;
    let grouped = components.iter().filter_map(|c| c.threads).max();
    let block = grouped.map_or(ALONE_BLOCK, |threads| threads.max(SMALL_BLOCK));
    let mut parts = Vec::new();
    let mut ahead = BTreeSet::new();
    let mut pool_bytes = 0;
    for component in &components {
        let (part, pool) = component_text(&source, &mut variables, component, roles, block, frame)?;
        pool_bytes = pool_bytes.max(pool);
        ahead.extend(&part.ahead);
        parts.push(part);
    }
    if pool_bytes > POOL_BYTES {
        return fail(format!(
            "a region that needs {pool_bytes} bytes of shared memory for one row; cut it"
        ));
    }
    let rows = source.over.map_or(Dim::constant(1), Dim::from);
    let mut params: Vec<Param> = (0..source.args.len()).map(|i| Param::Arg(i as u32)).collect();
    params.push(Param::Counts);
    params.push(Param::size(rows.clone()));
    let lengths = (0..source.args.len()).filter_map(|arg| source.length(arg));
    params.extend(lengths.map(|rows| Param::Scalar(Scalar::U64(rows))));
    let blocks = parts
        .iter()
        .map(|part| Blocks {
            units: rows.times(i64::try_from(part.units).unwrap_or(i64::MAX)),
            per_block: part.per_block,
        })
        .collect();
    let text = kernel_text(&source, name, listing, &parts, block, pool_bytes)?;
    let launch = LaunchRecipe::own(text, name, GridAxis::Blocks(blocks).alone(), block, params);
    let ahead = ahead.into_iter().collect();
    Ok(LaunchRecipe { static_shared: pool_bytes as u32, ahead, ..launch })
}

/// What a component's threads run, in order.
struct Body {
    /// Registers of the stages.
    registers: String,
    /// Registers of leaves loaded ahead, and their loads: of what no kernel writes, and of others.
    weights: [String; 2],
    others: [String; 2],
    /// The arguments of which no kernel writes what is loaded ahead.
    ahead: BTreeSet<u32>,
    /// Where each row argument's row starts.
    rows: String,
    /// Shared memory of one group, and its bytes.
    pool: String,
    shared: u64,
    code: String,
}

fn component_body(
    source: &Source<'_>,
    variables: &mut Variables,
    component: &Component,
    roles: &[OperandRole],
    frame: Frame<'_>,
) -> Result<Body, LowerError> {
    let held = frame.held;
    let mut emitter = Emitter {
        source,
        variables,
        component,
        scopes: Vec::new(),
        flat: None,
        width: 1,
        making: None,
        in_registers: BTreeSet::new(),
        computed: BTreeSet::new(),
        reduced: BTreeMap::new(),
        held,
        roles,
        names: 0,
    };
    let mut stages = Stages::default();
    for stage in &component.stages {
        emitter.stage(stage, &mut stages)?;
    }
    let mut registers = std::mem::take(&mut stages.registers);
    for (&value, kept) in &component.kept {
        if let Kept::Registers { elements } = kept {
            let width = component.width(*elements);
            let rounds = component.rounds(*elements, width);
            let lane = lane(source.value(value).dtype);
            let name = emitter.named('r', value);
            let _ = writeln!(registers, "{lane} {name}[{rounds}][{width}];");
        }
    }
    let is_weight = |&arg: &u32| {
        source.args[arg as usize].kind != ArgKind::Row
            && roles.get(arg as usize).is_some_and(|r| r.weight)
    };
    let ahead: BTreeSet<u32> =
        component.carried.iter().filter_map(|c| source.operand(c.0)).filter(is_weight).collect();
    let weights = emitter.load_ahead(true, &ahead)?;
    let others = emitter.load_ahead(false, &ahead)?;
    let mut rows = String::new();
    for (i, decl) in source.args.iter().enumerate() {
        if decl.kind != ArgKind::Row || held.contains_key(&(i as u32)) {
            continue;
        }
        let is_result = i + source.results.len() >= source.args.len();
        let apart = frame.apart.filter(|_| is_result).unwrap_or(decl.elements);
        let _ = writeln!(rows, "{} const x{i} = a{i} + (u64)row * {apart}ull;", pointer(decl));
    }
    let shared = if component.threads.is_some() { stages.pool.bytes() } else { 0 };
    let pool = stages.pool.declarations(shared);
    Ok(Body { registers, weights, others, ahead, rows, pool, shared, code: stages.code })
}

/// Groups of `threads` threads of a block, where each takes `shared` bytes.
fn groups_of(block: u64, threads: u64, shared: u64) -> u64 {
    let fits = POOL_BYTES.checked_div(shared).unwrap_or(MOST_GROUPS).max(1);
    (block / threads).min(MOST_GROUPS).min(fits)
}

fn component_text(
    source: &Source<'_>,
    variables: &mut Variables,
    component: &Component,
    roles: &[OperandRole],
    block: u64,
    frame: Frame<'_>,
) -> Result<(Part, u64), LowerError> {
    let body = component_body(source, variables, component, roles, frame)?;
    let (units, per_block, head) = match component.threads {
        None => {
            let first = &component.stages[0];
            let chunks = first.elements / component.width(first.elements);
            let head = format!(
                "const u32 unit = block * {block}u + threadIdx.x;\nconst u32 row = unit / {chunks}u, lane = unit % {chunks}u;\n"
            );
            (chunks, block, head)
        }
        Some(threads) => {
            let groups = groups_of(block, threads, body.shared);
            let head = format!(
                "const u32 group = threadIdx.x / {threads}u, lane = threadIdx.x % {threads}u;\nconst u32 row = block * {groups}u + group;\n"
            );
            (1, groups, head)
        }
    };
    let mut code = head;
    code.push_str(&body.registers);
    code.push_str(&body.weights[0]);
    code.push_str(&body.others[0]);
    if !body.weights[1].is_empty() {
        code.push_str("// weights: before the wait, for no kernel of the step writes them\n");
        code.push_str(&body.weights[1]);
    }
    if let Some(over) = source.over {
        // No kernel of a step writes its counts.
        let _ = writeln!(code, "const i32 real = counts[{}];", over.index());
    }
    code.push_str("PW_WAIT();\n");
    let partial = component.threads.is_some_and(|threads| per_block * threads < block);
    let past = match (source.over, partial) {
        (Some(_), true) => {
            format!("group >= {per_block}u || row >= rows || (i32)row >= real")
        }
        (None, true) => format!("group >= {per_block}u || row >= rows"),
        (Some(_), false) => "row >= rows || (i32)row >= real".to_owned(),
        (None, false) => "row >= rows".to_owned(),
    };
    let _ = writeln!(code, "if ({past}) return;");
    for part in [&body.rows, &body.others[1], &body.pool, &body.code] {
        code.push_str(part);
    }
    let pool = body.shared * if component.threads.is_some() { per_block } else { 1 };
    Ok((Part { code, ahead: body.ahead, units, per_block }, pool))
}

/// A line of a listing; of the declaration of a table, with its parameter in the place of its length.
fn with_lengths(source: &Source<'_>, line: &str) -> String {
    let declared = line.strip_prefix("input %a").and_then(|rest| rest.split_once(": "));
    let Some((number, ty)) = declared else { return line.to_owned() };
    let arg = number.parse().unwrap_or(usize::MAX);
    let rows = source.length(arg).and_then(|rows| rows.as_constant());
    match rows.and_then(|rows| ty.split_once(&format!("[{rows}"))) {
        Some((dtype, rest)) => format!("input %a{arg}: {dtype}[extent{arg}{rest}"),
        None => line.to_owned(),
    }
}

/// The parameters of a row's arguments.
fn arguments(source: &Source<'_>) -> Vec<String> {
    source.args.iter().enumerate().map(|(i, decl)| format!("{} a{i}", pointer(decl))).collect()
}

/// The type of a parameter.
fn pointer(decl: &ArgDecl) -> String {
    let constant = if decl.written { "" } else { "const " };
    format!("{constant}{}*", storage(decl.dtype))
}

/// The constants of several elements.
fn literals(source: &Source<'_>) -> Result<String, LowerError> {
    let mut out = String::new();
    for (id, value) in (0..).zip(&source.values) {
        let From::Literal(literal) = value.from else { continue };
        if is_uniform(literal) {
            continue;
        }
        let storage = match value.dtype {
            DType::F32 => "i32",
            DType::F16
            | DType::BF16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::Bool
            | DType::E4M3
            | DType::I4 => storage(value.dtype),
        };
        let list = text::initializers(value.dtype, literal.bytes(), value.elements as usize)?;
        let _ = writeln!(
            out,
            "alignas(16) __device__ const {storage} l{}[{}] = {{\n{list}}};",
            source.number(id),
            value.elements
        );
    }
    Ok(out)
}

fn kernel_text(
    source: &Source<'_>,
    name: &str,
    listing: &str,
    parts: &[Part],
    block: u64,
    pool_bytes: u64,
) -> Result<String, LowerError> {
    let mut out = String::from("#include \"prelude.cuh\"\n\n");
    for line in listing.lines() {
        let _ = writeln!(out, "// {}", with_lengths(source, line));
    }
    out.push_str(&literals(source)?);
    let mut params = arguments(source);
    params.push("const i32* counts".to_owned());
    params.push("u32 rows".to_owned());
    let lengths = (0..source.args.len()).filter(|arg| source.length(*arg).is_some());
    params.extend(lengths.map(|arg| format!("u64 extent{arg}")));
    let _ = writeln!(
        out,
        "\nextern \"C\" __global__ void __launch_bounds__({block}) {name}(\n    {}) {{",
        params.join(",\n    ")
    );
    out.push_str("  PW_LAUNCH_DEPENDENTS();\n");
    if pool_bytes > 0 {
        let _ = writeln!(out, "  __shared__ alignas(16) u8 pool[{pool_bytes}];");
    }
    out.push_str("  u32 block = blockIdx.x;\n");
    for (i, part) in parts.iter().enumerate() {
        if i + 1 == parts.len() {
            out.push_str("  {\n");
            out.push_str(&indented(&part.code, 4));
            out.push_str("  }\n");
            continue;
        }
        let _ = writeln!(
            out,
            "  const u32 blocks{i} = blocks_for(rows * {}u, {}u);\n  if (block < blocks{i}) {{",
            part.units, part.per_block
        );
        out.push_str(&indented(&part.code, 4));
        let _ = writeln!(out, "    return;\n  }}\n  block -= blocks{i};");
    }
    if parts.is_empty() {
        out.push_str("  PW_WAIT();\n");
    }
    out.push_str("}\n");
    Ok(out)
}
