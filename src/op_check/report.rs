//! What was checked of an op, and what is false.

use crate::assembly::AssemblyError;
use crate::device::OpenError;
use crate::trial::{TrialError, difference};
use piecewise_ir::builder::BuildErrors;
use piecewise_ir::eval::Array;

/// What was checked of an op.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OpReport {
    /// The checks that were made, by device: `cpu: padding`.
    pub done: Vec<String>,
    /// The checks that were not, with why.
    pub skipped: Vec<(String, String)>,
    pub(super) faults: Vec<OpFault>,
}

/// Something that an op declares, and that is not so.
#[derive(Clone, PartialEq, Eq, Debug, derive_more::Display)]
#[display("{check}: {said}")]
pub struct OpFault {
    /// The check that shows it.
    pub check: String,
    /// What is false, and where it shows.
    pub said: String,
}

/// Why an op is not as it says.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpCheckError {
    /// It is not what it declares.
    #[error("custom op `{op}` is not what it declares:{}", listed(.faults))]
    #[expect(missing_docs, reason = "a field is what the message calls it")]
    False { op: String, faults: Vec<OpFault> },
    /// The graph around it can't be built: its definition refuses these operands, most likely.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// No processor, or a GPU that is there and can't be opened.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The graph around it can't be put together.
    #[error(transparent)]
    Trial(#[from] TrialError),
}

fn listed(faults: &[OpFault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}

impl From<AssemblyError> for OpCheckError {
    fn from(error: AssemblyError) -> Self {
        Self::Trial(error.into())
    }
}

/// As it is displayed: a `main` or a test that returns it prints this.
impl std::fmt::Debug for OpCheckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// What a run gave: each step's results and what was read beside them.
pub(super) type Steps = Vec<Vec<Array>>;

impl OpReport {
    pub(super) fn skip(&mut self, check: &str, why: &str) {
        self.skipped.push((check.to_owned(), why.to_owned()));
    }

    pub(super) fn fault(&mut self, check: &str, said: impl Into<String>) {
        self.faults.push(OpFault { check: check.to_owned(), said: said.into() });
    }

    /// Holds one run against another, bit for bit.
    pub(super) fn compare(&mut self, check: &str, why: &str, expected: &Steps, found: &Steps) {
        self.compare_within(check, why, (expected, found), 0.0);
    }

    pub(super) fn compare_within(
        &mut self,
        check: &str,
        why: &str,
        (expected, found): (&Steps, &Steps),
        tolerance: f64,
    ) {
        self.done.push(check.to_owned());
        let steps = expected.iter().zip(found).enumerate();
        let wrong = steps.flat_map(|(step, (expected, found))| {
            expected.iter().zip(found).enumerate().filter_map(move |(i, (expected, found))| {
                difference(&format!("result {i} of step {step}"), expected, found, tolerance)
            })
        });
        if let Some(wrong) = wrong.into_iter().next() {
            self.fault(check, format!("it {why}: {wrong}"));
        }
    }

    pub(super) fn finish(self, op: &str) -> Result<Self, OpCheckError> {
        match self.faults.is_empty() {
            true => Ok(self),
            false => Err(OpCheckError::False { op: op.to_owned(), faults: self.faults }),
        }
    }
}
