//! The compiler interface: from a unique piece and a size to an artifact, without a device.

use crate::artifact::{Artifact, PieceSize};
pub use crate::store::{Claim, Entry, NoStore, Store, StoreError, claim_or_wait};
use crate::weights::WeightLayout;
use piecewise_ir::entity::Entity;
use piecewise_ir::module::{Stitch, UniquePiece};

/// Why a piece could not be compiled.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum CompileError {
    /// A node that the target has no kernel for.
    #[error("`{op}` ({loc}) has no kernel on {target}: {reason}")]
    Unsupported {
        /// Its position in the piece's program order.
        node: usize,
        /// Its mnemonic or custom name, and its first result in the piece's text.
        op: String,
        /// Its scope and source line.
        loc: String,
        target: String,
        /// Why, and what to try.
        reason: String,
    },
    /// A custom op without an implementation for the target.
    #[error(
        "custom op `{op}` ({loc}) has no implementation on {target}; register one under this name"
    )]
    Unregistered {
        op: String,
        /// Its scope and source line.
        loc: String,
        target: String,
    },
    /// The target's own compiler refused the generated source.
    #[error("kernel `{kernel}` for {target} failed to compile: {log}")]
    Kernel { kernel: String, target: String, log: String },
    /// What was compiled can't be used on this machine.
    #[error("what was compiled for {target} can't be used here: {reason}")]
    Unusable { target: String, reason: String },
}

/// What a kernel image holds, for people and dumps.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
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
    /// The file that its lines are of, where it was compiled with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_file: Option<String>,
    /// What it takes of the device, where that can be read from its code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<KernelResources>,
}

/// What a kernel takes of a GPU's multiprocessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct KernelResources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory of a thread: what does not fit into registers (spills), and arrays that are
    /// indexed at run time.
    pub stack_bytes: u32,
    /// Instructions that read local memory.
    pub local_loads: u32,
    /// Instructions that write local memory.
    pub local_stores: u32,
    /// Bytes of shared memory of a block, declared and given at the launch.
    pub shared_bytes: u64,
    /// Bytes of its instructions.
    pub code_bytes: u64,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that find room on a multiprocessor at once; nothing where its limits are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_of_multiprocessor: Option<u64>,
    /// The share of a multiprocessor's threads that they are (occupancy), rounded down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupancy_percent: Option<u64>,
    /// What runs out first: `registers`, `shared memory`, `threads` or `blocks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<&'static str>,
}

/// A file of what is below the source of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeFile {
    /// What the file's name ends in: `ptx`, `cubin`, `sass`.
    pub extension: &'static str,
    /// What it holds, or a sentence why it is not to be had here.
    pub contents: Result<Vec<u8>, String>,
}

/// Why a part of a piece is computed as it is where nothing was measured.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct FirstWay {
    /// What is computed, as launches are named.
    pub name: String,
    /// The way that is taken.
    pub way: String,
    /// The other ways that are kept for measuring, in the order in which they are expected to be fast.
    pub others: Vec<String>,
    /// Why it comes first.
    pub why: String,
}

/// Device memory that what runs takes besides its data, as far as it can be said before it is there;
/// nothing where that is no memory of a device's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Bytes of a captured graph, whatever is in it.
    pub graph_bytes: u64,
    /// Bytes that each launch in it adds.
    pub launch_bytes: u64,
    /// What the device's context and its libraries take before a model is there.
    pub context_bytes: u64,
    /// Whether the images of kernels are loaded to the device.
    pub loads_images: bool,
}

/// What a compiler's artifacts hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompilerOptions {
    /// Whether a row has the same bits at any size.
    pub batch_invariant: bool,
    /// Whether they hold nothing but what is taken unmeasured.
    pub first_ways: bool,
    /// Whether code has the lines of its sources, for a profiler.
    pub line_info: bool,
}

/// A piece, and what it is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct PieceAt<'a> {
    /// The piece, whatever its uses.
    pub piece: &'a UniquePiece,
    /// For which row counts it is compiled.
    pub size: PieceSize,
    /// The largest sizes by symbol index.
    pub bounds: &'a [u64],
}

