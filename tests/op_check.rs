//! Planted faults of an op, each found by its check.
#![allow(unsafe_code, reason = "an op that writes what it must not can't be written without")]

use crate::skip::skipped;
use piecewise::kernels::op::{OpCase, OpCheckError, OpReport, check, check_beside};
use piecewise::prelude::*;
use piecewise_backend::cuda::{CudaOptions, LazyNvrtc, library_dirs};
use piecewise_ir::eval::Array;
use piecewise_kernels::attention::PagedAttention;
use piecewise_kernels::causal_window::CausalWindow;
use piecewise_kernels::inputs::engine_inputs;
use piecewise_kernels::op::cuda::{
    CudaImplementation, CudaOp, CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param,
};
use piecewise_testing::Faults;
use piecewise_testing::cuda::simulated;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const WIDTH: u64 = 4;

/// What is wrong with an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    ReadsPadding,
    AddsToGarbage,
    WritesWithoutRows,
    KnowsThePaddedSize,
    KnowsWhetherItIsReplayed,
    Counts,
    WritesAnOperand,
    WritesAState,
    Doubles,
    Panics,
}

/// For each sequence a sum of its rows, which goes on in its slot: operands `x f32 [T, 4]`, the state
/// `f32 [slots, 4]`, spans `i32 [S, 3]` of slot, first row and rows, and a state that it only reads.
#[derive(Debug)]
struct Sums {
    fault: Fault,
    launches: AtomicU32,
}

const NAME: &str = "test.sums";

fn spans() -> StepInput {
    let shape = [Extent::of(roles::SEQUENCES), Extent::Constant(3)];
    StepInput::new("test.spans", DType::I32, shape, -1.0).filled(|batch, out| {
        for sequence in batch.sequences() {
            let slot = sequence.slot().ok_or("a sequence has no slot")?;
            let first = sequence.token_rows().start;
            out.extend([slot as i32, first as i32, sequence.tokens() as i32]);
        }
        Ok(())
    })
}

impl CustomOpDef for Sums {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        match operands {
            [x, state, _, _] if x.row() == state.row() => Ok(vec![x.clone()]),
            _ => Err("wants x, a state, spans and a state that it reads".to_owned()),
        }
    }

    fn mutates(&self) -> Vec<usize> {
        vec![1]
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }
}

impl CpuOp for Sums {
    fn name(&self) -> &str {
        NAME
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let width = WIDTH as usize;
        let (x, spans, read) = (args.read::<f32>(0)?, args.read::<i32>(2)?, args.read::<f32>(3)?);
        let (state, y) = (args.write::<f32>(1)?, args.write::<f32>(4)?);
        let launches = self.launches.fetch_add(1, Ordering::Relaxed);
        let is_replayed = matches!(args.context(), LaunchContext::Capture(_));
        let sequences = args.true_dim(2, 0);
        assert!(self.fault != Fault::Panics || sequences < 3, "no room for so many");
        for span in spans[..3 * sequences].chunks_exact(3) {
            let (slot, first, rows) = (span[0] as usize, span[1] as usize, span[2] as usize);
            let sum = &mut state[slot * width..][..width];
            for at in first * width..(first + rows) * width {
                sum[at % width] += x[at];
                let more = match self.fault {
                    Fault::ReadsPadding => x[x.len() - 1],
                    Fault::AddsToGarbage => y[at],
                    Fault::KnowsThePaddedSize => args.dim(0, 0) as f32,
                    Fault::KnowsWhetherItIsReplayed => f32::from(u8::from(is_replayed)),
                    Fault::Counts => launches as f32,
                    Fault::Doubles => sum[at % width],
                    _ => 0.0,
                };
                y[at] = sum[at % width] + more;
            }
        }
        match self.fault {
            Fault::WritesWithoutRows if sequences == 0 => state.fill(7.0),
            // SAFETY: the memory of the device holds it, and nobody reads it while the op runs.
            Fault::WritesAnOperand if !x.is_empty() => unsafe { x.as_ptr().cast_mut().write(7.0) },
            // SAFETY: as above.
            Fault::WritesAState => unsafe { read.as_ptr().cast_mut().write(7.0) },
            _ => {}
        }
        Ok(())
    }
}

