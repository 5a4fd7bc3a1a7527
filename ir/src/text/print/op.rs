//! Ops: mnemonic, operands and attributes by the op table, and the three that have more.

use super::graph::{Anchors, Scope};
use super::writer::{Mode, Printer};
use crate::custom::{Attr, CustomCall};
use crate::diagnostic::Anchor;
use crate::entity::Node;
use crate::graph::NodeData;
use crate::literal::Literal;
use crate::op::Op;
use crate::region::{ParamMode, Region};
use crate::text::names::{printed_word, quoted};
use crate::text::syntax::{AttrValue, attributes};
use crate::types::TensorType;

/// Elements of a literal on one line.
const ELEMENTS_PER_LINE: usize = 16;

impl Printer {
    /// The op of `node` with operands and attributes, then where it was written.
    pub(super) fn op(&mut self, scope: &Scope<'_>, node: Node, anchor: Option<Anchor>) {
        let start = self.here();
        let data = scope.graph.node(node);
        self.put(data.op.mnemonic());
        match &data.op {
            Op::Literal(literal) => {
                // Its elements may go on over several lines.
                self.mark(anchor, start);
                self.literal(scope, literal, data);
            }
            Op::Region(region) => {
                self.region_header(scope, node, region);
                self.mark(anchor, start);
                self.put(" {");
                self.loc(&data.loc);
                self.end();
                self.region_body(scope, node, region);
                self.begin();
                self.put('}');
                return;
            }
            Op::Custom(call) => self.custom(scope, node, call),
            op => {
                self.operands(scope, node, &op.mutated_operands());
                self.attributes(op);
            }
        }
        self.mark(anchor, start);
        self.loc(&data.loc);
    }

    fn operands(&mut self, scope: &Scope<'_>, node: Node, mutated: &[usize]) {
        for (i, &operand) in scope.graph.node(node).operands.iter().enumerate() {
            self.put(if i == 0 { " " } else { ", " });
            if mutated.contains(&i) {
                self.put("mut ");
            }
            let start = self.here();
            self.put(scope.name(operand));
            self.mark(scope.operand_anchor(node, i), start);
        }
    }

    fn attributes(&mut self, op: &Op) {
        let attributes = attributes(op);
        if attributes.is_empty() {
            return;
        }
        self.put(" {");
        self.list(attributes, |p, (key, value)| match value {
            AttrValue::Number(n) => p.put(format_args!("{}={n}", key.name)),
            AttrValue::Axes(axes) => p.put(format_args!("{}={axes:?}", key.name)),
            AttrValue::Flag => p.put(key.name),
        });
        self.put('}');
    }

    fn literal(&mut self, scope: &Scope<'_>, literal: &Literal, data: &NodeData) {
        let dtype = literal.dtype();
        let declared = data.results.first().filter(|&&v| scope.graph.has_value(v));
        if declared.is_none_or(|&v| scope.graph.ty(v).dtype != dtype) {
            self.put(format_args!(" {dtype}"));
        }
        self.put(" [");
        let wraps = literal.len() > ELEMENTS_PER_LINE;
        let elided = self.mode == Mode::Listing && literal.len() > Literal::MAX_ELEMENTS;
        let shown = if elided { ELEMENTS_PER_LINE } else { literal.len() };
        self.indented(|p| {
            for (i, scalar) in literal.scalars().take(shown).enumerate() {
                match (i, i % ELEMENTS_PER_LINE) {
                    (0, _) if !wraps => {}
                    (_, 0) => {
                        p.put(if i == 0 { "" } else { "," });
                        p.end();
                        p.begin();
                    }
                    _ => p.put(", "),
                }
                p.scalar(scalar, dtype);
            }
        });
        if wraps {
            self.end();
            self.begin();
        }
        if elided {
            self.put(format_args!("... {} elements", literal.len()));
        }
        self.put(']');
    }

    fn region_header(&mut self, scope: &Scope<'_>, node: Node, region: &Region) {
        self.graph_name(&region.body);
        self.put(" over ");
        self.symbol(scope.symbols(), region.over);
        self.put(" (");
        let operands = &scope.graph.node(node).operands;
        let body = Scope::new(&region.body, self.mode, Anchors::None, 'a');
        let count = operands.len().max(region.body.inputs().len()).max(region.params.len());
        self.list(0..count, |p, i| {
            let input = region.body.inputs().get(i);
            p.put(input.map_or_else(|| "?".to_owned(), |input| body.name(input.value)));
            p.put(match region.params.get(i) {
                Some(ParamMode::Row) => ": row ",
                Some(ParamMode::Whole) => ": ",
                Some(ParamMode::Mut) => ": mut ",
                None => ": ? ",
            });
            let start = p.here();
            p.put(operands.get(i).map_or_else(|| "?".to_owned(), |&v| scope.name(v)));
            p.mark(scope.operand_anchor(node, i), start);
            if let (Some(input), Some(mode), Some(&operand)) =
                (input, region.params.get(i), operands.get(i))
                && scope.graph.has_value(operand)
            {
                let ty = region.body.ty(input.value);
                if *ty != param_type(*mode, scope.graph.ty(operand)) {
                    p.put(" as ");
                    p.ty(scope.symbols(), ty);
                }
                p.padding_and_role(ty.dtype, input);
            }
        });
        self.put(')');
    }

    fn region_body(&mut self, scope: &Scope<'_>, node: Node, region: &Region) {
        let anchors = match scope.anchors {
            Anchors::Graph => Anchors::Body(node),
            _ => Anchors::None,
        };
        let body = Scope::new(&region.body, self.mode, anchors, 'a');
        self.indented(|p| p.rest_of_block(&body));
    }

    fn custom(&mut self, scope: &Scope<'_>, node: Node, call: &CustomCall) {
        self.put(format_args!(" {}", quoted(&call.name)));
        self.operands(scope, node, &call.mutates);
        let operands = scope.graph.node(node).operands.len();
        for &missing in call.mutates.iter().filter(|&&i| i >= operands) {
            self.put(format_args!(" mut ?{missing}"));
        }
        if !call.attrs.is_empty() {
            self.put(" {");
            self.list(&call.attrs, |p, (key, attr)| {
                p.put(format_args!("{}=", printed_word(key)));
                p.custom_attr(attr);
            });
            self.put('}');
        }
        self.put(format_args!(" rows {}", call.rows.name()));
        if call.splits {
            self.put(" split");
        }
        if !call.absorbs.is_empty() {
            self.put(format_args!(" absorbs {:?}", call.absorbs));
        }
        if !call.scatters.is_empty() {
            self.put(" scatters [");
            self.list(&call.scatters, |p, (state, slots)| {
                p.put(format_args!("{state} at {slots}"))
            });
            self.put(']');
        }
    }

    fn custom_attr(&mut self, attr: &Attr) {
        match attr {
            Attr::Int(value) => self.put(value),
            Attr::Float(value) if value.is_finite() => self.put(format_args!("{value:?}")),
            Attr::Float(value) => self.put(format_args!("f64:0x{:016x}", value.to_bits())),
            Attr::Bool(value) => self.put(value),
            Attr::Str(value) => self.put(quoted(value)),
            Attr::DType(value) => self.put(value),
        }
    }
}

/// The type under which a region's body sees an operand of type `operand`.
pub(in crate::text) fn param_type(mode: ParamMode, operand: &TensorType) -> TensorType {
    match mode {
        ParamMode::Row => operand.row(),
        ParamMode::Whole | ParamMode::Mut => operand.clone(),
    }
}
