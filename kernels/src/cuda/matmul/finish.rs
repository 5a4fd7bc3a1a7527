//! What becomes of eight neighbouring elements of a product before they are stored: nothing, or a
//! region that is a map of them, or of them and those half a row further on.

use crate::cuda::region::text;
use crate::cuda::text::{lane, storage};
use crate::lower::LowerError;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, NodeData, ValueDef};
use piecewise_ir::op::{BinaryOp, Op, UnaryOp};
use piecewise_ir::region::{ParamMode, Region};
use piecewise_ir::types::TensorType;
use rustc_hash::FxHashMap;
use std::fmt::Write;

/// Neighbouring elements that a thread finishes.
const LANE: usize = 8;

/// The function `finish`, with the macros of its arguments.
pub(super) struct Finish {
    /// The text of both.
    pub(super) text: String,
    /// Whether it takes pairs of elements half a row apart.
    pub(super) paired: bool,
    /// Arguments: operands of the region other than the product, then results.
    pub(super) arguments: usize,
}

/// What a value of the region's body is for element `i` of the eight.
#[derive(Clone)]
enum Element {
    /// The whole row of a pair.
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

/// The text of the definitions with their macros: what an operand beside the product is loaded to,
/// its loads, and the rest.
fn define(params: &[String], beside: &[String], loads: &str, body: &str) -> String {
    let names: Vec<String> = (0..params.len()).map(|i| format!("f{i}")).collect();
    let typed: Vec<String> = params.iter().zip(&names).map(|(ty, n)| format!("{ty} {n}")).collect();
    // What is loaded ahead lies in registers, which have no index.
    let at_once = if beside.is_empty() { "1" } else { "TURNS" };
    format!(
        "#define FINISH_PARAMS {typed}\n#define FINISH_ARGS {names}\n#define TURNS_AT_ONCE {at_once}\n\
         struct Beside {{ {beside} }};\n\
         DEVICE void load_beside({typed}, u64 at, Beside& beside) {{\n{loads}}}\n\
         // Elements `at` and after of the results' rows.\n\
         DEVICE void finish({typed}, u64 at, const Bytes16& first, const Bytes16& second, const Beside& beside) {{\n{body}}}\n\n",
        typed = typed.join(", "),
        names = names.join(", "),
        beside = beside.join(" "),
    )
}

fn pack(dtype: DType) -> (String, usize) {
    (format!("Pack<{}, {LANE}>", storage(dtype)), (LANE * dtype.size()).min(16))
}

impl Finish {
    /// The product as it is.
    pub(super) fn store(dtype: DType) -> Self {
        let params = [format!("{}*", storage(dtype))];
        let text = define(&params, &[], "", "  *(Bytes16*)(f0 + at) = first;\n");
        Self { text, paired: false, arguments: 1 }
    }

    /// A region over a product of `columns` columns, which is its operand at `product`.
    ///
    /// # Errors
    /// When an element of a result needs more than the same element of each operand, and of the
    /// product that and the one half a row further on.
    pub(super) fn of(region: &Region, product: usize, columns: u64) -> Result<Self, LowerError> {
        let body = &region.body;
        let Some(&first) = body.outputs().first() else { return refused("without a result") };
        let width = elements(body.ty(first))?;
        let paired = width * 2 == columns;
        if (width != columns && !paired) || !width.is_multiple_of(LANE as u64) {
            return refused("whose rows have another length");
        }
        let mut emitter = Emitter { body, width, seen: FxHashMap::default(), text: String::new() };
        let mut params = Vec::new();
        let (mut beside, mut loads, mut made) = (Vec::new(), String::new(), String::new());
        for (i, &mode) in region.params.iter().enumerate() {
            let value = input(body, i)?;
            let ty = body.ty(value);
            if i == product {
                let (pack, _) = pack(ty.dtype);
                let _ = writeln!(made, "  {pack} p0;\n  *(Bytes16*)p0.at = first;");
                if paired {
                    let _ = writeln!(made, "  {pack} p1;\n  *(Bytes16*)p1.at = second;");
                }
                let whole = elements(ty)? == columns && mode == ParamMode::Row;
                let element =
                    if paired { Element::Row } else { Element::Text("widen(p0.at[i])".to_owned()) };
                if !whole {
                    return refused("that sees the product otherwise than by rows");
                }
                emitter.seen.insert(value, element);
                continue;
            }
            if mode != ParamMode::Row || elements(ty)? != width {
                return refused("with an operand that is no row like its results");
            }
            let ((pack, align), name) = (pack(ty.dtype), params.len());
            beside.push(format!("{pack} o{name};"));
            let _ = writeln!(loads, "  load<{align}>(beside.o{name}, f{name} + at);");
            emitter.seen.insert(value, Element::Text(format!("widen(beside.o{name}.at[i])")));
            params.push(format!("const {}*", storage(ty.dtype)));
        }
        for node in body.nodes() {
            emitter.node(node)?;
        }
        let mut stores = String::new();
        for &value in body.outputs() {
            let ty = body.ty(value);
            if elements(ty)? != width {
                return refused("with results of several lengths");
            }
            let ((pack, align), name) = (pack(ty.dtype), params.len());
            let element = emitter.text(value)?;
            let _ = writeln!(made, "  {pack} r{name};");
            let _ = writeln!(emitter.text, "    narrow(r{name}.at[i], {element});");
            let _ = writeln!(stores, "  store<{align}>(f{name} + at, r{name});");
            params.push(format!("{}*", storage(ty.dtype)));
        }
        let _ = write!(
            made,
            "#pragma unroll\n  for (int i = 0; i < {LANE}; ++i) {{\n{}  }}\n{stores}",
            emitter.text
        );
        Ok(Self { text: define(&params, &beside, &loads, &made), paired, arguments: params.len() })
    }
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
            dtype => dtype.is_float(),
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
            _ => None,
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
                self.seen.insert(result, Element::Text(format!("widen(p{half}.at[i])")));
                return Ok(());
            }
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast => {}
            _ => return refused("that is no map of its elements"),
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
        assert_eq!(made.arguments, 1);
        holds(&made, &["expf(widen(p0.at[i]))", "* widen(p1.at[i])", "store<16>(f0 + at, r0)"]);
    }

    #[test]
    fn other_operands_are_read_where_results_are_written() {
        let add = |body: &mut Graph, inputs: &[Value]| {
            let sum = vec![inputs[0], inputs[1]];
            vec![body.push(Op::Binary(BinaryOp::Add), sum, row(), Loc::default())]
        };
        let made = Finish::of(&region(&[64, 64], add), 1, 64).unwrap();
        assert!(!made.paired);
        assert_eq!(made.arguments, 2);
        let sum = "round_bf16(widen(beside.o0.at[i]) + widen(p0.at[i]))";
        holds(&made, &["load<16>(beside.o0, f0 + at)", sum, "store<16>(f1 + at, r1)"]);
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
