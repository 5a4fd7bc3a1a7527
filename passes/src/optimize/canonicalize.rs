//! Canonicalization: equal computations get one form, and what changes nothing goes.

use super::editor::Editor;
use super::simplify::{Simpler, simplify};
use crate::manager::{Pass, PassContext, PassError, PassReport};
use piecewise_ir::module::Module;
use piecewise_ir::op::Op;

/// Rewrites each node by local rules that keep every bit of the results.
#[derive(Clone, Copy, Debug, Default)]
pub struct Canonicalize;

impl Pass for Canonicalize {
    fn name(&self) -> &'static str {
        "canonicalize"
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        let graph = module.graph_mut();
        let nodes = graph.order().to_vec();
        let mut editor = Editor::new(graph);
        'nodes: for node in nodes {
            editor.resolve_operands(node);
            let [result] = *editor.graph.node(node).results.as_slice() else {
                editor.keep(node);
                continue;
            };
            let ty = editor.graph.ty(result).clone();
            let mut op = editor.graph.node(node).op.clone();
            let mut operands = editor.graph.node(node).operands.clone();
            let mut changed = false;
            while let Some((rule, simpler)) = simplify(editor.graph, &op, &operands, &ty) {
                report.count(rule);
                match simpler {
                    Simpler::Value(value) => {
                        editor.replace(result, value);
                        continue 'nodes;
                    }
                    Simpler::CastOf(inner, inner_operands, inner_ty) => {
                        let loc = editor.graph.node(node).loc.clone();
                        operands = vec![editor.insert(inner, inner_operands, inner_ty, loc)];
                        op = Op::Cast;
                        changed = true;
                    }
                    Simpler::Node(simpler_op, simpler_operands) => {
                        (op, operands) = (simpler_op, simpler_operands);
                        changed = true;
                    }
                }
            }
            if changed {
                let loc = editor.graph.node(node).loc.clone();
                let simpler = editor.insert(op, operands, ty, loc);
                editor.replace(result, simpler);
            } else {
                editor.keep(node);
            }
        }
        editor.finish();
        Ok(report)
    }
}
