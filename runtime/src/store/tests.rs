mod images;

use super::*;
use crate::dispatch::{Dispatcher, SizeRules};
use crate::observe::Statistics;
use crate::pipeline::plan;
use crate::words::sizes::SizeList;
use crate::words::{CompileCounts, CompileLevel, GraphMode};
use piecewise_backend::artifact::{Arg, ArgRef, Artifact, Digest, PieceSize};
use piecewise_backend::compiler::{Claim, CompileError, Compiler, Entry, PieceAt, StoreError};
use piecewise_backend::cpu::CpuCompiler;
use piecewise_backend::store::{MemoryEntry, MemoryStore, Store};
use piecewise_backend::weights::WeightLayout;
use piecewise_cache::{Cache, CacheOptions};
use piecewise_ir::builder::Builder;
use piecewise_ir::dtype::DType;
use piecewise_ir::module::{Module, Stitch};
use piecewise_kernels::op::OpRegistry;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Entries = BTreeMap<(&'static str, Digest), MemoryEntry>;

/// A step of two norms and products, over rows of a state.
fn module(state_rows: u64) -> Module {
    let b = Builder::new("step").weight_dtype(DType::BF16);
    let t = b.symbol("T", 1, 64);
    let p = b.symbol_with_role("P", 0, state_rows, crate::words::roles::KV_ROWS);
    let x = b.input("x", DType::BF16, (t, 32));
    let slots = b.input("slots", DType::I32, [t]).padding(-1);
    let kept = b.state("kept", DType::BF16, (p, 32));
    let h = x.rms_norm(b.weight("norm", [32]), 1e-6);
    kept.scatter(slots, h);
    let y = x + h.linear(b.weight("up", [48, 32])).silu().linear(b.weight("down", [32, 48]));
    let graph = b.finish([y.rms_norm(b.weight("norm", [32]), 1e-6)]).unwrap();
    plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap().0
}

fn dispatcher() -> Dispatcher {
    let list = |sizes: &[u64]| SizeList::new("sizes", sizes.to_vec(), "bound", 64).unwrap();
    Dispatcher {
        mode: GraphMode::Piecewise,
        tokens: list(&[1, 8, 64]),
        batches: list(&[1]),
        query_lengths: vec![1],
        max_tokens: 64,
        max_rows: 1,
        max_sequences: 1,
        padding: true,
        own: Vec::new(),
        rules: SizeRules::default(),
    }
}

fn compile_with(module: &Module, threads: usize, store: &dyn Store) -> CompiledPieces {
    let compiler = CpuCompiler::new(Arc::new(OpRegistry::builtin()), threads);
    compile_module(module, &dispatcher(), &compiler, store, &mut |_| {}).unwrap()
}

fn compiled(store: &dyn Store) -> CompiledPieces {
    compile_with(&module(256), 4, store)
}

fn filled() -> (MemoryStore, CompiledPieces) {
    let store = MemoryStore::new();
    let cold = compiled(&store);
    (store, cold)
}

/// A store of these entries.
fn store_of(entries: &Entries) -> MemoryStore {
    let store = MemoryStore::new();
    for ((kind, key), entry) in entries {
        store.put(unexplained(kind, *key, &entry.bytes)).unwrap();
    }
    store
}

fn keys_of(entries: &Entries, kind: &str) -> Vec<Digest> {
    entries.keys().filter(|(k, _)| *k == kind).map(|(_, key)| *key).collect()
}

#[test]
fn a_warm_compile_compiles_nothing_and_gives_the_same_artifacts() {
    let (store, cold) = filled();
    let pieces = cold.artifacts.iter().flatten().count() as u64;
    assert_eq!(cold.counts.compiled, BTreeMap::from([(PIECE_KIND, pieces)]));
    assert_eq!(cold.counts.misses, BTreeMap::from([("absent", pieces)]));
    let warm = compiled(&store);
    assert_eq!(warm.counts.total_compiled(), 0);
    assert_eq!(warm.counts.reused, BTreeMap::from([(PIECE_KIND, pieces)]));
    assert_eq!((warm.counts.bytes_written, warm.counts.misses.len()), (0, 0));
    assert_eq!(warm.artifacts, cold.artifacts);
    let statistics = Statistics { compile: warm.counts, ..Statistics::default() };
    let shown = serde_json::to_value(&statistics).unwrap();
    assert_eq!(shown["compile"]["reused"]["piece"], pieces);
}

#[test]
fn entries_do_not_depend_on_the_threads_or_on_the_rows_of_a_state() {
    let entries = |module: &Module, threads| {
        let store = MemoryStore::new();
        compile_with(module, threads, &store);
        store.entries()
    };
    let expected = entries(&module(256), 1);
    assert_eq!(entries(&module(256), 64), expected);
    assert_eq!(entries(&module(1 << 20), 4), expected);
}

#[test]
fn scratch_is_for_the_threads_of_this_machine() {
    let (store, _) = filled();
    let scratch = |threads| {
        let warm = compile_with(&module(256), threads, &store);
        assert_eq!(warm.counts.total_compiled(), 0);
        warm.artifacts.iter().flatten().map(Artifact::scratch).max().unwrap()
    };
    assert!(scratch(1) < scratch(16), "{} and {}", scratch(1), scratch(16));
}

/// What `change` makes of the bytes of every entry of a kind is a miss for this reason, and the
/// artifacts are those of a cold compile.
#[track_caller]
fn check_miss(kind: &'static str, reason: &str, change: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let (store, cold) = filled();
    let good = store.entries();
    let mut bad = good.clone();
    for key in keys_of(&good, kind) {
        match change(&good[&(kind, key)].bytes) {
            Some(bytes) => bad.get_mut(&(kind, key)).unwrap().bytes = bytes,
            None => drop(bad.remove(&(kind, key))),
        }
    }
    let store = store_of(&bad);
    let warm = compiled(&store);
    assert_eq!(warm.artifacts, cold.artifacts);
    assert_eq!(warm.counts.misses.keys().copied().collect::<Vec<_>>(), [reason]);
    // An image that one piece has made again serves the others.
    let made = warm.counts.total_compiled();
    let all = cold.counts.total_compiled();
    assert!(made == all || (kind == IMAGE_KIND && (1..all).contains(&made)), "{made} of {all}");
    let healed = store.entries();
    assert!(good.iter().all(|(key, entry)| healed[key].bytes == entry.bytes));
    assert_eq!(compiled(&store).counts.total_compiled(), 0);
}

#[test]
fn entries_that_do_not_fit_are_misses_and_made_again() {
    check_miss(PIECE_KIND, "absent", |_| None);
    check_miss(PIECE_KIND, "unfit", |bytes| Some(bytes[..bytes.len() - 1].to_vec()));
    check_miss(PIECE_KIND, "unfit", |bytes| Some([bytes, &[0]].concat()));
    check_miss(PIECE_KIND, "unfit", |_| Some(Vec::new()));
    check_miss(PIECE_KIND, "unfit", |_| Some(vec![0xff; 4096]));
    check_miss(IMAGE_KIND, "image absent", |_| None);
    check_miss(IMAGE_KIND, "unfit", |bytes| Some(bytes.iter().map(|b| b ^ 1).collect()));
}

#[test]
fn an_entry_of_another_piece_is_a_miss() {
    let (store, cold) = filled();
    let good = store.entries();
    let mut rotated = good.clone();
    let keys = keys_of(&good, PIECE_KIND);
    for (i, key) in keys.iter().enumerate() {
        let other = good[&(PIECE_KIND, keys[(i + 1) % keys.len()])].clone();
        rotated.insert((PIECE_KIND, *key), other);
    }
    let warm = compiled(&store_of(&rotated));
    assert_eq!(warm.artifacts, cold.artifacts);
    assert_eq!(warm.counts.misses, BTreeMap::from([("unfit", keys.len() as u64)]));
}

type Fault = fn(&mut Artifact);

#[test]
fn launches_that_lead_nowhere_are_misses() {
    let faults: [Fault; 6] = [
        |a| a.alternatives.clear(),
        |a| a.alternatives[0].parts[0].ways[0].launches[0].args[0].at = ArgRef::Operand(1 << 20),
        |a| a.alternatives[0].parts[0].ways[0].launches[0].nodes[0] = 1 << 20,
        |a| {
            let at = ArgRef::Scratch { offset: u64::MAX, bytes: 2 };
            a.alternatives[0].parts[0].ways[0].launches[0].args[0].at = at;
        },
        |a| {
            let args = &mut a.alternatives[0].parts[0].ways[0].launches[0].args;
            args.truncate(args.len() - 1);
        },
        |a| {
            let args: &mut Vec<Arg> = &mut a.alternatives[0].parts[0].ways[0].launches[0].args;
            args.iter_mut().for_each(|arg| arg.access = piecewise_backend::artifact::Access::Read);
        },
    ];
    for plant in faults {
        check_miss(PIECE_KIND, "unfit", |bytes| {
            let stored = StoredPiece::decode(bytes).unwrap();
            let images = stored.images().iter().map(|digest| (*digest, Vec::new())).collect();
            let mut artifact = stored.into_artifact(images);
            plant(&mut artifact);
            Some(StoredPiece::encode(&artifact).unwrap())
        });
    }
}

/// The cache's checksum finds such bytes before; were it broken, they would still do no harm.
#[test]
fn no_flipped_byte_of_a_lowered_piece_is_a_panic_or_an_error() {
    let (store, _) = filled();
    let good = store.entries();
    let key = keys_of(&good, PIECE_KIND)[0];
    let bytes = &good[&(PIECE_KIND, key)].bytes;
    let store = store_of(&good);
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        store.put(unexplained(PIECE_KIND, key, &flipped)).unwrap();
        let warm = compiled(&store);
        assert!(warm.counts.total_compiled() <= 1, "byte {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// As a flipped byte; with what is cut, repeated and in another's place.
    #[test]
    fn no_damaged_lowered_piece_is_a_panic_or_an_error(
        damages in proptest::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 1..6),
    ) {
        let (store, cold) = filled();
        let good = store.entries();
        let key = keys_of(&good, PIECE_KIND)[0];
        let mut bytes = good[&(PIECE_KIND, key)].bytes.clone();
        for (from, to, byte) in damages {
            let (from, to) = (from % bytes.len(), to % bytes.len());
            match byte % 4 {
                0 => bytes.truncate(from.max(1)),
                1 => bytes.insert(to, bytes[from]),
                2 => bytes[to] = byte,
                _ => bytes.swap(from, to),
            }
        }
        store.put(unexplained(PIECE_KIND, key, &bytes)).unwrap();
        let warm = compiled(&store);
        prop_assert!(warm.counts.total_compiled() <= 1);
        prop_assert_eq!(warm.artifacts.len(), cold.artifacts.len());
    }

    #[test]
    fn arbitrary_bytes_are_no_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        has_version: bool,
    ) {
        let start: &[u8] = if has_version { &[3] } else { &[] };
        if let Ok(stored) = StoredPiece::decode(&[start, &bytes].concat()) {
            let images = stored.images().iter().map(|&digest| (digest, Vec::new())).collect();
            stored.into_artifact(images);
        }
    }
}

