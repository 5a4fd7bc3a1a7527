//! What a program that builds and runs models names: `use piecewise::prelude::*`.

pub use crate::assembly::{Assembly, AssemblyError, Notice, Planned, Purpose};
pub use crate::device::{DeviceSpec, OpenDevice, OpenError};
pub use crate::models::op_builders::*;
pub use crate::models::{
    Checkpoint, DecoderConfig, DecoderLimits, Preset, StepBounds, StepInputs, TextStream,
    TextTokenizer, decoder,
};
pub use crate::session::{Element, InMemoryWeights, Outputs, Session, SessionError, Step};
pub use piecewise_backend::cpu::{CpuCompiler, CpuDevice};
pub use piecewise_backend::weights::{NormalWeights, WeightSource};
pub use piecewise_ir::builder::{BuildErrors, Builder, Tensor};
pub use piecewise_ir::custom::{Attr, Attrs, CustomOpDef};
pub use piecewise_ir::dim::Dim;
pub use piecewise_ir::dtype::DType;
pub use piecewise_ir::entity::Symbol;
pub use piecewise_ir::graph::Graph;
pub use piecewise_ir::literal::Scalar;
pub use piecewise_ir::module::Module;
pub use piecewise_ir::op::RowTreatment;
pub use piecewise_ir::types::TensorType;
pub use piecewise_kernels::inputs::{BatchView, Extent, InputWriter, SequenceView, StepInput};
pub use piecewise_kernels::op::cuda::{
    CudaImplementation, CudaOp, CudaOpArgs, CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param,
    Scalar as KernelScalar,
};
pub use piecewise_kernels::op::{CpuOp, CpuOpArgs, OpError, OpRegistry};
pub use piecewise_kernels::step::{CaptureSupport, LaunchContext};
pub use piecewise_runtime::batch::{RoleMap, Sampling};
pub use piecewise_runtime::engine::{
    BatchingEngine, Engine, EngineError, EngineOptions, Event, FinishReason, Request, RequestId,
    Usage,
};
pub use piecewise_runtime::mode::{GraphMode, Level, StepMode};
pub use piecewise_runtime::model::{BuildOptions, Checks, CompiledModel, ModelError, StepData};
pub use piecewise_runtime::roles;
