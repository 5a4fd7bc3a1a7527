//! The compiler interface: from a unique piece and a size to an artifact, without a device.

use crate::artifact::{Artifact, Digest, PieceSize};
use crate::weights::WeightLayout;
use piecewise_ir::module::{Stitch, UniquePiece};

/// What a store could not do; the compiler goes on without it.
#[derive(Debug, thiserror::Error)]
#[error("the store failed to {action} {kind} {key}: {reason}")]
pub struct StoreError {
    /// `read` or `write`.
    pub action: &'static str,
    /// The kind of entry.
    pub kind: &'static str,
    /// The entry's key.
    pub key: Digest,
    /// What went wrong.
    pub reason: String,
}

/// Images and tuning records by digest.
pub trait Store: Send + Sync {
    /// The bytes of an entry, if the store has it.
    ///
    /// # Errors
    /// When the store can't tell.
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError>;

    /// Keeps an entry.
    ///
    /// # Errors
    /// When the entry could not be kept.
    fn put(&self, kind: &'static str, key: Digest, bytes: &[u8]) -> Result<(), StoreError>;
}

/// A store that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStore;

impl Store for NoStore {
    fn get(&self, _: &'static str, _: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }
    fn put(&self, _: &'static str, _: Digest, _: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Why a piece could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// A node that the target has no kernel for.
    #[error("node {node} (`{op}`, {loc}) has no kernel on {target}: {reason}")]
    Unsupported {
        /// Its position in the piece's program order.
        node: usize,
        /// Its mnemonic or custom name.
        op: String,
        /// Its scope and source line.
        loc: String,
        /// The target.
        target: String,
        /// Why, and what to try.
        reason: String,
    },
    /// A custom op without an implementation for the target.
    #[error(
        "custom op `{op}` ({loc}) has no implementation on {target}; register one under this name"
    )]
    Unregistered {
        /// The op's name.
        op: String,
        /// Its scope and source line.
        loc: String,
        /// The target.
        target: String,
    },
    /// The target's own compiler refused the generated source.
    #[error("kernel `{kernel}` for {target} failed to compile: {log}")]
    Kernel {
        /// The kernel's name.
        kernel: String,
        /// The target.
        target: String,
        /// The compiler's log.
        log: String,
    },
}

/// What a kernel image holds, for people and dumps.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct ImageListing {
    /// The kernel's entry, or what it computes.
    pub name: String,
    /// What runs it: `kernel`, `library`, `host function`, `row program`, `matmul`, `custom op`.
    pub kind: &'static str,
    /// The language of `text`, as the extension of a file.
    pub language: &'static str,
    /// The source, or a description where there is none.
    pub text: String,
    /// How it is launched: grid rule, block, shared memory, parameters; JSON's null where a launch
    /// has nothing of that.
    pub recipe: serde_json::Value,
    /// Whether an edge of a captured graph that leads to it may be programmatic: it may start
    /// before the launch before it ends, and waits for it itself.
    pub programmatic: bool,
}

/// Compiles pieces for a target. It needs no device and is used by several threads at once.
pub trait Compiler: Send + Sync {
    /// The target and everything about this compiler that changes what it makes; a factor of
    /// every key. `cpu`, `cuda:sm_90`.
    fn identity(&self) -> String;

    /// One memory layout for each weight position of each unique piece (indexed by unique piece,
    /// then by weight), from all its uses and these sizes: a pure function of pieces and types.
    fn weight_layouts(&self, stitch: &Stitch, sizes: &[PieceSize]) -> Vec<Vec<WeightLayout>>;

    /// Lowers and compiles `piece` for `size`, with `layouts` of its weights by position.
    /// Deterministic but for what `store` remembers.
    ///
    /// # Errors
    /// When a node has no kernel on the target or a kernel does not compile.
    fn compile(
        &self,
        piece: &UniquePiece,
        size: PieceSize,
        bounds: &[u64],
        layouts: &[WeightLayout],
        store: &dyn Store,
    ) -> Result<Artifact, CompileError>;

    /// What an image that this compiler made holds; `None` where there is nothing to show.
    fn listing(&self, image: &[u8]) -> Option<ImageListing> {
        let _ = image;
        None
    }
}