impl CudaOp for Sums {
    fn name(&self) -> &str {
        NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let source =
            "extern \"C\" __global__ void sums(const float* x, float* state, const int* spans,
                        const float* read, float* y) {
  const int* span = spans + 3 * blockIdx.x;
  if (span[0] < 0) return;
  float sum = state[4 * span[0] + threadIdx.x];
  for (int row = span[1]; row < span[1] + span[2]; ++row) {
    y[4 * row + threadIdx.x] = sum += x[4 * row + threadIdx.x];
  }
  state[4 * span[0] + threadIdx.x] = sum;
}
";
        let sequences = GridAxis::of(call.operands[2].shape[0].clone(), 1);
        let params = (0..5).map(Param::Arg).collect();
        let launch = LaunchRecipe::new(source, "sums", sequences, WIDTH as u32, params);
        Ok(CudaImplementation::Source(OpKernels::new([launch])))
    }
}

fn evaluate(operands: &[Array], _: &Attrs, counts: &[u64]) -> Result<Vec<Array>, String> {
    let (x, mut state, width) = (&operands[0], operands[1].clone(), WIDTH as usize);
    let mut y = Array::zeros(x.dtype, x.shape.clone());
    assert!(operands[2].data.len() <= 3 * counts.len() * x.shape[0].max(1));
    for span in operands[2].data.chunks_exact(3) {
        let (slot, first, rows) = (span[0] as usize, span[1] as usize, span[2] as usize);
        for at in first * width..(first + rows) * width {
            state.data[slot * width + at % width] += x.data[at];
            y.data[at] = state.data[slot * width + at % width];
        }
    }
    Ok(vec![y, state])
}

fn checked(fault: Fault) -> Result<OpReport, OpCheckError> {
    let op = || Arc::new(Sums { fault, launches: AtomicU32::new(0) });
    let mut registry = OpRegistry::builtin();
    registry.define(op()).declare_inputs(NAME, [spans()]).implement_cpu(op());
    let def = op();
    let case = OpCase::of(&*def).rows(DType::F32, [WIDTH]).slot_state(DType::F32, [WIDTH]);
    let case = case.input(&spans()).state(DType::F32, [2]).reference(evaluate);
    check(&registry, &case)
}

/// The checks that find a fault.
fn finds(fault: Fault) -> Vec<String> {
    match checked(fault) {
        Err(OpCheckError::False { faults, .. }) => faults.into_iter().map(|f| f.check).collect(),
        Err(other) => panic!("{fault:?}: {other}"),
        Ok(report) => panic!("{fault:?} passes as {report:?}"),
    }
}

#[test]
fn an_op_that_is_what_it_declares_passes_every_check() {
    let report = checked(Fault::None).unwrap();
    for check in [
        "again",
        "padding",
        "sizes",
        "launched",
        "replay",
        "split and inside",
        "padding inside",
        "empty step",
        "writes",
        "reference",
    ] {
        assert!(report.done.contains(&format!("cpu: {check}")), "{check}: {report:?}");
    }
    let skipped = Vec::from_iter(report.skipped.iter().map(|(check, _)| check.as_str()));
    assert_eq!(skipped, ["cpu: rows", "cuda"]);
}

#[test]
fn windows_of_rows_are_what_they_declare() {
    let [_, _, _, slots, ..] = engine_inputs();
    let [_, _, _, starts, lengths] = PagedAttention::inputs();
    for dtype in [DType::F32, DType::BF16] {
        let case = OpCase::of(&CausalWindow).rows(dtype, [WIDTH]).slot_state(dtype, [WIDTH, 3]);
        let case = case.input(&slots).input(&starts).input(&lengths);
        let report = check(&OpRegistry::builtin(), &case).unwrap();
        for check in ["again", "padding", "sizes", "replay", "split and inside", "reference"] {
            assert!(report.done.contains(&format!("cpu: {check}")), "{check}: {report:?}");
        }
    }
}

