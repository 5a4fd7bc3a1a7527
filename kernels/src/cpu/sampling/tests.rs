use piecewise_testing::soak;
use proptest::prelude::*;

use super::*;
use crate::cpu::testing::{AlignedBytes, Rng, isas, on_threads};
use crate::inputs::NO_ID;
use crate::op::{LN2_HIGH, LN2_LOW, LOWEST, POLYNOMIAL};

#[derive(Clone)]
struct Batch {
    logits: Vec<f32>,
    vocabulary: usize,
    temperature: Vec<f32>,
    top_k: Vec<i32>,
    top_p: Vec<f32>,
    seed: Vec<i64>,
    position: Vec<i32>,
}

impl Batch {
    fn one(logits: &[f32], temperature: f32, top_k: i32, top_p: f32) -> Batch {
        Batch {
            logits: logits.to_vec(),
            vocabulary: logits.len(),
            temperature: vec![temperature],
            top_k: vec![top_k],
            top_p: vec![top_p],
            seed: vec![1],
            position: vec![0],
        }
    }

    fn rows(&self) -> usize {
        self.temperature.len()
    }

    fn row(&self, row: usize) -> Batch {
        Batch {
            logits: self.logits[row * self.vocabulary..][..self.vocabulary].to_vec(),
            vocabulary: self.vocabulary,
            temperature: vec![self.temperature[row]],
            top_k: vec![self.top_k[row]],
            top_p: vec![self.top_p[row]],
            seed: vec![self.seed[row]],
            position: vec![self.position[row]],
        }
    }

    fn try_run(&self, isa: Isa, out: &mut [i32], scratch: &mut [u8]) -> Result<(), CpuMathError> {
        let args = SampleArgs {
            logits: &self.logits,
            vocabulary: self.vocabulary,
            temperature: &self.temperature,
            top_k: &self.top_k,
            top_p: &self.top_p,
            seed: &self.seed,
            position: &self.position,
            controls: None,
            out,
            scratch,
        };
        sample(isa, args)
    }

    fn run(&self, isa: Isa, threads: usize) -> Vec<i32> {
        let mut out = vec![-7; self.rows()];
        let mut scratch = AlignedBytes::new(sample_scratch_bytes(self.vocabulary, false, threads));
        on_threads(threads, || self.try_run(isa, &mut out, scratch.get())).unwrap();
        out
    }

    fn token(&self) -> i32 {
        self.run(Isa::detected(), 1)[0]
    }
}

/// Steps 2 to 7 of the module, written plainly: sort everything, keep a prefix, draw.
fn reference(batch: &Batch) -> i32 {
    let z: Vec<f32> = batch
        .logits
        .iter()
        .map(|x| x / batch.temperature[0])
        .map(|z| if z.is_nan() { f32::NEG_INFINITY } else { z })
        .collect();
    let top = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |i: usize| -> u64 {
        let x = z[i] - top;
        if x < LOWEST {
            return 0;
        }
        let n = x.mul_add(std::f32::consts::LOG2_E, 0.5).floor();
        let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
        let p = POLYNOMIAL.into_iter().reduce(|p, c| p.mul_add(r, c)).unwrap();
        let e = f64::from(p.mul_add(r * r, r) + 1.0);
        (e * f64::from(n + 40.0).exp2()) as u64
    };
    let mut order: Vec<usize> = (0..z.len()).collect();
    order.sort_by(|a, b| z[*b].partial_cmp(&z[*a]).unwrap().then(a.cmp(b)));
    if batch.top_k[0] > 0 {
        order.truncate(batch.top_k[0] as usize);
    }
    if batch.top_p[0] < 1.0 {
        let total: u64 = order.iter().map(|i| weight(*i)).sum();
        let share = (f64::from(batch.top_p[0].max(0.0)) * 2f64.powi(32)) as u128;
        let limit = ((u128::from(total) * share) >> 32) as u64;
        let mut before = 0;
        let mut stays = 0;
        for i in &order {
            if stays > 0 && before >= limit {
                break;
            }
            stays += 1;
            before += weight(*i);
        }
        order.truncate(stays);
    }
    order.sort_unstable();
    let total: u64 = order.iter().map(|i| weight(*i)).sum();
    let target = (u128::from(total) * u128::from(uniform(batch.seed[0], batch.position[0]))) >> 64;
    let mut running = 0u128;
    for i in order {
        running += u128::from(weight(i));
        if running > target {
            return i as i32;
        }
    }
    unreachable!("the largest logit has weight")
}

