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
mod stored_piece;

pub use cache_store::{CacheStore, NoCache, cache_dir};
pub use checksum_key::CHECKSUM_KEY_VARIABLE;
pub use counts::CompileCounts;
pub use key::{PIECE_KIND, PieceKey};
pub use late::LateCompiler;
pub use stored_piece::{IMAGE_KIND, StoredPiece};

use crate::dispatch::Dispatcher;
use crate::model::{LoweringSize, ModelError, Progress, lowering_sizes};
use crate::symbols::SymbolTable;
use counts::CountingStore;
use piecewise_backend::artifact::{Artifact, Digest};
use piecewise_backend::compiler::{
    Claim, CompileError, Compiler, Entry, Footprint, PieceAt, Store, claim_or_wait,
};
use piecewise_backend::weights::WeightLayout;
use piecewise_ir::entity::{Entity, UniquePieceId};
use piecewise_ir::module::{Module, Stitch, UniquePiece};
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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
    /// How long that took.
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
    /// The unique piece.
    pub unique: UniquePieceId,
    /// Its graph and operands.
    pub piece: &'a UniquePiece,
    /// The size, and the most of each symbol in the steps that use it.
    pub at: LoweringSize,
    /// The layouts of its weights.
    pub layouts: Vec<WeightLayout>,
}

impl CompileJob<'_> {
    fn piece_at(&self) -> PieceAt<'_> {
        PieceAt { piece: self.piece, size: self.at.size, bounds: &self.at.limits }
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
    let mut all: Vec<_> = stitch.unique.keys().flat_map(sizes).map(|at| at.size).collect();
    all.sort_unstable();
    all.dedup();
    let layouts = compiler.weight_layouts(stitch, &all);
    let jobs = stitch.unique.iter().flat_map(|(unique, piece)| {
        let layouts = &layouts[unique.index()];
        sizes(unique).into_iter().map(move |at| {
            let layouts = layouts.clone();
            CompileJob { unique, piece, at, layouts }
        })
    });
    jobs.collect()
}

