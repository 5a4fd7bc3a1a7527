//! Implementations of custom ops: what a backend calls under an op's name.

mod cpu;
pub mod cuda;

pub use cpu::{CpuOp, CpuOpArgs, CpuOpBinding, OpError};

use cuda::CudaOp;
use piecewise_ir::custom::{CustomOpDef, OpDefs};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The custom ops of a program: definitions for the IR and implementations for the backends.
#[derive(Clone, Default, Debug)]
pub struct OpRegistry {
    defs: OpDefs,
    cpu: BTreeMap<String, Arc<dyn CpuOp>>,
    cuda: BTreeMap<String, Arc<dyn CudaOp>>,
}

impl OpRegistry {
    /// No ops.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a definition; one of the same name is replaced.
    pub fn define(&mut self, def: Arc<dyn CustomOpDef>) -> &mut Self {
        self.defs.register(def);
        self
    }

    /// Adds a CPU implementation; one of the same name is replaced.
    pub fn implement_cpu(&mut self, op: Arc<dyn CpuOp>) -> &mut Self {
        self.cpu.insert(op.name().to_owned(), op);
        self
    }

    /// Adds a CUDA implementation; one of the same name is replaced.
    pub fn implement_cuda(&mut self, op: Arc<dyn CudaOp>) -> &mut Self {
        self.cuda.insert(op.name().to_owned(), op);
        self
    }

    /// The definitions.
    pub fn defs(&self) -> &OpDefs {
        &self.defs
    }

    /// The CPU implementation of `name`.
    pub fn cpu(&self, name: &str) -> Option<&Arc<dyn CpuOp>> {
        self.cpu.get(name)
    }

    /// The CUDA implementation of `name`.
    pub fn cuda(&self, name: &str) -> Option<&Arc<dyn CudaOp>> {
        self.cuda.get(name)
    }
}