#[test]
fn each_planted_fault_is_found_by_its_check() {
    for (fault, check) in [
        (Fault::ReadsPadding, "cpu: padding"),
        (Fault::AddsToGarbage, "cpu: padding"),
        (Fault::Counts, "cpu: split and inside"),
        (Fault::WritesWithoutRows, "cpu: empty step"),
        (Fault::KnowsThePaddedSize, "cpu: sizes"),
        (Fault::KnowsWhetherItIsReplayed, "cpu: launched"),
        (Fault::Counts, "cpu: again"),
        (Fault::WritesAnOperand, "cpu: writes"),
        (Fault::WritesAState, "cpu: writes"),
        (Fault::Doubles, "cpu: reference"),
        (Fault::Panics, "cpu: runs"),
    ] {
        let found = finds(fault);
        println!("{fault:?}: {}", found.join(", "));
        assert!(found.contains(&check.to_owned()), "{fault:?}: {found:?}");
    }
    let said = checked(Fault::Doubles).unwrap_err().to_string();
    assert!(said.starts_with("custom op `test.sums` is not what it declares:"), "{said}");
    assert!(said.contains("cpu: reference: it is not what its definition evaluates to"), "{said}");
}

/// A running sum that says that its rows are apart.
#[derive(Debug)]
struct Mixes;

impl CustomOpDef for Mixes {
    fn name(&self) -> &str {
        "test.mixes"
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Ok(vec![operands[0].clone()])
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Independent
    }
}

impl CpuOp for Mixes {
    fn name(&self) -> &str {
        "test.mixes"
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, y) = (args.read::<f32>(0)?, args.write::<f32>(2)?);
        let mut sum = 0.0;
        for (y, x) in y.iter_mut().zip(x).take(args.true_dim(0, 0)) {
            sum += x;
            *y = sum + args.read::<i32>(1)?[0] as f32;
        }
        Ok(())
    }
}

#[test]
fn rows_that_are_said_to_be_apart_and_are_not_are_found() {
    let mut registry = OpRegistry::builtin();
    registry.define(Arc::new(Mixes)).implement_cpu(Arc::new(Mixes));
    let case = OpCase::of(&Mixes).rows(DType::F32, []).indices(1);
    let Err(OpCheckError::False { faults, .. }) = check(&registry, &case) else { panic!() };
    assert_eq!(Vec::from_iter(faults.iter().map(|fault| fault.check.as_str())), ["cpu: rows"]);
}

#[test]
fn operands_that_the_definition_refuses_are_the_author_s_to_mend() {
    let mut registry = OpRegistry::builtin();
    let op = || Arc::new(Sums { fault: Fault::None, launches: AtomicU32::new(0) });
    registry.define(op()).implement_cpu(op());
    let def = op();
    let error = check(&registry, &OpCase::of(&*def).rows(DType::F32, [WIDTH])).unwrap_err();
    assert!(error.to_string().contains("wants x, a state, spans"), "{error}");
}

/// On a device whose kernels do nothing an op is another than on the CPU, and another than its definition.
#[test]
fn an_op_that_is_another_on_a_gpu_is_found() {
    if let Err(error) = LazyNvrtc::new(library_dirs(&[]), None).get() {
        return skipped("PIECEWISE_REQUIRE_NVRTC", error);
    }
    let op = || Arc::new(Sums { fault: Fault::None, launches: AtomicU32::new(0) });
    let mut registry = OpRegistry::builtin();
    registry.define(op()).declare_inputs(NAME, [spans()]);
    registry.implement_cpu(op()).implement_cuda(op());
    let faults = Faults::default();
    let device = simulated(CudaOptions::default(), registry.clone(), &faults).unwrap();
    let def = op();
    let case = OpCase::of(&*def).rows(DType::F32, [WIDTH]).slot_state(DType::F32, [WIDTH]);
    let case = case.input(&spans()).state(DType::F32, [2]).reference(evaluate);
    let Err(OpCheckError::False { faults, .. }) = check_beside(&registry, &case, &device.into())
    else {
        panic!("kernels that do nothing pass")
    };
    let found = Vec::from_iter(faults.iter().map(|fault| fault.check.as_str()));
    assert!(found.contains(&"cuda") && found.contains(&"cuda: reference"), "{found:?}");
    assert!(!found.iter().any(|check| check.starts_with("cpu")), "{found:?}");
}