/// Compiles every unique piece at the sizes that `dispatcher` can choose, in parallel, and what
/// the device needs besides.
///
/// # Errors
/// When a piece does not compile. A store that fails is no error.
pub fn compile_pieces(
    stitch: &Stitch,
    symbols: &SymbolTable,
    dispatcher: &Dispatcher,
    compiler: &dyn Compiler,
    store: &dyn Store,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<CompiledPieces, ModelError> {
    let jobs = compile_jobs(stitch, symbols, dispatcher, compiler);
    let lowering = Lowering::new(&jobs);
    lowering.lower_all(&jobs, compiler, store, progress);
    lowering.finish(jobs, compiler, store)
}

/// [`compile_pieces`] of a planned module.
///
/// # Errors
/// As there, and when the module has no pieces or a symbol of an unknown role.
pub fn compile_module(
    module: &Module,
    dispatcher: &Dispatcher,
    compiler: &dyn Compiler,
    store: &dyn Store,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<CompiledPieces, ModelError> {
    let stitch = module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
    let symbols = SymbolTable::new(module.graph().symbols())?;
    compile_pieces(stitch, &symbols, dispatcher, compiler, store, progress)
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
        // What another process is at comes last: it may be there by then.
        let later = jobs.par_iter().filter(|(job, made)| match session.start(job) {
            Ok(Start::Taken) => true,
            start => {
                make(job, made, start);
                false
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

/// Images that the store gave or got, by digest: pieces and sizes share them.
#[derive(Debug, Default)]
struct Images(Mutex<FxHashMap<Digest, Arc<[u8]>>>);

impl Images {
    fn get(&self, digest: Digest) -> Option<Arc<[u8]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned()
    }

    /// Notes an image; whether it is the first time.
    fn insert(&self, digest: Digest, bytes: Arc<[u8]>) -> bool {
        let mut images = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        images.insert(digest, bytes).is_none()
    }
}

/// Why the store's entry of a piece is not used.
enum Miss {
    /// There is none.
    Absent,
    /// The store could not tell.
    Unreadable(String),
    /// It refers to an image that the store has lost.
    ImageAbsent(Digest),
    /// It is no lowered piece, or not one of this piece.
    Unfit(String),
}

/// How far a piece is before it is compiled.
enum Start {
    /// The store gave it.
    Loaded(Artifact),
    /// The store did not, and perhaps nobody else compiles it meanwhile.
    Missed(PieceKey, Miss, Option<Box<dyn std::fmt::Debug + Send>>),
    /// Another process compiles it.
    Taken,
}

/// One compile of a model.
struct Session<'a> {
    compiler: &'a dyn Compiler,
    store: &'a CountingStore<'a>,
    images: &'a Images,
}

impl Session<'_> {
    /// Takes a piece from the store, or the right to compile it.
    fn start(&self, job: &CompileJob<'_>) -> Result<Start, CompileError> {
        tracing::debug!(unique = %job.unique, size = ?job.at.size, "a piece is lowered");
        let key = job.key(self.compiler)?;
        Ok(match self.load(&key, job) {
            Ok(artifact) => Start::Loaded(artifact),
            Err(Miss::Absent) => {
                let claim = self.store.claim(PIECE_KIND, key.digest());
                self.claimed(key, claim, job)
            }
            Err(miss) => Start::Missed(key, miss, None),
        })
    }

    /// As [`Self::start`], once whoever else compiles the piece has done so, or failed to.
    fn wait(&self, job: &CompileJob<'_>) -> Result<Start, CompileError> {
        let key = job.key(self.compiler)?;
        let claim = claim_or_wait(self.store, PIECE_KIND, key.digest());
        Ok(self.claimed(key, claim, job))
    }

    fn claimed(&self, key: PieceKey, claim: Claim, job: &CompileJob<'_>) -> Start {
        match claim {
            Claim::Taken => Start::Taken,
            Claim::Mine(claim) => Start::Missed(key, Miss::Absent, Some(claim)),
            Claim::Made => match self.load(&key, job) {
                Ok(artifact) => Start::Loaded(artifact),
                Err(miss) => Start::Missed(key, miss, None),
            },
        }
    }

    fn artifact(
        &self,
        job: &CompileJob<'_>,
        start: Result<Start, CompileError>,
    ) -> Result<Artifact, CompileError> {
        let (key, miss, claim) = match start? {
            Start::Loaded(artifact) => {
                self.store.count_reused(PIECE_KIND);
                return Ok(artifact);
            }
            Start::Missed(key, miss, claim) => (key, miss, claim),
            Start::Taken => (job.key(self.compiler)?, Miss::Absent, None),
        };
        // An image that was bad may be set aside by several readers, the last one after another
        // has put it back: each of them puts it back.
        let all_images = matches!(miss, Miss::ImageAbsent(_) | Miss::Unfit(_));
        match miss {
            Miss::Absent => self.store.count_miss("absent"),
            Miss::ImageAbsent(digest) => {
                tracing::debug!(%digest, "a lowered piece lacks an image; it is compiled again");
                self.store.count_miss("image absent");
            }
            Miss::Unreadable(reason) => {
                tracing::warn!("a lowered piece could not be read: {reason}");
                self.store.count_miss("unreadable");
            }
            Miss::Unfit(reason) => {
                let digest = key.digest();
                tracing::warn!(
                    "lowered piece {digest} of the cache does not fit: {reason}; it is compiled again"
                );
                self.store.count_miss("unfit");
            }
        }
        let mut artifact = self.compiler.compile(job.piece_at(), &job.layouts, self.store)?;
        self.store.count_compiled(PIECE_KIND);
        self.keep(&key, &artifact, all_images);
        drop(claim);
        let admitted = self.compiler.admit(job.piece_at(), &mut artifact);
        admitted
            .map_err(|reason| CompileError::Unusable { target: self.compiler.target(), reason })?;
        Ok(artifact)
    }

    fn load(&self, key: &PieceKey, job: &CompileJob<'_>) -> Result<Artifact, Miss> {
        let get = |kind, digest| {
            self.store.get(kind, digest).map_err(|error| Miss::Unreadable(error.to_string()))
        };
        let bytes = get(PIECE_KIND, key.digest())?.ok_or(Miss::Absent)?;
        let stored = StoredPiece::decode(&bytes).map_err(Miss::Unfit)?;
        let mut images = Vec::with_capacity(stored.images().len());
        for &digest in stored.images() {
            let bytes = match self.images.get(digest) {
                Some(bytes) => bytes,
                None => {
                    let bytes = get(IMAGE_KIND, digest)?.ok_or(Miss::ImageAbsent(digest))?;
                    if Digest::of(&bytes) != digest {
                        return Err(Miss::Unfit(format!("image {digest} has other bytes")));
                    }
                    let bytes: Arc<[u8]> = bytes.into();
                    self.images.insert(digest, bytes.clone());
                    bytes
                }
            };
            images.push((digest, bytes.to_vec()));
        }
        let mut artifact = stored.into_artifact(images).map_err(Miss::Unfit)?;
        artifact.check(job.piece, job.at.size).map_err(Miss::Unfit)?;
        self.compiler.admit(job.piece_at(), &mut artifact).map_err(Miss::Unfit)?;
        Ok(artifact)
    }

    /// Keeps an artifact: images first, so that no piece refers to one that is not there yet; those
    /// that were kept before only if all are wanted.
    fn keep(&self, key: &PieceKey, artifact: &Artifact, all_images: bool) {
        let target = self.compiler.target();
        let mut kept = Ok(());
        for (digest, bytes) in &artifact.images {
            let is_new = self.images.insert(*digest, bytes.as_slice().into());
            if kept.is_ok() && (is_new || all_images) {
                let kernel = image_name(artifact, *digest);
                let factors = [("target", target.as_str()), ("kernel", kernel)];
                let (kind, factors) = (IMAGE_KIND, &factors);
                kept = self.store.put(Entry { kind, key: *digest, factors, bytes });
            }
        }
        let kept = kept.and_then(|()| match StoredPiece::encode(artifact) {
            Ok(bytes) => {
                let (kind, factors) = (PIECE_KIND, &key.factors());
                self.store.put(Entry { kind, key: key.digest(), factors, bytes: &bytes })
            }
            Err(reason) => {
                tracing::warn!("a lowered piece can't be written: {reason}");
                Ok(())
            }
        });
        if let Err(error) = kept {
            tracing::debug!(%error, "a lowered piece is not kept");
        }
    }
}

/// What an image computes: the first word of the first launch that runs it.
fn image_name(artifact: &Artifact, digest: Digest) -> &str {
    let mut launches = artifact.ways().flat_map(|way| &way.launches);
    let launch = launches.find(|launch| launch.image == digest);
    launch.and_then(|launch| launch.name.split(' ').next()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
