//! Kernel images of the CPU: what a launch computes, as bytes without addresses or names.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use crate::artifact::Digest;
use crate::compiler::ImageListing;
use crate::matmul::{Matmul, ScaledMatmul};
use piecewise_ir::custom::Attrs;
use piecewise_ir::entity::Entity;
use piecewise_ir::op::{Op, RowTreatment, row_treatment};
use piecewise_ir::types::TensorType;
use piecewise_kernels::cpu::matmul::{
    MatmulProblem, Operand, ScaledProblem, matmul_scratch_bytes, scaled_matmul_scratch_bytes,
};
use piecewise_kernels::lower::RowProgram;
use piecewise_kernels::op::CpuOpCall;
use serde::{Deserialize, Serialize};

/// Changes when the meaning of image bytes changes.
pub(super) const IMAGE_VERSION: u32 = 3;

/// The kernel of a launch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Kernel {
    /// A region or primitive.
    Rows(RowProgram),
    /// A matrix product.
    MatMul(Box<Matmul>),
    /// A product with narrow codes and their scales.
    ScaledMatMul(Box<ScaledMatmul>),
    /// A custom op, found by name when the artifact is bound.
    Custom(CustomKernel),
}

/// A custom op as one use calls it: kernels of equal uses are one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct CustomKernel {
    pub(super) name: String,
    pub(super) attrs: Attrs,
    pub(super) operands: Vec<TensorType>,
    pub(super) results: Vec<TensorType>,
    pub(super) mutates: Vec<usize>,
    /// Bytes of scratch for one thread.
    pub(super) scratch: u64,
}

#[derive(Serialize, Deserialize)]
struct Image {
    version: u32,
    kernel: Kernel,
}

impl Kernel {
    /// Its bytes and their digest.
    pub(super) fn to_image(&self) -> Result<(Digest, Vec<u8>), String> {
        let image = Image { version: IMAGE_VERSION, kernel: self.clone() };
        let bytes = postcard::to_allocvec(&image).map_err(|e| e.to_string())?;
        Ok((Digest::of(&bytes), bytes))
    }

    /// The kernel of an image, checked so that it is safe to run.
    pub(super) fn from_image(bytes: &[u8]) -> Result<Self, String> {
        let image: Image = postcard::from_bytes(bytes).map_err(|e| e.to_string())?;
        if image.version != IMAGE_VERSION {
            return Err(format!("version {} where {IMAGE_VERSION} is known", image.version));
        }
        image.kernel.check()?;
        Ok(image.kernel)
    }

    /// What listings and profiles call it.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Rows(_) => "rows",
            Self::MatMul(_) => "matmul",
            Self::ScaledMatMul(_) => "scaled_matmul",
            Self::Custom(custom) => &custom.name,
        }
    }

    /// What it holds, for people and dumps.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "what has no text of its own is shown as JSON"
    )]
    pub(super) fn listing(&self) -> ImageListing {
        let kind = match self {
            Self::Rows(_) => "row program",
            Self::MatMul(_) | Self::ScaledMatMul(_) => "matmul",
            Self::Custom(_) => "custom op",
        };
        let name = self.name().to_owned();
        let (language, text) = match self {
            Self::Rows(program) => ("txt", program.to_string()),
            kernel => {
                let json = serde_json::to_string_pretty(kernel);
                ("json", json.unwrap_or_else(|e| e.to_string()))
            }
        };
        ImageListing { name, kind, language, text, ..ImageListing::default() }
    }

    /// The types of its arguments, where those are whole tensors, and a bit for each that is written.
    pub(super) fn tensors(&self) -> (Vec<&TensorType>, u64) {
        match self {
            Self::MatMul(matmul) => (vec![&matmul.lhs, &matmul.rhs, &matmul.out], 1 << 2),
            Self::ScaledMatMul(scaled) => {
                let types: Vec<_> = scaled.operands.iter().chain([&scaled.out]).collect();
                let out = scaled.operands.len();
                (types, 1 << out)
            }
            Self::Custom(custom) => {
                let types: Vec<_> = custom.operands.iter().chain(&custom.results).collect();
                let written = (custom.operands.len()..types.len()).chain(custom.mutates.clone());
                (types, written.fold(0, |bits, i| bits | 1 << i))
            }
            Self::Rows(_) => (Vec::new(), 0),
        }
    }

    /// Scratch for so many threads; of a custom op, what it can't run without.
    pub(super) fn scratch_bytes(&self, limits: &[u64], threads: usize) -> u64 {
        match self {
            Self::Rows(program) => program.scratch_bytes(program.rows(limits), threads as u64),
            Self::MatMul(matmul) => matmul
                .rows_problem(limits, limits)
                .map_or(u64::MAX, |(problem, _)| matmul_scratch_bytes(&problem, threads) as u64),
            Self::ScaledMatMul(scaled) => {
                scaled.rows_problem(limits, limits).map_or(u64::MAX, |(problem, _)| {
                    scaled_matmul_scratch_bytes(&problem, threads) as u64
                })
            }
            Self::Custom(custom) => custom.scratch,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Rows(program) => program.check().map_err(|e| e.to_string()),
            Self::MatMul(matmul) => matmul.check_rows(),
            Self::ScaledMatMul(scaled) => scaled.check_rows(),
            Self::Custom(custom) => custom.check(),
        }
    }
}

