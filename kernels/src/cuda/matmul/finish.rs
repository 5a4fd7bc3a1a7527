//! What becomes of eight neighbouring elements of a product before they are stored: nothing, or a
//! region that is a map of them, or of them and those half a row further on; or of parts of the row,
//! each of which is a result.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use crate::cuda::region::text;
use crate::cuda::text::{lane, storage};
use crate::lower::LowerError;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, NodeData, ValueDef};
use piecewise_ir::op::{BinaryOp, Op, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Write;

/// Neighbouring elements that a thread finishes.
const LANE: usize = 8;
/// Columns that are stored at a time, which one part has.
const PART_COLUMNS: u64 = 64;

/// The function `finish`, with what it takes.
pub(super) struct Finish {
    /// The text of all of it; goes before `finish.cuh`.
    pub(super) text: String,
    /// Whether it takes pairs of elements half a row apart.
    pub(super) paired: bool,
    /// Operands of the region other than the product.
    pub(super) operands: usize,
    /// Results: where they are several, each is made of a part of the product's row.
    pub(super) results: usize,
    /// Whether the product is stored as it is.
    pub(super) stores: bool,
    /// The dtype of the results.
    pub(super) dtype: DType,
}

/// What a value of the region's body is for element `i` of the eight.
#[derive(Clone)]
enum Element {
    /// The whole row of a pair, or of parts.
    Row,
    /// An expression.
    Text(String),
}

fn refused<T>(reason: &str) -> Result<T, LowerError> {
    Err(LowerError(format!("a region after a product in tiles {reason}; launch it on its own")))
}

fn elements(ty: &TensorType) -> Result<u64, LowerError> {
    ty.static_elements().map_or_else(|| refused("of symbolic rows"), Ok)
}

fn pack(dtype: DType) -> (String, usize) {
    (format!("Pack<{}, {LANE}>", storage(dtype)), (LANE * dtype.size()).min(16))
}

/// The text of `finish` as it grows.
#[derive(Default)]
struct Parts {
    params: Vec<String>,
    /// Operands of one number a column, and of one for each element of a result.
    columns: Vec<String>,
    beside: Vec<String>,
    load_columns: String,
    load_beside: String,
    body: String,
}

impl Parts {
    fn text(self, results: usize, dtype: DType) -> String {
        let names: Vec<String> =
            (0..self.params.len() + results).map(|i| format!("f{i}")).collect();
        let result = storage(dtype);
        let result_params = (0..results).map(|_| format!("{result}*"));
        let types = self.params.into_iter().chain(result_params);
        let typed: Vec<String> = types.zip(&names).map(|(ty, n)| format!("{ty} {n}")).collect();
        let chosen = names[names.len() - results..].iter().enumerate().skip(1);
        let chosen = chosen.fold(names[names.len() - results].clone(), |rest, (part, name)| {
            format!("part == {part} ? {name} : {rest}")
        });
        // What is loaded ahead lies in registers, which have no index.
        let at_once = if self.beside.is_empty() { "1" } else { "TURNS" };
        format!(
            "#define FINISH_PARAMS {typed}\n#define FINISH_ARGS {names}\n#define TURNS_AT_ONCE {at_once}\n\
             typedef {result} Result;\nstruct Columns {{ {columns} }};\nstruct Beside {{ {beside} }};\n\
             DEVICE Result* result_of({typed}, u32 part) {{ return {chosen}; }}\n\
             DEVICE void load_columns({typed}, u32 part, u32 column, Columns& columns) {{\n{load_columns}}}\n\
             DEVICE void load_beside({typed}, u64 at, Beside& beside) {{\n{load_beside}}}\n\
             DEVICE Pack<Result, {LANE}> finish(u32 part, const Pack<Y, {LANE}>& first, const Pack<Y, {LANE}>& second, \
             const Columns& columns, const Beside& beside) {{\n  Pack<Result, {LANE}> r;\n{body}  return r;\n}}\n\n",
            typed = typed.join(", "),
            names = names.join(", "),
            columns = self.columns.join(" "),
            beside = self.beside.join(" "),
            load_columns = self.load_columns,
            load_beside = self.load_beside,
            body = self.body,
        )
    }
}

impl Finish {
    /// The product as it is.
    pub(super) fn store(dtype: DType) -> Self {
        let body = "  r = first;\n".to_owned();
        let text = Parts { body, ..Parts::default() }.text(1, dtype);
        Self { text, paired: false, operands: 0, results: 1, stores: true, dtype }
    }

    /// A region over a product of `columns` columns, which is its operand at `product`.
    ///
    /// # Errors
    /// When an element of a result needs more than the same element of each operand, and of the
    /// product that and the one half a row further on, or, where results are parts of a row, that
    /// of its part.
    pub(super) fn of(region: &Region, product: usize, columns: u64) -> Result<Self, LowerError> {
        let body = &region.body;
        let results = body.outputs();
        let Some(&first) = results.first() else { return refused("without a result") };
        let (width, dtype) = (elements(body.ty(first))?, body.ty(first).dtype);
        let same = |&value: &Value| {
            let ty = body.ty(value);
            Ok(elements(ty)? == width && ty.dtype == dtype)
        };
        for result in results {
            if !same(result)? {
                return refused("with results of several lengths or dtypes");
            }
        }
        let parted = results.len() > 1;
        let paired = !parted && width * 2 == columns;
        if (width * results.len() as u64 != columns && !paired)
            || !width.is_multiple_of(LANE as u64)
            || (parted && !width.is_multiple_of(PART_COLUMNS))
        {
            return refused("whose rows have another length");
        }
        let mut parts = Parts::default();
        let mut inputs: FxHashMap<Value, Element> = FxHashMap::default();
        let mut of_columns: Vec<(Value, String)> = Vec::new();
        for (i, &mode) in region.params.iter().enumerate() {
            let value = input(body, i)?;
            let ty = body.ty(value);
            if i == product {
                if elements(ty)? != columns || mode != ParamMode::Row {
                    return refused("that sees the product otherwise than by rows");
                }
                let whole = paired || parted;
                let element = if whole {
                    Element::Row
                } else {
                    Element::Text("widen(first.at[i])".to_owned())
                };
                inputs.insert(value, element);
                continue;
            }
            if elements(ty)? != width {
                return refused("with an operand that is no row like its results");
            }
            let ((pack, align), name) = (pack(ty.dtype), parts.params.len());
            parts.params.push(format!("const {}*", storage(ty.dtype)));
            match mode {
                ParamMode::Row => {
                    parts.beside.push(format!("{pack} o{name};"));
                    let load = format!("  load<{align}>(beside.o{name}, f{name} + at);\n");
                    parts.load_beside.push_str(&load);
                    let element = format!("widen(beside.o{name}.at[i])");
                    inputs.insert(value, Element::Text(element));
                }
                ParamMode::Whole => {
                    parts.columns.push(format!("{pack} o{name};"));
                    let load = format!("load<{align}>(columns.o{name}, f{name} + column);\n");
                    of_columns.push((value, load));
                    let element = format!("widen(columns.o{name}.at[i])");
                    inputs.insert(value, Element::Text(element));
                }
                ParamMode::Mut => return refused("with a state"),
            }
        }
        for (part, &result) in results.iter().enumerate() {
            let needed = needed_for(body, result);
            let seen = inputs.clone();
            let mut emitter = Emitter { body, width, part, paired, seen, text: String::new() };
            for node in body.nodes() {
                if body.node(node).results.iter().any(|value| needed.contains(value)) {
                    emitter.node(node)?;
                }
            }
            let element = emitter.text(result)?;
            let condition = if parted { format!("if (part == {part}) ") } else { String::new() };
            let _ = write!(
                parts.body,
                "  {condition}{{\n#pragma unroll\n  for (int i = 0; i < {LANE}; ++i) {{\n{}    \
                 narrow(r.at[i], {element});\n  }}\n  }}\n",
                emitter.text
            );
            for (_, load) in of_columns.iter().filter(|(value, _)| needed.contains(value)) {
                let _ = write!(parts.load_columns, "  {condition}{load}");
            }
        }
        let (operands, results) = (parts.params.len(), results.len());
        let text = parts.text(results, dtype);
        Ok(Self { text, paired, operands, results, stores: false, dtype })
    }

    /// Arguments: operands of the region other than the product, then results.
    pub(super) fn arguments(&self) -> usize {
        self.operands + self.results
    }
}

/// What a value of a body is made of, and itself.
fn needed_for(body: &Graph, value: Value) -> FxHashSet<Value> {
    let (mut needed, mut left) = (FxHashSet::default(), vec![value]);
    while let Some(value) = left.pop() {
        if needed.insert(value)
            && let ValueDef::Result { node, .. } = body.def(value)
        {
            left.extend(&body.node(node).operands);
        }
    }
    needed
}

fn input(body: &Graph, position: usize) -> Result<Value, LowerError> {
    body.inputs()
        .get(position)
        .map_or_else(|| refused("that lacks an operand"), |decl| Ok(decl.value))
}

struct Emitter<'a> {
    body: &'a Graph,
    /// Elements of a result's row.
    width: u64,
    /// The part of the product's row that its result is made of.
    part: usize,
    paired: bool,
    seen: FxHashMap<Value, Element>,
    text: String,
}

