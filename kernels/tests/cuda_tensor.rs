//! What the matmul on tensor cores computes, on the host: against sums in f64, with NaN in the rows
//! past the true count, for every way that x is kept on a multiprocessor.

use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::MatMulSpec;

const HOPPER: u64 = 227 << 10;
const ADA: u64 = 99 << 10;
const UNTOUCHED: u8 = 0x5a;

struct Product {
    types: [DType; 2],
    depth: usize,
    columns: usize,
    rows: usize,
    real: usize,
    shared_bytes: u64,
}

impl Product {
    fn spec(&self) -> MatMulSpec {
        let rows = Dim::from(Symbol::new(0));
        let [operands, result] = self.types;
        let x = TensorType::new(operands, [rows.clone(), (self.depth as u64).into()]);
        let w = TensorType::new(operands, [self.columns as u64, self.depth as u64]);
        let y = TensorType::new(result, [rows, (self.columns as u64).into()]);
        MatMulSpec::new(false, true, &x, &w, &y).unwrap().of_weight()
    }

    /// Operands and a result of [`UNTOUCHED`] bytes; rows of x past the real ones are NaN.
    fn args(&self) -> Vec<Vec<u8>> {
        let mut random = Rng(self.depth as u64 + 1);
        let [operands, result] = self.types;
        let w = fill(operands, self.columns * self.depth, &mut random);
        let mut x = fill(operands, self.rows * self.depth, &mut random);
        x[self.real * self.depth * operands.size()..].fill(0xff);
        vec![x, w, vec![UNTOUCHED; self.rows * self.columns * result.size()]]
    }

    fn run(&self, name: &str, args: &[Vec<u8>]) -> Vec<u8> {
        let launch = self.spec().tensor_kernel(self.rows as u64, self.shared_bytes).unwrap();
        let case = Case {
            launches: vec![launch],
            args: args.to_vec(),
            sizes: vec![self.rows as u64],
            counts: vec![self.real as i32],
            scratch: 256,
        };
        emulate(name, &case).swap_remove(2)
    }

    /// Compares with sums in f64 and returns the bytes of the real rows.
    fn check(&self) -> Vec<u8> {
        let &Self { types: [operands, result], depth, columns, rows, real, shared_bytes } = self;
        let name =
            format!("tensor_{operands}_{result}_{depth}_{columns}_{rows}_{real}_{shared_bytes}");
        let args = self.args();
        let mut got = self.run(&name, &args);
        let padding = got.split_off(real * columns * result.size());
        assert!(padding.iter().all(|byte| *byte == UNTOUCHED), "{name} wrote padding");
        let (x, w) = (floats(operands, &args[0]), floats(operands, &args[1]));
        let half_a_step = if result == F32 { 1e-5 } else { 1.0 / 128.0 };
        for (at, found) in floats(result, &got).into_iter().enumerate() {
            let (m, n) = (at / columns, at % columns);
            let terms = x[m * depth..][..depth].iter().zip(&w[n * depth..][..depth]);
            let sum: f64 = terms.map(|(x, w)| x * w).sum();
            let error = (found - result.round(sum)).abs();
            let within = error <= sum.abs() * half_a_step + 1e-4;
            assert!(within, "{name} [{m}, {n}]: {found} where {sum} is due");
        }
        got
    }
}

#[test]
fn products_are_those_of_f64_and_padding_is_neither_read_nor_written() {
    if !available() {
        return;
    }
    for (operands, result) in [(BF16, BF16), (F16, F16), (BF16, F32)] {
        for (depth, columns, rows, real) in [
            (32, 411, 1, 1),
            (32, 9, 8, 8),
            (64, 411, 8, 5),
            (64, 70, 17, 9),
            (96, 16, 32, 0),
            (1024, 203, 8, 7),
            (1024, 70, 32, 31),
            (3072, 41, 16, 16),
            (3072, 20, 24, 2),
        ] {
            let types = [operands, result];
            for shared_bytes in [HOPPER, ADA] {
                let product = Product { types, depth, columns, rows, real, shared_bytes };
                if product.spec().multiplies_on_tensor_cores(rows as u64, shared_bytes) {
                    product.check();
                }
            }
        }
    }
}

/// Slices of several rounds of loads, of x in registers, and of uneven warps.
#[test]
fn deep_products_are_those_of_f64() {
    if !available() {
        return;
    }
    for (depth, rows, shared_bytes) in [
        (3072, 32, HOPPER),
        (4096, 32, HOPPER),
        (4096, 24, 163 << 10),
        (4096, 16, ADA),
        (9728, 8, HOPPER),
        (11008, 8, HOPPER),
        (12288, 8, 163 << 10),
    ] {
        let types = [BF16, F32];
        Product { types, depth, columns: 56, rows, real: rows - 1, shared_bytes }.check();
    }
}

#[test]
fn a_row_has_the_same_bits_beside_any_others_of_its_eight() {
    if !available() {
        return;
    }
    let rows = |rows| Product {
        types: [BF16, F32],
        depth: 1024,
        columns: 33,
        rows,
        real: rows,
        shared_bytes: HOPPER,
    };
    let (few, many) = (rows(3).check(), rows(8).check());
    assert_eq!(few[..], many[..few.len()]);
}

#[test]
fn what_does_not_fit_is_refused_with_what_to_take() {
    let product = |operands, depth| Product {
        types: [operands, operands],
        depth,
        columns: 64,
        rows: 32,
        real: 32,
        shared_bytes: HOPPER,
    };
    assert!(product(BF16, 4096).spec().multiplies_on_tensor_cores(32, HOPPER));
    for (product, rows) in [
        (product(BF16, 4096), 33),
        (product(BF16, 4096), 0),
        (product(BF16, 4112), 8),
        (product(BF16, 12288), 16),
        (product(F32, 4096), 8),
    ] {
        let error = product.spec().tensor_kernel(rows, HOPPER).unwrap_err().to_string();
        assert!(error.contains("take the general one"), "{error}");
    }
}
