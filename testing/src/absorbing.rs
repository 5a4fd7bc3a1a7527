//! A compiler that absorbs regions into matmuls, for tests of lifetimes.
//!
//! A matmul, the region before it and the region after it become one moment: the region before is
//! computed again into scratch, the region after runs at once, and values that nothing else reads are
//! never written to their slots. First of all every result is poisoned, so that a plan which lets a
//! result share bytes with anything that the moment reads is refused, or gives NaNs.

use piecewise_backend::artifact::{Access, Alternative, Arg, ArgRef, Artifact, Launch, PieceSize};
use piecewise_backend::compiler::{CompileError, Compiler, ImageListing, NoStore, PieceAt, Store};
use piecewise_backend::cpu::CpuCompiler;
use piecewise_backend::weights::WeightLayout;
use piecewise_ir::custom::{Attr, Attrs, CustomCall};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Node, Value};
use piecewise_ir::graph::{Graph, Loc, ValueDef};
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::op::{Op, RowTreatment};
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
use std::sync::Arc;

/// Reads anything, and fills its results with bytes that are a NaN in every float type.
#[derive(Debug)]
struct Poison;

impl Poison {
    const NAME: &'static str = "test.poison";
}

impl CpuOp for Poison {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let counts = ["reads", "writes"].map(|name| args.attrs().get(name));
        let [Some(Attr::Int(reads)), Some(Attr::Int(writes))] = counts else {
            return Err(args.error("it does not say how much it reads and writes"));
        };
        for position in *reads as usize..(reads + writes) as usize {
            match args.dtype(position) {
                DType::F32 => args.write(position)?.fill(f32::from_bits(u32::MAX)),
                DType::F16 => args.write(position)?.fill(half::f16::from_bits(u16::MAX)),
                DType::BF16 => args.write(position)?.fill(half::bf16::from_bits(u16::MAX)),
                DType::I32 => args.write(position)?.fill(-1i32),
                DType::I64 => args.write(position)?.fill(-1i64),
                DType::U8 | DType::Bool | DType::E4M3 | DType::I4 => {
                    args.write(position)?.fill(u8::MAX);
                }
            }
        }
        Ok(())
    }
}

/// The same ops and what a device needs besides to run what [`AbsorbingCompiler`] makes.
pub fn absorbing_ops(registry: &OpRegistry) -> Arc<OpRegistry> {
    let mut registry = registry.clone();
    registry.implement_cpu(Arc::new(Poison));
    Arc::new(registry)
}

/// Compiles as [`CpuCompiler`] does, with regions absorbed into the matmuls beside them.
#[derive(Clone, Debug)]
pub struct AbsorbingCompiler {
    plain: CpuCompiler,
}

impl AbsorbingCompiler {
    /// A compiler whose artifacts have scratch for `threads` threads. They run on a device of
    /// [`absorbing_ops`].
    pub fn new(registry: &OpRegistry, threads: usize) -> Self {
        Self { plain: CpuCompiler::new(absorbing_ops(registry), threads) }
    }
}

/// Which nodes become one moment.
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

/// The launches of one moment under construction.
#[derive(Default)]
struct Moment {
    nodes: Vec<u32>,
    launches: Vec<Launch>,
    /// Values that are held in scratch, and where.
    held: Vec<(Value, ArgRef)>,
    scratch: u64,
}

impl Moment {
    /// Makes room in the scratch for a value.
    fn hold(&mut self, graph: &Graph, value: Value, limits: &[u64]) {
        let bytes = graph.ty(value).bytes(limits);
        let at = ArgRef::Scratch { offset: self.scratch, bytes };
        self.held.push((value, at));
        self.scratch = self.scratch.saturating_add(bytes).next_multiple_of(64);
    }

    fn push(&mut self, graph: &Graph, node: Node, launch: &Launch) {
        let data = graph.node(node);
        let values = data.operands.iter().chain(&data.results).zip(&launch.args);
        let args = values.map(|(value, arg)| {
            let held = self.held.iter().find(|(held, _)| held == value);
            Arg { at: held.map_or(arg.at, |&(_, at)| at), access: arg.access }
        });
        let args = args.collect();
        self.launches.push(Launch { args, ..launch.clone() });
    }

    /// The positions of the operands that its launches use, each once, with what they do altogether.
    fn accesses(&self) -> Vec<(u32, Access)> {
        let mut all: Vec<(u32, Access)> = Vec::new();
        for arg in self.launches.iter().flat_map(|launch| &launch.args) {
            let ArgRef::Operand(position) = arg.at else { continue };
            match all.iter_mut().find(|(known, _)| *known == position) {
                Some((_, access)) if *access != arg.access => *access = Access::ReadWrite,
                Some(_) => {}
                None => all.push((position, arg.access)),
            }
        }
        all
    }
}

