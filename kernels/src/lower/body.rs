//! What computes one row, as a graph: the body of a region, or a node outside regions.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::error::{LowerError, fail, narrow};
use super::row_program::{ArgDecl, ArgKind};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::op::{Op, RowTreatment, row_treatment};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::text::Names;
use piecewise_ir::types::TensorType;
use std::borrow::Cow;

/// The extents of a type that a row has.
pub(super) fn static_dims(ty: &TensorType) -> Result<Vec<u64>, LowerError> {
    let elements = ty.static_elements();
    match (ty.static_shape(), elements) {
        (Some(dims), Some(n)) if n <= 1 << 40 => Ok(dims),
        (Some(_), _) => fail("a row of more than 2^40 elements; split the axis"),
        _ => fail("a row has a symbolic extent; only the outermost axis may be symbolic"),
    }
}

/// The computation of one row.
pub(crate) struct RowBody<'a> {
    /// The symbol whose rows there are; `None` for a single row.
    pub(crate) over: Option<Symbol>,
    /// The operands, in the order of the graph's inputs.
    pub(crate) operands: Vec<ArgDecl>,
    /// The computation; every value is defined before it is used.
    pub(crate) graph: Cow<'a, Graph>,
    /// The input after the operands that is the number of the row, an `i64`.
    pub(crate) row_number: Option<Value>,
}

impl ArgDecl {
    /// An operand of which the body sees `ty`.
    fn operand(mode: ParamMode, ty: &TensorType, state: bool) -> Result<Self, LowerError> {
        let mutated = mode == ParamMode::Mut && ty.rank() > 0;
        let table = mutated || (mode != ParamMode::Row && ty.outer_symbol().is_some());
        let shape = if table { static_dims(&ty.row())? } else { static_dims(ty)? };
        if table && ty.outer_symbol().is_none() && ty.shape[0].as_constant().is_none() {
            return fail("a table whose extent is neither static nor one symbol");
        }
        Ok(Self {
            kind: match mode {
                ParamMode::Row => ArgKind::Row,
                ParamMode::Whole | ParamMode::Mut if table => ArgKind::Table,
                ParamMode::Whole | ParamMode::Mut => ArgKind::Whole,
            },
            dtype: ty.dtype,
            elements: shape.iter().product(),
            written: mode == ParamMode::Mut,
            extent: ty.outer_symbol().filter(|_| table),
            rows: ty.shape.first().and_then(Dim::as_constant).filter(|_| table).unwrap_or(0),
            state,
        })
    }

    /// A result whose row has so many elements.
    pub(crate) fn result(dtype: DType, elements: u64) -> Self {
        Self {
            kind: ArgKind::Row,
            dtype,
            elements,
            written: true,
            extent: None,
            rows: 0,
            state: false,
        }
    }
}

/// Refuses narrow dtypes, which no kernel of rows has.
fn wide<'t>(mut types: impl Iterator<Item = &'t TensorType>) -> Result<(), LowerError> {
    match types.find(|ty| ty.dtype.is_narrow()) {
        None => Ok(()),
        Some(ty) => fail(narrow(ty.dtype)),
    }
}

impl<'a> RowBody<'a> {
    /// The body of a region. `states[i]` says whether operand `i` of its node is a state.
    pub(crate) fn of_region(region: &'a Region, states: &[bool]) -> Result<Self, LowerError> {
        let graph = &region.body;
        if region.params.len() != graph.inputs().len() || states.len() != region.params.len() {
            return fail(format!(
                "the region has {} parameters but its body {} inputs",
                region.params.len(),
                graph.inputs().len()
            ));
        }
        let operands = graph
            .inputs()
            .iter()
            .zip(&region.params)
            .zip(states)
            .map(|((input, &mode), &state)| ArgDecl::operand(mode, graph.ty(input.value), state))
            .collect::<Result<_, _>>()?;
        let mut defined = vec![false; graph.value_count()];
        graph.inputs().iter().for_each(|input| defined[input.value.index()] = true);
        let undefined = |defined: &[bool], values: &[Value]| {
            values.iter().find(|v| !defined[v.index()]).map(|v| Names::of_body(graph).value(*v))
        };
        for node in graph.nodes() {
            let data = graph.node(node);
            if let Some(name) = undefined(&defined, &data.operands) {
                return fail(format!("{name} is used before it is defined"));
            }
            let types = (graph.operand_types(node), graph.result_types(node));
            if let Err(error) = piecewise_ir::op::check_types(&data.op, &types.0, &types.1) {
                return fail(error.to_string());
            }
            wide(types.0.iter().chain(&types.1))?;
            data.results.iter().for_each(|v| defined[v.index()] = true);
        }
        if let Some(name) = undefined(&defined, graph.outputs()) {
            return fail(format!("{name} is returned but never defined"));
        }
        let graph = Cow::Borrowed(graph);
        Ok(Self { over: Some(region.over), operands, graph, row_number: None })
    }

