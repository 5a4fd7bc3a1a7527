//! Experts: kernels on the host against the f64 reference, with NaN in every padding row, and their sources
//! through NVRTC.

use crate::emulate::{Case, Rng, available, emulate, fill, floats};
use crate::nvrtc::Nvrtc;
use piecewise_ir::custom::CustomOpDef;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::eval::Array;
use piecewise_ir::types::TensorType;
use piecewise_kernels::cuda::{OpKernels, PRELUDE};
use piecewise_kernels::experts::{Experts, RouterScores, Routing, experts_kernels};
use piecewise_kernels::op::cuda::{CudaOpCall, CudaTarget};

const PADDING: usize = 3;
const ROUTING: Routing =
    Routing { top_k: 2, scores: RouterScores::Softmax, renormalize: true, scale: 1.0 };

#[derive(Clone, Copy)]
struct Shape {
    /// Of x and logits, and of weights.
    dtypes: [DType; 2],
    experts: usize,
    width: usize,
    inner: usize,
    routing: Routing,
}

const SMALL: Shape =
    Shape { dtypes: [BF16, BF16], experts: 6, width: 24, inner: 16, routing: ROUTING };

impl Shape {
    fn operands(&self) -> [TensorType; 4] {
        let rows = || Dim::from(Symbol::new(0));
        let n = |x: usize| Dim::constant(x as u64);
        let Self { dtypes: [x, weights], experts, width, inner, .. } = *self;
        [
            TensorType::new(x, [rows(), n(width)]),
            TensorType::new(F32, [rows(), n(experts)]),
            TensorType::new(weights, [n(experts), n(2 * inner), n(width)]),
            TensorType::new(weights, [n(experts), n(width), n(inner)]),
        ]
    }

    fn kernels(&self, rows: usize) -> OpKernels {
        let (operands, attrs) = (self.operands(), Experts::attrs(&self.routing));
        experts_kernels(&CudaOpCall {
            operands: &operands,
            roles: &[],
            results: &operands[..1],
            attrs: &attrs,
            target: CudaTarget { capability: (9, 0) },
            sizes: &[rows as u64],
            query_length: None,
        })
        .unwrap()
    }

    /// Random logits with some that are equal.
    fn logits(&self, rows: usize) -> Vec<f32> {
        let mut rng = Rng(8);
        Vec::from_iter((0..rows * self.experts).map(|_| (rng.next() % 7) as f32 / 2.0 - 1.5))
    }

    /// The bytes of the result for these logits, a row for each `experts` of them, and the largest error
    /// beside the reference, by its largest element, or infinity where padding rows are written; `change`
    /// makes the source what is run.
    fn run(&self, name: &str, logits: &[f32], change: impl Fn(&str) -> String) -> (Vec<u8>, f64) {
        let Self { dtypes: [xt, wt], experts, width, inner, routing } = *self;
        let rows = logits.len() / experts;
        let padded = rows + PADDING;
        let operands = self.operands();
        let mut x = fill(xt, padded * width, &mut Rng(5));
        x[rows * width * xt.size()..].fill(0xff);
        let nan = f32::NAN;
        let given = Vec::from_iter(logits.iter().copied().chain(vec![nan; PADDING * experts]));
        let gate_up = fill(wt, experts * 2 * inner * width, &mut Rng(6));
        let down = fill(wt, experts * width * inner, &mut Rng(7));
        let array = |ty: &TensorType, shape: Vec<usize>, bytes: &[u8]| {
            let count = shape.iter().product::<usize>();
            Array { dtype: ty.dtype, shape, data: floats(ty.dtype, bytes)[..count].to_vec() }
        };
        let shapes = [
            vec![rows, width],
            vec![rows, experts],
            vec![experts, 2 * inner, width],
            vec![experts, width, inner],
        ];
        let logits = bytemuck::cast_slice::<f32, u8>(&given).to_vec();
        let mut args = vec![x, logits, gate_up, down];
        let arrays = operands.iter().zip(shapes).zip(&args);
        let arrays = Vec::from_iter(arrays.map(|((ty, shape), bytes)| array(ty, shape, bytes)));
        let expected = Experts.evaluate(&arrays, &Experts::attrs(&routing), &[]).unwrap();
        args.push(vec![0x5a; padded * width * xt.size()]);
        let OpKernels { mut launches, scratch } = self.kernels(padded);
        let sizes = vec![padded as u64];
        let scratch = scratch.eval(&sizes);
        for launch in &mut launches {
            launch.check(5, scratch).unwrap();
            assert!(launch.always_has_work(), "{name}: {}", launch.entry);
            launch.source = change(&launch.source);
        }
        let counts = vec![rows as i32];
        let mut got = emulate(name, &Case { launches, args, sizes, counts, scratch }).remove(4);
        let padding = got.split_off(rows * width * xt.size());
        if padding.iter().any(|x| *x != 0x5a) {
            // Padding rows are written.
            return (got, f64::INFINITY);
        }
        let pairs = floats(xt, &got).into_iter().zip(&expected[0].data);
        let errors = pairs.map(|(a, b)| if a.is_nan() { 9e9 } else { (a - b).abs() });
        let largest = expected[0].data.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let error = errors.fold(0.0, f64::max) / largest;
        (got, error)
    }

    fn check(&self, name: &str, logits: &[f32]) -> Vec<u8> {
        let (got, error) = self.run(name, logits, str::to_owned);
        let bar = if self.dtypes == [F32, F32] { 1e-6 } else { 1e-2 };
        assert!(error < bar, "{name}: off by {error}");
        got
    }
}