fn random_batch(seed: u64, rows: usize, vocabulary: usize, spread: f32) -> Batch {
    let mut rng = Rng(seed);
    let mut logits: Vec<f32> =
        (0..rows * vocabulary).map(|_| (rng.uniform() - 0.5) * spread).collect();
    for _ in 0..rows * vocabulary / 10 {
        let (to, from) = (rng.below(logits.len()), rng.below(logits.len()));
        logits[to] = logits[from];
    }
    logits[0] = f32::NEG_INFINITY;
    let mut pick = |values: &[f32]| values[rng.below(values.len())];
    Batch {
        temperature: (0..rows).map(|_| pick(&[0.25, 1.0, 1.7])).collect(),
        top_k: (0..rows).map(|_| pick(&[0.0, 1.0, 2.0, 40.0, 300.0]) as i32).collect(),
        top_p: (0..rows).map(|_| pick(&[1.0, 0.0, 0.3, 0.95, 0.999_999])).collect(),
        seed: (0..rows).map(|i| i as i64 - 3).collect(),
        position: (0..rows).map(|i| i as i32 * 7).collect(),
        logits,
        vocabulary,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(64)))]

    #[test]
    fn agrees_with_the_plain_steps_whatever_the_isa_threads_and_batch_mates(
        seed in any::<u64>(),
        rows in 1usize..8,
        vocabulary in prop_oneof![2usize..50, 900usize..5000],
        spread in prop_oneof![Just(0.5f32), Just(8.0), Just(80.0)],
    ) {
        let batch = random_batch(seed, rows, vocabulary, spread);
        let want: Vec<i32> = (0..rows).map(|row| reference(&batch.row(row))).collect();
        for isa in isas() {
            prop_assert_eq!(&batch.run(isa, 1), &want, "{}", isa);
            prop_assert_eq!(&batch.run(isa, 4), &want, "{}, 4 threads", isa);
        }
        for (row, want) in want.iter().enumerate() {
            prop_assert_eq!(batch.row(row).token(), *want, "row {} alone", row);
        }
    }
}

#[test]
fn greedy_takes_the_first_largest() {
    let low = f32::NEG_INFINITY;
    let cases: [(&[f32], i32); 5] = [
        (&[1.0, 3.0, 3.0, 2.0], 1),
        (&[-0.0, 0.0], 0),
        (&[-7.0], 0),
        (&[low, -1.0], 1),
        (&[low, f32::MAX, low], 1),
    ];
    for isa in isas() {
        for (logits, want) in cases {
            for temperature in [0.0, -1.0, f32::NAN] {
                let token = Batch::one(logits, temperature, 0, 1.0).run(isa, 1)[0];
                assert_eq!(token, want, "{isa}: {logits:?}");
            }
        }
        let mut long = vec![low; 1003];
        for at in [1002, 700, 64, 63, 1] {
            long[at] = 5.0;
            assert_eq!(Batch::one(&long, 0.0, 0, 1.0).run(isa, 1)[0], at as i32, "{isa}");
        }
    }
}

/// However the row is sampled and wherever the logit lies; a row beside it gets what it gets alone.
#[test]
fn a_row_that_says_nothing_of_what_comes_next_gets_no_id() {
    let low = f32::NEG_INFINITY;
    let parameters = [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.7, 2, 1.0), (1.3, 0, 0.5), (1e-40, 0, 1.0)];
    for isa in isas() {
        for (temperature, top_k, top_p) in parameters {
            let of = |logits: &[f32]| Batch::one(logits, temperature, top_k, top_p);
            for length in [1, 3, 16, 64, 67, 1003] {
                assert_eq!(of(&vec![low; length]).run(isa, 1), [NO_ID], "{isa}: {length}");
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    for at in [0, length / 2, length - 1] {
                        let mut logits: Vec<f32> = (0..length).map(|i| (i % 7) as f32).collect();
                        logits[at] = bad;
                        assert_eq!(of(&logits).run(isa, 1), [NO_ID], "{isa}: {bad} at {at}");
                    }
                }
            }
            let mut batch = random_batch(3, 3, 70, 8.0);
            let want = batch.run(isa, 1);
            batch.logits[75] = f32::NAN;
            assert_eq!(batch.run(isa, 2), [want[0], NO_ID, want[2]], "{isa}");
        }
    }
}