    /// One primitive. `states[i]` says whether operand `i` is a state.
    ///
    /// Its rows are those of the outermost symbol of the result (of the slots, for a scatter);
    /// where that axis is static, the whole op is one row.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "`Op::on_row` says of each op what it is on one row"
    )]
    pub(crate) fn of_node(
        op: &Op,
        operands: &[TensorType],
        states: &[bool],
        results: &[TensorType],
    ) -> Result<Self, LowerError> {
        if states.len() != operands.len() {
            return fail("as many operands as state flags are needed");
        }
        if let Err(error) = piecewise_ir::op::check_types(op, operands, results) {
            return fail(error.to_string());
        }
        wide(operands.iter().chain(results))?;
        let over = if *op == Op::Scatter {
            operands[1].outer_symbol()
        } else {
            results.first().and_then(TensorType::outer_symbol)
        };
        if let Some(symbol) = over
            && !matches!(op, Op::Gather | Op::Iota { .. })
            && row_treatment(op, operands, results, symbol) == RowTreatment::Mixed
        {
            return fail(format!(
                "`{}` mixes rows of a symbolic axis; make it a custom op",
                op.mnemonic()
            ));
        }
        let (mut graph, mut decls, mut values) = (Graph::new("node"), Vec::new(), Vec::new());
        for (i, (ty, &state)) in operands.iter().zip(states).enumerate() {
            let mode = match op {
                Op::Scatter if i == 0 => ParamMode::Mut,
                Op::Gather if i == 0 => ParamMode::Whole,
                // A broadcast adds the rows.
                Op::Broadcast if ty.outer_symbol() != over || over.is_none() => ParamMode::Whole,
                _ if over.is_some() && ty.outer_symbol() == over => ParamMode::Row,
                _ => ParamMode::Whole,
            };
            let seen = if mode == ParamMode::Row { ty.row() } else { ty.clone() };
            decls.push(ArgDecl::operand(mode, &seen, state)?);
            values.push(graph.add_input(format!("p{i}"), seen, None, None));
        }
        let loc = Loc::default();
        let Some(symbol) = over else {
            let node = graph.push_node(op.clone(), values, results.to_vec(), loc);
            graph.set_outputs(graph.node(node).results.clone());
            let graph = Cow::Owned(graph);
            return Ok(Self { over, operands: decls, graph, row_number: None });
        };
        // The op on one row: axes move in by one, and what only touches the outer axis vanishes.
        let rows: Vec<TensorType> = results.iter().map(TensorType::row).collect();
        let mut row_number = None;
        let op = match op {
            Op::Iota { axis: 0 } => {
                let number = TensorType::scalar(DType::I64);
                let number = graph.add_input("row", number, None, None);
                row_number = Some(number);
                let rounded = TensorType::scalar(rows[0].dtype);
                values = vec![graph.push(Op::Cast, vec![number], rounded, loc.clone())];
                Op::Broadcast
            }
            Op::Broadcast
                if operands[0].rank() == results[0].rank()
                    && operands[0].outer_symbol() != Some(symbol) =>
            {
                // The outer axis has extent 1, which every row sees.
                if operands[0].shape[0] != Dim::constant(1) {
                    return fail("a broadcast of a static extent to a symbolic one");
                }
                let row = operands[0].row();
                values = vec![graph.push(Op::Reshape, values, row, loc.clone())];
                Op::Broadcast
            }
            op => match op.on_row() {
                Some(op) => op,
                None => return fail(format!("`{}` works along a symbolic axis", op.mnemonic())),
            },
        };
        let node = graph.push_node(op, values, rows, loc);
        graph.set_outputs(graph.node(node).results.clone());
        Ok(Self { over, operands: decls, graph: Cow::Owned(graph), row_number })
    }
}