#[test]
fn lowered_pieces_come_back_as_they_were() {
    let (_, cold) = filled();
    for artifact in cold.artifacts.iter().flatten() {
        let bytes = StoredPiece::encode(artifact).unwrap();
        let stored = StoredPiece::decode(&bytes).unwrap();
        assert_eq!(stored.size(), artifact.size);
        assert_eq!(&stored.into_artifact(artifact.images.clone()), artifact);
    }
}

#[test]
fn of_compiles_that_begin_at_once_over_one_folder_one_makes_each_piece() {
    let folder = tempfile::tempdir().unwrap();
    let pieces = filled().1.counts.total_compiled();
    let all_begin = std::sync::Barrier::new(3);
    let compile = || {
        let cache = Cache::open(CacheOptions::new(folder.path()));
        all_begin.wait();
        compiled(&CacheStore::new(cache))
    };
    let made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(compile)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let of = |counts: &BTreeMap<&str, u64>| counts.get(PIECE_KIND).copied().unwrap_or(0);
    let sum = |which: fn(&CompileCounts) -> &BTreeMap<&'static str, u64>| {
        made.iter().map(|made| of(which(&made.counts))).sum::<u64>()
    };
    assert_eq!(
        (sum(|counts| &counts.compiled), sum(|counts| &counts.reused)),
        (pieces, 2 * pieces)
    );
    for one in &made {
        assert_eq!(one.artifacts, made[0].artifacts);
        assert!(of(&one.counts.awaited) <= of(&one.counts.reused));
        let says = one.counts.to_string();
        assert_eq!(says.contains("made by another process meanwhile"), of(&one.counts.awaited) > 0);
    }
}

