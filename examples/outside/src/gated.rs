//! Gated linear attention: for each sequence and head a matrix that decays by a gate, takes the
//! outer product of key and value, and answers the query. The matrix is all that a sequence
//! remembers, so it is a state of one slot a sequence.

use piecewise::kernels::op::cuda::{
    CudaImplementation, CudaOp, CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param,
};
use piecewise::prelude::*;
use std::sync::Arc;

/// Operands `q`, `k`, `v`, `gate`, each `f32 [T, heads, dim]`; the state `f32 [slots, heads, dim,
/// dim]`; and `spans i32 [S, 3]`. Result: `f32 [T, heads, dim]`.
#[derive(Debug)]
pub struct GatedLinearAttention;

impl GatedLinearAttention {
    const NAME: &'static str = "outside.gated_linear_attention";

    /// The slot, the first row and the rows of each sequence; padding has slot -1.
    pub fn spans() -> StepInput {
        let shape = [Extent::of(roles::SEQUENCES), Extent::Constant(3)];
        StepInput::new("outside.spans", DType::I32, shape, -1.0).filled(|batch, out| {
            for sequence in batch.sequences() {
                let slot = sequence.slot().ok_or("a sequence has no slot")?;
                let first = sequence.token_rows().start;
                out.extend([slot as i32, first as i32, sequence.tokens() as i32]);
            }
            Ok(())
        })
    }

    /// The ops of the framework and this one.
    pub fn registry() -> OpRegistry {
        let mut registry = OpRegistry::builtin();
        registry.define(Arc::new(Self)).declare_inputs(Self::NAME, [Self::spans()]);
        registry.implement_cpu(Arc::new(Self)).implement_cuda(Arc::new(Self));
        registry
    }
}

impl CustomOpDef for GatedLinearAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        match operands {
            [q, k, v, gate, state, spans]
                if [k, v, gate] == [q; 3]
                    && (q.rank(), state.rank(), spans.rank()) == (3, 4, 2)
                    && state.shape[1..] == [1, 2, 2].map(|axis| q.shape[axis].clone())
                    && [q, state].into_iter().all(|ty| ty.dtype == DType::F32) =>
            {
                Ok(vec![q.clone()])
            }
            _ => Err("wants q, k, v, gate f32[T,heads,dim], state f32[slots,heads,dim,dim], spans"
                .into()),
        }
    }

    fn mutates(&self) -> Vec<usize> {
        vec![4]
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }

    fn splits(&self) -> bool {
        true
    }
}

impl CpuOp for GatedLinearAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (heads, dim) = (args.dim(0, 1), args.dim(0, 2));
        let [q, k, v, gate] = [0, 1, 2, 3].map(|i| args.read::<f32>(i));
        let (q, k, v, gate) = (q?, k?, v?, gate?);
        let spans = args.read::<i32>(5)?;
        let (state, out) = (args.write::<f32>(4)?, args.write::<f32>(6)?);
        for span in spans[..3 * args.true_dim(5, 0)].chunks_exact(3) {
            let (slot, first, rows) = (span[0] as usize, span[1] as usize, span[2] as usize);
            for at in (first * heads..(first + rows) * heads).map(|row| row * dim) {
                let head = at / dim % heads;
                let s = &mut state[(slot * heads + head) * dim * dim..][..dim * dim];
                let answer = &mut out[at..at + dim];
                answer.fill(0.0);
                for (i, s) in s.chunks_exact_mut(dim).enumerate() {
                    for (column, s) in s.iter_mut().enumerate() {
                        *s = gate[at + i].mul_add(*s, k[at + i] * v[at + column]);
                        answer[column] = q[at + i].mul_add(*s, answer[column]);
                    }
                }
            }
        }
        Ok(())
    }
}

impl CudaOp for GatedLinearAttention {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        let [_, heads, dim] = [0, 1, 2].map(|axis| call.operands[0].shape[axis].clone());
        let threads = dim.as_constant().and_then(|dim| u32::try_from(dim).ok()).unwrap_or(0);
        let known = format!("#define HEADS {}\n#define DIM {threads}\n", heads.eval(&[]));
        let source = known + include_str!("gated.cu");
        let params = (0..7).map(Param::Arg).collect();
        let sequences = GridAxis::of(call.operands[5].shape[0].clone(), 1);
        let name = "gated_linear_attention";
        let mut launch = LaunchRecipe::new(source, name, sequences, threads, params);
        launch.grid[1] = GridAxis::of(heads, 1);
        Ok(CudaImplementation::Source(OpKernels::new([launch])))
    }
}
