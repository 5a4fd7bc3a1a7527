//! What a program that builds and runs models names: `use piecewise::prelude::*`.
//!
//! Names that say nothing without their module stay there: kernels of an op in
//! [`kernels::op::cuda`](crate::kernels::op::cuda), the passes of the framework in
//! [`passes`](crate::passes), what is measured in [`runtime::measure`](crate::runtime::measure).
//!
//! ```
//! use piecewise::prelude::*;
//!
//! fn watched(assembly: Assembly, observer: Box<dyn Observer>) -> Assembly {
//!     assembly.tune(TuneMode::Load).level(CompileLevel::Trace).observe(observer)
//! }
//!
//! fn given(engine: &mut Engine, rows: &[f32]) -> Result<RowsId, EngineError> {
//!     engine.add_rows(RowSource::Values(rows))
//! }
//!
//! fn timed(timer: &mut ModelTimer, steps: &[PlannedStep]) -> Result<u128, MeasureError> {
//!     Ok(timer.run(steps, false)?.iter().map(|step: &StepRecord| step.wall.as_micros()).sum())
//! }
//! ```
//!
//! What implements its traits needs no other name of the library:
//!
//! ```
//! use piecewise::prelude::*;
//! use std::borrow::Cow;
//! use std::collections::BTreeMap;
//! use std::ops::ControlFlow;
//! use std::sync::{Arc, Mutex, PoisonError};
//!
//! /// Runs no pass after one that takes a second.
//! struct Patience;
//!
//! impl Observer for Patience {
//!     fn after_pass(&mut self, after: &AfterPass<'_>) -> Result<ControlFlow<()>, PassError> {
//!         Ok(match after.elapsed.as_secs() {
//!             0 => ControlFlow::Continue(()),
//!             _ => ControlFlow::Break(()),
//!         })
//!     }
//! }
//!
//! /// Keeps artifacts of up to a MiB for as long as the process runs.
//! #[derive(Default)]
//! struct Small(Mutex<BTreeMap<(&'static str, Digest), Vec<u8>>>);
//!
//! impl Store for Small {
//!     fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
//!         let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
//!         Ok(kept.get(&(kind, key)).cloned())
//!     }
//!
//!     fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
//!         let Entry { kind, key, bytes, .. } = entry;
//!         if bytes.len() > 1 << 20 {
//!             let reason = "larger than a MiB".to_owned();
//!             return Err(StoreError { action: "write", kind, key, reason });
//!         }
//!         let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
//!         kept.insert((kind, key), bytes.to_vec());
//!         Ok(())
//!     }
//!
//!     fn claim(&self, _: &'static str, _: Digest) -> Claim {
//!         Claim::Mine(Box::new("nobody else asks"))
//!     }
//! }
//!
//! /// Every element is 1.
//! struct Ones;
//!
//! impl WeightSource for Ones {
//!     fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
//!         if spec.dtype != DType::F32 {
//!             let (found, expected) = ("f32".to_owned(), spec.dtype.to_string());
//!             let name = spec.name.to_owned();
//!             return Err(WeightError::Mismatch { name, found, expected });
//!         }
//!         let elements = spec.shape.iter().product::<u64>() as usize;
//!         Ok(TensorSource::Bytes(Cow::Owned(1f32.to_le_bytes().repeat(elements))))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let b = Builder::new("sums").weight_dtype(DType::F32);
//! let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 4));
//! let graph = b.finish([x.linear(b.weight("ones", [2, 4]))])?;
//! let (store, assembly) = (Arc::new(Small::default()), Assembly::graph(graph).weights(Ones));
//! let assembly = assembly.observe(Box::new(Patience)).store(store.clone());
//! let sums = assembly.session()?.step().input("x", &[1f32, 2.0, 3.0, 4.0]).run()?;
//! assert_eq!(sums.get::<f32>(0)?, [10.0, 10.0]);
//! assert!(!store.0.lock().unwrap().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! It stands beside the names of `tracing`:
//!
//! ```
//! use piecewise::prelude::*;
//! use std::sync::Arc;
//! use tracing::*;
//!
//! #[derive(Debug)]
//! struct Says(Level);
//!
//! impl Pass for Says {
//!     fn name(&self) -> &'static str {
//!         "own.says"
//!     }
//!
//!     fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
//!         let _span = info_span!("own.says", level = %self.0).entered();
//!         info!(values = module.graph().value_count());
//!         Ok(PassReport::default())
//!     }
//! }
//!
//! fn says(options: &mut OptionReader<'_>) -> Result<Box<dyn Pass>, PipelineError> {
//!     let is_loud = options.flag("loud")?;
//!     Ok(Box::new(Says(if is_loud { Level::INFO } else { Level::DEBUG })))
//! }
//!
//! fn with_own(graph: Graph, store: Arc<dyn Store>) -> Assembly {
//!     Assembly::graph(graph).pass("own.says", &["loud"], says).store(store)
//! }
//! ```

