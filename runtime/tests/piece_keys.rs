//! Any change of a piece that changes what it computes changes its key, and no other change does.

use piecewise_backend::artifact::{Artifact, Digest, PieceSize};
use piecewise_backend::compiler::{CompileError, Compiler, PieceAt, Store};
use piecewise_backend::weights::WeightLayout;
use piecewise_ir::entity::Entity;
use piecewise_ir::module::{Stitch, UniquePiece};
use piecewise_ir::text::canonical_piece;
use piecewise_runtime::pipeline::plan;
use piecewise_runtime::store::PieceKey;
use piecewise_runtime::words::CompileLevel;
use piecewise_testing::RandomGraph;
use proptest::prelude::*;
use serde_json::Value as Json;

/// A compiler of which only the names matter.
struct Named {
    target: &'static str,
    identity: &'static str,
    custom_ops: &'static str,
}

const PLAIN: Named = Named { target: "a", identity: "b", custom_ops: "c" };

impl Compiler for Named {
    fn target(&self) -> String {
        self.target.to_owned()
    }
    fn identity(&self) -> String {
        self.identity.to_owned()
    }
    fn weight_layouts(&self, _: &Stitch, _: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        Vec::new()
    }
    fn custom_ops(&self, _: PieceAt<'_>) -> Result<String, CompileError> {
        Ok(self.custom_ops.to_owned())
    }
    fn compile(
        &self,
        _: PieceAt<'_>,
        _: &[WeightLayout],
        _: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        unreachable!("keys are made without compiling")
    }
}

const BOUNDS: [u64; 2] = [RandomGraph::MAX_T, RandomGraph::MAX_R];

fn key_of(compiler: &Named, piece: &UniquePiece, size: PieceSize, layouts: usize) -> Digest {
    let layouts = vec![WeightLayout::RowMajor; layouts];
    PieceKey::new(compiler, PieceAt { piece, size, bounds: &BOUNDS }, &layouts).unwrap().digest()
}

fn key(piece: &UniquePiece) -> Digest {
    key_of(&PLAIN, piece, PieceSize::Exact(8), piece.graph.weights().len())
}

/// The piece with the hash of what it now is.
fn hashed(mut piece: UniquePiece) -> UniquePiece {
    let text = canonical_piece(&piece.graph, piece.over);
    piece.hash = *blake3::hash(text.as_bytes()).as_bytes();
    piece
}

fn pieces(seed: u64, level: CompileLevel) -> Vec<UniquePiece> {
    let graph = RandomGraph { nodes: 20, ..RandomGraph::default() }.generate(seed);
    let (module, _) = plan(graph, level, None, Vec::new()).unwrap();
    module.stitch().unwrap().unique.values().cloned().collect()
}

/// Where a JSON document has numbers, booleans and strings.
fn leaves(value: &Json, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match value {
        Json::Array(items) => items.iter().enumerate().for_each(|(i, item)| {
            path.push(i.to_string());
            leaves(item, path, found);
            path.pop();
        }),
        Json::Object(fields) => fields.iter().for_each(|(name, field)| {
            path.push(name.clone());
            leaves(field, path, found);
            path.pop();
        }),
        Json::Null => {}
        _ => found.push(path.clone()),
    }
}

fn at<'v>(value: &'v mut Json, path: &[String]) -> &'v mut Json {
    path.iter().fold(value, |value, step| match value {
        Json::Array(items) => &mut items[step.parse::<usize>().unwrap()],
        other => &mut other[step],
    })
}

/// What a leaf is changed to; `None` where nothing else is possible.
fn changed(leaf: &Json, choice: u64) -> Json {
    const WORDS: [&str; 12] =
        ["f32", "bf16", "f16", "i32", "Add", "Mul", "Max", "Neg", "Tanh", "Sum", "Whole", "Row"];
    match leaf {
        Json::Bool(b) => Json::Bool(!b),
        Json::Number(n) => match n.as_u64() {
            Some(n) if choice.is_multiple_of(2) || n == 0 => Json::from(n + 1 + choice % 3),
            Some(n) => Json::from(n - 1),
            None => Json::from(n.as_f64().unwrap_or(0.0) + 1.0),
        },
        _ => Json::from(WORDS[choice as usize % WORDS.len()]),
    }
}

/// Whether a leaf only says what something is called or where it was written; a custom op is what
/// its name says.
fn is_a_name(path: &[String]) -> bool {
    let is = |names: &[&str]| path.iter().any(|step| names.contains(&step.as_str()));
    is(&["name", "loc", "role", "symbols"]) && !is(&["Custom"])
}

