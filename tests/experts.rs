//! Rows through experts: what the op declares, and each case of routing in a step whose padding is NaN.

use piecewise::kernels::op::{OpCase, check};
use piecewise::prelude::*;
use piecewise_ir::eval::Array;
use piecewise_ir::weight::Recipe;
use piecewise_testing::{Rng, norm_error};

const EXPERTS: usize = 6;
const WIDTH: usize = 20;
const INNER: usize = 9;
/// The one size of every step.
const ROWS: u64 = 128;
const ROUTING: Routing =
    Routing { top_k: 2, scores: RouterScores::Softmax, renormalize: true, scale: 1.0 };

#[test]
fn the_op_is_what_it_declares() {
    let [experts, width, inner] = [EXPERTS, WIDTH, INNER].map(|n| n as u64);
    for (dtype, routing) in [
        (DType::F32, ROUTING),
        (DType::BF16, Routing { renormalize: false, ..ROUTING }),
        (DType::F16, Routing { scores: RouterScores::Sigmoid, scale: 2.5, ..ROUTING }),
    ] {
        let case = OpCase::of(&Experts).rows(dtype, [width]).rows(DType::F32, [experts]);
        let case = case.weight([experts, 2 * inner, width]).weight([experts, width, inner]);
        let case = case.attrs(Experts::attrs(&routing));
        check(&OpRegistry::builtin(), &case).unwrap_or_else(|error| panic!("{dtype}: {error}"));
    }
}

fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    Vec::from_iter((0..count).map(|_| rng.symmetric(1.0) as f32))
}

/// Rows of x, which do not depend on how many there are.
fn x(rows: usize) -> Vec<f32> {
    values(1, rows * WIDTH)
}

fn weights() -> [(&'static str, [u64; 3], Vec<f32>); 2] {
    let [experts, width, inner] = [EXPERTS, WIDTH, INNER].map(|n| n as u64);
    let count = EXPERTS * INNER * WIDTH;
    [
        ("gate_up", [experts, 2 * inner, width], values(2, 2 * count)),
        ("down", [experts, width, inner], values(3, count)),
    ]
}

/// A session of the op, rows and weights of which are of a dtype.
fn session(dtype: DType, routing: &Routing) -> Session {
    let b = Builder::new("experts");
    let rows = b.symbol_with_role("T", 1, ROWS, roles::TOKENS);
    let x = b.input("x", DType::F32, (rows, WIDTH as u64)).cast(dtype);
    let logits = b.input("logits", DType::F32, (rows, EXPERTS as u64));
    let mut held = InMemoryWeights::new();
    let [gate_up, down] = weights().map(|(name, shape, values)| {
        held = std::mem::take(&mut held).with(name, shape, values);
        let of = Box::new(b.tensor(name, DType::F32, shape));
        b.weight_of(Recipe::Cast { to: dtype, of })
    });
    let made = x.experts(logits, ExpertWeights { gate_up, down }, routing);
    let graph = b.finish([made.cast(DType::F32)]).unwrap();
    let assembly = Assembly::graph(graph).weights(held).set("cache.enabled", false);
    assembly.set("checks.poison", true).capture_sizes([ROWS]).session().unwrap()
}

fn run(session: &mut Session, x: &[f32], logits: &[f32]) -> Vec<f32> {
    session.step().input("x", x).input("logits", logits).run().unwrap().get(0).unwrap()
}

/// What the op is in f64, of elements as a dtype has them.
fn expected(dtype: DType, routing: &Routing, x: &[f32], logits: &[f32]) -> Vec<f64> {
    let array = |dtype: DType, shape: Vec<usize>, values: &[f32]| {
        let data = values.iter().map(|&x| f64::from(x)).collect();
        Array { dtype, shape, data }.rounded()
    };
    let rows = x.len() / WIDTH;
    let [(_, _, gate_up), (_, _, down)] = weights();
    let operands = [
        array(dtype, vec![rows, WIDTH], x),
        array(DType::F32, vec![rows, EXPERTS], logits),
        array(dtype, vec![EXPERTS, 2 * INNER, WIDTH], &gate_up),
        array(dtype, vec![EXPERTS, WIDTH, INNER], &down),
    ];
    Experts.evaluate(&operands, &Experts::attrs(routing), &[]).unwrap().remove(0).data
}

/// Logits by row and expert.
fn logits(rows: usize, of: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    Vec::from_iter((0..rows * EXPERTS).map(|i| of(i / EXPERTS, i % EXPERTS)))
}

#[test]
fn every_case_of_routing_equals_the_reference() {
    let random = values(4, 128 * EXPERTS);
    let one = Routing { top_k: 1, ..ROUTING };
    let cases = [
        ("one token", ROUTING, random[..EXPERTS].to_vec()),
        ("full", ROUTING, random.clone()),
        (
            "every expert",
            Routing { top_k: EXPERTS as u32, ..ROUTING },
            random[..EXPERTS * 9].to_vec(),
        ),
        ("all to one expert", one, logits(128, |_, e| if e == 3 { 2.0 } else { 0.0 })),
        ("all to the last", one, logits(77, |_, e| e as f32)),
        (
            "experts without tokens",
            ROUTING,
            logits(50, |row, e| ((row + e) % 2 * 4) as f32 - e as f32),
        ),
        // Two of four, and the lower ones of those.
        (
            "ties",
            ROUTING,
            logits(40, |row, e| if (e + row).is_multiple_of(3) { -1.0 } else { 1.0 }),
        ),
        ("all equal", Routing { top_k: 3, ..ROUTING }, logits(33, |_, _| -0.5)),
        ("of sigmoids", Routing { scores: RouterScores::Sigmoid, ..ROUTING }, random),
    ];
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 1e-2)] {
        for (name, routing, logits) in &cases {
            let x = x(logits.len() / EXPERTS);
            let found = run(&mut session(dtype, routing), &x, logits);
            let found = Vec::from_iter(found.into_iter().map(f64::from));
            let error = norm_error(&found, &expected(dtype, routing, &x, logits));
            assert!(error < tolerance, "{dtype}, {name}: off by {error}");
        }
    }
}

