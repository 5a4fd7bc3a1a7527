//! Lowering: every unique piece at every size is taken from the store, or compiled and kept there.

use super::compiled::CompiledPieces;
use super::counts::CountingStore;
use super::job::{CompileJob, compile_jobs};
use super::session::{Images, Session, Start};
use crate::dispatch::Dispatcher;
use crate::words::{CompileCounts, ModelError, Progress, SymbolTable};
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::{CompileError, Compiler, Store};
use piecewise_ir::entity::{Entity, UniquePieceId};
use rayon::prelude::*;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

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
