//! What the matmul on tensor cores computes, on the host: against sums in f64, with NaN in the rows
//! past the true count, for every way that x is kept on a multiprocessor.

use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::{MatMulSpec, TensorDevice};

const HOPPER: TensorDevice = TensorDevice { shared_bytes: 227 << 10, clusters: true };
const AMPERE: TensorDevice = TensorDevice { shared_bytes: 163 << 10, clusters: false };
const ADA: TensorDevice = TensorDevice { shared_bytes: 99 << 10, clusters: false };
const UNTOUCHED: u8 = 0x5a;

struct Product {
    types: [DType; 2],
    depth: usize,
    columns: usize,
    rows: usize,
    real: usize,
    device: TensorDevice,
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
        let launch = self.spec().tensor_kernel(self.rows as u64, self.device, None).unwrap();
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
        let &Self { types: [operands, result], depth, columns, rows, real, device } = self;
        let on = format!("{}_{}", device.shared_bytes >> 10, device.clusters);
        let name = format!("tensor_{operands}_{result}_{depth}_{columns}_{rows}_{real}_{on}");
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
            for device in [HOPPER, ADA] {
                let product = Product { types, depth, columns, rows, real, device };
                if device == HOPPER
                    || product.spec().multiplies_on_tensor_cores(rows as u64, device)
                {
                    product.check();
                }
            }
        }
    }
}

/// Every way to share k: among the warps of a block and the blocks of a cluster, x whole and in
/// pieces, slices of uneven warps and of several rounds of loads.
#[test]
fn deep_products_are_those_of_f64() {
    if !available() {
        return;
    }
    for (depth, rows, device) in [
        (2048, 16, HOPPER),
        (3072, 24, HOPPER),
        (4096, 8, HOPPER),
        (4096, 8, AMPERE),
        (4096, 8, ADA),
        (9728, 8, HOPPER),
        (11008, 8, AMPERE),
        (12288, 8, HOPPER),
        (12288, 8, ADA),
    ] {
        let types = [BF16, F32];
        Product { types, depth, columns: 56, rows, real: rows - 1, device }.check();
    }
}

/// Several tiles at once, and several rounds of them.
#[test]
fn wide_products_are_those_of_f64() {
    if !available() {
        return;
    }
    for (depth, columns, rows, slices) in
        [(256, 9001, 8, 4), (1024, 8469, 32, 2), (4096, 2136, 24, 4), (64, 8500, 8, 4)]
    {
        let types = [BF16, BF16];
        let product = Product { types, depth, columns, rows, real: rows - 3, device: HOPPER };
        let kernel = product.spec().tensor_kernel(rows as u64, HOPPER, None).unwrap();
        assert!(kernel.source.contains(&format!("#define SLICES {slices}\n")), "{}", kernel.source);
        product.check();
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
        device: HOPPER,
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
        device: HOPPER,
    };
    assert!(product(BF16, 2048).spec().multiplies_on_tensor_cores(32, HOPPER));
    for (product, rows) in [
        (product(BF16, 4096), 33),
        (product(BF16, 4096), 0),
        (product(BF16, 4112), 8),
        (product(BF16, 12288), 32),
        (product(F32, 4096), 8),
    ] {
        let error = product.spec().tensor_kernel(rows, HOPPER, None).unwrap_err().to_string();
        assert!(error.contains("take the general one"), "{error}");
    }
}