pub use crate::assembly::{Assembly, AssemblyError, Notice, Planned, Purpose, Registries};
pub use crate::device::{DeviceSpec, OpenDevice, OpenError};
pub use crate::models::op_builders::*;
pub use crate::models::{
    Checkpoint, DecoderBounds, DecoderConfig, DecoderFacts, DecoderModel, Fields, Preset,
    StepBounds, StepInputs, StoredDTypes, TextStream, TextTokenizer, decoder,
};
pub use crate::session::{Element, InMemoryWeights, Outputs, Session, SessionError};
pub use piecewise_backend::artifact::Digest;
pub use piecewise_backend::compiler::{Claim, Entry, Store, StoreError};
pub use piecewise_backend::tuning::TuneMode;
pub use piecewise_backend::weights::{
    NormalWeights, TensorSource, TensorSpec, WeightError, WeightSource,
};
pub use piecewise_ir::builder::{BuildErrors, Builder, Operand, Scope, Tensor};
pub use piecewise_ir::custom::{Attr, Attrs, CustomOpDef};
pub use piecewise_ir::dim::Dim;
pub use piecewise_ir::dtype::DType;
pub use piecewise_ir::entity::Symbol;
pub use piecewise_ir::graph::Graph;
pub use piecewise_ir::literal::Scalar;
pub use piecewise_ir::module::Module;
pub use piecewise_ir::op::RowTreatment;
pub use piecewise_ir::types::{IntoShape, TensorType};
pub use piecewise_kernels::experts::{Experts, RouterScores, Routing};
pub use piecewise_kernels::inputs::{BatchView, Extent, InputWriter, SequenceView, StepInput};
pub use piecewise_kernels::op::{CpuOp, CpuOpArgs, CpuOpCall, OpError, OpRegistry};
pub use piecewise_kernels::step::{CaptureSupport, LaunchContext};
pub use piecewise_passes::manager::OptionReader;
pub use piecewise_passes::{
    AfterPass, Observer, Pass, PassContext, PassError, PassReport, PipelineError,
};
pub use piecewise_runtime::batch::TokenValues;
pub use piecewise_runtime::batch::{ChunkRows, Sampling};
pub use piecewise_runtime::config::ConfigLayers;
/// ```
/// use piecewise::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3");
/// let assembly = Assembly::folder(folder)?.max_num_tokens(32).max_num_seqs(2).max_seq_len(64);
/// let mut engine = assembly.no_cache().engine()?;
///
/// let talk = engine.add(Request { keep: true, ..Request::new([326, 680], 3) })?;
/// let other = engine.add(Request::new([326], 16))?;
/// let mut events = Vec::new();
/// engine.step(&mut events)?;
/// // Any time between two steps; its pages are free at once.
/// engine.remove(other)?;
/// engine.run(&mut events)?;
/// assert_eq!(engine.ids(talk).map(|ids| ids.len()), Some(2 + 3));
///
/// // The conversation goes on: what its pages still hold is not computed again.
/// engine.extend(talk, Request::new([680], 2))?;
/// engine.run(&mut events)?;
/// let Some(RequestEvent::Finished { request, usage, .. }) = events.last() else {
///     return Err("a run ends with the end of a request".into());
/// };
/// assert_eq!((*request, usage.prompt, usage.generated), (talk, 2 + 3 + 1, 2));
/// assert!(usage.cached > 0 && !engine.has_work());
/// # Ok(())
/// # }
/// ```
#[doc(inline)]
pub use piecewise_runtime::engine::Engine;
pub use piecewise_runtime::engine::{
    EngineError, GivenRows, Request, RequestEvent, RowSource, TokenConstraint, TokenLogprobs,
};
pub use piecewise_runtime::measure::{
    MeasureError, ModelTimer, PlannedChunk, PlannedStep, StepRecord, StepTokens,
};
pub use piecewise_runtime::memory::RowsId;
pub use piecewise_runtime::words::RequestId;
pub use piecewise_runtime::words::roles;
pub use piecewise_runtime::words::{CaptureWhen, Checks, OnCaptureFailure, SuspendedWeights};
pub use piecewise_runtime::words::{CompileLevel, GraphMode, Quantize, StepMode};
pub use piecewise_runtime::words::{FinishReason, Usage};
