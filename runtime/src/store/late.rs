//! Compiling for more sizes while a model runs.

use super::compiled::CompiledPieces;
use super::job::compile_jobs;
use super::lowering::Lowering;
use crate::dispatch::Dispatcher;
use crate::words::{LoweringSize, ModelError, SymbolTable};
use piecewise_backend::compiler::{Compiler, Store};
use piecewise_backend::weights::WeightLayout;
use piecewise_ir::entity::Entity;
use piecewise_ir::module::Module;
use std::sync::Arc;

/// What a running model compiles with, on any thread.
#[derive(derive_more::Debug)]
#[debug("LateCompiler for {}", compiler.target())]
pub struct LateCompiler {
    /// The module as it was planned, whose pieces are compiled.
    pub module: Arc<Module>,
    /// The compiler that compiled it.
    pub compiler: Box<dyn Compiler>,
    /// Where what is compiled is kept.
    pub store: Arc<dyn Store>,
}

impl LateCompiler {
    /// What `dispatcher` can choose beyond `sizes`, for weights in these layouts; both by unique piece.
    ///
    /// # Errors
    /// When a piece does not compile.
    pub(crate) fn lower(
        &self,
        dispatcher: &Dispatcher,
        sizes: &[Vec<LoweringSize>],
        layouts: &[Vec<WeightLayout>],
    ) -> Result<CompiledPieces, ModelError> {
        let (compiler, store) = (&*self.compiler, &*self.store);
        let stitch = self.module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
        let symbols = SymbolTable::new(self.module.graph().symbols())?;
        let mut jobs = compile_jobs(stitch, &symbols, dispatcher, compiler);
        jobs.retain(|job| sizes[job.unique.index()].iter().all(|at| at.size != job.at.size));
        for job in &mut jobs {
            job.layouts.clone_from(&layouts[job.unique.index()]);
        }
        let lowering = Lowering::new(&jobs);
        lowering.lower_all(&jobs, compiler, store, &mut |_| {});
        lowering.finish(jobs, compiler, store)
    }
}
