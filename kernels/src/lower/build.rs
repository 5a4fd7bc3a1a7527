//! From the body of a row to a row program.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::body::{RowBody, static_dims};
use super::error::{LowerError, fail};
use super::finish;
use super::row_program::{ArgDecl, ArgKind, MapOp, Place, PlaceKind, RowProgram, RowStep};
use super::view::{View, dense, nest_of};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Entity, Symbol, Value};
use piecewise_ir::literal::Literal;
use piecewise_ir::op::{Op, OpClass};
use piecewise_ir::region::Region;
use piecewise_ir::types::TensorType;

/// Lowers a region. `states[i]` says whether operand `i` of its node is a state.
///
/// # Errors
/// When a statement has no row program: an inner dimension that is symbolic, a matmul, a region
/// or a custom op inside, or a state that is both read and scattered into.
pub fn lower_region(region: &Region, states: &[bool]) -> Result<RowProgram, LowerError> {
    Builder::program(&RowBody::of_region(region, states)?)
}

/// Lowers one primitive. `states[i]` says whether operand `i` is a state.
///
/// Its rows are those of the outermost symbol of the result (of the slots, for a scatter); where
/// that axis is static, the whole op is one row.
///
/// # Errors
/// When rows of a symbol mix (a reduction, a concat, a permutation over it), which no row program
/// can do, or a type has a symbol further in.
pub fn lower_node(
    op: &Op,
    operands: &[TensorType],
    states: &[bool],
    results: &[TensorType],
) -> Result<RowProgram, LowerError> {
    Builder::program(&RowBody::of_node(op, operands, states, results)?)
}

/// A row program under construction.
pub(super) struct Builder {
    pub(super) over: Option<Symbol>,
    pub(super) args: Vec<ArgDecl>,
    pub(super) places: Vec<Place>,
    pub(super) steps: Vec<RowStep>,
    pub(super) constants: Vec<u64>,
}

impl Builder {
    fn program(body: &RowBody<'_>) -> Result<RowProgram, LowerError> {
        let graph = &body.graph;
        let mut builder = Self {
            over: body.over,
            args: Vec::new(),
            places: Vec::new(),
            steps: Vec::new(),
            constants: Vec::new(),
        };
        let mut values: Vec<Option<View>> = vec![None; graph.value_count()];
        for (input, decl) in graph.inputs().iter().zip(&body.operands) {
            values[input.value.index()] = Some(builder.param(decl, graph.ty(input.value))?);
        }
        if let Some(number) = body.row_number {
            let out = builder.temp(DType::I64, &[]);
            builder.map_into(MapOp::RowNumber, &[], &out);
            values[number.index()] = Some(out);
        }
        let views = |values: &[Option<View>], of: &[Value]| -> Vec<View> {
            of.iter().filter_map(|v| values[v.index()].clone()).collect()
        };
        for node in graph.nodes() {
            let data = graph.node(node);
            let operands = views(&values, &data.operands);
            let results = builder.op(&data.op, &operands, &graph.result_types(node))?;
            for (value, view) in data.results.iter().zip(results) {
                values[value.index()] = Some(view);
            }
        }
        builder.finish(&views(&values, graph.outputs()))
    }

    /// Declares the next operand; `ty` is what the body sees of it.
    fn param(&mut self, decl: &ArgDecl, ty: &TensorType) -> Result<View, LowerError> {
        let table = decl.kind == ArgKind::Table;
        let shape = if table { static_dims(&ty.row())? } else { static_dims(ty)? };
        let row_stride = if decl.kind == ArgKind::Row { decl.elements } else { 0 };
        let kind = PlaceKind::Arg(self.args.len() as u32);
        let place = self.place(kind, decl.dtype, decl.elements, row_stride);
        self.args.push(*decl);
        let mut view = View::dense(place, &shape);
        if table {
            // Its outermost extent is known at the call only; gathers and scatters ask for it.
            view.dims.insert(0, super::view::Axis { extent: 0, stride: decl.elements });
        }
        Ok(view)
    }

