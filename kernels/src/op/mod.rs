//! Implementations of custom ops: what a backend calls under an op's name.

mod cpu;
pub mod cuda;
mod error;
mod exponential;
mod floats;
mod recipe;
mod routing;
mod scores;

pub use cpu::{CpuOp, CpuOpArgs, CpuOpBinding, CpuOpCall};
pub use error::OpError;
pub use floats::{FloatSlice, FloatSliceMut};
pub use recipe::{Blocks, GridError};
pub use routing::{RouterScores, Routing};
pub(crate) use {
    exponential::*, floats::with_elements, recipe::options, routing::LEAST_SUM, scores::ScoreSpec,
};

use crate::inputs::{BatchView, StepInput};
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
    /// Who declares each input, in the order of declaration.
    inputs: Vec<(String, StepInput)>,
    /// Who counts the rows of a role, in the order of declaration.
    rows: Vec<(String, String, RowCounter)>,
}

/// Counts the rows of one kind that a batch brings.
pub type CountRows = dyn Fn(&BatchView<'_>) -> u64 + Send + Sync;

#[derive(Clone, derive_more::Debug)]
#[debug("RowCounter")]
struct RowCounter(Arc<CountRows>);

/// Two ops that declare inputs of one role.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the input role \"{role}\" is declared by {first} ({first_is}) and by {second} ({second_is}); \
     only one may declare it, or both with clones of one declaration: name the role after its op"
)]
pub struct InputConflict {
    /// What inputs of a graph name: `kv.slots`.
    pub role: String,
    /// The op that declared it first.
    pub first: String,
    /// The first declaration's dtype, shape and padding.
    pub first_is: String,
    /// The op that declared it otherwise.
    pub second: String,
    /// The second declaration's dtype, shape and padding.
    pub second_is: String,
}

/// Two ops that count rows of one role.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the rows of role \"{role}\" are counted by {first} and by {second}, and only one may say how \
     many a batch brings: name the role after its op, or leave one `OpRegistry::declare_rows` out \
     where both count the same"
)]
pub struct RowsConflict {
    /// What symbols of a graph name: `rows.windows`.
    pub role: String,
    /// The op that declared it first.
    pub first: String,
    /// The op that declared it, too.
    pub second: String,
}

impl OpRegistry {
    /// A registry that knows no op yet.
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

    /// Declares inputs that `op` is told of each step; one that it declared before under the same
    /// role is replaced.
    pub fn declare_inputs(
        &mut self,
        op: &str,
        inputs: impl IntoIterator<Item = StepInput>,
    ) -> &mut Self {
        for input in inputs {
            self.inputs.retain(|(by, known)| by != op || known.role() != input.role());
            self.inputs.push((op.to_owned(), input));
        }
        self
    }

    /// Declares rows of one's own for `op`: `count` says how many a batch brings, for symbols of
    /// `role`, which begins with [`roles::OWN_ROWS`](crate::roles::OWN_ROWS). What the same op said
    /// before is replaced; other ops whose inputs are shaped by these rows name the role alone.
    pub fn declare_rows(
        &mut self,
        op: &str,
        role: &str,
        count: impl Fn(&BatchView<'_>) -> u64 + Send + Sync + 'static,
    ) -> &mut Self {
        self.rows.retain(|(by, known, _)| by != op || known != role);
        self.rows.push((op.to_owned(), role.to_owned(), RowCounter(Arc::new(count))));
        self
    }

    /// What counts the rows of a role of one's own.
    ///
    /// # Errors
    /// When two ops do.
    pub fn row_counter(&self, role: &str) -> Result<Option<&Arc<CountRows>>, Box<RowsConflict>> {
        let mut declared = self.rows.iter().filter(|(_, of, _)| of == role);
        let Some((first, _, counter)) = declared.next() else { return Ok(None) };
        match declared.next() {
            None => Ok(Some(&counter.0)),
            Some((second, ..)) => Err(Box::new(RowsConflict {
                role: role.to_owned(),
                first: first.clone(),
                second: second.clone(),
            })),
        }
    }

    /// The declaration of an input role, and who made it.
    ///
    /// # Errors
    /// When two ops declare it otherwise.
    pub fn step_input(&self, role: &str) -> Result<Option<(&str, &StepInput)>, Box<InputConflict>> {
        let mut declared = self.inputs.iter().filter(|(_, input)| input.role() == role);
        let Some((first, input)) = declared.next() else { return Ok(None) };
        match declared.find(|(_, other)| !other.is(input)) {
            None => Ok(Some((first, input))),
            Some((second, other)) => Err(Box::new(InputConflict {
                role: role.to_owned(),
                first: first.clone(),
                first_is: input.to_string(),
                second: second.clone(),
                second_is: other.to_string(),
            })),
        }
    }

    /// Every input role that is declared, in the order of declaration.
    pub fn input_roles(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|(_, input)| input.role())
    }

    /// The definitions of its ops, without their implementations.
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