#[test]
fn odd_parameters_have_the_stated_meaning() {
    let logits = [0.0, 9.0, 1.0, f32::NEG_INFINITY];
    for (temperature, top_k, top_p) in
        [(1e-40, 0, 1.0), (1e-3, 0, 1.0), (1.0, 1, 1.0), (1.0, 0, -3.0), (5.0, 0, 0.0)]
    {
        assert_eq!(Batch::one(&logits, temperature, top_k, top_p).token(), 1);
    }
    for (top_k, top_p) in [(-2, f32::NAN), (i32::MAX, 7.0), (4, 1.0)] {
        let with = Batch::one(&logits, 3.0, top_k, top_p);
        let without = Batch::one(&logits, 3.0, 0, 1.0);
        assert_eq!(with.token(), without.token());
    }
}

#[test]
fn draws_follow_the_distribution_and_the_filters() {
    const DRAWS: usize = 20_000;
    let logits = [0.0, 1.0, 2.0, 0.5, -1.0];
    let shares = |temperature: f64, kept: &[usize]| {
        let weight = |i: usize| (f64::from(logits[i]) / temperature).exp();
        let total: f64 = kept.iter().map(|i| weight(*i)).sum();
        let mut shares = [0.0; 5];
        for i in kept {
            shares[*i] = weight(*i) / total;
        }
        shares
    };
    let cases = [
        (1.0, 0, 1.0, shares(1.0, &[0, 1, 2, 3, 4])),
        (2.0, 0, 1.0, shares(2.0, &[0, 1, 2, 3, 4])),
        (1.0, 3, 1.0, shares(1.0, &[1, 2, 3])),
        (1.0, 0, 0.7, shares(1.0, &[1, 2])),
        (1.0, 3, 0.5, shares(1.0, &[2])),
    ];
    for (temperature, top_k, top_p, want) in cases {
        let mut batch = Batch::one(&logits, temperature as f32, top_k, top_p);
        batch.logits = logits.repeat(DRAWS);
        batch.temperature = vec![temperature as f32; DRAWS];
        batch.top_k = vec![top_k; DRAWS];
        batch.top_p = vec![top_p; DRAWS];
        batch.seed = vec![42; DRAWS];
        batch.position = (0..DRAWS as i32).collect();
        let mut counts = [0; 5];
        for token in batch.run(Isa::detected(), 1) {
            counts[token as usize] += 1;
        }
        for i in 0..5 {
            let expected = want[i] * DRAWS as f64;
            let deviation = (expected * (1.0 - want[i])).sqrt();
            let error = (f64::from(counts[i]) - expected).abs();
            assert!(error <= 4.5 * deviation, "token {i}: {counts:?}, want shares {want:?}");
        }
    }
}

#[test]
fn seed_and_position_both_change_the_draw() {
    let logits = vec![0.0; 4096];
    let draw = |seed, position| {
        let mut batch = Batch::one(&logits, 1.0, 0, 1.0);
        (batch.seed[0], batch.position[0]) = (seed, position);
        batch.token()
    };
    let tokens = [draw(1, 0), draw(1, 1), draw(2, 0), draw(1 << 32, 0), draw(-1, 0)];
    let distinct: std::collections::BTreeSet<i32> = tokens.into_iter().collect();
    assert_eq!(distinct.len(), tokens.len(), "{tokens:?}");
}

#[test]
fn bad_arguments_are_typed_errors() {
    let error_of = |change: &dyn Fn(&mut Batch), scratch: usize| {
        let mut batch = Batch::one(&[1.0, 2.0], 1.0, 0, 1.0);
        change(&mut batch);
        let mut out = [7];
        let error =
            batch.try_run(Isa::detected(), &mut out, AlignedBytes::new(scratch).get()).unwrap_err();
        assert_eq!(out, [7]);
        error
    };
    use CpuMathError::*;
    assert!(matches!(error_of(&|b| b.vocabulary = 0, 64), BadShape { name: "vocabulary", .. }));
    assert!(matches!(error_of(&|b| b.vocabulary = 1 << 30, 64), BadShape { .. }));
    assert!(matches!(
        error_of(&|b| b.vocabulary = 3, 64),
        OperandTooShort { operand: "logits", need: 3, have: 2, .. }
    ));
    assert!(matches!(
        error_of(&|b| b.seed.clear(), 64),
        OperandTooShort { operand: "seed", need: 1, have: 0, .. }
    ));
    assert!(matches!(error_of(&|_| (), 63), Scratch { need: 64, have: 63, .. }));
}