    fn place(&mut self, kind: PlaceKind, dtype: DType, elements: u64, row_stride: u64) -> u32 {
        self.places.push(Place { kind, dtype, row_stride, elements });
        (self.places.len() - 1) as u32
    }

    /// A fresh temporary of a row; its offset is set when all steps are known.
    pub(super) fn temp(&mut self, dtype: DType, shape: &[u64]) -> View {
        let elements = shape.iter().product();
        let place = self.place(PlaceKind::Temp(0), dtype, elements, elements);
        View::dense(place, shape)
    }

    pub(super) fn dtype(&self, view: &View) -> DType {
        self.places[view.place as usize].dtype
    }

    pub(super) fn is_table(&self, view: &View) -> bool {
        match self.places[view.place as usize].kind {
            PlaceKind::Arg(arg) => self.args[arg as usize].kind == ArgKind::Table,
            PlaceKind::Temp(_) | PlaceKind::Constant(_) => false,
        }
    }

    pub(super) fn map_into(&mut self, op: MapOp, inputs: &[&View], out: &View) {
        let mut views = inputs.to_vec();
        views.push(out);
        let counted = matches!(op, MapOp::Index | MapOp::RowNumber);
        let (nest, mut accesses, _) = nest_of(&self.places, &views, out.dims.len(), !counted);
        if let Some(out) = accesses.pop() {
            self.steps.push(RowStep::Map { op, nest, inputs: accesses, out });
        }
    }

    fn map(&mut self, op: MapOp, inputs: &[&View], ty: &TensorType) -> Result<View, LowerError> {
        let shape = static_dims(ty)?;
        let out = self.temp(ty.dtype, &shape);
        self.map_into(op, inputs, &out);
        Ok(out)
    }

    pub(super) fn contiguous(&mut self, view: &View) -> View {
        if view.is_contiguous() {
            return view.clone();
        }
        let out = self.temp(self.dtype(view), &view.shape());
        self.map_into(MapOp::Cast, &[view], &out);
        out
    }

