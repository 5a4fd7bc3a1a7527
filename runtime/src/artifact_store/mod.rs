//! Compiling through a store: every unique piece at every size is taken from it, or compiled and
//! kept there.
//!
//! A lowered piece is one entry, found by a [`PieceKey`]; it refers to the images of its launches
//! by digest, which are entries of their own, shared by pieces and sizes. What a store gives is
//! held against the piece before it is used: an entry that does not fit is a miss.

mod cache_store;
mod checksum_key;
mod counts;
mod key;
mod late;
mod session;
mod stored_piece;

pub use cache_store::{CacheStore, NoCache, cache_dir};
pub use checksum_key::CHECKSUM_KEY_VARIABLE;
pub(crate) use key::symbols_seen;
pub use key::{PIECE_KIND, PieceKey};
pub use late::LateCompiler;
pub use stored_piece::{IMAGE_KIND, StoredPiece};

use crate::dispatch::Dispatcher;
use crate::model::lowering_sizes;
use crate::words::{CompileCounts, LoweringSize, ModelError, Progress, SymbolTable};
use counts::CountingStore;
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::{CompileError, Compiler, Footprint, PieceAt, Store};
use piecewise_backend::weights::WeightLayout;
use piecewise_ir::entity::{Entity, UniquePieceId};
use piecewise_ir::module::{Stitch, UniquePiece};
use rayon::prelude::*;
use session::{Images, Session, Start};
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The artifacts of a model.
#[derive(Clone, Debug)]
pub struct CompiledPieces {
    /// By unique piece, its sizes.
    pub sizes: Vec<Vec<LoweringSize>>,
    /// By unique piece, in the order of its sizes.
    pub artifacts: Vec<Vec<Artifact>>,
    /// By unique piece, the layouts of its weights.
    pub layouts: Vec<Vec<WeightLayout>>,
    /// The identity of the compiler that made them.
    pub compiler: String,
    /// What code and graphs take on a device of the target.
    pub footprint: Footprint,
    /// What was compiled and what was reused.
    pub counts: CompileCounts,
    /// From the first look into the store to the last artifact.
    pub time: Duration,
}

impl CompiledPieces {
    /// Adds what was compiled for more sizes.
    pub(crate) fn append(&mut self, more: Self) {
        for (unique, (sizes, artifacts)) in more.sizes.into_iter().zip(more.artifacts).enumerate() {
            self.sizes[unique].extend(sizes);
            self.artifacts[unique].extend(artifacts);
        }
    }

    /// Keeps so many sizes of each unique piece.
    pub(crate) fn truncate(&mut self, counts: &[usize]) {
        for (unique, &count) in counts.iter().enumerate() {
            self.sizes[unique].truncate(count);
            self.artifacts[unique].truncate(count);
        }
    }
}

/// A unique piece at a size, before it is compiled.
#[derive(Clone, Debug)]
pub struct CompileJob<'a> {
    /// Which unique piece of the module it is.
    pub unique: UniquePieceId,
    /// What is lowered: a graph without names, and its operands by position.
    pub piece: &'a UniquePiece,
    /// The size, and the most of each symbol in the steps that use it.
    pub at: LoweringSize,
    /// The layouts of its weights.
    pub layouts: Vec<WeightLayout>,
}

impl CompileJob<'_> {
    fn piece_at(&self) -> PieceAt<'_> {
        PieceAt { piece: self.piece, size: self.at.size, bounds: &self.at.bounds }
    }

    /// The key of what it makes.
    ///
    /// # Errors
    /// When a custom op has no implementation on the target.
    pub fn key(&self, compiler: &dyn Compiler) -> Result<PieceKey, CompileError> {
        PieceKey::new(compiler, self.piece_at(), &self.layouts)
    }
}

