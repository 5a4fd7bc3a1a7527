use super::*;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F32, I32};
use piecewise_ir::entity::{Entity, Symbol};

const ROUTING: Routing =
    Routing { top_k: 2, scores: RouterScores::Softmax, renormalize: true, scale: 1.0 };

#[test]
fn attributes_out_of_range_are_named() {
    assert_eq!(Experts::routing(&Experts::attrs(&ROUTING)), Ok(ROUTING));
    assert!(!Experts::attrs(&ROUTING).contains_key("scale"));
    let scaled = Routing { scores: RouterScores::Sigmoid, scale: 2.5, ..ROUTING };
    assert_eq!(Experts::routing(&Experts::attrs(&scaled)), Ok(scaled));
    for (key, value, said) in [
        ("top_k", Attr::Int(0), "top_k = 0"),
        ("top_k", Attr::Int(-1), "top_k = -1"),
        ("top_k", Attr::Float(2.0), "top_k (an integer)"),
        ("scores", Attr::Str("tanh".to_owned()), "scores = \"tanh\""),
        ("renormalize", Attr::Int(1), "renormalize (bool)"),
        ("scale", Attr::Float(0.0), "scale must be"),
        ("scale", Attr::Float(f64::NAN), "scale must be"),
        ("scale", Attr::Int(2), "scale must be"),
    ] {
        let mut attrs = Experts::attrs(&ROUTING);
        attrs.insert(key.to_owned(), value);
        let error = Experts::routing(&attrs).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

/// x, logits, gate_up and down of 6 experts, rows of 8 elements and an inner width of 5.
fn types() -> [TensorType; 4] {
    let rows = Dim::from(Symbol::new(0));
    let fixed = |dtype, shape: &[u64]| TensorType::new(dtype, shape);
    [
        TensorType::new(BF16, [rows.clone(), Dim::constant(8)]),
        TensorType::new(F32, [rows, Dim::constant(6)]),
        fixed(BF16, &[6, 10, 8]),
        fixed(BF16, &[6, 8, 5]),
    ]
}

#[test]
fn the_result_has_the_type_of_the_rows() {
    let types = types();
    assert_eq!(Experts.infer(&types, &Experts::attrs(&ROUTING)), Ok(vec![types[0].clone()]));
}

#[test]
fn operands_that_do_not_fit_are_named() {
    let fixed = |dtype: DType, shape: &[u64]| TensorType::new(dtype, shape);
    let rows = |symbol, width: u64| {
        TensorType::new(F32, [Dim::from(Symbol::new(symbol)), Dim::constant(width)])
    };
    for (position, ty, said) in [
        (X, rows(0, 7), "rows of 8 elements"),
        (X, rows(1, 8), "of the same rows"),
        (LOGITS, rows(0, 7), "each of the 6 experts"),
        (LOGITS, TensorType::new(I32, types()[LOGITS].shape.clone()), "must be floats"),
        (GATE_UP, fixed(BF16, &[5, 10, 8]), "one number of experts"),
        (GATE_UP, fixed(BF16, &[6, 5, 8]), "one inner width"),
        (GATE_UP, fixed(BF16, &[6, 10]), "of constants above 0"),
        (GATE_UP, fixed(F32, &[6, 10, 8]), "gate_up is f32, but down bf16"),
        (DOWN, fixed(BF16, &[6, 8, 0]), "of constants above 0"),
        (DOWN, fixed(BF16, &[6, 5, 8]), "one width"),
        (DOWN, fixed(DType::E4M3, &[6, 8, 5]), "must be floats"),
    ] {
        let mut types = types();
        types[position] = ty;
        let error = Experts.infer(&types, &Experts::attrs(&ROUTING)).unwrap_err();
        assert!(error.contains(said), "{position}: {error}");
    }
    let error = Experts.infer(&types()[..3], &Experts::attrs(&ROUTING)).unwrap_err();
    assert!(error.contains("not 3 operands"), "{error}");
    let many = Routing { top_k: 7, ..ROUTING };
    let error = Experts.infer(&types(), &Experts::attrs(&many)).unwrap_err();
    assert_eq!(error, "top_k = 7 experts of a row, but there are 6");
}

/// Of one expert with a weight of 1 in every place.
fn ones(logits: &[f64], routing: Routing) -> Vec<f64> {
    let experts = logits.len();
    let array = |shape: Vec<usize>, data| Array { dtype: F32, shape, data };
    // An expert gives `silu(1) * (its index + 1)`.
    let down = (0..experts).map(|expert| expert as f64 + 1.0).collect();
    let operands = [
        array(vec![1, 1], vec![1.0]),
        array(vec![1, experts], logits.to_vec()),
        array(vec![experts, 2, 1], vec![1.0; 2 * experts]),
        array(vec![experts, 1, 1], down),
    ];
    Experts.evaluate(&operands, &Experts::attrs(&routing), &[]).unwrap().remove(0).data
}

#[test]
fn the_reference_chooses_and_weighs_as_it_is_said() {
    let silu = 1.0 / (1.0 + (-1.0f64).exp());
    let near = |found: Vec<f64>, expected: f64| {
        assert!((found[0] / silu - expected).abs() < 1e-12, "{found:?}, not {expected}");
    };
    let logits = [0.0, 2f64.ln(), f64::NEG_INFINITY, 2f64.ln(), 0.0];
    // Shares of 1, 2, 0, 2, 1 sixths; of equal logits the first are chosen.
    near(ones(&logits, ROUTING), 2.0 * 0.5 + 4.0 * 0.5);
    near(ones(&logits, Routing { top_k: 3, ..ROUTING }), (2.0 * 2.0 + 4.0 * 2.0 + 1.0) / 5.0);
    let plain = Routing { renormalize: false, ..ROUTING };
    near(ones(&logits, plain), (2.0 * 2.0 + 4.0 * 2.0) / 6.0);
    near(ones(&logits, Routing { top_k: 1, scale: 3.0, ..plain }), 2.0 * 2.0 / 6.0 * 3.0);
    let sigmoid = Routing { scores: RouterScores::Sigmoid, ..plain };
    near(ones(&logits, sigmoid), (2.0 + 4.0) * 2.0 / 3.0);
    near(ones(&logits, Routing { renormalize: true, ..sigmoid }), (2.0 + 4.0) / 2.0);
    // A NaN is chosen after all numbers.
    near(ones(&[f64::NAN, 0.0, 0.0], Routing { renormalize: true, ..ROUTING }), 2.5);
}