#[test]
fn rows_go_through_the_experts_that_they_choose() {
    if !available() {
        return;
    }
    let plain = Routing { renormalize: false, ..ROUTING };
    let sigmoid = Routing { scores: RouterScores::Sigmoid, scale: 2.5, ..ROUTING };
    for (name, shape) in [
        ("bf16", SMALL),
        ("f16", Shape { dtypes: [F16, F16], routing: plain, ..SMALL }),
        ("f32", Shape { dtypes: [F32, F32], routing: sigmoid, ..SMALL }),
        ("mixed", Shape { dtypes: [F32, BF16], routing: Routing { top_k: 3, ..plain }, ..SMALL }),
        // Neither is a multiple of 8, nor of what a warp takes.
        ("odd", Shape { dtypes: [F32, F32], width: 27, inner: 13, ..SMALL }),
        ("all", Shape { routing: Routing { top_k: 6, ..sigmoid }, ..SMALL }),
        // More than a warp has lanes, and rows of more than one round of it.
        ("many", Shape { dtypes: [F32, F32], experts: 70, width: 264, inner: 40, ..SMALL }),
    ] {
        shape.check(&format!("experts_{name}"), &shape.logits(21));
    }
}

/// One row, all rows to one expert, and experts without rows, the last of them too.
#[test]
fn experts_have_all_rows_or_none() {
    if !available() {
        return;
    }
    let shape = Shape { dtypes: [F32, F32], ..SMALL };
    shape.check("experts_one_row", &shape.logits(1));
    let one = Shape { routing: Routing { top_k: 1, ..ROUTING }, ..shape };
    let to = |expert: usize, rows: usize| {
        Vec::from_iter((0..rows * 6).map(|i| if i % 6 == expert { 3.0 } else { 0.5 }))
    };
    for expert in [0, 5] {
        one.check(&format!("experts_all_to_{expert}"), &to(expert, 19));
    }
    // The second is chosen by its index alone.
    shape.check("experts_ties", &to(4, 9));
    let equal = [0.25; 6 * 9];
    assert_eq!(shape.check("experts_equal", &equal).len(), 9 * 24 * 4);
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company() {
    if !available() {
        return;
    }
    let logits = SMALL.logits(40);
    let together = SMALL.check("experts_together", &logits);
    // The first rows of x are the same.
    for rows in [1, 5] {
        let few = SMALL.check(&format!("experts_{rows}_rows"), &logits[..rows * 6]);
        assert!(few == together[..few.len()], "{rows} rows");
    }
}

/// The check finds what is planted: each is far above the bar, or is refused.
#[test]
fn planted_faults_are_found() {
    if !available() {
        return;
    }
    let shape = Shape { dtypes: [F32, F32], ..SMALL };
    let logits = shape.logits(21);
    for (name, right, wrong) in [
        (
            "the gate beside what it gates",
            "gate / (1.0f + expf(-gate)) * sums[m][2 + c]",
            "sums[m][2 + c] / (1.0f + expf(-sums[m][2 + c])) * gate",
        ),
        ("the next expert", "gate_up + (u64)share.expert", "gate_up + (u64)(share.expert % 5 + 1)"),
        (
            "the offset",
            "lists.starts[own] = first;",
            "lists.starts[own] = first + (own > 2 && first < pairs);",
        ),
        (
            "the highest index of ties",
            "last_expert == none || before(last, last_expert, logit, e)",
            "last_expert == none || before(last, -last_expert, logit, -e)",
        ),
        ("padding rows to experts", "return real < rows ? real : rows;", "return rows;"),
        ("the weight of a neighbour", "lists.weights[pair]", "lists.weights[pair ^ 1]"),
        ("the sum of all", "if (!RENORMALIZE)", "if (RENORMALIZE)"),
    ] {
        let (_, error) = shape.run("experts_planted", &logits, |source| {
            assert!(source.contains(right), "{name}");
            source.replace(right, wrong)
        });
        assert!(error > 1e-2, "{name}: {error}");
    }
}

#[test]
fn few_rows_start_no_blocks_for_experts_that_they_can_not_have() {
    let shape = Shape { experts: 128, routing: Routing { top_k: 8, ..ROUTING }, ..SMALL };
    for (rows, units) in [(1, 8), (16, 128), (17, 17 + 128), (2048, 2048 + 128)] {
        for launch in &shape.kernels(rows).launches[2..4] {
            assert_eq!(launch.grid_at(&[rows as u64], 132).unwrap()[0], units, "{rows}");
        }
    }
}

#[test]
fn nvrtc_takes_the_kernels_of_experts() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    let large = Shape { experts: 128, width: 2048, inner: 768, ..SMALL };
    let plain = Routing { renormalize: false, top_k: 8, scores: RouterScores::Sigmoid, scale: 2.5 };
    for arch in ["sm_80", "sm_90a"] {
        for shape in [
            Shape { routing: plain, ..large },
            Shape { dtypes: [F32, F16], ..large },
            Shape { dtypes: [F32, F32], width: 27, inner: 13, ..SMALL },
        ] {
            let launch = &shape.kernels(64).launches[0];
            if let Err(log) = nvrtc.compile(&launch.source, PRELUDE, arch, &launch.options) {
                panic!("{arch}:\n{log}\n{}", launch.source);
            }
        }
    }
}
