//! Every kernel that the suite runs on CUDA compiles, without a GPU.
//! Skipped where NVRTC is not installed (see `.ci/install-nvrtc`), unless PIECEWISE_REQUIRE_NVRTC=1.

#[path = "../support/nvrtc.rs"]
mod nvrtc;

use crate::new_compositions::composed;
use crate::random_graphs::random_module;
use crate::small_decoder::Setup;
use crate::user_op::{Place, registry, user_module};
use nvrtc::nvrtc;
use piecewise_backend::artifact::PieceSize;
use piecewise_backend::compiler::{Compiler, PieceAt};
use piecewise_backend::cuda::{Arch, CudaCompiler};
use piecewise_backend::store::MemoryStore;
use piecewise_ir::dtype::DType::{BF16, F32};
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::words::SymbolTable;
use std::sync::Arc;

const ARCHS: [u32; 6] = [80, 87, 89, 90, 100, 120];

fn compile(compiler: &CudaCompiler, module: &Module, sizes: &[u64]) {
    // What sizes and models share is compiled once.
    static KERNELS: MemoryStore = MemoryStore::new();
    let symbols = SymbolTable::new(module.graph().symbols()).unwrap();
    for (_, piece) in module.stitch().unwrap().unique.iter() {
        let bound = piece.over.map_or(1, |s| symbols.bounds()[s.index()]);
        let exact = sizes.iter().filter(|&&n| n <= bound).map(|&n| PieceSize::Exact(n));
        for size in exact.chain([PieceSize::General(bound)]) {
            let at = PieceAt { piece, size, bounds: symbols.bounds() };
            let made = compiler.compile(at, &[], &KERNELS);
            let made = made.unwrap_or_else(|e| panic!("{}: {e}", compiler.identity()));
            assert!(made.ways().all(|way| !way.launches.is_empty()));
        }
    }
}

/// The decoder in bf16, the user's op and a composition for every architecture; their forms in f32 for
/// Hopper, and each random graph for one in turn.
#[test]
fn every_kernel_of_the_suite_compiles() {
    let Some(nvrtc) = nvrtc() else { return };
    let decoders = [BF16, F32].map(|dtype| Setup { dtype, ..Setup::default() }.module());
    let users = [Place::BetweenPieces, Place::InsideAPiece].map(user_module);
    let compositions = [BF16, F32].map(composed);
    let random = Vec::from_iter((0..60).map(random_module));
    std::thread::scope(|scope| {
        for (a, number) in ARCHS.into_iter().enumerate() {
            let (nvrtc, decoders, users) = (nvrtc.clone(), &decoders, &users);
            let (compositions, random) = (&compositions, &random);
            scope.spawn(move || {
                let ours = Arc::new(OpRegistry::builtin());
                let compiler = CudaCompiler::new(ours, Arch { number }, nvrtc.clone());
                let (sizes, dtypes) =
                    if number == 90 { (&[1, 3, 8][..], 2) } else { (&[8][..], 1) };
                decoders[..dtypes].iter().for_each(|module| compile(&compiler, module, sizes));
                compositions[..dtypes].iter().for_each(|module| compile(&compiler, module, &[8]));
                let compiler = CudaCompiler::new(registry(), Arch { number }, nvrtc);
                users.iter().for_each(|module| compile(&compiler, module, &[8]));
                let mine = random.iter().skip(a).step_by(ARCHS.len());
                mine.for_each(|module| compile(&compiler, module, &[4]));
            });
        }
    });
}
