//! A lowering that absorbs regions into matmuls, for tests of lifetimes.
//!
//! A matmul, the region before it and the region after it become one launch: the region before
//! is computed again into scratch, the region after runs at once, and values that nothing else
//! reads are never written to their slots. The launch poisons every result first, so that a plan
//! which lets a result share bytes with anything that the launch reads gives NaNs.

use super::compiler::{Assembly, CpuCompiler, NodeLaunch};
use super::image::{Absorbed, AbsorbedPart, Kernel};
use crate::artifact::{Access, Arg, ArgRef, Artifact, PieceSize};
use crate::compiler::{CompileError, Compiler, PieceAt, Store};
use crate::lowering::{Positions, row_major};
use crate::weights::WeightLayout;
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::op::Op;
use piecewise_kernels::op::OpRegistry;
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;

/// Compiles as [`CpuCompiler`] does, with regions absorbed into the matmuls beside them.
#[derive(Clone, Debug)]
pub struct AbsorbingCompiler {
    plain: CpuCompiler,
}

impl AbsorbingCompiler {
    /// A compiler whose artifacts have scratch for `threads` threads.
    pub fn new(registry: Arc<OpRegistry>, threads: usize) -> Self {
        Self { plain: CpuCompiler::new(registry, threads) }
    }
}

/// Which nodes become one launch.
struct Groups {
    order: Vec<Node>,
    /// For each position that is a matmul, the region before it and the region after it.
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
    /// Whether the node runs as the region after a matmul.
    is_after: Vec<bool>,
}

impl Groups {
    fn of(graph: &Graph) -> Self {
        let order: Vec<Node> = graph.nodes().collect();
        let n = order.len();
        let (mut before, mut after) = (vec![None; n], vec![None; n]);
        let mut is_after = vec![false; n];
        for (i, &node) in order.iter().enumerate() {
            let data = graph.node(node);
            if !matches!(data.op, Op::MatMul { .. }) {
                continue;
            }
            let reads_state = |region: Node| {
                let operands = &graph.node(region).operands;
                operands.iter().any(|&v| matches!(graph.def(v), ValueDef::State(_)))
            };
            before[i] = graph
                .defining_node(data.operands[0])
                .filter(|&d| matches!(graph.node(d).op, Op::Region(_)) && !reads_state(d))
                .and_then(|d| order.iter().position(|&o| o == d));
            if let Some(&next) = order.get(i + 1) {
                let region = graph.node(next);
                let reads = region.operands.contains(&data.results[0]);
                if reads && matches!(region.op, Op::Region(_)) {
                    after[i] = Some(i + 1);
                    is_after[i + 1] = true;
                }
            }
        }
        Self { order, before, after, is_after }
    }

    /// Whether anything but absorbed reads needs `value` in its slot.
    fn needs_slot(&self, graph: &Graph, value: Value) -> bool {
        if graph.outputs().contains(&value) {
            return true;
        }
        self.order.iter().enumerate().any(|(i, &node)| {
            let data = graph.node(node);
            let is_read = |value: Value| data.operands.contains(&value);
            if !is_read(value) {
                return false;
            }
            if let Some(before) = self.before[i] {
                // The matmul finds its left operand in scratch.
                let made = graph.node(self.order[before]).results.contains(&value);
                let elsewhere = data.operands[1..].contains(&value);
                return !made || elsewhere;
            }
            if self.is_after[i] {
                // The region finds the matmul's result in scratch, unless it runs again later.
                let matmul = graph.node(self.order[i - 1]).results[0] == value;
                let again = self.before.contains(&Some(i));
                return !matmul || again;
            }
            true
        })
    }
}

/// A launch of several parts under construction.
#[derive(Default)]
struct Parts {
    args: Vec<Arg>,
    parts: Vec<AbsorbedPart>,
    /// Values that this launch holds in scratch, and where.
    held: Vec<(Value, ArgRef)>,
    scratch: u64,
}

impl Parts {
    /// Makes room in the scratch for values.
    fn hold(&mut self, graph: &Graph, value: Value, limits: &[u64]) {
        let bytes = graph.ty(value).bytes(limits);
        let at = ArgRef::Scratch { offset: self.scratch, bytes };
        self.held.push((value, at));
        self.scratch = self.scratch.saturating_add(bytes).next_multiple_of(64);
    }

    fn arg(&mut self, arg: Arg) -> u32 {
        match self.args.iter_mut().position(|known| known.at == arg.at) {
            Some(i) => {
                if self.args[i].access != arg.access {
                    self.args[i].access = Access::ReadWrite;
                }
                i as u32
            }
            None => {
                self.args.push(arg);
                (self.args.len() - 1) as u32
            }
        }
    }

