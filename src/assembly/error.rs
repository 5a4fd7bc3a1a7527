//! Why a model could not be put together.

use super::dumps::error::DumpError;
use crate::device::OpenError;
use crate::models::{CheckpointError, ConfigError as ModelConfigError};
use crate::session::SessionError;
use piecewise_backend::device::DeviceError;
use piecewise_ir::builder::BuildErrors;
use piecewise_runtime::batch::RoleError;
use piecewise_runtime::config::{ConfigError, Source};
use piecewise_runtime::engine::EngineError;
use piecewise_runtime::measure::MeasureError;
use piecewise_runtime::memory::SizingError;
use piecewise_runtime::pipeline::PlanError;
use piecewise_runtime::words::{ModelError, Quantize};
use std::error::Error;
use std::path::PathBuf;

/// Why a model could not be put together.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum AssemblyError {
    /// A key that there is not, a value that it does not take, or keys that do not go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A device that there is not.
    #[error("{from}: device: {reason}")]
    DeviceName {
        from: Source,
        /// What is wrong with it.
        reason: String,
    },
    /// Sequences longer than the model can have.
    #[error("{from}: max_seq_len = {length} is above {key} = {longest} of config.json; lower it")]
    TooLong {
        /// Where the length was set.
        from: Source,
        length: u64,
        /// What says so: the positions that the model was made for, or those that its layers see.
        key: &'static str,
        /// The longest that the model can have.
        longest: u64,
    },
    /// A setting that a graph leaves no choice about.
    #[error(transparent)]
    BoundOfGraph(#[from] Box<BoundOfGraph>),
    /// More than the device has.
    #[error("the model needs {needed} bytes of the device, and {from} is {free}; {fits}")]
    DoesNotFit {
        /// Bytes that it takes, code and graphs among them.
        needed: u64,
        /// What says how much there is: free memory, or a key.
        from: &'static str,
        free: u64,
        /// Rows of the KV pool, or of a step where there is none, with which it would fit; 0 where no
        /// number of them would.
        rows: u64,
        /// What would fit, in words.
        fits: String,
    },
    /// The configuration of a model folder.
    #[error("can't use the model in {}", folder.display())]
    Folder { folder: PathBuf, source: Box<ModelConfigError> },
    /// The weights of a model folder.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint holds a bias that the configuration knows nothing of.
    #[error(
        "checkpoint tensor \"{tensor}\" is a bias that the model of config.json does not have: \
         the configuration belongs to other weights"
    )]
    UnknownBias { tensor: String },
    /// A tensor of a packed layer that nothing reads.
    #[error(
        "checkpoint tensor \"{tensor}\" belongs to a layer that is kept in few bits, but what config.json \
         says of that layer does not read it: `quantization_config` belongs to other weights, or is \
         missing"
    )]
    UnreadScale { tensor: String },
    /// Tensors of a checkpoint that a model which reads every tensor does not read.
    #[error(
        "the model of config.json reads nothing of these tensors of the checkpoint, so they belong to \
         another model, or to a part of it that is not known here: {tensors}"
    )]
    UnreadTensors {
        /// The first of them.
        tensors: String,
    },
    /// Weights that can't be rounded when they are loaded.
    #[error("{from}: quantize = \"{format}\" is not possible: {reason}; leave it out")]
    Quantize { from: Source, format: Quantize, reason: String },
    /// The graph of a family.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// A text that is no graph, or whose plan can't be used.
    #[error("{name} {what}: {reason}")]
    Text {
        /// What the text is called.
        name: String,
        /// What can't be done with it.
        what: &'static str,
        reason: String,
    },
    /// A level whose kernels nobody chooses among.
    #[error(
        "level = \"{level}\" fuses nothing, so that there is nothing to measure; use level = \"piecewise\" or \
         \"compile\""
    )]
    NothingToTune { level: &'static str },
    /// An op to split at that the graph does not have.
    #[error("splitting_ops names {name:?}, but the custom ops of the graph are {there}")]
    SplitOp {
        name: String,
        /// The names that there are.
        there: String,
    },
    /// A pass, or the text of the pipeline.
    #[error(transparent)]
    Plan(#[from] Box<PlanError>),
    /// No driver, no such device, or a target that can't run here.
    #[error(transparent)]
    Device(#[from] Box<OpenError>),
    /// The roles of the graph, for an engine or a timer.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// KV states that are of no pool, or a memory budget that leaves too little for one.
    #[error(transparent)]
    Sizing(#[from] SizingError),
    /// A dump of what the passes did and made.
    #[error(transparent)]
    Dump(#[from] Box<DumpError>),
    /// The compiled model could not be loaded, captured or run.
    #[error(transparent)]
    Model(#[from] Box<ModelError>),
    /// An engine that would read nothing back.
    #[error(
        "an engine reads sampled ids or logits back, but the purpose is `Rows`, of which nothing is read; \
         leave `Assembly::purpose` out, or make a session"
    )]
    NothingRead,
    /// Pools or bounds that requests can't be served with.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A timer that has no sequences for its steps, or steps that fail.
    #[error(transparent)]
    Measure(#[from] Box<MeasureError>),
    /// A graph that can't be stepped by hand.
    #[error(transparent)]
    Session(#[from] Box<SessionError>),
}

/// A setting that differs from what a graph says of itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{from}: {key} can't be {asked}: the graph @{graph} says {own}, and its bounds are its own; leave \
     {key} out, or write the graph anew"
)]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub struct BoundOfGraph {
    pub from: Source,
    pub key: &'static str,
    pub asked: String,
    pub graph: String,
    pub own: String,
}

/// As it is displayed, with its causes: a `main` that returns it prints this.
impl std::fmt::Debug for AssemblyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = self.to_string();
        let causes = std::iter::successors(self.source(), |cause| (*cause).source());
        for cause in causes.map(ToString::to_string) {
            // Some say what their cause says.
            if !text.contains(&cause) {
                text += &format!("\n  because: {cause}");
            }
        }
        f.write_str(&text)
    }
}

impl AssemblyError {
    /// Whether memory is short, so that smaller bounds would do.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::DoesNotFit { .. } => true,
            Self::Model(error) => {
                matches!(**error, ModelError::Device(DeviceError::OutOfMemory { .. }))
            }
            _ => false,
        }
    }
}

macro_rules! boxed {
    ($($variant:ident($source:ty)),*) => {
        $(impl From<$source> for AssemblyError {
            fn from(error: $source) -> Self {
                Self::$variant(Box::new(error))
            }
        })*
    };
}

boxed!(
    BoundOfGraph(BoundOfGraph),
    Plan(PlanError),
    Device(OpenError),
    Dump(DumpError),
    Model(ModelError),
    Measure(MeasureError),
    Session(SessionError)
);