impl PieceAt<'_> {
    /// The most that each symbol of the piece can be at this size.
    pub fn limits(self) -> Vec<u64> {
        let Self { piece, size, bounds } = self;
        let declared = piece.graph.symbols().iter();
        let mut limits: Vec<u64> = declared
            .map(|(symbol, decl)| bounds.get(symbol.index()).copied().unwrap_or(decl.max))
            .collect();
        if let Some(over) = piece.over
            && let Some(limit) = limits.get_mut(over.index())
        {
            *limit = size.rows();
        }
        limits
    }
}

/// Compiles pieces for a target. It needs no device and is used by several threads at once.
pub trait Compiler: Send + Sync {
    /// What it compiles for: `cpu`, `cuda:sm_90a`.
    fn target(&self) -> String;

    /// What about this compiler changes what it makes for the target, wherever it runs: no thread
    /// count, no library that only happens to be installed. A factor of every key, as the target.
    fn identity(&self) -> String;

    /// One memory layout for each weight position of each unique piece (indexed by unique piece,
    /// then by weight), from all its uses and these sizes: a pure function of pieces and types.
    fn weight_layouts(&self, stitch: &Stitch, sizes: &[PieceSize]) -> Vec<Vec<WeightLayout>>;

    /// What the implementations of the piece's custom ops add to what its artifact at this size is
    /// a function of; empty without custom ops. A factor of the artifact's key: the rest of a piece
    /// is in its own text.
    ///
    /// # Errors
    /// When an op has no implementation on the target, or none for this call.
    fn custom_ops(&self, at: PieceAt<'_>) -> Result<String, CompileError> {
        let _ = at;
        Ok(String::new())
    }

    /// Gives an artifact of the piece what depends on this machine and not on the target. It also
    /// refuses one that this compiler could not have made or whose images can't be used here, so
    /// that it is compiled again.
    ///
    /// # Errors
    /// A sentence, when the artifact does not fit; it may then be half changed.
    fn admit(&self, at: PieceAt<'_>, artifact: &mut Artifact) -> Result<(), String> {
        let _ = (at, artifact);
        Ok(())
    }

    /// Makes what a device of the target needs besides pieces, and keeps it in `store`.
    ///
    /// # Errors
    /// When it does not compile.
    fn prepare_device(&self, store: &dyn Store) -> Result<(), CompileError> {
        let _ = store;
        Ok(())
    }

    /// Says ahead that a piece will be compiled for a size: where threads share what takes long, they
    /// share it from then on. What does not compile is not said here.
    fn want(&self, at: PieceAt<'_>) {
        let _ = at;
    }

    /// Lowers and compiles a piece for a size, with `layouts` of its weights by position. The
    /// artifact is the same on every machine, but for code that `store` remembers from another
    /// version of the target's own compiler; [`Self::admit`] fits it to this one.
    ///
    /// # Errors
    /// When a node has no kernel on the target or a kernel does not compile.
    fn compile(
        &self,
        at: PieceAt<'_>,
        layouts: &[WeightLayout],
        store: &dyn Store,
    ) -> Result<Artifact, CompileError>;

    /// What code and captured graphs take on a device of the target.
    fn footprint(&self) -> Footprint {
        Footprint::default()
    }

    /// What an image that this compiler made holds; `None` where there is nothing to show.
    fn listing(&self, image: &[u8]) -> Option<ImageListing> {
        let _ = image;
        None
    }

    /// What is below the source of an image that this compiler made: its machine code, and what tools of
    /// the target make of it.
    fn code(&self, image: &[u8]) -> Vec<CodeFile> {
        let _ = image;
        Vec::new()
    }

    /// For each part of a piece at a size, why its first way is first; empty where there is nothing to
    /// choose.
    fn first_ways(&self, at: PieceAt<'_>) -> Vec<FirstWay> {
        let _ = at;
        Vec::new()
    }
}