/// Of one size: first and alone, or anywhere among others, whichever experts those take.
#[test]
fn a_row_has_the_same_bits_alone_and_among_127_others() {
    for dtype in [DType::F32, DType::BF16] {
        let mut session = session(dtype, &ROUTING);
        let (x, logits) = (x(128), values(5, 128 * EXPERTS));
        let together = run(&mut session, &x, &logits);
        for row in [0, 1, 64, 127] {
            let (x, logits) = (&x[row * WIDTH..][..WIDTH], &logits[row * EXPERTS..][..EXPERTS]);
            let alone = run(&mut session, x, logits);
            assert_eq!(alone, together[row * WIDTH..][..WIDTH], "{dtype}: row {row}");
        }
        // Others that all go where row 64 goes, and none of them.
        let own = &logits[64 * EXPERTS..][..EXPERTS];
        for sign in [1.0, -1.0] {
            let mut others = Vec::from_iter((0..128 * EXPERTS).map(|i| sign * own[i % EXPERTS]));
            others[64 * EXPERTS..][..EXPERTS].copy_from_slice(own);
            let found = run(&mut session, &x, &others);
            let range = 64 * WIDTH..65 * WIDTH;
            assert_eq!(found[range.clone()], together[range], "{dtype}: {sign}");
        }
    }
}

/// Steps of fewer rows after one of all: what the size has besides is not read.
#[test]
fn rows_of_an_earlier_step_reach_no_later_one() {
    let mut session = session(DType::F32, &ROUTING);
    let (x, logits) = (x(128), values(6, 128 * EXPERTS));
    run(&mut session, &[f32::NAN; 128 * WIDTH], &[f32::NAN; 128 * EXPERTS]);
    for rows in [5, 128, 1] {
        let (x, logits) = (&x[..rows * WIDTH], &logits[..rows * EXPERTS]);
        let found = Vec::from_iter(run(&mut session, x, logits).into_iter().map(f64::from));
        assert!(norm_error(&found, &expected(DType::F32, &ROUTING, x, logits)) < 1e-6, "{rows}");
    }
}

#[test]
fn operands_that_do_not_fit_are_the_author_s_to_mend() {
    let b = Builder::new("experts");
    let rows = b.symbol("T", 1, 8);
    let x = b.input("x", DType::F32, (rows, 8));
    let logits = b.input("logits", DType::F32, (rows, 4));
    let weights = ExpertWeights {
        gate_up: b.weight("gate_up", (5, 6, 8)),
        down: b.weight("down", (5, 8, 3)),
    };
    let made = x.experts(logits, weights, &ROUTING);
    let error = b.finish([made]).unwrap_err().to_string();
    assert!(error.contains("a column for each of the 5 experts"), "{error}");
    assert!(error.contains("tests/experts.rs:"), "{error}");
}
