//! Windows of rows: kernels on the host against the definition, step after step, with NaN in every padding
//! row, and their source through NVRTC.

use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use crate::nvrtc::Nvrtc;
use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F32, I32};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::eval::Array;
use piecewise_ir::types::TensorType;
use piecewise_kernels::causal_window::{CausalWindow, causal_window_kernels};
use piecewise_kernels::cuda::{OpKernels, PRELUDE};

const SLOTS: usize = 4;
/// Rows and sequences of a step that are there for none.
const PADDING: usize = 2;

fn operands(dtype: DType, width: usize, rows: usize) -> [TensorType; 5] {
    let of = |symbol: usize| Dim::from(Symbol::new(symbol));
    let n = |x: usize| Dim::constant(x as u64);
    let each = || TensorType::new(I32, [of(1)]);
    [
        TensorType::new(dtype, [of(0), n(width)]),
        TensorType::new(dtype, [n(SLOTS), n(width), n(rows - 1)]),
        each(),
        each(),
        each(),
    ]
}

/// Steps of sequences, each by its slot and rows: some bring less than a window, and one more.
fn check(
    name: &str,
    dtype: DType,
    width: usize,
    rows: usize,
    change: impl Fn(&str) -> String,
) -> bool {
    let types = operands(dtype, width, rows);
    let steps: [&[(i32, usize)]; 4] = [
        &[(2, 5), (0, 1)],
        &[(0, 1), (2, 1), (3, 2)],
        &[(3, 1), (1, 7), (0, 2)],
        &[(1, 1), (3, 3)],
    ];
    let mut state = vec![0; SLOTS * width * (rows - 1) * dtype.size()];
    let mut rng = Rng(11);
    for (number, step) in steps.into_iter().enumerate() {
        let there: usize = step.iter().map(|(_, rows)| rows).sum();
        let (padded, sequences) = (there + PADDING, step.len() + PADDING);
        let mut x = fill(dtype, padded * width, &mut rng);
        x[there * width * dtype.size()..].fill(0xff);
        let starts = step.iter().scan(0, |at, (_, rows)| {
            *at += *rows as i32;
            Some(*at - *rows as i32)
        });
        let each = [
            step.iter().map(|(slot, _)| *slot).collect(),
            starts.collect(),
            step.iter().map(|(_, rows)| *rows as i32).collect(),
        ];
        let array = |ty: &TensorType, shape: Vec<usize>, bytes: &[u8]| {
            let count = shape.iter().product::<usize>();
            Array { dtype: ty.dtype, shape, data: floats(ty.dtype, bytes)[..count].to_vec() }
        };
        let index = |values: &Vec<i32>| Array {
            dtype: I32,
            shape: vec![values.len()],
            data: values.iter().map(|&value| f64::from(value)).collect(),
        };
        let arrays = [
            array(&types[0], vec![there, width], &x),
            array(&types[1], vec![SLOTS, width, rows - 1], &state),
            index(&each[0]),
            index(&each[1]),
            index(&each[2]),
        ];
        let expected = CausalWindow.evaluate(&arrays, &Attrs::new(), &[]).unwrap();
        let mut args = vec![x, state.clone()];
        args.extend(each.map(|mut values: Vec<i32>| {
            values.resize(sequences, -1);
            bytemuck::cast_slice::<i32, u8>(&values).to_vec()
        }));
        args.push(vec![0x5a; padded * width * rows * dtype.size()]);
        let OpKernels { mut launches, scratch } = causal_window_kernels(&types).unwrap();
        let sizes = vec![padded as u64, sequences as u64];
        let scratch = scratch.eval(&sizes);
        for launch in &mut launches {
            launch.check(6, scratch).unwrap();
            launch.source = change(&launch.source);
        }
        let counts = vec![there as i32, step.len() as i32];
        let case = Case { launches, args, sizes, counts, scratch };
        let mut after = emulate(&format!("{name}_{number}"), &case);
        let mut got = after.remove(5);
        state = after.remove(1);
        let padding = got.split_off(there * width * rows * dtype.size());
        let equal =
            floats(dtype, &got) == expected[0].data && floats(dtype, &state) == expected[1].data;
        if !equal || padding.iter().any(|byte| *byte != 0x5a) {
            return false;
        }
    }
    true
}

#[test]
fn windows_go_on_over_steps() {
    if !available() {
        return;
    }
    for (name, dtype, width, rows) in
        [("narrow", F32, 8, 2), ("wide", BF16, 136, 4), ("long", F32, 16, 9)]
    {
        assert!(check(&format!("window_{name}"), dtype, width, rows, str::to_owned), "{name}");
    }
}

#[test]
fn planted_faults_of_windows_are_found() {
    if !available() {
        return;
    }
    for (i, (what, from, to)) in [
        ("the rows of another sequence", "starts[middle] <= (i32)row", "starts[middle] < (i32)row"),
        ("padding rows written", "if (own >= of.length) return;", ""),
        ("a slot that forgets", "kept[j] = row_of(of, kept,", "kept[j] = row_of(of, state,"),
        ("a window that is late by a row", "x, own + j, column", "x, own + j + 1, column"),
    ]
    .into_iter()
    .enumerate()
    {
        let planted = |source: &str| {
            let changed = source.replace(from, to);
            assert_ne!(changed, source, "{what}");
            changed
        };
        assert!(!check(&format!("window_planted_{i}"), F32, 8, 4, planted), "{what}");
    }
}

#[test]
fn nvrtc_takes_the_kernels_of_windows() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    for arch in ["sm_80", "sm_90a"] {
        for dtype in [F32, BF16, DType::F16] {
            let launch = &causal_window_kernels(&operands(dtype, 2048, 4)).unwrap().launches[0];
            if let Err(log) = nvrtc.compile(&launch.source, PRELUDE, arch, &launch.options) {
                panic!("{arch}:\n{log}\n{}", launch.source);
            }
        }
    }
}