    fn push(&mut self, graph: &Graph, node: Node, launch: NodeLaunch) {
        let data = graph.node(node);
        let values = data.operands.iter().chain(&data.results);
        let args: Vec<Arg> = values
            .zip(launch.args)
            .map(|(value, arg)| match self.held.iter().find(|(held, _)| held == value) {
                Some(&(_, at)) => Arg { at, access: arg.access },
                None => arg,
            })
            .collect();
        let args = args.into_iter().map(|arg| self.arg(arg)).collect();
        self.parts.push(AbsorbedPart {
            kernel: launch.kernel,
            args,
            scratch_at: 0,
            scratch: launch.scratch,
        });
    }

    /// Poisons what the launch writes before anything else, and closes it.
    fn finish(
        mut self,
        piece: &UniquePiece,
        operands: &[Value],
        name: String,
        grid: u64,
    ) -> NodeLaunch {
        let results = self.args.iter().enumerate().filter(|(_, arg)| arg.access == Access::Write);
        let (mut args, mut types) = (Vec::new(), Vec::new());
        for (i, arg) in results {
            if let ArgRef::Operand(position) = arg.at {
                args.push(i as u32);
                types.push(piece.graph.ty(operands[position as usize]).clone());
            }
        }
        let poison =
            AbsorbedPart { kernel: Kernel::Poison(types), args, scratch_at: 0, scratch: 0 };
        self.parts.insert(0, poison);
        // Parts run one after the other, so that one scratch serves all.
        let own = self.parts.iter().map(|part| part.scratch).max().unwrap_or(0);
        self.parts.iter_mut().for_each(|part| part.scratch_at = self.scratch);
        NodeLaunch {
            name,
            kernel: Kernel::Absorbed(Absorbed { parts: self.parts }),
            args: self.args,
            scratch: self.scratch.saturating_add(own),
            grid,
            capture: CaptureSupport::Always,
        }
    }
}

impl Compiler for AbsorbingCompiler {
    fn target(&self) -> String {
        self.plain.target()
    }

    fn admit(&self, at: PieceAt<'_>, artifact: &mut Artifact) -> Result<(), String> {
        self.plain.admit(at, artifact)
    }

    fn custom_ops(&self, at: PieceAt<'_>) -> Result<String, CompileError> {
        self.plain.custom_ops(at)
    }

    fn identity(&self) -> String {
        format!("{} absorbing", self.plain.identity())
    }

    fn weight_layouts(&self, stitch: &Stitch, _: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        row_major(stitch)
    }

    fn compile(
        &self,
        at: PieceAt<'_>,
        _: &[WeightLayout],
        _: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let (PieceAt { piece, size, .. }, limits) = (at, at.limits());
        let graph = &piece.graph;
        let positions = Positions::new(piece);
        let operands = piece.operands();
        let groups = Groups::of(graph);
        let mut assembly = Assembly::default();
        for (i, &node) in groups.order.iter().enumerate() {
            if groups.is_after[i] {
                continue;
            }
            let results = graph.node(node).results.iter();
            let is_region = matches!(graph.node(node).op, Op::Region(_));
            let is_recomputed = groups.before.contains(&Some(i));
            if is_region && is_recomputed && !results.clone().any(|&v| groups.needs_slot(graph, v))
            {
                continue;
            }
            let mut nodes: Vec<usize> = Vec::new();
            nodes.extend(groups.before[i]);
            nodes.push(i);
            nodes.extend(groups.after[i]);
            let mut parts = Parts::default();
            for &part in &nodes {
                let before = Some(part) == groups.before[i] && part != i;
                for &value in &graph.node(groups.order[part]).results {
                    if before || !groups.needs_slot(graph, value) {
                        parts.hold(graph, value, &limits);
                    }
                }
            }
            let mut name = Vec::new();
            let mut grid = 1;
            for &part in &nodes {
                let node = groups.order[part];
                let launch = self.plain.node(piece, &positions, part, node, &limits)?;
                name.push(launch.name.clone());
                grid = grid.max(launch.grid);
                if matches!(launch.kernel, Kernel::Custom(_)) {
                    // A custom op stays a launch of its own.
                    assembly.push(vec![part as u32], launch, &self.target())?;
                    continue;
                }
                parts.push(graph, node, launch);
            }
            if parts.parts.is_empty() {
                continue;
            }
            let launch = parts.finish(piece, &operands, name.join(" + "), grid);
            let nodes = nodes.into_iter().map(|n| n as u32).collect();
            assembly.push(nodes, launch, &self.target())?;
        }
        Ok(assembly.finish(piece, size))
    }
}