impl AbsorbingCompiler {
    /// A launch that poisons what a moment writes before anything else, and reads all that it reads, so
    /// that both are apart; and its image.
    fn poison(&self, at: PieceAt<'_>, moment: &Moment) -> Result<Artifact, CompileError> {
        let piece = at.piece;
        let mut graph = Graph::with_symbols_of("poison", &piece.graph);
        let operands = piece.operands();
        let (mut positions, mut inputs) = (Vec::new(), Vec::new());
        let accesses = moment.accesses();
        let ty =
            |position: u32| -> TensorType { piece.graph.ty(operands[position as usize]).clone() };
        for &(position, _) in accesses.iter().filter(|(_, access)| *access == Access::Read) {
            let name = format!("read {position}");
            inputs.push(graph.add_input(name, ty(position), None, None));
            positions.push(position);
        }
        let written: Vec<u32> = accesses
            .iter()
            .filter(|(_, access)| *access == Access::Write)
            .map(|&(position, _)| position)
            .collect();
        let mut attrs = Attrs::new();
        attrs.insert("reads".to_owned(), Attr::Int(inputs.len() as i64));
        attrs.insert("writes".to_owned(), Attr::Int(written.len() as i64));
        let call = CustomCall {
            name: Poison::NAME.to_owned(),
            attrs,
            mutates: Vec::new(),
            rows: RowTreatment::Independent,
            splits: false,
            absorbs: Vec::new(),
            scatters: Vec::new(),
        };
        let results = written.iter().map(|&position| ty(position)).collect();
        graph.push_node(Op::Custom(Box::new(call)), inputs, results, Loc::default());
        positions.extend(written);
        let poison = UniquePiece { over: piece.over, graph, hash: [0; 32] };
        let mut made = self.plain.compile(PieceAt { piece: &poison, ..at }, &[], &NoStore)?;
        let launches = made.ways_mut().flat_map(|way| &mut way.launches);
        for launch in launches {
            launch.nodes.clone_from(&moment.nodes);
            for arg in &mut launch.args {
                if let ArgRef::Operand(position) = &mut arg.at {
                    *position = positions[*position as usize];
                }
            }
        }
        Ok(made)
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

    fn weight_layouts(&self, stitch: &Stitch, sizes: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        self.plain.weight_layouts(stitch, sizes)
    }

    fn listing(&self, image: &[u8]) -> Option<ImageListing> {
        self.plain.listing(image)
    }

    fn compile(
        &self,
        at: PieceAt<'_>,
        layouts: &[WeightLayout],
        store: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let mut made = self.plain.compile(at, layouts, store)?;
        let plain: Vec<Launch> = made.first_launches().cloned().collect();
        let (graph, limits, own) = (&at.piece.graph, at.limits(), made.scratch());
        let groups = Groups::of(graph);
        let (mut launches, mut scratch) = (Vec::new(), own);
        for (i, &node) in groups.order.iter().enumerate() {
            if groups.is_after[i] {
                continue;
            }
            let mut results = graph.node(node).results.iter();
            let is_region = matches!(graph.node(node).op, Op::Region(_));
            let is_recomputed = groups.before.contains(&Some(i));
            if is_region && is_recomputed && !results.any(|&v| groups.needs_slot(graph, v)) {
                continue;
            }
            if matches!(graph.node(node).op, Op::Custom(_)) {
                launches.push(plain[i].clone());
                continue;
            }
            let parts = groups.before[i].into_iter().chain([i]).chain(groups.after[i]);
            let parts: Vec<usize> = parts.collect();
            let nodes = parts.iter().map(|&part| part as u32).collect();
            let mut moment = Moment { nodes, ..Moment::default() };
            for &part in &parts {
                // The region after reads what else it reads of the region before where that wrote it.
                if Some(part) == groups.after[i] {
                    let matmul = graph.node(node).results[0];
                    moment.held.retain(|(value, _)| *value == matmul);
                }
                let is_before = Some(part) == groups.before[i];
                for &value in &graph.node(groups.order[part]).results {
                    if is_before || !groups.needs_slot(graph, value) {
                        moment.hold(graph, value, &limits);
                    }
                }
                moment.push(graph, groups.order[part], &plain[part]);
            }
            scratch = scratch.max(moment.scratch.saturating_add(own));
            if moment.accesses().iter().any(|(_, access)| *access == Access::Write) {
                let poison = self.poison(at, &moment)?;
                launches.extend(poison.first_launches().cloned());
                let unknown = poison.images.into_iter();
                let unknown = unknown.filter(|(digest, _)| made.image(*digest).is_none());
                let unknown = Vec::from_iter(unknown);
                made.images.extend(unknown);
            }
            launches.append(&mut moment.launches);
        }
        made.alternatives = vec![Alternative::single(launches, scratch)];
        Ok(made)
    }
}
