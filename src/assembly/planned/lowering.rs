//! The pieces of a planned model on their way to artifacts.

use super::super::error::AssemblyError;
use super::super::notice::telling;
use super::Planned;
use piecewise_backend::artifact::Artifact;
use piecewise_backend::compiler::CompileError;
use piecewise_ir::entity::{Node, UniquePieceId};
use piecewise_ir::op::Op;
use piecewise_runtime::store::{CompileJob, Lowering, compile_jobs};
use piecewise_runtime::words::{CompileCounts, ModelError};

/// A unique piece at one of its sizes.
#[derive(Debug)]
pub struct LoweredPiece<'a> {
    /// Its launches, by alternative, part and way, and the code that they name.
    pub artifact: &'a Artifact,
    /// The key of its entry in the compile cache.
    pub key: String,
}

/// A unique piece at all its sizes, or why it does not compile.
#[derive(Debug)]
pub struct LoweredUnique<'a> {
    /// Its number among the unique pieces of the plan.
    pub unique: UniquePieceId,
    /// In the order of sizes.
    pub pieces: Result<Vec<LoweredPiece<'a>>, &'a CompileError>,
}

impl Planned {
    /// Everything that is compiled, in the order of unique pieces, then of their sizes.
    ///
    /// # Errors
    /// When there are no pieces, or as for [`Self::device`].
    pub fn jobs(&self) -> Result<Vec<CompileJob<'_>>, AssemblyError> {
        let (stitch, compiler) = (self.stitch()?, self.compiler()?);
        Ok(compile_jobs(stitch, &self.symbols, &self.settings.dispatcher, compiler))
    }

    /// The pieces that `is_wanted`, each at all its sizes: taken from the store, or compiled and
    /// kept there. One that does not compile does not keep the others from it.
    ///
    /// # Errors
    /// As for [`Self::jobs`].
    pub fn lower(
        &self,
        is_wanted: impl Fn(UniquePieceId) -> bool,
    ) -> Result<Vec<LoweredUnique<'_>>, AssemblyError> {
        let (jobs, compiler) = (self.jobs()?, self.compiler()?);
        let lowering = self.lowering.get_or_init(|| Lowering::new(&jobs));
        lowering.lower(
            &jobs,
            &is_wanted,
            compiler,
            self.store(),
            &mut telling(&mut self.watcher.borrow_mut()),
        );
        let mut lowered: Vec<LoweredUnique<'_>> = Vec::new();
        for (i, job) in jobs.iter().enumerate().filter(|(_, job)| is_wanted(job.unique)) {
            let Some(made) = lowering.made(i) else { continue };
            let made = made.map(|artifact| LoweredPiece {
                artifact,
                key: job.key(compiler).map_or_else(|_| String::new(), |k| k.digest().to_string()),
            });
            match lowered.last_mut().filter(|last| last.unique == job.unique) {
                Some(last) => match (&mut last.pieces, made) {
                    (Ok(pieces), Ok(piece)) => pieces.push(piece),
                    (Ok(_), Err(error)) => last.pieces = Err(error),
                    (Err(_), _) => {}
                },
                None => {
                    let pieces = made.map(|piece| vec![piece]);
                    lowered.push(LoweredUnique { unique: job.unique, pieces });
                }
            }
        }
        Ok(lowered)
    }

    /// The artifacts of every piece at every size, by unique piece; what the device needs besides
    /// is made too.
    ///
    /// # Errors
    /// When one does not compile, or as for [`Self::jobs`].
    pub fn artifacts(&self) -> Result<Vec<Vec<&Artifact>>, AssemblyError> {
        let (jobs, compiler) = (self.jobs()?, self.compiler()?);
        let lowering = self.lowering.get_or_init(|| Lowering::new(&jobs));
        lowering.lower_all(
            &jobs,
            compiler,
            self.store(),
            &mut telling(&mut self.watcher.borrow_mut()),
        );
        let mut artifacts = Vec::new();
        for LoweredUnique { unique, pieces } in self.lower(|_| true)? {
            let pieces = pieces.map_err(|source| ModelError::Compile {
                piece: unique.to_string(),
                source: Box::new(self.located(unique, source)),
            })?;
            artifacts.push(pieces.into_iter().map(|piece| piece.artifact).collect());
        }
        lowering.prepare(compiler, self.store())?;
        Ok(artifacts)
    }

    /// The error with the scope and line of the op in the first use of the piece, which has none itself.
    fn located(&self, unique: UniquePieceId, error: &CompileError) -> CompileError {
        let graph = self.module.graph();
        let uses = self.module.stitch().into_iter().flat_map(|stitch| stitch.uses.values());
        let first = uses.clone().find(|piece| piece.unique == unique);
        let nodes = first.map_or(&[][..], |piece| &piece.nodes);
        let calls = |node: &&Node, name: &str| match &graph.node(**node).op {
            Op::Custom(call) => call.name == name,
            _ => false,
        };
        let mut error = error.clone();
        let (node, loc) = match &mut error {
            CompileError::Unsupported { node, loc, .. } => (nodes.get(*node), loc),
            CompileError::Unregistered { op, loc, .. } => {
                (nodes.iter().find(|node| calls(node, op)), loc)
            }
            // Of others no op is known.
            _ => return error,
        };
        if let Some(node) = node {
            let found = &graph.node(*node).loc;
            let parts = [found.scope.as_str(), found.source.as_str()];
            let parts = Vec::from_iter(parts.into_iter().filter(|part| !part.is_empty()));
            if !parts.is_empty() {
                *loc = parts.join(", ");
            }
        }
        error
    }

    /// What was compiled and what was reused so far.
    pub fn counts(&self) -> CompileCounts {
        self.lowering.get().map(Lowering::counts).unwrap_or_default()
    }
}
