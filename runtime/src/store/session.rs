//! One piece at one size, on its way through the store: taken from it, or compiled and kept there.

use super::counts::CountingStore;
use super::job::CompileJob;
use super::key::{PIECE_KIND, PieceKey};
use super::stored_piece::{IMAGE_KIND, StoredPiece};
use piecewise_backend::artifact::{Artifact, Digest};
use piecewise_backend::compiler::{Claim, CompileError, Compiler, Entry, Store, claim_or_wait};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where an image is once the store has it.
type Place = Arc<Mutex<Option<Arc<[u8]>>>>;

/// Images that the store gave or got, by digest: pieces and sizes share them.
#[derive(Debug, Default)]
pub(super) struct Images(Mutex<FxHashMap<Digest, Place>>);

impl Images {
    /// Of an image: whoever comes while another reads or keeps it waits.
    fn place(&self, digest: Digest) -> Place {
        lock(&self.0).entry(digest).or_default().clone()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why the store's entry of a piece is not used.
pub(super) enum Miss {
    /// The store has no such entry.
    Absent,
    /// The store could not tell.
    Unreadable(String),
    /// It refers to an image that the store has lost.
    ImageAbsent(Digest),
    /// It is no lowered piece, or not one of this piece.
    Unfit(String),
}

/// How far a piece is before it is compiled.
pub(super) enum Start {
    /// The store gave it.
    Loaded(Artifact),
    /// The store has none, or none that can be used: it is to be compiled here. While the claim
    /// that comes with it lives, other processes wait for the piece instead of compiling it.
    Missed(PieceKey, Miss, Option<Box<dyn std::fmt::Debug + Send>>),
    /// Another process compiles it.
    Taken,
}

/// One compile of a model.
pub(super) struct Session<'a> {
    pub(super) compiler: &'a dyn Compiler,
    pub(super) store: &'a CountingStore<'a>,
    pub(super) images: &'a Images,
}

impl Session<'_> {
    /// Takes a piece from the store, or says to the compiler that it will be compiled.
    pub(super) fn look(&self, job: &CompileJob<'_>) -> Result<Start, CompileError> {
        let key = job.key(self.compiler)?;
        Ok(match self.load(&key, job) {
            Ok(artifact) => Start::Loaded(artifact),
            Err(miss) => {
                self.compiler.want(job.piece_at());
                Start::Missed(key, miss, None)
            }
        })
    }

    /// Takes the right to compile what the store was found not to have.
    pub(super) fn claim(&self, job: &CompileJob<'_>, looked: Start) -> Start {
        tracing::debug!(unique = %job.unique, size = ?job.at.size, "a piece is lowered");
        match looked {
            Start::Missed(key, Miss::Absent, None) => {
                let claim = self.store.claim(PIECE_KIND, key.digest());
                self.claimed(key, claim, job)
            }
            looked => looked,
        }
    }

    /// As [`Self::claim`], once whoever else compiles the piece has done so, or failed to.
    pub(super) fn wait(&self, job: &CompileJob<'_>) -> Result<Start, CompileError> {
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

    pub(super) fn artifact(
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
        let counted = match miss {
            Miss::Absent => "absent",
            Miss::ImageAbsent(digest) => {
                tracing::debug!(%digest, "a lowered piece lacks an image; it is compiled again");
                "image absent"
            }
            Miss::Unreadable(reason) => {
                tracing::warn!("a lowered piece could not be read: {reason}");
                "unreadable"
            }
            Miss::Unfit(reason) => {
                tracing::warn!(
                    "lowered piece {} of the cache does not fit: {reason}; it is compiled again",
                    key.digest()
                );
                "unfit"
            }
        };
        self.store.count_miss(counted);
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
            let place = self.images.place(digest);
            let mut place = lock(&place);
            let bytes = match &*place {
                Some(bytes) => bytes.clone(),
                None => {
                    let bytes = get(IMAGE_KIND, digest)?.ok_or(Miss::ImageAbsent(digest))?;
                    if Digest::of(&bytes) != digest {
                        return Err(Miss::Unfit(format!("image {digest} has other bytes")));
                    }
                    place.insert(bytes.into()).clone()
                }
            };
            images.push((digest, bytes.to_vec()));
        }
        let mut artifact = stored.into_artifact(images);
        artifact.check(job.piece, job.at.size).map_err(Miss::Unfit)?;
        self.compiler.admit(job.piece_at(), &mut artifact).map_err(Miss::Unfit)?;
        Ok(artifact)
    }

    /// Keeps an artifact: images first, so that no piece refers to one that is not there yet; those
    /// that were kept before only if all are wanted.
    fn keep(&self, key: &PieceKey, artifact: &Artifact, all_images: bool) {
        let target = self.compiler.target();
        let images = artifact.images.iter().try_for_each(|(digest, bytes)| {
            let place = self.images.place(*digest);
            let mut place = lock(&place);
            if place.is_some() && !all_images {
                return Ok(());
            }
            let kernel = image_name(artifact, *digest);
            let factors = [("target", target.as_str()), ("kernel", kernel)];
            self.store.put(Entry { kind: IMAGE_KIND, key: *digest, factors: &factors, bytes })?;
            // Not before it is there: another thread keeps a piece that refers to it.
            *place = Some(bytes.as_slice().into());
            Ok(())
        });
        let kept = images.and_then(|()| match StoredPiece::encode(artifact) {
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
