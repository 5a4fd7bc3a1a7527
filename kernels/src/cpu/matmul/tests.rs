use half::{bf16, f16};
use piecewise_testing::soak;
use proptest::prelude::*;

use super::*;
use crate::cpu::testing::{AlignedBytes, FloatVec, Rng, isas, on_threads};

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A stored operand with padding between rows that holds NaN.
struct Stored {
    operand: Operand,
    values: FloatVec,
}

fn stored(
    rng: &mut Rng,
    dtype: DType,
    [batch, rows, columns]: [usize; 3],
    transposed: bool,
    gap: usize,
) -> Stored {
    let (major, minor) = if transposed { (columns, rows) } else { (rows, columns) };
    let row_stride = minor + gap;
    let batch_stride = major * row_stride + gap;
    let mut values = vec![f32::NAN; batch * batch_stride];
    for b in 0..batch {
        for i in 0..major {
            for j in 0..minor {
                values[b * batch_stride + i * row_stride + j] = rng.uniform() * 2.0 - 1.0;
            }
        }
    }
    let operand = Operand { dtype, row_stride, batch_stride, transposed };
    Stored { operand, values: FloatVec::round_from(dtype, &values) }
}

impl Stored {
    fn at(&self, batch: usize, row: usize, column: usize) -> f64 {
        let Operand { row_stride, batch_stride, transposed, .. } = self.operand;
        let (i, j) = if transposed { (column, row) } else { (row, column) };
        f64::from(self.values.get(batch * batch_stride + i * row_stride + j))
    }
}

struct Case {
    problem: MatmulProblem,
    a: Stored,
    b: Stored,
}

impl Case {
    fn new(
        seed: u64,
        [batch, m, n, k]: [usize; 4],
        types: [DType; 3],
        transposed: [bool; 2],
    ) -> Case {
        let mut rng = Rng(seed);
        let a = stored(&mut rng, types[0], [batch, m, k], transposed[0], 3);
        let b = stored(&mut rng, types[1], [batch, k, n], transposed[1], 1);
        let out = Operand {
            dtype: types[2],
            row_stride: n + 2,
            batch_stride: m * (n + 2),
            transposed: false,
        };
        let problem = MatmulProblem { m, n, k, batch, a: a.operand, b: b.operand, out };
        Case { problem, a, b }
    }

    fn run(&self, isa: Isa, rows: usize, threads: usize) -> FloatVec {
        let p = &self.problem;
        let len = p.batch * p.out.batch_stride;
        let mut out = FloatVec::round_from(p.out.dtype, &vec![f32::NAN; len]);
        let mut scratch = AlignedBytes::new(matmul_scratch_bytes(p, threads));
        let args = MatmulArgs {
            problem: *p,
            rows,
            a: self.a.values.as_slice(),
            b: self.b.values.as_slice(),
            out: out.as_slice_mut(),
            scratch: scratch.get(),
        };
        on_threads(threads, || matmul(isa, args)).unwrap();
        out
    }

    fn check(&self, out: &FloatVec, rows: usize) {
        let MatmulProblem { m, n, k, batch, out: stored, .. } = self.problem;
        let step = match stored.dtype {
            DType::F32 => 0.0,
            DType::F16 => f64::from(f16::EPSILON),
            _ => f64::from(bf16::EPSILON),
        };
        for b in 0..batch {
            for i in 0..m {
                for j in 0..stored.row_stride {
                    let got = out.get(b * stored.batch_stride + i * stored.row_stride + j);
                    if i >= rows || j >= n {
                        assert!(got.is_nan(), "padding ({b}, {i}, {j}) was written: {got}");
                        continue;
                    }
                    let (mut want, mut size) = (0.0, 0.0);
                    for p in 0..k {
                        let product = self.a.at(b, i, p) * self.b.at(b, p, j);
                        want += product;
                        size += product.abs();
                    }
                    let bound = size * (k as f64 + 2.0) * f64::from(f32::EPSILON)
                        + want.abs() * step
                        + 6e-8;
                    let error = (f64::from(got) - want).abs();
                    assert!(error <= bound, "({b}, {i}, {j}): {got}, want {want}, bound {bound}");
                }
            }
        }
    }
}

fn float_type() -> impl Strategy<Value = DType> {
    prop::sample::select(TYPES.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(96)))]

    #[test]
    fn agrees_with_f64_over_shapes_types_and_layouts(
        seed in any::<u64>(),
        shape in (1usize..3, 1usize..40, 1usize..80, 0usize..150),
        types in (float_type(), float_type(), float_type()),
        transposed in any::<[bool; 2]>(),
        real in 0.0f64..=1.0,
    ) {
        let (batch, m, n, k) = shape;
        let case = Case::new(seed, [batch, m, n, k], [types.0, types.1, types.2], transposed);
        let rows = (real * m as f64).round() as usize;
        for isa in isas() {
            let out = case.run(isa, rows, 1);
            case.check(&out, rows);
            prop_assert_eq!(out.bits(), case.run(isa, rows, 4).bits(), "1 and 4 threads, {}", isa);
        }
    }
}

