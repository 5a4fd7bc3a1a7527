//! What the cache holds of a decoder: the same for any number of layers and whatever they are
//! called.

use crate::support::models::small_model;
use piecewise::models::{DecoderBounds, DecoderConfig, Preset, decoder};
use piecewise_backend::artifact::Digest;
use piecewise_backend::cpu::CpuCompiler;
use piecewise_backend::cuda::{Arch, CudaCompiler, LazyNvrtc};
use piecewise_backend::store::{MemoryEntry, MemoryStore};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_ir::text::{parse_module, print_graph};
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::dispatch::{Dispatcher, SizeRules};
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::store::{compile_jobs, compile_module};
use piecewise_runtime::words::sizes::SizeList;
use piecewise_runtime::words::{CompileCounts, CompileLevel, GraphMode, SymbolTable};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SEQUENCES: u64 = 4;
const TOKENS: u64 = 32;

fn graph_of(config: &DecoderConfig, kv_rows: u64) -> Graph {
    let bounds = DecoderBounds {
        activations: DType::BF16,
        max_tokens: TOKENS,
        max_rows: SEQUENCES,
        max_sequences: SEQUENCES,
        max_length: 64,
        kv_rows,
        state_slots: 0,
        embedding_rows: 0,
        sampling_controls: false,
    };
    decoder(config, &bounds, |_| None).unwrap()
}

fn dispatcher() -> Dispatcher {
    let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", 1 << 20).unwrap();
    Dispatcher {
        mode: GraphMode::FullAndPiecewise,
        tokens: list(&[1, 8, 32]),
        batches: list(&[1, 4]),
        query_lengths: vec![1],
        max_tokens: TOKENS,
        max_rows: SEQUENCES,
        max_sequences: SEQUENCES,
        padding: true,
        own: Vec::new(),
        rules: SizeRules::default(),
    }
}

type Entries = BTreeMap<(&'static str, Digest), MemoryEntry>;

fn compiled(graph: Graph) -> (Entries, CompileCounts) {
    let (module, _) = plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap();
    let compiler = CpuCompiler::new(Arc::new(OpRegistry::builtin()), 2);
    let store = MemoryStore::new();
    let made = compile_module(&module, &dispatcher(), &compiler, &store, &mut |_| {}).unwrap();
    (store.entries(), made.counts)
}

#[test]
fn entries_and_compiles_are_the_same_for_2_6_and_60_layers() {
    let two = compiled(graph_of(&small_model(2), 256));
    assert!(two.1.total_compiled() > 0);
    assert_eq!(compiled(graph_of(&small_model(6), 256)), two);
    assert_eq!(compiled(graph_of(&small_model(60), 256)), two);
}

#[test]
fn entries_do_not_depend_on_names_of_layers_and_weights_or_on_the_kv_pool() {
    let graph = graph_of(&small_model(2), 256);
    let text = print_graph(&graph);
    let renamed = text
        .replace("model.layers.", "decoder.blocks.")
        .replace("self_attn.q_proj", "attention.wq")
        .replace("graph decoder", "graph other");
    assert_ne!(text, renamed);
    let expected = compiled(graph);
    let renamed = parse_module(&renamed).unwrap().into_graph();
    assert_eq!(compiled(renamed), expected);
    assert_eq!(compiled(graph_of(&small_model(2), 4096)), expected);
}

/// The keys of everything that a decoder compiles for an architecture; no kernel is compiled.
fn cuda_keys(config: &DecoderConfig, arch: u32, kv_rows: u64) -> Vec<Digest> {
    let graph = graph_of(config, kv_rows);
    let (module, _) = plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap();
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let registry = Arc::new(OpRegistry::builtin());
    let compiler = CudaCompiler::new(registry, Arch { number: arch }, LazyNvrtc::missing());
    let jobs = compile_jobs(module.stitch().unwrap(), &symbols, &dispatcher(), &compiler);
    jobs.iter().map(|job| job.key(&compiler).unwrap().digest()).collect()
}

#[test]
fn cuda_keys_need_no_nvrtc_and_tell_models_and_architectures_apart() {
    let config = |layers| {
        let mut config = Preset::Qwen3_0_6B.config();
        config.num_layers = layers;
        config
    };
    let keys = cuda_keys(&config(2), 90, 256);
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    assert_eq!(cuda_keys(&config(5), 90, 256), keys);
    assert_eq!(cuda_keys(&config(2), 90, 4096), keys);
    let apart = |other: Vec<Digest>| assert!(other.iter().all(|key| !keys.contains(key)));
    apart(cuda_keys(&config(2), 100, 256));
    let mut wider = config(2);
    wider.intermediate_size = 4096;
    assert!(cuda_keys(&wider, 90, 256).iter().any(|key| !keys.contains(key)));
}
