//! What is compiled and planned does not grow with the number of layers, and how much there is of
//! everything is pinned for every model at hand.

use crate::support::models::{MODELS, small_model, small_sparse_model};
use piecewise::models::{Checkpoint, DecoderBounds, DecoderConfig, decoder};
use piecewise_backend::artifact::{Artifact, PieceSize};
use piecewise_backend::compiler::{CompileError, Compiler, NoStore, PieceAt, Store};
use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
use piecewise_backend::tuning::TuneMode;
use piecewise_backend::weights::{NormalWeights, WeightLayout};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, Step, Stitch};
use piecewise_ir::op::Op;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::dispatch::{Dispatcher, SizeRules, lowering_sizes};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::steps::{BuildOptions, CompiledModel};
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::sizes::SizeList;
use piecewise_runtime::words::{
    CaptureWhen, Checks, CompileLevel, GraphMode, OnCaptureFailure, SymbolTable,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

const SEQUENCES: u64 = 4;
const TOKENS: u64 = 32;

fn bounds(activations: DType, max_tokens: u64) -> DecoderBounds {
    DecoderBounds {
        activations,
        max_tokens,
        max_rows: SEQUENCES,
        max_sequences: SEQUENCES,
        max_length: 64,
        kv_rows: 64 * SEQUENCES,
        state_slots: 0,
        embedding_rows: 0,
        sampling_controls: false,
    }
}

fn planned(graph: Graph) -> Module {
    plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0
}

fn dispatcher(sizes: &[u64], max_tokens: u64) -> Dispatcher {
    let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", 1 << 20).unwrap();
    Dispatcher {
        mode: GraphMode::FullAndPiecewise,
        tokens: list(sizes),
        batches: list(&[1, 2, 4]),
        query_lengths: vec![1],
        max_tokens,
        max_rows: SEQUENCES,
        max_sequences: SEQUENCES,
        padding: true,
        own: Vec::new(),
        rules: SizeRules::default(),
    }
}

/// Panics where a piece that equals one before is compiled for a size again.
struct CompilesOnce {
    compiler: CpuCompiler,
    artifacts: Mutex<BTreeMap<([u8; 32], PieceSize), usize>>,
}

impl Compiler for CompilesOnce {
    fn target(&self) -> String {
        self.compiler.target()
    }

    fn identity(&self) -> String {
        self.compiler.identity()
    }

    fn weight_layouts(&self, stitch: &Stitch, sizes: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        self.compiler.weight_layouts(stitch, sizes)
    }

    fn compile(
        &self,
        at: PieceAt<'_>,
        layouts: &[WeightLayout],
        store: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let artifact = self.compiler.compile(at, layouts, store)?;
        let bytes = serde_json::to_vec(&artifact).unwrap().len();
        let known = self.artifacts.lock().unwrap().insert((at.piece.hash, at.size), bytes);
        assert_eq!(known, None, "an equal piece was compiled for {:?} before", at.size);
        Ok(artifact)
    }
}

/// What must not depend on the number of layers.
#[derive(PartialEq, Eq, Debug)]
struct Cost {
    unique_pieces: usize,
    compiles: usize,
    artifact_bytes: usize,
    arena_bytes: u64,
    scratch_bytes: u64,
}

fn cost(config: &DecoderConfig, sizes: &[u64]) -> Cost {
    let graph = decoder(config, &bounds(DType::F32, TOKENS), |_| None).unwrap();
    let module = Arc::new(planned(graph));
    let stitch = module.stitch().unwrap();
    assert_eq!(stitch.split_op_count(), config.num_layers);
    let unique_pieces = stitch.unique_pieces().len();
    let registry = Arc::new(OpRegistry::builtin());
    let compiler = CompilesOnce {
        compiler: CpuCompiler::new(Arc::clone(&registry), 2),
        artifacts: Mutex::default(),
    };
    let options = BuildOptions {
        dispatcher: dispatcher(sizes, TOKENS),
        max_logit_rows: SEQUENCES,
        read_outputs: vec![0, 1],
        capture: CaptureWhen::Startup,
        on_capture_failure: OnCaptureFailure::Error,
        capture_attempts: 3,
        recapture_limit: 128,
        capture_exclude: Vec::new(),
        probes: Vec::new(),
        tune: TuneMode::default(),
        tune_budget: std::time::Duration::ZERO,
        tuning_steps: Vec::new(),
        strict: true,
        checks: Checks::default(),
        measure_padding: false,
    };
    let compiled =
        compile_module(&module, &options.dispatcher, &compiler, &NoStore, &mut |_| {}).unwrap();
    let model = CompiledModel::build(
        Arc::clone(&module),
        options,
        compiled,
        &NoStore,
        Box::new(CpuDevice::new(registry, 2).unwrap()),
        Arc::new(NormalWeights { std: 0.1, seed: 1 }),
        &mut |_| {},
    )
    .unwrap();
    let artifacts = compiler.artifacts.into_inner().unwrap();
    Cost {
        unique_pieces,
        compiles: artifacts.len(),
        artifact_bytes: artifacts.values().sum(),
        arena_bytes: model.memory().ledger.slots,
        scratch_bytes: model.memory().ledger.scratch,
    }
}

#[test]
fn compiling_and_the_arena_cost_the_same_for_2_6_and_60_layers() {
    let sizes = [1, 2, 4, 8, 16];
    for model in [small_model, small_sparse_model] {
        let two = cost(&model(2), &sizes);
        assert!(two.unique_pieces <= 4, "{two:?}");
        assert_eq!(cost(&model(6), &sizes), two);
        assert_eq!(cost(&model(60), &sizes), two);
    }
}

#[test]
fn the_arena_is_that_of_the_bound_whatever_the_sizes() {
    let arena = |sizes: &[u64]| cost(&small_model(2), sizes).arena_bytes;
    let all = arena(&[1, 2, 4, 8, 16, 32]);
    assert_eq!([arena(&[1]), arena(&[7, 9]), arena(&[32])], [all; 3]);
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn count_ops(graph: &Graph, is_wanted: impl Fn(&Op) -> bool) -> usize {
    graph.nodes().filter(|&node| is_wanted(&graph.node(node).op)).count()
}

/// Pieces, regions, matmuls, and launches of the whole step by size.
fn counts(folder: &str, activations: DType) -> String {
    let folder = root().join(folder);
    let config = DecoderConfig::load(&folder).unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let dtypes: BTreeMap<String, DType> = checkpoint
        .names()
        .filter_map(|name| Some((name.to_owned(), checkpoint.dtype_of(name)?)))
        .collect();
    let graph =
        decoder(&config, &bounds(activations, TOKENS), move |name| dtypes.get(name).copied());
    let module = planned(graph.unwrap());
    let (graph, stitch) = (module.graph(), module.stitch().unwrap());
    let prologue = stitch.steps.iter().filter(|s| matches!(s, Step::Prologue(_))).count();
    let mut text = format!(
        "layers {}, pieces {}, unique pieces {}, split ops {}, prologue ops {prologue}, \
         regions {}, matmuls {}, custom ops {}, other nodes {}",
        config.num_layers,
        stitch.piece_count(),
        stitch.unique_pieces().len(),
        stitch.split_op_count(),
        count_ops(graph, |op| matches!(op, Op::Region(_))),
        count_ops(graph, |op| matches!(op, Op::MatMul { .. })),
        count_ops(graph, |op| matches!(op, Op::Custom(_))),
        count_ops(graph, |op| { !matches!(op, Op::Region(_) | Op::MatMul { .. } | Op::Custom(_)) }),
    );
    let symbols = SymbolTable::new(graph.symbols()).unwrap();
    let compiler = CpuCompiler::new(Arc::new(OpRegistry::builtin()), 2);
    let dispatcher = dispatcher(&[1, 4, 16], TOKENS);
    let mut launches: BTreeMap<PieceSize, usize> = BTreeMap::new();
    let mut sizes_of_all = BTreeSet::new();
    for step in &stitch.steps {
        let unique = stitch.uses[step.id()].unique;
        let piece = &stitch.unique[unique];
        let layouts = vec![WeightLayout::default(); piece.graph.weights().len()];
        for at in lowering_sizes(stitch, unique, &symbols, &dispatcher) {
            let of_bound = PieceSize::General(0);
            let key = if matches!(at.size, PieceSize::General(_)) { of_bound } else { at.size };
            let artifact = compiler
                .compile(PieceAt { piece, size: at.size, bounds: &at.bounds }, &layouts, &NoStore)
                .unwrap();
            *launches.entry(key).or_default() += artifact.first_launches().count();
            sizes_of_all.insert(key);
        }
    }
    for size in sizes_of_all {
        let name = match size {
            PieceSize::Exact(size) => format!("{size} rows"),
            PieceSize::Uniform { .. } => format!("{size} rows"),
            PieceSize::General(_) => "any number of rows".to_owned(),
        };
        write!(text, "\n  launches at {name}: {}", launches[&size]).unwrap();
    }
    text
}

#[test]
fn how_much_there_is_of_everything_is_pinned() {
    let mut text = String::new();
    for folder in MODELS {
        for activations in [DType::F32, DType::BF16] {
            writeln!(text, "{folder} {activations}: {}", counts(folder, activations)).unwrap();
        }
    }
    insta::assert_snapshot!(text);
}