impl CustomKernel {
    /// The call at these sizes, on so many threads.
    pub(super) fn call<'a>(&'a self, sizes: &'a [u64], threads: usize) -> CpuOpCall<'a> {
        let Self { operands, results, attrs, .. } = self;
        CpuOpCall { operands, results, attrs, sizes, threads }
    }

    fn check(&self) -> Result<(), String> {
        let positions = self.operands.len() + self.results.len();
        if positions > 64 {
            return Err(format!("custom op `{}` has {positions} positions; at most 64", self.name));
        }
        if self.mutates.iter().any(|&m| m >= self.operands.len()) {
            return Err(format!("custom op `{}` mutates no operand of its own", self.name));
        }
        Ok(())
    }
}

fn product(dims: &[u64]) -> u64 {
    dims.iter().fold(1, |n, d| n.saturating_mul(*d))
}

/// That a symbol only counts independent rows.
fn check_rows(op: &Op, operands: &[TensorType], results: &[TensorType]) -> Result<(), String> {
    let dims = operands.iter().chain(results).flat_map(|ty| &ty.shape);
    for &(symbol, _) in dims.flat_map(|dim| dim.terms()) {
        if row_treatment(op, operands, results, symbol) == RowTreatment::Mixed {
            return Err(format!(
                "rows of symbol {} mix in a matmul; only the outermost axis of the left operand \
                 (and the batch) may be symbolic",
                symbol.index()
            ));
        }
    }
    Ok(())
}

impl ScaledMatmul {
    /// Checks types, and that a symbol only counts independent rows.
    pub(super) fn check_rows(&self) -> Result<(), String> {
        self.check_types()?;
        check_rows(&self.op(), &self.operands, std::slice::from_ref(&self.out))
    }

    /// The problem with memory of `sizes` and work of `counts`, and how many rows are real.
    pub(super) fn rows_problem(
        &self,
        sizes: &[u64],
        counts: &[u64],
    ) -> Option<(ScaledProblem, usize)> {
        let [x, codes, scales, ..] = &self.operands[..] else { return None };
        let size = |n: u64| usize::try_from(n).ok().filter(|n| *n <= 1 << 48);
        let rows = |sizes: &[u64]| {
            let dims = x.dims(sizes);
            dims.split_last().and_then(|(_, outer)| size(product(outer)))
        };
        let &[n, k] = codes.static_shape()?.as_array()?;
        let m = rows(sizes)?;
        let [down, across] = self.block;
        let problem = ScaledProblem {
            m,
            n: size(n)?,
            k: size(k)?,
            x: x.dtype,
            codes: codes.dtype,
            scales: scales.dtype,
            block: [size(down)?, size(across)?],
            out: self.out.dtype,
        };
        Some((problem, rows(counts)?.min(m)))
    }
}

impl Matmul {
    /// Checks types, and that a symbol only counts independent rows.
    pub(super) fn check_rows(&self) -> Result<(), String> {
        self.check_types()?;
        let operands = [self.lhs.clone(), self.rhs.clone()];
        check_rows(&self.op(), &operands, std::slice::from_ref(&self.out))
    }