impl Emitter<'_> {
    fn text(&self, value: Value) -> Result<String, LowerError> {
        match self.seen.get(&value) {
            Some(Element::Text(text)) => Ok(text.clone()),
            _ => refused("that mixes elements of a row"),
        }
    }

    /// Whether a node is a quotient `a / (exp(b) + 1)` that is only seen rounded to 16 bits: one
    /// that needs no branch.
    fn divides_by_more_than_one(&self, node: Node) -> bool {
        let data = self.body.node(node);
        let (Op::Binary(BinaryOp::Div), [_, divisor], [quotient]) =
            (&data.op, &data.operands[..], &data.results[..])
        else {
            return false;
        };
        let narrowed = |reader: &NodeData| {
            reader.op == Op::Cast && self.body.ty(reader.results[0]).dtype.size() == 2
        };
        let mut readers = self.body.nodes().map(|n| self.body.node(n));
        let rounded = match self.body.ty(*quotient).dtype {
            DType::F32 => {
                !self.body.outputs().contains(quotient)
                    && readers.all(|n| !n.operands.contains(quotient) || narrowed(n))
            }
            DType::F16 | DType::BF16 => true,
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => false,
            DType::E4M3 | DType::I4 => false,
        };
        rounded && self.is_exp_plus_one(*divisor)
    }

    fn is_exp_plus_one(&self, value: Value) -> bool {
        let Some(Op::Binary(BinaryOp::Add)) = self.made_by(value).map(|data| &data.op) else {
            return false;
        };
        let operands = self.made_by(value).map_or(&[][..], |data| &data.operands);
        operands.iter().any(|&v| self.is_exp(v)) && operands.iter().any(|&v| self.is_one(v))
    }

    fn is_exp(&self, value: Value) -> bool {
        self.made_by(value).is_some_and(|data| data.op == Op::Unary(UnaryOp::Exp))
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "an op that is not known here makes no 1")]
    fn is_one(&self, value: Value) -> bool {
        self.made_by(value).is_some_and(|data| match &data.op {
            Op::Literal(literal) => literal.len() == 1 && literal.bytes() == 1f32.to_ne_bytes(),
            Op::Broadcast | Op::Reshape => self.is_one(data.operands[0]),
            _ => false,
        })
    }

    fn made_by(&self, value: Value) -> Option<&NodeData> {
        match self.body.def(value) {
            ValueDef::Result { node, .. } => Some(self.body.node(node)),
            ValueDef::Input(_) | ValueDef::Weight(_) | ValueDef::State(_) => None,
        }
    }

    fn node(&mut self, node: Node) -> Result<(), LowerError> {
        let body = self.body;
        let data = body.node(node);
        let Some(&result) = data.results.first() else { return refused("with a state") };
        let to = body.ty(result);
        match &data.op {
            Op::Literal(literal) if literal.len() == 1 => {
                let text = text::constant(literal.dtype(), literal.bytes())?;
                self.seen.insert(result, Element::Text(text));
                return Ok(());
            }
            // One element is every element.
            Op::Broadcast if elements(body.ty(data.operands[0]))? == 1 => {
                let text = self.text(data.operands[0])?;
                self.seen.insert(result, Element::Text(text));
                return Ok(());
            }
            Op::Reshape => {
                let element = self.seen.get(&data.operands[0]).cloned();
                self.seen.extend(element.map(|element| (result, element)));
                return Ok(());
            }
            &Op::Slice { start, .. } => {
                let of_row = matches!(self.seen.get(&data.operands[0]), Some(Element::Row));
                let half = start / self.width;
                if !of_row || elements(to)? != self.width || half * self.width != start {
                    return refused("that takes a part of a row");
                }
                let flat = body.ty(data.operands[0]).rank() == 1;
                if !flat {
                    return refused("that cuts rows of several axes");
                }
                if !self.paired && half != self.part as u64 {
                    return refused("with a result that needs another part of a row");
                }
                let eight = if self.paired && half == 1 { "second" } else { "first" };
                self.seen.insert(result, Element::Text(format!("widen({eight}.at[i])")));
                return Ok(());
            }
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast => {}
            Op::Reduce { .. }
            | Op::ArgMax { .. }
            | Op::TopK { .. }
            | Op::MatMul { .. }
            | Op::ScaledMatMul { .. }
            | Op::Broadcast
            | Op::Permute { .. }
            | Op::Concat { .. }
            | Op::Gather
            | Op::Scatter
            | Op::Iota { .. }
            | Op::Literal(_)
            | Op::Region(_)
            | Op::Custom(_) => {
                return refused("that is no map of its elements");
            }
        }
        let operands =
            data.operands.iter().map(|&v| self.text(v)).collect::<Result<Vec<_>, _>>()?;
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let from = data.operands.get(usize::from(data.op == Op::Select));
        let from = from.map_or(to.dtype, |&v| body.ty(v).dtype);
        let text = match &operands[..] {
            [a, b] if self.divides_by_more_than_one(node) => {
                text::rounded(to.dtype, &format!("quotient({a}, {b})"))
            }
            operands => text::element(&data.op, from, to.dtype, operands)?,
        };
        let name = format!("v{}", self.seen.len());
        let _ = writeln!(self.text, "    const {} {name} = {text};", lane(to.dtype));
        self.seen.insert(result, Element::Text(name));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use piecewise_ir::dim::Dim;
    use piecewise_ir::entity::{Entity, Symbol};
    use piecewise_ir::graph::Loc;
    use piecewise_ir::op::ReduceOp;

    const ROW: [u64; 1] = [64];

    /// A region over rows of `widths`, with the body that `build` makes of them.
    fn region(widths: &[u64], build: impl Fn(&mut Graph, &[Value]) -> Vec<Value>) -> Region {
        let mut body = Graph::new("body");
        let add = |(i, width): (usize, &u64)| {
            let ty = TensorType::new(DType::BF16, [Dim::constant(*width)]);
            body.add_input(format!("a{i}"), ty, None, None)
        };
        let inputs: Vec<Value> = widths.iter().enumerate().map(add).collect();
        let outputs = build(&mut body, &inputs);
        body.set_outputs(outputs);
        Region { over: Symbol::new(0), params: vec![ParamMode::Row; widths.len()], body }
    }

    fn row() -> TensorType {
        TensorType::new(DType::BF16, ROW)
    }

    fn gate(body: &mut Graph, inputs: &[Value]) -> Vec<Value> {
        let half = |start| Op::Slice { axis: 0, start };
        let a = body.push(half(0), vec![inputs[0]], row(), Loc::default());
        let b = body.push(half(64), vec![inputs[0]], row(), Loc::default());
        let a = body.push(Op::Unary(UnaryOp::Exp), vec![a], row(), Loc::default());
        vec![body.push(Op::Binary(BinaryOp::Mul), vec![a, b], row(), Loc::default())]
    }

    fn holds(made: &Finish, parts: &[&str]) {
        for part in parts {
            assert!(made.text.contains(part), "{part} in {}", made.text);
        }
    }

    #[test]
    fn halves_of_a_row_meet_in_one_thread() {
        let made = Finish::of(&region(&[128], gate), 0, 128).unwrap();
        assert!(made.paired);
        assert_eq!(made.arguments(), 1);
        holds(&made, &["expf(widen(first.at[i]))", "* widen(second.at[i])", "narrow(r.at[i], v"]);
    }

    #[test]
    fn other_operands_are_read_where_results_are_written() {
        let add = |body: &mut Graph, inputs: &[Value]| {
            let sum = vec![inputs[0], inputs[1]];
            vec![body.push(Op::Binary(BinaryOp::Add), sum, row(), Loc::default())]
        };
        let made = Finish::of(&region(&[64, 64], add), 1, 64).unwrap();
        assert!(!made.paired);
        assert_eq!(made.arguments(), 2);
        let sum = "round_bf16(widen(beside.o0.at[i]) + widen(first.at[i]))";
        holds(&made, &["load<16>(beside.o0, f0 + at)", sum, "narrow(r.at[i], v"]);
    }

    #[test]
    fn what_mixes_elements_is_refused() {
        let reduce = |body: &mut Graph, inputs: &[Value]| {
            let op = Op::Reduce { op: ReduceOp::Sum, axes: vec![0] };
            let one = TensorType::new(DType::BF16, [1u64]);
            let sum = body.push(op, vec![inputs[0]], one, Loc::default());
            vec![body.push(Op::Broadcast, vec![sum], row(), Loc::default())]
        };
        assert!(Finish::of(&region(&[64], reduce), 0, 64).is_err());
        // A part that begins elsewhere, and a row of another length.
        let shifted = |body: &mut Graph, inputs: &[Value]| {
            let op = Op::Slice { axis: 0, start: 32 };
            vec![body.push(op, vec![inputs[0]], row(), Loc::default())]
        };
        assert!(Finish::of(&region(&[128], shifted), 0, 128).is_err());
        assert!(Finish::of(&region(&[128, 128], gate), 0, 128).is_err());
        assert!(Finish::of(&region(&[128], gate), 0, 256).is_err());
    }
}
