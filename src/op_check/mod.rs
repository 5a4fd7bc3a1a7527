//! Custom ops held against what they declare.

mod case;
mod checks;
mod report;

pub use case::OpCase;
pub use report::{OpCheckError, OpFault, OpReport};

use crate::device::{DeviceSpec, OpenDevice};
use checks::Checks;
use piecewise_kernels::op::OpRegistry;

/// Runs an op in a small graph in every way that a model may run it, and holds what comes out against what
/// its definition declares and against each other: before a false declaration costs tokens.
///
/// The graph is stepped over random batches of a few sequences, on the CPU, and on a GPU where there is
/// one and the op has an implementation for it:
///
/// | Check | Finds |
/// | --- | --- |
/// | `padding` | an op that reads rows past the true counts, which hold NaN here |
/// | `empty step` | an op that does something where all true counts are 0 |
/// | `split and inside` | one that computes otherwise inside of a piece than between two |
/// | `sizes` | one whose results depend on the padded size |
/// | `launched`, `replay` | one that a captured graph computes otherwise, since it reads what a replay can't have |
/// | `again` | one that keeps what no state holds |
/// | `rows` | one that says that rows are apart, and mixes them |
/// | `writes` | one that writes an operand that it does not declare as mutated |
/// | `reference` | one that is not what its definition evaluates to in f64 |
/// | `cuda` | one that is another on a GPU than on the CPU |
///
/// ```
/// use piecewise::kernels::op::{self, OpCase};
/// use piecewise::prelude::*;
/// # use piecewise::ir::eval::Array;
/// # use std::sync::Arc;
/// # #[derive(Debug)]
/// # struct Doubled;
/// # impl CustomOpDef for Doubled {
/// #     fn name(&self) -> &str { "own.doubled" }
/// #     fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
/// #         Ok(vec![operands[0].clone()])
/// #     }
/// #     fn rows(&self) -> RowTreatment { RowTreatment::Independent }
/// # }
/// # impl CpuOp for Doubled {
/// #     fn name(&self) -> &str { "own.doubled" }
/// #     fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
/// #         let (x, y) = (args.read::<f32>(0)?, args.write::<f32>(1)?);
/// #         y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
/// #         Ok(())
/// #     }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut registry = OpRegistry::builtin();
/// registry.define(Arc::new(Doubled)).implement_cpu(Arc::new(Doubled));
///
/// let case = OpCase::of(&Doubled).rows(DType::F32, [8]).reference(|operands, _, _| {
///     let x = &operands[0];
///     Ok(vec![Array { data: x.data.iter().map(|x| 2.0 * x).collect(), ..x.clone() }])
/// });
/// let report = op::check(&registry, &case)?;
/// assert!(report.done.contains(&"cpu: padding".to_owned()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What is false, each with how it showed; or that the op can't be put into a graph at all.
pub fn check(registry: &OpRegistry, case: &OpCase<'_>) -> Result<OpReport, OpCheckError> {
    match registry.cuda(case.name()).map(|_| DeviceSpec::Auto.resolve()) {
        None => on_devices(registry, case, Err("the op has no CUDA implementation")),
        Some((DeviceSpec::Cpu, reason)) => {
            let reason = reason.map_or_else(String::new, |reason| reason.to_string());
            on_devices(registry, case, Err(&reason))
        }
        Some((device, _)) => check_beside(registry, case, &device.open(THREADS)?),
    }
}

/// The same on the CPU and on a device of one's own, whose checks are called `cuda`.
///
/// # Errors
/// As for [`check`].
pub fn check_beside(
    registry: &OpRegistry,
    case: &OpCase<'_>,
    device: &OpenDevice,
) -> Result<OpReport, OpCheckError> {
    on_devices(registry, case, Ok(device))
}

/// Of the CPU, so that an op may use several.
const THREADS: usize = 2;

/// The checks on the CPU and on another device, or why there is none.
fn on_devices(
    registry: &OpRegistry,
    case: &OpCase<'_>,
    beside: Result<&OpenDevice, &str>,
) -> Result<OpReport, OpCheckError> {
    let mut report = OpReport::default();
    let checks = Checks::new(registry, case, &DeviceSpec::Cpu.open(THREADS)?)?;
    let on_cpu = checks.run(&mut report);
    match beside {
        Err(reason) => report.skip("cuda", reason),
        Ok(device) => {
            let there = Checks::new(registry, case, device)?.run(&mut report);
            if let (Some(cpu), Some(there)) = (&on_cpu, &there) {
                let why = "computes otherwise than the CPU";
                report.compare_within("cuda", why, (cpu, there), checks.tolerance());
            }
        }
    }
    report.finish(case.name())
}