#[test]
fn every_pair_of_types_past_the_parallel_and_row_block_limits() {
    for (i, a) in TYPES.into_iter().enumerate() {
        for b in TYPES {
            let case = Case::new(i as u64, [1, ROW_BLOCK + 9, 70, 33], [a, b, a], [false, true]);
            let out = case.run(Isa::detected(), ROW_BLOCK + 7, 4);
            case.check(&out, ROW_BLOCK + 7);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_at_every_row_count_and_padding() {
    for [a, b] in [[DType::F32, DType::BF16], [DType::BF16, DType::F32]] {
        for transposed in [[false, true], [false, false], [true, true]] {
            let case = Case::new(5, [1, 260, 45, 77], [a, b, DType::F32], transposed);
            for isa in isas() {
                let all = case.run(isa, 260, 2);
                let row_bits = 45 + 2;
                for rows in [1, 2, 5, 7, 12, 13, 31, 240, 241] {
                    let some = case.run(isa, rows, 2);
                    let real = rows * row_bits - 2;
                    assert_eq!(some.bits()[..real], all.bits()[..real], "{isa}, {rows} rows");
                }
            }
        }
    }
}

#[test]
fn layouts_and_types_that_hold_equal_values_give_equal_bits() {
    let dims = [1, 20, 40, 50];
    let reference = Case::new(9, dims, [DType::BF16, DType::BF16, DType::F32], [false, true]);
    for transposed in [[false, false], [true, true], [true, false]] {
        let mut other = Case::new(0, dims, [DType::F32, DType::F32, DType::F32], transposed);
        for (to, from, [rows, columns]) in
            [(&mut other.a, &reference.a, [20, 50]), (&mut other.b, &reference.b, [50, 40])]
        {
            for i in 0..rows {
                for j in 0..columns {
                    let Operand { row_stride, transposed, .. } = to.operand;
                    let at = if transposed { j * row_stride + i } else { i * row_stride + j };
                    to.values.set(at, from.at(0, i, j) as f32);
                }
            }
        }
        for isa in isas() {
            assert_eq!(reference.run(isa, 20, 1).bits(), other.run(isa, 20, 1).bits(), "{isa}");
        }
    }
}

#[test]
fn nan_and_infinity_reach_only_their_own_row_and_column() {
    let mut case = Case::new(3, [1, 9, 37, 40], [DType::BF16; 3], [false, true]);
    case.a.values.set(4 * case.problem.a.row_stride + 39, f32::NAN);
    case.b.values.set(20 * case.problem.b.row_stride, f32::INFINITY);
    for isa in isas() {
        let out = case.run(isa, 9, 1);
        for i in 0..9 {
            for j in 0..37 {
                let value = out.get(i * case.problem.out.row_stride + j);
                assert_eq!(value.is_finite(), i != 4 && j != 20, "{isa} ({i}, {j}): {value}");
            }
        }
    }
}

#[test]
fn strides_that_nothing_steps_over_may_be_anything() {
    for dtype in TYPES {
        for rows in [1, 7] {
            let mut problem = MatmulProblem::linear(rows, 1, 20, DType::F32, dtype, DType::F32);
            problem.b.row_stride = usize::MAX;
            problem.b.batch_stride = usize::MAX;
            let b = FloatVec::round_from(dtype, &[0.5; 20]);
            let mut out = vec![0.0; rows];
            let args = MatmulArgs {
                problem,
                rows,
                a: FloatSlice::F32(&vec![1.0; rows * 20]),
                b: b.as_slice(),
                out: FloatSliceMut::F32(&mut out),
                scratch: &mut [],
            };
            matmul(Isa::detected(), args).unwrap();
            assert_eq!(out, vec![10.0; rows]);
        }
    }
}

#[test]
fn an_empty_sum_is_zero() {
    let problem = MatmulProblem::linear(2, 3, 0, DType::F32, DType::F32, DType::F32);
    let mut out = [f32::NAN; 6];
    let args = MatmulArgs {
        problem,
        rows: 2,
        a: FloatSlice::F32(&[]),
        b: FloatSlice::F32(&[]),
        out: FloatSliceMut::F32(&mut out),
        scratch: &mut [],
    };
    matmul(Isa::detected(), args).unwrap();
    assert_eq!(out, [0.0; 6]);
}

fn error_of(change: impl FnOnce(&mut MatmulArgs<'_>)) -> CpuMathError {
    let problem = MatmulProblem::linear(2, 3, 4, DType::BF16, DType::F32, DType::F32);
    let x = [bf16::ONE; 8];
    let mut y = [0.0; 6];
    let mut scratch = AlignedBytes::new(matmul_scratch_bytes(&problem, 1));
    let mut args = MatmulArgs {
        problem,
        rows: 2,
        a: FloatSlice::Bf16(&x),
        b: FloatSlice::F32(&[1.0; 12]),
        out: FloatSliceMut::F32(&mut y),
        scratch: scratch.get(),
    };
    change(&mut args);
    let error = matmul(Isa::detected(), args).unwrap_err();
    assert_eq!(y, [0.0; 6], "an error must leave the output alone");
    error
}

#[test]
fn bad_arguments_are_typed_errors() {
    use CpuMathError::*;
    assert!(matches!(error_of(|a| a.rows = 3), BadShape { name: "rows", .. }));
    assert!(matches!(
        error_of(|a| a.problem.out.row_stride = 2),
        BadShape { name: "out.row_stride", .. }
    ));
    assert!(matches!(
        error_of(|a| a.b = FloatSlice::F32(&[1.0; 11])),
        OperandTooShort { operand: "b", need: 12, have: 11, .. }
    ));
    assert!(matches!(
        error_of(|a| a.problem.b.row_stride = usize::MAX),
        OperandTooShort { operand: "b", need: usize::MAX, .. }
    ));
    assert!(matches!(
        error_of(|a| a.a = FloatSlice::F32(&[1.0; 8])),
        TypeMismatch { operand: "a", .. }
    ));
    assert!(matches!(error_of(|a| a.scratch = &mut []), Scratch { have: 0, .. }));
}