fn unexplained<'a>(kind: &'static str, key: Digest, bytes: &'a [u8]) -> Entry<'a> {
    Entry { kind, key, factors: &[], bytes }
}

/// A store in which another is making every piece: it is asked so often until that has come to an
/// end, with the piece or without.
struct Contended {
    pieces: MemoryStore,
    made: Option<Entries>,
    asked: Mutex<BTreeMap<Digest, u64>>,
}

impl Store for Contended {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.pieces.get(kind, key)
    }

    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
        self.pieces.put(entry)
    }

    fn claim(&self, kind: &'static str, key: Digest) -> Claim {
        let mut asked = self.asked.lock().unwrap();
        let times = asked.entry(key).or_default();
        *times += 1;
        match &self.made {
            _ if *times < 4 => Claim::Taken,
            None => Claim::Mine(Box::new(())),
            Some(entries) => {
                for ((kind, key), entry) in entries {
                    self.pieces.put(unexplained(kind, *key, &entry.bytes)).unwrap();
                }
                assert_eq!(kind, PIECE_KIND);
                Claim::Made
            }
        }
    }
}

#[test]
fn what_another_compiles_is_waited_for_and_compiled_here_where_that_fails() {
    let (store, cold) = filled();
    let pieces = cold.counts.total_compiled();
    for made in [None, Some(store.entries())] {
        let is_made = made.is_some();
        let contended = Contended { pieces: MemoryStore::new(), made, asked: Default::default() };
        let warm = compiled(&contended);
        assert_eq!(warm.artifacts, cold.artifacts);
        assert_eq!(warm.counts.total_compiled(), if is_made { 0 } else { pieces });
        // The first that is waited for brings the others in this store; those that were asked for
        // before are said to be another's.
        let awaited = warm.counts.awaited.get(PIECE_KIND).copied().unwrap_or(0);
        assert_eq!(awaited, if is_made { pieces } else { 0 });
        let asked = contended.asked.lock().unwrap();
        assert!(asked.len() as u64 == pieces && asked.values().all(|&times| times == 4));
    }
}