/// Everything that a model compiles, in the order of unique pieces, then of their sizes.
pub fn compile_jobs<'a>(
    stitch: &'a Stitch,
    symbols: &SymbolTable,
    dispatcher: &Dispatcher,
    compiler: &dyn Compiler,
) -> Vec<CompileJob<'a>> {
    let sizes = |unique| lowering_sizes(stitch, unique, symbols, dispatcher);
    let all = BTreeSet::from_iter(stitch.unique.keys().flat_map(sizes).map(|at| at.size));
    let layouts = compiler.weight_layouts(stitch, &Vec::from_iter(all));
    let jobs = stitch.unique.iter().flat_map(|(unique, piece)| {
        let layouts = &layouts[unique.index()];
        sizes(unique).into_iter().map(move |at| {
            let layouts = layouts.clone();
            CompileJob { unique, piece, at, layouts }
        })
    });
    jobs.collect()
}

/// Compiles every unique piece of a planned module at the sizes that `dispatcher` can choose, in
/// parallel, and what the device needs besides.
///
/// # Errors
/// When a piece does not compile, and when the module has no pieces or a symbol of an unknown role.
/// A store that fails is no error.
pub fn compile_module(
    module: &piecewise_ir::module::Module,
    dispatcher: &Dispatcher,
    compiler: &dyn Compiler,
    store: &dyn Store,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<CompiledPieces, ModelError> {
    let stitch = module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
    let symbols = SymbolTable::new(module.graph().symbols())?;
    let jobs = compile_jobs(stitch, &symbols, dispatcher, compiler);
    let lowering = Lowering::new(&jobs);
    lowering.lower_all(&jobs, compiler, store, progress);
    lowering.finish(jobs, compiler, store)
}

/// Where the artifact of a job belongs.
type Made = OnceLock<Result<Artifact, CompileError>>;

/// Jobs on their way to artifacts: each is done at most once, whoever asks for it first.
#[derive(Debug, Default)]
pub struct Lowering {
    /// In the order of the jobs.
    made: Vec<Made>,
    images: Images,
    prepared: OnceLock<Result<(), CompileError>>,
    spent: Mutex<(CompileCounts, Duration)>,
}

impl Lowering {
    /// None of `jobs` is done yet.
    pub fn new(jobs: &[CompileJob<'_>]) -> Self {
        Self { made: jobs.iter().map(|_| OnceLock::new()).collect(), ..Self::default() }
    }

    /// Does those of `jobs`, which are those that it was made for, whose unique piece is wanted, in
    /// parallel. One that does not compile does not keep the others from it.
    pub fn lower(
        &self,
        jobs: &[CompileJob<'_>],
        is_wanted: &dyn Fn(UniquePieceId) -> bool,
        compiler: &dyn Compiler,
        store: &dyn Store,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) {
        let started = Instant::now();
        self.lower_missing(self.missing(jobs, is_wanted), compiler, store, progress);
        self.spend_time(started.elapsed());
    }

    /// Does all of `jobs`, and beside them what the device needs besides; [`Self::prepare`] says
    /// whether that compiles.
    pub fn lower_all(
        &self,
        jobs: &[CompileJob<'_>],
        compiler: &dyn Compiler,
        store: &dyn Store,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) {
        let started = Instant::now();
        let missing = self.missing(jobs, &|_| true);
        rayon::join(
            || self.lower_missing(missing, compiler, store, progress),
            || self.prepared(compiler, store).is_ok(),
        );
        self.spend_time(started.elapsed());
    }

    /// Those of `jobs` that are wanted and not done, each with where its artifact belongs.
    fn missing<'a, 'j>(
        &'a self,
        jobs: &'a [CompileJob<'j>],
        is_wanted: &dyn Fn(UniquePieceId) -> bool,
    ) -> Vec<(&'a CompileJob<'j>, &'a Made)> {
        let jobs = jobs.iter().zip(&self.made);
        jobs.filter(|(job, made)| made.get().is_none() && is_wanted(job.unique)).collect()
    }

    fn lower_missing(
        &self,
        jobs: Vec<(&CompileJob<'_>, &Made)>,
        compiler: &dyn Compiler,
        store: &dyn Store,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) {
        let store = CountingStore::new(store);
        let session = Session { compiler, store: &store, images: &self.images };
        let total = jobs.len();
        let done = Mutex::new((0usize, progress));
        let make = |job, made: &OnceLock<_>, start| {
            made.get_or_init(|| session.artifact(job, start));
            let mut guard = done.lock().unwrap_or_else(PoisonError::into_inner);
            guard.0 += 1;
            let done = guard.0;
            (guard.1)(Progress::Compiling { done, total });
        };
        // All that is missing is known before the first of it is compiled, so that what takes longest
        // begins first.
        let looked: Vec<_> = jobs.par_iter().map(|(job, _)| session.look(job)).collect();
        // What another process is at comes last: it may be there by then.
        let later =
            jobs.into_par_iter().zip(looked).filter_map(|((job, made), looked)| {
                match looked.map(|looked| session.claim(job, looked)) {
                    Ok(Start::Taken) => Some((job, made)),
                    start => {
                        make(job, made, start);
                        None
                    }
                }
            });
        let later: Vec<_> = later.collect();
        later.iter().for_each(|(job, made)| make(job, made, session.wait(job)));
        self.spend(&store.counts());
    }

    /// What became of a job that was done, by its place.
    pub fn made(&self, job: usize) -> Option<Result<&Artifact, &CompileError>> {
        Some(self.made.get(job)?.get()?.as_ref())
    }

    /// Bytes of scratch that the largest of what was made needs.
    pub fn scratch(&self) -> u64 {
        let made = self.made.iter().filter_map(|made| made.get()?.as_ref().ok());
        made.map(Artifact::scratch).max().unwrap_or(0)
    }

    /// What was compiled and what was reused so far.
    pub fn counts(&self) -> CompileCounts {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Makes what the device needs besides.
    ///
    /// # Errors
    /// When it does not compile. A store that fails is no error.
    pub fn prepare(&self, compiler: &dyn Compiler, store: &dyn Store) -> Result<(), ModelError> {
        let started = Instant::now();
        let prepared = self.prepared(compiler, store);
        self.spend_time(started.elapsed());
        prepared.clone().map_err(|source| ModelError::Compile {
            piece: "of the device's own kernels".to_owned(),
            source: Box::new(source),
        })
    }

    fn prepared(&self, compiler: &dyn Compiler, store: &dyn Store) -> &Result<(), CompileError> {
        self.prepared.get_or_init(|| {
            let counting = CountingStore::new(store);
            let prepared = compiler.prepare_device(&counting);
            self.spend(&counting.counts());
            prepared
        })
    }

    /// The artifacts of `jobs`, all of which are done, and what the device needs besides.
    ///
    /// # Errors
    /// When a piece did not compile. A store that fails is no error.
    pub fn finish(
        self,
        jobs: Vec<CompileJob<'_>>,
        compiler: &dyn Compiler,
        store: &dyn Store,
    ) -> Result<CompiledPieces, ModelError> {
        let prepared = self.prepare(compiler, store);
        let (counts, time) = self.spent.into_inner().unwrap_or_else(PoisonError::into_inner);
        let unique = jobs.last().map_or(0, |job| job.unique.index() + 1);
        let mut compiled = CompiledPieces {
            sizes: vec![Vec::new(); unique],
            artifacts: vec![Vec::new(); unique],
            layouts: vec![Vec::new(); unique],
            compiler: compiler.identity(),
            footprint: compiler.footprint(),
            counts,
            time,
        };
        for (job, made) in jobs.into_iter().zip(self.made) {
            let Some(made) = made.into_inner() else { continue };
            let unique = job.unique.index();
            let artifact = made.map_err(|source| ModelError::Compile {
                piece: job.unique.to_string(),
                source: Box::new(source),
            })?;
            compiled.artifacts[unique].push(artifact);
            compiled.sizes[unique].push(job.at);
            compiled.layouts[unique] = job.layouts;
        }
        prepared.map(|()| compiled)
    }

    fn spend(&self, counts: &CompileCounts) {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).0.add(counts);
    }

    fn spend_time(&self, time: Duration) {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).1 += time;
    }
}

#[cfg(test)]
mod tests;
