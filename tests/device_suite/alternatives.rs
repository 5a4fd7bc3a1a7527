//! Every way of a piece computes the same, but for the order of sums: models that are built of one way
//! of each part, and by other compilers for the same device, against the one in which every node has a
//! launch of its own.

use crate::sequences::{Left, Sequences, Turn, set_states, step};
use crate::small_decoder::Setup;
use crate::target::{SimulatedCuda, Target};
use piecewise_backend::artifact::{Artifact, Choice, PieceSize};
use piecewise_backend::compiler::{CompileError, Compiler, PieceAt, Store};
use piecewise_backend::weights::{NormalWeights, WeightLayout};
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Stitch;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::ChunkRows;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::{GraphMode, SymbolTable};
use piecewise_testing::artifacts::{last_ways, narrowed};
use piecewise_testing::{Rng, norm_error};
use std::sync::Arc;

/// Compiles pieces of one alternative and one way of each part: those at these places, or the last.
pub(crate) struct One {
    pub all: Box<dyn Compiler>,
    pub alternative: usize,
    pub way: usize,
}

impl One {
    fn choice(&self, artifact: &Artifact) -> Choice {
        let mut choice = last_ways(artifact, self.alternative);
        choice.ways.iter_mut().for_each(|last| *last = self.way.min(*last));
        choice
    }
}

impl Compiler for One {
    fn target(&self) -> String {
        self.all.target()
    }

    fn identity(&self) -> String {
        format!("{} alternative {} way {}", self.all.identity(), self.alternative, self.way)
    }

    fn weight_layouts(&self, stitch: &Stitch, sizes: &[PieceSize]) -> Vec<Vec<WeightLayout>> {
        self.all.weight_layouts(stitch, sizes)
    }

    fn custom_ops(&self, at: PieceAt<'_>) -> Result<String, CompileError> {
        self.all.custom_ops(at)
    }

    fn admit(&self, at: PieceAt<'_>, artifact: &mut Artifact) -> Result<(), String> {
        self.all.admit(at, artifact)
    }

    fn prepare_device(&self, store: &dyn Store) -> Result<(), CompileError> {
        self.all.prepare_device(store)
    }

    fn compile(
        &self,
        at: PieceAt<'_>,
        layouts: &[WeightLayout],
        store: &dyn Store,
    ) -> Result<Artifact, CompileError> {
        let artifact = self.all.compile(at, layouts, store)?;
        let kept = narrowed(&artifact, &self.choice(&artifact));
        Ok(kept.unwrap_or_else(|reason| panic!("{reason}")))
    }
}

/// Sizes of few rows.
const SIZES: [u64; 5] = [1, 2, 3, 5, 8];

fn setup(dtype: DType) -> Setup {
    let sizes = SIZES.into_iter().chain([16]).collect();
    Setup { dtype, mode: GraphMode::Piecewise, max_tokens: 16, sizes, ..Setup::default() }
}

/// The most alternatives of a piece at any of the sizes, and the most ways of a part.
fn count<T: Target>(setup: &Setup) -> [usize; 2] {
    let (_, compiler) = T::make(&Arc::new(OpRegistry::builtin()), setup.threads);
    let module = setup.module();
    let stitch = module.stitch().unwrap();
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    let sizes = SIZES.map(PieceSize::Exact);
    let layouts = compiler.weight_layouts(stitch, &sizes);
    let mut most = [0; 2];
    for (id, piece) in stitch.unique.iter() {
        let bound = piece.over.map_or(1, |over| symbols.bounds()[over.index()]);
        for size in sizes.into_iter().filter(|size| size.rows() <= bound) {
            let layouts = &layouts[id.index()];
            let made = compiler.compile(
                PieceAt { piece, size, bounds: symbols.bounds() },
                layouts,
                T::store(),
            );
            let made = made.unwrap();
            let parts = made.alternatives.iter().flat_map(|one| &one.parts);
            let ways = parts.map(|part| part.ways.len()).max().unwrap_or(0);
            most = [most[0].max(made.alternatives.len()), most[1].max(ways)];
        }
    }
    most
}

