//! Rules applied to a graph until none applies.

use super::{Editor, New, Rule, Site};
use crate::analysis::Names;
use crate::manager::{Pass, PassContext, PassError, PassReport};
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::module::Module;
use piecewise_ir::op::{Op, check_types};
use piecewise_ir::types::TensorType;

/// Applications of rules to what one node became, after which they are taken to have no end.
const MOST_AT_ONE_NODE: usize = 256;

/// A pass that is nothing but rules. One of one's own is registered under its name:
/// `registry.add("reciprocal", &[], |_| Ok(Box::new(RulePass::new("reciprocal", &RULES))))`.
#[derive(Clone, Copy, Debug)]
pub struct RulePass {
    name: &'static str,
    rules: &'static [Rule],
}

impl RulePass {
    /// The rules in their order: of those that fit a node, the first is applied.
    pub const fn new(name: &'static str, rules: &'static [Rule]) -> Self {
        Self { name, rules }
    }
}

impl Pass for RulePass {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        rewrite(module.graph_mut(), self.rules, cx, &mut report)?;
        Ok(report)
    }
}

/// Applies rules to each node in program order, and to what they put there, until none applies. A rule
/// sees operands that were rewritten, so that nothing is left to a second walk.
///
/// # Errors
/// [`PassError::Rule`] of the rule that goes on without end, or gives what does not fit its place.
pub fn rewrite(
    graph: &mut Graph,
    rules: &[Rule],
    cx: &mut PassContext,
    report: &mut PassReport,
) -> Result<(), PassError> {
    let names = Names::of(graph);
    let nodes = graph.order().to_vec();
    let mut walk = Walk { editor: Editor::new(graph), rules, cx, report, names, applied: 0 };
    for node in nodes {
        walk.editor.resolve_operands(node);
        walk.applied = 0;
        let data = walk.editor.graph.node(node);
        let [result] = *data.results.as_slice() else {
            walk.editor.keep(node);
            continue;
        };
        let (op, operands, loc) = (data.op.clone(), data.operands.clone(), data.loc.clone());
        let ty = walk.editor.graph.ty(result).clone();
        let place = Place { node, loc };
        match walk.settle(Sketch { op, operands, ty, is_new: false }, &place)? {
            Settled::Node(Sketch { is_new: false, .. }) => walk.editor.keep(node),
            settled => {
                let value = walk.value_of(settled, &place);
                walk.editor.replace(result, value);
            }
        }
    }
    walk.editor.finish();
    Ok(())
}

/// The node that was there, and what its successors take over from it.
struct Place {
    node: Node,
    loc: Loc,
}

/// A node that is not in the graph yet, or is the old one.
struct Sketch {
    op: Op,
    operands: Vec<Value>,
    ty: TensorType,
    is_new: bool,
}

/// What no rule applies to.
#[expect(clippy::large_enum_variant, reason = "one lives at a time")]
enum Settled {
    Value(Value),
    Node(Sketch),
}

struct Walk<'w, 'g> {
    editor: Editor<'g>,
    rules: &'w [Rule],
    cx: &'w mut PassContext,
    report: &'w mut PassReport,
    names: Names,
    /// Rules applied to what the node became.
    applied: usize,
}

impl Walk<'_, '_> {
    /// Applies rules to a node until none does.
    fn settle(&mut self, mut now: Sketch, place: &Place) -> Result<Settled, PassError> {
        while let Some((rule, new)) = self.first_that_applies(&now, place) {
            if !self.cx.rewrites.allow(rule.name, || self.names.node(self.editor.graph, place.node))
            {
                break;
            }
            self.report.count(rule.name);
            self.applied += 1;
            if self.applied > MOST_AT_ONE_NODE {
                let what =
                    format!("has no end: it applied last of {MOST_AT_ONE_NODE} at this node");
                return Err(self.wrong(rule, place, what));
            }
            let ty = match &new {
                New::Value(value) => self.editor.graph.ty(*value),
                New::Node(_, _, ty) => ty,
            };
            if *ty != now.ty {
                let what = format!("gives {ty:?} in place of {:?}", now.ty);
                return Err(self.wrong(rule, place, what));
            }
            match new {
                New::Value(value) => return Ok(Settled::Value(self.editor.resolve(value))),
                New::Node(op, operands, ty) => now = self.sketch(rule, op, operands, ty, place)?,
            }
        }
        Ok(Settled::Node(now))
    }

    /// What stands for it in the graph, where a new node is inserted.
    fn value_of(&mut self, settled: Settled, place: &Place) -> Value {
        match settled {
            Settled::Value(value) => value,
            Settled::Node(Sketch { op, operands, ty, .. }) => {
                self.editor.insert(op, operands, ty, place.loc.clone())
            }
        }
    }

    /// A new node whose operands are in the graph.
    fn sketch(
        &mut self,
        rule: Rule,
        op: Op,
        operands: Vec<New>,
        ty: TensorType,
        place: &Place,
    ) -> Result<Sketch, PassError> {
        let mut values = Vec::with_capacity(operands.len());
        for operand in operands {
            values.push(match operand {
                New::Value(value) => self.editor.resolve(value),
                New::Node(op, operands, ty) => {
                    let inner = self.sketch(rule, op, operands, ty, place)?;
                    let settled = self.settle(inner, place)?;
                    self.value_of(settled, place)
                }
            });
        }
        let types = Vec::from_iter(values.iter().map(|&value| self.editor.graph.ty(value).clone()));
        if let Err(error) = check_types(&op, &types, std::slice::from_ref(&ty)) {
            let what = format!("makes a node that is none, `{}`: {}", op.name(), error.0);
            return Err(self.wrong(rule, place, what));
        }
        Ok(Sketch { op, operands: values, ty, is_new: true })
    }

    /// The first rule that has something for a node. Those that leave an old one remark it.
    fn first_that_applies(&mut self, now: &Sketch, place: &Place) -> Option<(Rule, New)> {
        let Sketch { op, operands, ty, is_new } = now;
        let site = Site { graph: self.editor.graph, op, operands, ty };
        let fitting = self.rules.iter().filter(|rule| (rule.pattern)(op));
        let mut remarks = Vec::new();
        for rule in fitting {
            match ((rule.replace)(&site), rule.otherwise) {
                (Some(new), _) => return Some((*rule, new)),
                (None, Some(why)) if !is_new => remarks.push((rule.name, why)),
                (None, _) => {}
            }
        }
        for (name, why) in remarks {
            let place = self.names.node(self.editor.graph, place.node);
            self.report.remark(format!("no {name}"), place, why);
        }
        None
    }

    fn wrong(&self, rule: Rule, place: &Place, what: String) -> PassError {
        let place = self.names.node(self.editor.graph, place.node);
        PassError::Rule { rule: rule.name, place, what }
    }
}