    fn literal(&mut self, literal: &Literal, shape: &[u64]) -> View {
        let size = literal.dtype().size();
        let bytes = literal.bytes();
        let uniform = bytes.chunks_exact(size).all(|chunk| chunk == &bytes[..size]);
        let stored = if uniform { &bytes[..size.min(bytes.len())] } else { bytes };
        let word = self.constants.len() as u64;
        self.constants.extend(stored.chunks(8).map(|chunk| {
            let mut bits = [0u8; 8];
            bits[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(bits)
        }));
        let elements = (stored.len() / size) as u64;
        let place = self.place(PlaceKind::Constant(word), literal.dtype(), elements, 0);
        let mut view = View::dense(place, shape);
        if uniform {
            view.dims.iter_mut().for_each(|axis| axis.stride = 0);
        }
        view
    }

    /// Lowers one op on rows, of which the types are right.
    fn op(
        &mut self,
        op: &Op,
        operands: &[View],
        results: &[TensorType],
    ) -> Result<Vec<View>, LowerError> {
        let values = match op.class() {
            OpClass::Gather | OpClass::Scatter => &operands[1..],
            OpClass::Elementwise | OpClass::Remap | OpClass::Reduction => operands,
            OpClass::Search | OpClass::Product { .. } | OpClass::Constant => operands,
            OpClass::Region(_) | OpClass::Custom(_) => operands,
        };
        if values.iter().any(|view| self.is_table(view)) {
            return fail("a whole operand of symbolic extent can only be gathered from");
        }
        let one = |view| Ok(vec![view]);
        let inputs: Vec<&View> = operands.iter().collect();
        match op {
            Op::Unary(unary) => one(self.map(MapOp::Unary(*unary), &inputs, &results[0])?),
            Op::Binary(binary) => one(self.map(MapOp::Binary(*binary), &inputs, &results[0])?),
            Op::Compare(compare) => {
                one(self.map(MapOp::Compare(*compare), &inputs, &results[0])?)
            }
            Op::Select => one(self.map(MapOp::Select, &inputs, &results[0])?),
            Op::Cast if self.dtype(&operands[0]) == results[0].dtype => one(operands[0].clone()),
            Op::Cast => one(self.map(MapOp::Cast, &inputs, &results[0])?),
            Op::Reduce { op, axes } => one(self.reduce(*op, axes, &operands[0], &results[0])?),
            Op::ArgMax { axis } => {
                let shape = static_dims(&results[0])?;
                let out = self.temp(DType::I32, &shape);
                let mut wide = out.clone();
                wide.dims.insert(*axis, super::view::Axis { extent: 1, stride: 1 });
                self.top_k(*axis, &operands[0], None, &wide, 1);
                one(out)
            }
            Op::TopK { axis } => {
                let shape = static_dims(&results[0])?;
                let values = self.temp(self.dtype(&operands[0]), &shape);
                let indices = self.temp(DType::I32, &shape);
                self.top_k(*axis, &operands[0], Some(&values), &indices, shape[*axis]);
                Ok(vec![values, indices])
            }
            Op::Broadcast => one(operands[0].broadcast(&static_dims(&results[0])?)),
            Op::Reshape => {
                let shape = static_dims(&results[0])?;
                match operands[0].reshaped(&shape) {
                    Some(view) => one(view),
                    None => {
                        let view = self.contiguous(&operands[0]);
                        one(View { dims: dense(&shape), ..view })
                    }
                }
            }
            Op::Permute { perm } => one(operands[0].permuted(perm)),
            Op::Slice { axis, start } => {
                let kept = static_dims(&results[0])?[*axis];
                one(operands[0].sliced(*axis, *start, kept))
            }
            Op::Concat { axis } => one(self.concat(*axis, operands, &results[0])?),
            Op::Gather => one(self.gather(&operands[0], &operands[1], &results[0])?),
            Op::Scatter => {
                self.scatter(&operands[0], &operands[1], &operands[2]);
                Ok(Vec::new())
            }
            Op::Iota { axis } => {
                let shape = static_dims(&results[0])?;
                let line = self.temp(results[0].dtype, &[shape[*axis]]);
                self.map_into(MapOp::Index, &[], &line);
                let mut view = View::dense(line.place, &shape);
                for (i, dim) in view.dims.iter_mut().enumerate() {
                    dim.stride = u64::from(i == *axis);
                }
                one(view)
            }
            Op::Literal(literal) => {
                let shape = static_dims(&results[0])?;
                one(self.literal(literal, &shape))
            }
            Op::MatMul { .. } | Op::ScaledMatMul { .. } | Op::Region(_) | Op::Custom(_) => {
                fail(format!("`{}` has no row program", op.mnemonic()))
            }
        }
    }

    /// Declares the results, in order, and closes the program.
    pub(super) fn finish(mut self, outputs: &[View]) -> Result<RowProgram, LowerError> {
        let mut taken = Vec::new();
        for view in outputs {
            if self.is_table(view) {
                return fail("a whole operand of symbolic extent can't be a row of a result");
            }
            let place = self.places[view.place as usize];
            let arg = self.args.len() as u32;
            self.args.push(ArgDecl::result(place.dtype, view.elements()));
            // A temporary that is exactly the result becomes it.
            let exact = matches!(place.kind, PlaceKind::Temp(_))
                && view.offset == 0
                && view.is_contiguous()
                && view.elements() == place.elements
                && !taken.contains(&view.place);
            if exact {
                taken.push(view.place);
                self.places[view.place as usize].kind = PlaceKind::Arg(arg);
            } else {
                let elements = view.elements();
                let to = self.place(PlaceKind::Arg(arg), place.dtype, elements, elements);
                let to = View::dense(to, &view.shape());
                self.map_into(MapOp::Cast, &[view], &to);
            }
        }
        let Self { over, args, places, steps, constants } = self;
        let program = finish::finish(over, args, places, steps, constants);
        program.check()?;
        Ok(program)
    }
}
