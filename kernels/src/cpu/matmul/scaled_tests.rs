// A new dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::*;
use crate::cpu::matmul::scaled::*;
use crate::cpu::testing::{AlignedBytes, FloatVec, Rng, isas, on_threads};
use piecewise_ir::literal::Scalar;

struct Case {
    problem: ScaledProblem,
    x: FloatVec,
    codes: Vec<u8>,
    scales: FloatVec,
    zeros: Option<Vec<u8>>,
}

/// Codes of any bits but NaN's, in lines from a byte on.
fn codes(rng: &mut Rng, dtype: DType, [lines, line]: [usize; 2]) -> Vec<u8> {
    let bytes = lines * dtype.line_bytes(line as u64) as usize;
    let any = |rng: &mut Rng| (rng.uniform() * 256.0) as u8;
    let code = |rng: &mut Rng| match any(rng) {
        nan if dtype == DType::E4M3 && nan & 0x7f == 0x7f => 0x7e,
        code => code,
    };
    (0..bytes).map(|_| code(rng)).collect()
}

fn floats(rng: &mut Rng, dtype: DType, n: usize) -> FloatVec {
    let values: Vec<f32> = (0..n).map(|_| rng.uniform() * 2.0 - 1.0).collect();
    FloatVec::round_from(dtype, &values)
}

/// What the bits at a place of a line mean, by the IR.
fn code_at(dtype: DType, codes: &[u8], line: usize, i: usize, j: usize) -> f64 {
    let line = &codes[i * dtype.line_bytes(line as u64) as usize..];
    let bits = if dtype == DType::I4 { line[j / 2] >> (j % 2 * 4) } else { line[j] };
    Scalar::from_bits(dtype, u64::from(bits)).to_f64()
}

impl Case {
    fn new(
        seed: u64,
        [m, n, k]: [usize; 3],
        codes_of: DType,
        block: [usize; 2],
        zeros: bool,
    ) -> Self {
        let types = [DType::F32, DType::F16, DType::BF16];
        let [x, scales, out] = [0, 1, 2].map(|i| types[(seed as usize + i) % 3]);
        let problem = ScaledProblem { m, n, k, x, codes: codes_of, scales, block, out };
        let (down, across) = (n.div_ceil(block[0]), k.div_ceil(block[1]));
        let rng = &mut Rng(seed);
        Self {
            problem,
            x: floats(rng, x, m * k),
            codes: codes(rng, codes_of, [n, k]),
            scales: floats(rng, scales, down * across),
            zeros: zeros.then(|| codes(rng, codes_of, [down, across])),
        }
    }

    fn run(&self, isa: Isa, rows: usize) -> FloatVec {
        let p = self.problem;
        let mut out = FloatVec::round_from(p.out, &vec![f32::NAN; p.m * p.n]);
        let mut scratch = AlignedBytes::new(scaled_matmul_scratch_bytes(&p, 2));
        let args = ScaledArgs {
            problem: p,
            rows,
            x: self.x.as_slice(),
            codes: &self.codes,
            scales: self.scales.as_slice(),
            zeros: self.zeros.as_deref(),
            out: out.as_slice_mut(),
            scratch: scratch.get(),
        };
        scaled_matmul(isa, args).unwrap();
        out
    }

    /// The product in f64, and the sum of the sizes of its terms.
    fn want(&self, row: usize, column: usize) -> (f64, f64) {
        let ScaledProblem { n, k, codes, block, .. } = self.problem;
        let across = k.div_ceil(block[1]);
        assert!(column < n);
        let terms = (0..k).map(|j| {
            let (down, group) = (column / block[0], j / block[1]);
            let zero = self.zeros.as_ref();
            let zero = zero.map_or(0.0, |zeros| code_at(codes, zeros, across, down, group));
            let code = code_at(codes, &self.codes, k, column, j) - zero;
            let scale = f64::from(self.scales.get(down * across + group));
            f64::from(self.x.get(row * k + j)) * code * scale
        });
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    }
}

#[test]
fn weights_are_codes_times_the_scales_of_their_blocks() {
    let i4 = |block, zeros| (DType::I4, block, zeros);
    let forms = [
        (DType::E4M3, [70, 100], false),
        (DType::E4M3, [1, 100], false),
        (DType::E4M3, [32, 16], false),
        i4([1, 32], false),
        i4([1, 32], true),
        i4([1, 100], true),
        i4([7, 9], true),
    ];
    for (seed, (codes, block, zeros)) in (0..).zip(forms) {
        for m in [1, 5, 13, 40] {
            let k = if block[1] == 9 { 37 } else { 100 };
            let case = Case::new(seed, [m, 70, k], codes, block, zeros);
            for isa in isas() {
                let out = on_threads(2, || case.run(isa, m));
                for row in 0..m {
                    for column in 0..70 {
                        let (want, size) = case.want(row, column);
                        let found = f64::from(out.get(row * 70 + column));
                        let narrow = case.problem.out != DType::F32;
                        let step = if narrow { want.abs() * 2f64.powi(-8) } else { 0.0 };
                        let error = (found - want).abs();
                        assert!(
                            error <= size * 1e-6 + step,
                            "{isa} {codes} {block:?}: {found} {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_and_padding_is_not_touched() {
    for (codes, block) in [(DType::E4M3, [128, 128]), (DType::I4, [1, 64])] {
        let case = Case::new(3, [30, 150, 200], codes, block, codes == DType::I4);
        for isa in isas() {
            let all = on_threads(2, || case.run(isa, 30));
            for rows in [1, 4, 12, 13] {
                let some = on_threads(1, || case.run(isa, rows));
                for at in 0..rows * 150 {
                    assert_eq!(some.get(at).to_bits(), all.get(at).to_bits(), "{isa} of {rows}");
                }
                assert!((rows * 150..30 * 150).all(|at| some.get(at).is_nan()));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let case = Case::new(0, [2, 8, 64], DType::I4, [1, 32], true);
    let refused = |change: &dyn Fn(&mut ScaledArgs<'_>)| {
        let p = case.problem;
        let mut out = FloatVec::round_from(p.out, &[f32::NAN; 16]);
        let mut scratch = AlignedBytes::new(scaled_matmul_scratch_bytes(&p, 1));
        let mut args = ScaledArgs {
            problem: p,
            rows: 2,
            x: case.x.as_slice(),
            codes: &case.codes,
            scales: case.scales.as_slice(),
            zeros: case.zeros.as_deref(),
            out: out.as_slice_mut(),
            scratch: scratch.get(),
        };
        change(&mut args);
        let error = scaled_matmul(Isa::portable(), args).unwrap_err().to_string();
        assert!((0..16).all(|at| out.get(at).is_nan()));
        error
    };
    assert!(refused(&|args| args.rows = 3).contains("`rows`"));
    assert!(refused(&|args| args.codes = &args.codes[1..]).contains("`codes`"));
    assert!(refused(&|args| args.zeros = Some(&[])).contains("`zeros`"));
    assert!(refused(&|args| args.problem.block = [0, 32]).contains("`block`"));
    assert!(refused(&|args| args.problem.block = [1, 16]).contains("`scales`"));
    assert!(refused(&|args| args.problem.x = DType::BF16).contains("`x`"));
    assert!(refused(&|args| args.scratch = &mut []).contains("scaled_matmul_scratch_bytes"));
}