    /// The problem with memory of `sizes` and work of `counts`, and how many rows are real.
    pub(super) fn rows_problem(
        &self,
        sizes: &[u64],
        counts: &[u64],
    ) -> Option<(MatmulProblem, usize)> {
        let (lhs, rhs) = (self.lhs.dims(sizes), self.rhs.dims(sizes));
        let (l, r) = (lhs.len(), rhs.len());
        let (m_axis, k_axis) = if self.transpose_lhs { (l - 1, l - 2) } else { (l - 2, l - 1) };
        let n_axis = if self.transpose_rhs { r - 2 } else { r - 1 };
        let (m, k, n) = (lhs[m_axis], lhs[k_axis], rhs[n_axis]);
        let true_lhs = self.lhs.dims(counts);
        let (batch, true_batch) = (product(&lhs[..l - 2]), product(&true_lhs[..l - 2]));
        let shared = r == 2;
        // One matrix on the right for dense rows on the left: the batch is more rows.
        let joined = shared && !self.transpose_lhs;
        let (m, rows, batch) = match joined {
            true => (batch.checked_mul(m)?, true_batch.checked_mul(true_lhs[m_axis])?, 1),
            false => (m, true_lhs[m_axis], true_batch),
        };
        let size = |n: u64| usize::try_from(n).ok().filter(|n| *n <= 1 << 48);
        let (m, n, k) = (size(m)?, size(n)?, size(k)?);
        let matrix = |ty: &TensorType, row: usize, all: usize, transposed: bool| {
            Some(Operand {
                dtype: Some(ty.dtype).filter(|dtype| dtype.is_float())?,
                row_stride: row,
                batch_stride: if all == 0 { 0 } else { all },
                transposed,
            })
        };
        let a_row = if self.transpose_lhs { m } else { k };
        let b_row = if self.transpose_rhs { k } else { n };
        let a = matrix(&self.lhs, a_row, m.checked_mul(k)?, self.transpose_lhs)?;
        let b_all = if shared { 0 } else { k.checked_mul(n)? };
        let b = matrix(&self.rhs, b_row, b_all, self.transpose_rhs)?;
        let out = matrix(&self.out, n, m.checked_mul(n)?, false)?;
        let rows = size(rows)?.min(m);
        Some((MatmulProblem { m, n, k, batch: size(batch)?, a, b, out }, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::dtype::DType;
    use piecewise_ir::entity::Symbol;
    use piecewise_ir::graph::{Graph, Loc};
    use piecewise_ir::op::{BinaryOp, Op, ReduceOp};
    use piecewise_ir::region::{ParamMode, Region};
    use piecewise_kernels::lower::{PlaceKind, RowStep, lower_region};

    fn program() -> RowProgram {
        let mut body = Graph::new("body");
        let ty = TensorType::new(DType::BF16, [4u64, 6]);
        let x = body.add_input("x", ty.clone(), None, None);
        let ids = body.add_input("ids", TensorType::new(DType::I32, [4u64]), None, None);
        let y = body.push(Op::Binary(BinaryOp::Mul), vec![x, x], ty.clone(), Loc::default());
        let rows = body.push(Op::Gather, vec![y, ids], ty, Loc::default());
        let sum = Op::Reduce { op: ReduceOp::Sum, axes: vec![1] };
        let one = TensorType::new(DType::BF16, [4u64, 1]);
        let sum = body.push(sum, vec![rows], one, Loc::default());
        body.set_outputs(vec![sum]);
        let region = Region { over: Symbol(0), params: vec![ParamMode::Row; 2], body };
        lower_region(&region, &[false, false]).unwrap()
    }

    #[test]
    fn an_image_of_any_bytes_is_a_kernel_that_is_safe_or_an_error() {
        let kernel = Kernel::Rows(program());
        let (digest, bytes) = kernel.to_image().unwrap();
        assert_eq!(Kernel::from_image(&bytes), Ok(kernel.clone()));
        assert_eq!(kernel.to_image().unwrap().0, digest);
        let mut refused = 0;
        for at in 0..bytes.len() {
            for change in [1u8, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] ^= change;
                refused += usize::from(Kernel::from_image(&other).is_err());
            }
            assert!(Kernel::from_image(&bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(refused > bytes.len(), "{refused} of {} changes", 3 * bytes.len());
    }

    #[test]
    fn a_program_that_reaches_outside_its_memory_is_refused() {
        let good = program();
        let temp = good.places.iter().position(|p| matches!(p.kind, PlaceKind::Temp(_))).unwrap();
        type Fault = fn(&mut RowProgram, usize);
        let faults: [(&str, Fault); 7] = [
            ("outside its memory", |p, _| p.args[0].elements -= 1),
            ("outside its memory", |p, temp| p.places[temp].kind = PlaceKind::Temp(1 << 20)),
            ("outside its memory", |p, temp| p.places[temp].kind = PlaceKind::Constant(0)),
            ("only be read", |p, _| p.args.iter_mut().for_each(|a| a.written = false)),
            ("no rows", |p, _| p.work.tile_rows = 0),
            ("access up to", |p, _| {
                if let RowStep::Map { inputs, .. } = &mut p.steps[0] {
                    inputs[0].offset += 1;
                }
            }),
            ("rows outside", |p, _| {
                for step in &mut p.steps {
                    if let RowStep::Gather { extent, .. } = step {
                        *extent = Some(5);
                    }
                }
            }),
        ];
        for (expected, plant) in faults {
            let mut bad = good.clone();
            plant(&mut bad, temp);
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error} for {expected}");
        }
    }

    #[test]
    fn a_matmul_over_padding_rows_is_refused() {
        let symbolic = |axes: [piecewise_ir::dim::Dim; 2]| TensorType::new(DType::F32, axes);
        let t = || piecewise_ir::dim::Dim::from(Symbol(0));
        let matmul = Matmul {
            transpose_lhs: true,
            transpose_rhs: false,
            lhs: symbolic([t(), 4u64.into()]),
            rhs: symbolic([t(), 5u64.into()]),
            out: symbolic([4u64.into(), 5u64.into()]),
        };
        assert!(matmul.check_rows().unwrap_err().contains("rows of symbol 0 mix"));
    }
}