/// Whether a leaf numbers a value or node: a wrong number makes no graph at all.
fn is_a_number(path: &[String]) -> bool {
    const NUMBERS: [&str; 9] =
        ["operands", "results", "outputs", "order", "def", "defs", "value", "hash", "over"];
    path.iter().any(|step| NUMBERS.contains(&step.as_str()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn changes_of_types_ops_and_attributes_change_the_key(
        seed: u64,
        choices in proptest::collection::vec(any::<u64>(), 24),
        fused: bool,
    ) {
        let level = if fused { CompileLevel::Piecewise } else { CompileLevel::Eager };
        let mut tried = 0;
        for piece in pieces(seed, level) {
            let document = serde_json::to_value(&piece).unwrap();
            let mut found = Vec::new();
            leaves(&document, &mut Vec::new(), &mut found);
            found.retain(|path| !is_a_number(path));
            for &choice in &choices {
                let path = &found[choice as usize % found.len()];
                let mut other = document.clone();
                let leaf = at(&mut other, path);
                let new = changed(leaf, choice >> 32);
                if *leaf == new {
                    continue;
                }
                *leaf = new;
                let Ok(other) = serde_json::from_value::<UniquePiece>(other) else { continue };
                if other == piece {
                    continue;
                }
                let same = key(&hashed(other)) == key(&piece);
                prop_assert_eq!(same, is_a_name(path), "{}", path.join("."));
                tried += 1;
            }
        }
        prop_assert!(tried > 0);
    }

    #[test]
    fn operands_in_another_order_change_the_key(seed: u64) {
        for piece in pieces(seed, CompileLevel::Eager) {
            let nodes: Vec<_> = piece.graph.nodes().collect();
            for node in nodes {
                let operands = &piece.graph.node(node).operands;
                if operands.len() < 2 || operands[0] == operands[1] {
                    continue;
                }
                let mut other = piece.clone();
                other.graph.node_mut(node).operands.swap(0, 1);
                prop_assert_ne!(key(&hashed(other)), key(&piece));
            }
        }
    }

    #[test]
    fn target_compiler_ops_size_and_layouts_change_the_key(seed: u64, rows in 1u64..64) {
        for piece in pieces(seed, CompileLevel::Piecewise) {
            let weights = piece.graph.weights().len();
            let size = PieceSize::Exact(rows);
            let compilers = [
                PLAIN,
                Named { target: "a2", ..PLAIN },
                Named { identity: "b2", ..PLAIN },
                Named { custom_ops: "c2", ..PLAIN },
            ];
            let mut keys = compilers.map(|named| key_of(&named, &piece, size, weights)).to_vec();
            keys.push(key_of(&PLAIN, &piece, PieceSize::Exact(rows + 1), weights));
            keys.push(key_of(&PLAIN, &piece, PieceSize::General(rows), weights));
            keys.push(key_of(&PLAIN, &piece, size, weights + 1));
            let count = keys.len();
            keys.sort_unstable();
            keys.dedup();
            prop_assert_eq!(keys.len(), count);
        }
    }
}

/// Pieces that differ in which of their states are one.
#[test]
fn states_that_coincide_change_the_key() {
    use piecewise_ir::builder::Builder;
    use piecewise_ir::dtype::DType;
    let piece = |one: bool| {
        let b = Builder::new("states");
        let t = b.symbol("T", 1, 8);
        let x = b.input("x", DType::F32, (t, 4));
        let slots = b.input("slots", DType::I32, [t]).padding(-1);
        let rows = b.input("rows", DType::I32, [t]).padding(0);
        let first = b.state("a", DType::F32, (16, 4));
        let second = b.state("b", DType::F32, (16, 4));
        first.scatter(slots, x);
        let read = if one { first } else { second };
        let graph = b.finish([read.gather(rows)]).unwrap();
        let (module, _) = plan(graph, CompileLevel::Piecewise, None, Vec::new()).unwrap();
        let unique = &module.stitch().unwrap().unique;
        unique.values().next().unwrap().clone()
    };
    assert_ne!(key(&piece(true)), key(&piece(false)));
}

/// The bound of a symbol is a factor where kernels are made for it.
#[test]
fn bounds_of_other_symbols_are_factors() {
    let mut changed = 0;
    for piece in (0..8).flat_map(|seed| pieces(seed, CompileLevel::Piecewise)) {
        let with = |bounds: [u64; 2]| {
            let size = PieceSize::Exact(4);
            PieceKey::new(&PLAIN, PieceAt { piece: &piece, size, bounds: &bounds }, &[])
                .unwrap()
                .digest()
        };
        let over = piece.over.map(Entity::index);
        for symbol in 0..2 {
            let mut bounds = BOUNDS;
            bounds[symbol] += 1;
            // The size stands for the bound of the symbol that is iterated over.
            let differs = with(bounds) != with(BOUNDS);
            assert!(!(differs && over == Some(symbol)));
            changed += usize::from(differs);
        }
    }
    assert!(changed > 0);
}
