//! The custom ops that this crate defines.

use crate::attention::PagedAttention;
use crate::causal_window::CausalWindow;
use crate::experts::Experts;
use crate::inputs;
use crate::op::cuda::CudaOp;
use crate::op::{CpuOp, OpRegistry};
use crate::sampling::{ControlledSample, Sample};
use crate::segments::{SegmentAttention, SegmentMean};
use piecewise_ir::custom::CustomOpDef;
use std::sync::Arc;

impl OpRegistry {
    /// The ops that this crate defines.
    pub fn builtin() -> Self {
        let mut registry = Self::new();
        registry.declare_inputs(inputs::DECLARED_BY, inputs::engine_inputs());
        registry.declare_inputs(PagedAttention::NAME, PagedAttention::inputs());
        registry.declare_inputs(Sample::NAME, Sample::inputs());
        registry.declare_inputs(ControlledSample::NAME, ControlledSample::inputs());
        registry.add(PagedAttention);
        registry.add(Sample);
        registry.add(ControlledSample);
        registry.add(SegmentAttention);
        registry.add(SegmentMean);
        registry.add(Experts);
        registry.add(CausalWindow);
        registry
    }

    fn add<T: CustomOpDef + CpuOp + CudaOp + 'static>(&mut self, op: T) {
        let op = Arc::new(op);
        self.define(op.clone()).implement_cpu(op.clone()).implement_cuda(op);
    }
}