/// What a compiler was asked, of which piece at which size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Asked {
    Want([u8; 32], PieceSize),
    Compile([u8; 32], PieceSize),
}

/// Notes what it is asked, in this order.
struct Noting {
    inner: CpuCompiler,
    asked: Mutex<Vec<Asked>>,
}

impl Compiler for Noting {
    fn target(&self) -> String {
        self.inner.target()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn weight_layouts(&self, stitch: &Stitch, sizes: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        self.inner.weight_layouts(stitch, sizes)
    }

    fn admit(&self, at: PieceAt<'_>, artifact: &mut Artifact) -> Result<(), String> {
        self.inner.admit(at, artifact)
    }

    fn want(&self, at: PieceAt<'_>) {
        self.asked.lock().unwrap().push(Asked::Want(at.piece.hash, at.size));
    }

    fn compile(
        &self,
        at: PieceAt<'_>,
        layouts: &[WeightLayout],
        store: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        self.asked.lock().unwrap().push(Asked::Compile(at.piece.hash, at.size));
        self.inner.compile(at, layouts, store)
    }
}

/// The pieces that a compile over a store wants, each of which it compiles once, after it has wanted
/// all of them.
#[track_caller]
fn wanted(store: &dyn Store) -> Vec<([u8; 32], PieceSize)> {
    let inner = CpuCompiler::new(Arc::new(OpRegistry::builtin()), 4);
    let compiler = Noting { inner, asked: Mutex::default() };
    compile_module(&module(256), &dispatcher(), &compiler, store, &mut |_| {}).unwrap();
    let mut asked = compiler.asked.into_inner().unwrap();
    let first = asked.iter().position(|asked| matches!(asked, Asked::Compile(..)));
    let mut compiled = asked.split_off(first.unwrap_or(asked.len()));
    asked.sort();
    compiled.sort();
    let pieces = asked.into_iter().map(|asked| match asked {
        Asked::Want(piece, size) | Asked::Compile(piece, size) => (piece, size),
    });
    let pieces = Vec::from_iter(pieces);
    let expected = pieces.iter().map(|&(piece, size)| Asked::Compile(piece, size));
    assert_eq!(compiled, Vec::from_iter(expected));
    pieces
}

#[test]
fn every_missing_piece_is_wanted_before_the_first_is_compiled_and_no_other() {
    let (store, cold) = filled();
    let all = wanted(&MemoryStore::new());
    assert_eq!(all.len() as u64, cold.counts.total_compiled());
    assert_eq!(wanted(&Broken), all, "whatever keeps the store from giving them");
    assert_eq!(wanted(&store), []);
    let mut lacking = store.entries();
    for key in keys_of(&lacking, PIECE_KIND).into_iter().step_by(2) {
        lacking.remove(&(PIECE_KIND, key));
    }
    let missing = wanted(&store_of(&lacking));
    assert_eq!(missing.len(), all.len().div_ceil(2));
    assert!(missing.iter().all(|piece| all.contains(piece)));
}

/// A store that can neither read nor write.
struct Broken;

impl Store for Broken {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let (action, reason) = ("read", "planned".to_owned());
        Err(StoreError { action, kind, key, reason })
    }
    fn put(&self, Entry { kind, key, .. }: Entry<'_>) -> Result<(), StoreError> {
        let (action, reason) = ("write", "planned".to_owned());
        Err(StoreError { action, kind, key, reason })
    }
}

#[test]
fn a_broken_store_only_costs_the_compile() {
    let (_, cold) = filled();
    let broken = compiled(&Broken);
    assert_eq!(broken.artifacts, cold.artifacts);
    assert_eq!(broken.counts.misses.keys().copied().collect::<Vec<_>>(), ["unreadable"]);
    assert_eq!(broken.counts.bytes_written, 0);
}