/// What a model is built of.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// One alternative of the target's own compiler, and one way of each part.
    Own(usize, usize),
    /// Another compiler.
    Other(usize),
}

/// The tokens of each size over the sequences, then a token of each.
fn run<T: Target>(setup: &Setup, way: Way) -> Vec<Left> {
    let registry = Arc::new(OpRegistry::builtin());
    let (device, own) = T::make(&registry, setup.threads);
    let (all, alternative, way) = match way {
        Way::Own(alternative, way) => (own, alternative, way),
        Way::Other(other) => (T::others(&registry, setup.threads).swap_remove(other), 0, 0),
    };
    let (module, options, store) = (setup.module(), setup.options(), T::store());
    let one = One { all, alternative, way };
    let compiled = compile_module(&module, &options.dispatcher, &one, store, &mut |_| {}).unwrap();
    let mut model = CompiledModel::build(
        Arc::new(module),
        options,
        compiled,
        store,
        device,
        Arc::new(NormalWeights { std: 0.4, seed: 7 }),
        &mut |_| {},
    )
    .unwrap();
    let mut left = Vec::new();
    for tokens in SIZES {
        let mut sequences = Sequences::of(&model);
        let mut rng = Rng::new(tokens);
        let zeros = vec![0; model.memory().states.bytes as usize];
        set_states(&mut model, &zeros);
        let all = tokens.min(sequences.list.len() as u64);
        for decode in [false, true] {
            let share = |s: u64| tokens / all + u64::from(s < tokens % all);
            let turn = |s| Turn {
                sequence: s as usize,
                tokens: if decode { 1 } else { share(s) },
                rows: ChunkRows::Last,
                feedback: false,
            };
            let turns: Vec<Turn> = (0..all).map(turn).collect();
            left.push(step(&mut model, &sequences.fill(&turns, &mut rng)));
        }
    }
    left
}

/// [`count`], which must not be less than the target's own compiler is known to make.
fn enough<T: Target>(setup: &Setup) -> [usize; 2] {
    let [alternatives, ways] = count::<T>(setup);
    let least = T::LEAST_WAYS;
    assert!(
        alternatives >= least[0] && ways >= least[1],
        "{} has {alternatives} alternatives and {ways} ways of a part; at least {least:?}",
        T::NAME
    );
    [alternatives, ways]
}

/// Where there is no GPU to compute with, what it would compute by is there.
#[test]
fn simulated_cuda_has_ways_to_compare() {
    if SimulatedCuda::is_there() {
        for dtype in [DType::F32, DType::BF16] {
            enough::<SimulatedCuda>(&setup(dtype));
        }
    }
}

/// At sizes of few rows, the logits of every way there is, two at least.
pub(crate) fn agree<T: Target>(dtype: DType, tolerance: f64) {
    let setup = setup(dtype);
    let [alternatives, most] = enough::<T>(&setup);
    let logits = |left: &Left| -> Vec<f64> {
        let words = left.outputs[0].chunks_exact(4);
        words.map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
    };
    let others = T::others(&Arc::new(OpRegistry::builtin()), setup.threads).len();
    let of = |alternative| (0..most).map(move |way| Way::Own(alternative, way));
    let mut ways: Vec<Way> = (0..alternatives).flat_map(of).collect();
    let reference = ways.pop().unwrap();
    ways.extend((0..others).map(Way::Other));
    assert!(!ways.is_empty(), "{} has nothing to compare {reference:?} with", T::NAME);
    let expected = run::<T>(&setup, reference);
    for &way in &ways {
        for (found, expected) in run::<T>(&setup, way).iter().zip(&expected) {
            assert_eq!(found.report.sizes, expected.report.sizes);
            let error = norm_error(&logits(found), &logits(expected));
            assert!(error <= tolerance, "{way:?}, {:?}: {error}", found.report);
        }
    }
    println!("{} {dtype}: {} ways compared at {SIZES:?}", T::NAME, ways.len() + 1);
}
