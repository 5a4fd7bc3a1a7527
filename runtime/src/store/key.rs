//! The key of a lowered piece: everything that changes what compiling it gives, and nothing else.

use super::stored_piece::FORMAT_VERSION;
use indexmap::IndexMap;
use piecewise_backend::artifact::{Digest, PieceSize};
use piecewise_backend::compiler::{CompileError, Compiler, PieceAt};
use piecewise_backend::weights::WeightLayout;
use piecewise_ir::dim::Dim;
use piecewise_ir::entity::{Entity, Symbol, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::UniquePiece;
use piecewise_ir::op::Op;
use std::collections::BTreeSet;

/// The kind of entry of a lowered piece.
pub const PIECE_KIND: &str = "piece";

/// Changes when plans ask something else of lowered pieces: the order of operands, what a launch
/// may merge, the alignment of slots.
const PIPELINE_VERSION: u32 = 1;

/// The factors of a lowered piece's key, by name: format, pipeline, compiler, the piece up to
/// names, its size, the symbols that it counts with and their bounds, the layouts of its weights,
/// and the implementations of its custom ops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceKey {
    factors: Vec<(&'static str, String)>,
}

impl PieceKey {
    /// The key of `piece` at `size` for a compiler; `bounds` are the largest sizes by symbol
    /// index.
    ///
    /// # Errors
    /// When a custom op has no implementation on the target.
    pub fn new(
        compiler: &dyn Compiler,
        at: PieceAt<'_>,
        layouts: &[WeightLayout],
    ) -> Result<Self, CompileError> {
        let PieceAt { piece, size, bounds } = at;
        let rows = match size {
            PieceSize::Exact(rows) => format!("{rows} rows"),
            PieceSize::General(rows) => format!("up to {rows} rows"),
            PieceSize::Uniform { sequences, query_length } => {
                format!("{sequences} sequences of {query_length} rows")
            }
        };
        let layouts: Vec<_> = layouts.iter().map(|layout| format!("{layout:?}")).collect();
        let factors = vec![
            ("target", compiler.target()),
            ("piece", Digest(piece.hash).to_string()),
            ("ops", ops(&piece.graph)),
            ("operands", operand_types(&piece.graph)),
            ("size", rows),
            ("symbols", symbols_seen(piece, bounds)),
            ("layouts", layouts.join(" ")),
            ("custom ops", compiler.custom_ops(at)?),
            ("compiler", compiler.identity()),
            ("pipeline", PIPELINE_VERSION.to_string()),
            ("format", FORMAT_VERSION.to_string()),
        ];
        Ok(Self { factors })
    }

    /// What the key is a digest of, as names with values.
    pub fn factors(&self) -> Vec<(&str, &str)> {
        self.factors.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// blake3 of names and values, each with its length before it.
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for text in self.factors.iter().flat_map(|(name, value)| [*name, value.as_str()]) {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        Digest(*hasher.finalize().as_bytes())
    }
}

/// For people: the ops in the order of their first use, with how many there are. It follows from
/// the piece.
fn ops(graph: &Graph) -> String {
    let mut counts: IndexMap<&str, usize> = IndexMap::new();
    for node in graph.nodes() {
        *counts.entry(graph.node(node).op.name()).or_default() += 1;
    }
    let shown = counts.iter().map(|(name, n)| match n {
        1 => (*name).to_owned(),
        n => format!("{n}x{name}"),
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// For people: the types of inputs, weights and states, with symbols by their index. It follows
/// from the piece.
fn operand_types(graph: &Graph) -> String {
    let dim = |dim: &Dim| match dim.as_constant() {
        Some(extent) => extent.to_string(),
        None => {
            let terms = dim.terms().iter().map(|(symbol, _)| format!("s{}", symbol.index()));
            terms.collect::<Vec<_>>().join("+")
        }
    };
    let shown = |value: Value| {
        let ty = graph.ty(value);
        let shape: Vec<_> = ty.shape.iter().map(dim).collect();
        format!("{}[{}]", ty.dtype, shape.join(","))
    };
    let inputs = graph.inputs().iter().map(|input| input.value);
    let weights = graph.weights().iter().map(|weight| weight.value);
    let states = graph.states().iter().map(|state| state.value);
    inputs.chain(weights).chain(states).map(shown).collect::<Vec<_>>().join(" ")
}

/// The symbols of a piece in the order of their first use, by their index among all symbols, which
/// kernels count rows with: the one that it iterates over, whose size is a factor of its own, and
/// the others with their bounds. A symbol that only says how many rows a state has stands without
/// its bound, because kernels take it when they run.
pub(crate) fn symbols_seen(piece: &UniquePiece, bounds: &[u64]) -> String {
    let graph = &piece.graph;
    let mut order: Vec<Symbol> = piece.over.into_iter().collect();
    let mut bounded: BTreeSet<Symbol> = BTreeSet::new();
    let mut see = |value: Value, is_bounded: bool| {
        for (symbol, _) in graph.ty(value).shape.iter().flat_map(|dim| dim.terms()) {
            if !order.contains(symbol) {
                order.push(*symbol);
            }
            if is_bounded {
                bounded.insert(*symbol);
            }
        }
    };
    for value in piece.operands() {
        let is_state = matches!(graph.def(value), ValueDef::State(_));
        see(value, !is_state || is_read_whole(graph, value));
    }
    let shown = order.iter().map(|&symbol| match Some(symbol) == piece.over {
        true => format!("{} over", symbol.index()),
        false if bounded.contains(&symbol) => {
            let declared = || graph.symbols().values().nth(symbol.index()).map(|decl| decl.max);
            let bound = bounds.get(symbol.index()).copied().or_else(declared);
            format!("{} to {}", symbol.index(), bound.unwrap_or(u64::MAX))
        }
        false => format!("{}", symbol.index()),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Whether an op reads a state otherwise than by gathered or scattered rows. What a custom op makes
/// of the size of a state is in the factor of its implementation.
fn is_read_whole(graph: &Graph, state: Value) -> bool {
    graph.nodes().any(|node| {
        let data = graph.node(node);
        let by_rows = matches!(data.op, Op::Region(_) | Op::Gather | Op::Scatter | Op::Custom(_));
        !by_rows && data.operands.contains(&state)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_value_of_the_factors_is_in_the_digest() {
        let factors = vec![("target", "cpu".to_owned()), ("size", "8 rows".to_owned())];
        let key = PieceKey { factors };
        let mut digests = BTreeSet::from([key.digest()]);
        for i in 0..key.factors.len() {
            let mut other = key.clone();
            other.factors[i].1.push('0');
            assert!(digests.insert(other.digest()));
            other = key.clone();
            other.factors[i].0 = "name";
            assert!(digests.insert(other.digest()));
            other = key.clone();
            other.factors.remove(i);
            assert!(digests.insert(other.digest()));
        }
        // Where one ends and the next begins is in it too.
        let joined = vec![("target", "cpu4:size".to_owned()), ("", "8 rows".to_owned())];
        assert!(digests.insert(PieceKey { factors: joined }.digest()));
    }
}
