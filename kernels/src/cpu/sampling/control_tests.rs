//! What rows ask for besides their parameters, against definitions in f64.

use super::*;
use crate::cpu::testing::{AlignedBytes, Rng, isas, on_threads};
use crate::inputs::{
    DETAIL_WORDS, Details, NO_ID, SampleControls, Sampling, fill_token_row, mask_words, token_words,
};
use piecewise_testing::soak;
use proptest::prelude::*;

/// A row and what it asks for.
#[derive(Clone, Debug, Default)]
struct Asked {
    logits: Vec<f32>,
    sampling: Sampling,
    position: i32,
    prompt: Vec<u32>,
    generated: Vec<u32>,
    biases: Vec<(u32, f32)>,
    allowed: Option<Vec<u32>>,
    logprobs: Option<u32>,
    given: Option<u32>,
}

/// The token, its log-probability and rank, and those of the likeliest.
type Answer = (i32, Option<(f32, u32, Vec<(u32, f32)>)>);

impl Asked {
    fn weighs(&self) -> bool {
        let Sampling { presence_penalty, frequency_penalty, repetition_penalty, .. } =
            self.sampling;
        (presence_penalty, frequency_penalty, repetition_penalty) != (0.0, 0.0, 1.0)
            || !self.biases.is_empty()
    }

    /// The logits by the definition, in f64 from lists of ids.
    fn adjusted(&self) -> Vec<f64> {
        let s = self.sampling;
        let adjust = |(id, logit): (usize, &f32)| {
            let id = id as u32;
            let times = self.generated.iter().filter(|&&other| other == id).count();
            let mut logit = f64::from(*logit);
            logit += self.biases.iter().find(|b| b.0 == id).map_or(0.0, |b| f64::from(b.1));
            if times > 0 || self.prompt.contains(&id) {
                let repetition = f64::from(s.repetition_penalty);
                logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
            }
            logit -= f64::from(s.frequency_penalty) * times as f64;
            logit -= f64::from(s.presence_penalty) * f64::from(times > 0);
            let is_allowed = self.allowed.as_ref().is_none_or(|ids| ids.contains(&id));
            if is_allowed { logit } else { f64::NEG_INFINITY }
        };
        self.logits.iter().enumerate().map(adjust).collect()
    }
}

/// Samples rows of one vocabulary together; returns the states of tokens too.
fn run(rows: &[Asked], isa: Isa, threads: usize) -> (Vec<Answer>, Vec<i32>) {
    let vocabulary = rows[0].logits.len();
    let [of_mask, of_tokens] =
        [mask_words, token_words].map(|words| words(vocabulary as u64) as usize);
    let mut masks = vec![0; of_mask * rows.len()];
    let mut tokens = vec![0; of_tokens * rows.len()];
    let mut controls = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        // Rows of the states are in another order than those that sample.
        let entry = rows.len() - 1 - i;
        for &id in row.allowed.iter().flatten() {
            masks[entry * of_mask + id as usize / 32] |= 1 << (id % 32);
        }
        let state = &mut tokens[entry * of_tokens..][..of_tokens];
        fill_token_row(state, vocabulary as u64, &row.prompt, &row.generated, &row.biases);
        controls.extend(
            SampleControls {
                mask: row.allowed.as_ref().map(|_| entry as u32),
                tokens: row.weighs().then_some(entry as u32),
                counts: row.weighs(),
                logprobs: row.logprobs,
                given: row.given,
            }
            .words(),
        );
    }
    let of = |f: fn(&Asked) -> f32| rows.iter().map(f).collect::<Vec<_>>();
    let logits: Vec<f32> = rows.iter().flat_map(|row| row.logits.clone()).collect();
    let penalties: Vec<f32> = rows
        .iter()
        .map(|row| row.sampling)
        .flat_map(|s| [s.min_p, s.presence_penalty, s.frequency_penalty, s.repetition_penalty])
        .collect();
    let mut details = vec![7; DETAIL_WORDS * rows.len()];
    let mut out = vec![-7; rows.len()];
    let mut scratch = AlignedBytes::new(sample_scratch_bytes(vocabulary, true, threads));
    let args = SampleArgs {
        logits: &logits,
        vocabulary,
        temperature: &of(|row| row.sampling.temperature),
        top_k: &rows.iter().map(|row| row.sampling.top_k as i32).collect::<Vec<_>>(),
        top_p: &of(|row| row.sampling.top_p),
        seed: &rows.iter().map(|row| row.sampling.seed as i64).collect::<Vec<_>>(),
        position: &rows.iter().map(|row| row.position).collect::<Vec<_>>(),
        controls: Some(ControlArgs {
            controls: &controls,
            penalties: &penalties,
            masks: &masks,
            tokens: &mut tokens,
            details: &mut details,
        }),
        out: &mut out,
        scratch: scratch.get(),
    };
    on_threads(threads, || sample(isa, args)).unwrap();
    let bytes: &[u8] = bytemuck::cast_slice(&details);
    let answers = out.iter().enumerate().map(|(i, &token)| {
        let told = Details::of_row(bytes, i).unwrap();
        let told = (told.logprob(), told.rank(), told.top().collect());
        (token, rows[i].logprobs.map(|_| told))
    });
    (answers.collect(), tokens)
}

fn alone(row: &Asked) -> Answer {
    run(std::slice::from_ref(row), Isa::detected(), 1).0.remove(0)
}

fn asked() -> impl Strategy<Value = Vec<Asked>> {
    (any::<u64>(), 1usize..6, prop_oneof![2usize..40, 900usize..2100]).prop_map(
        |(seed, rows, vocabulary)| {
            let mut rng = Rng(seed);
            (0..rows).map(|row| random_row(&mut rng, row, vocabulary)).collect()
        },
    )
}

fn random_row(rng: &mut Rng, row: usize, vocabulary: usize) -> Asked {
    let ids = |rng: &mut Rng, most: usize| {
        let count = rng.below(most);
        (0..count).map(|_| rng.below(vocabulary) as u32).collect::<Vec<_>>()
    };
    let mut asked = Asked {
        logits: (0..vocabulary).map(|_| (rng.uniform() - 0.5) * 12.0).collect(),
        position: row as i32 * 3,
        prompt: ids(rng, 30),
        generated: ids(rng, 30),
        ..Asked::default()
    };
    let mut pick = |values: &[f32]| values[rng.below(values.len())];
    asked.sampling = Sampling {
        temperature: pick(&[0.0, 0.7, 1.0]),
        top_k: pick(&[0.0, 0.0, 5.0]) as u32,
        top_p: pick(&[1.0, 0.9]),
        min_p: pick(&[0.0, 0.2, 1.0]),
        presence_penalty: pick(&[0.0, 0.7, -2.0]),
        frequency_penalty: pick(&[0.0, 0.3, -1.0]),
        repetition_penalty: pick(&[1.0, 1.3, 0.5]),
        seed: row as u64,
    };
    if rng.below(2) == 0 {
        let mut biased = ids(rng, 20);
        biased.sort_unstable();
        biased.dedup();
        biased.reverse();
        asked.biases = biased.into_iter().map(|id| (id, (id % 7) as f32 - 3.0)).collect();
    }
    if rng.below(3) == 0 {
        asked.allowed = Some([ids(rng, 20), vec![rng.below(vocabulary) as u32]].concat());
    }
    asked.logprobs = [None, Some(0), Some(3), Some(20)][rng.below(4)];
    asked.given = (rng.below(5) == 0).then(|| rng.below(vocabulary) as u32);
    asked
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(64)))]

    #[test]
    fn a_row_gets_the_same_alone_and_in_company_whatever_the_isa(rows in asked()) {
        let expected: Vec<_> = rows.iter().map(alone).collect();
        for isa in isas() {
            prop_assert_eq!(&run(&rows, isa, 1).0, &expected, "{}", isa);
            prop_assert_eq!(&run(&rows, isa, 3).0, &expected, "{}, 3 threads", isa);
        }
    }

    /// Biases, the three penalties and masks: the greedy token is the largest by the definition, and
    /// a draw at least is one that may come.
    #[test]
    fn tokens_are_those_of_the_definition(rows in asked()) {
        for mut row in rows {
            row.given = None;
            let adjusted = row.adjusted();
            let largest = adjusted.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(adjusted[alone(&row).0 as usize] > f64::NEG_INFINITY);
            row.sampling.temperature = 0.0;
            let found = adjusted[alone(&row).0 as usize];
            prop_assert!(found >= largest - 1e-4, "{} of {}", found, largest);
        }
    }

    /// Log-probabilities are those of the logits as they come, whatever else is asked for.
    #[test]
    fn log_probabilities_are_those_of_a_softmax_in_f64(rows in asked()) {
        for mut row in rows {
            row.logprobs = Some(20);
            let (token, told) = alone(&row);
            prop_assert!(row.given.is_none_or(|id| id as i32 == token));
            let (logprob, rank, top) = told.unwrap();
            let sum: f64 = row.logits.iter().map(|&x| f64::from(x).exp()).sum();
            let of = |id: usize| f64::from(row.logits[id]) - sum.ln();
            prop_assert!((f64::from(logprob) - of(token as usize)).abs() < 2e-6);
            let chosen = row.logits[token as usize];
            let larger = row.logits.iter().filter(|&&x| x > chosen).count();
            prop_assert_eq!(rank as usize, larger + 1);
            let mut order: Vec<usize> = (0..row.logits.len()).collect();
            order.sort_by(|&a, &b| row.logits[b].total_cmp(&row.logits[a]).then(a.cmp(&b)));
            order.truncate(20);
            prop_assert_eq!(top.iter().map(|t| t.0 as usize).collect::<Vec<_>>(), order);
            for (id, logprob) in top {
                prop_assert!((f64::from(logprob) - of(id as usize)).abs() < 2e-6);
            }
        }
    }

    /// A row that asks for nothing gets the token of the op that has nothing to ask for.
    #[test]
    fn a_row_that_asks_for_nothing_is_left_alone(rows in asked()) {
        let plain = |row: &Asked| Asked {
            sampling: Sampling {
                min_p: 0.0,
                presence_penalty: 0.0,
                frequency_penalty: 0.0,
                repetition_penalty: 1.0,
                ..row.sampling
            },
            biases: Vec::new(),
            allowed: None,
            logprobs: None,
            given: None,
            ..row.clone()
        };
        for row in rows.iter().map(plain) {
            let vocabulary = row.logits.len();
            let mut out = [-1];
            let s = row.sampling;
            let mut scratch = AlignedBytes::new(sample_scratch_bytes(vocabulary, false, 1));
            let args = SampleArgs {
                logits: &row.logits,
                vocabulary,
                temperature: &[s.temperature],
                top_k: &[s.top_k as i32],
                top_p: &[s.top_p],
                seed: &[s.seed as i64],
                position: &[row.position],
                controls: None,
                out: &mut out,
                scratch: scratch.get(),
            };
            sample(Isa::detected(), args).unwrap();
            prop_assert_eq!(alone(&row).0, out[0]);
        }
    }
}

#[test]
fn what_min_p_leaves_is_drawn_by_its_probability() {
    const DRAWS: usize = 20_000;
    let logits = vec![0.0f32, 1.0, 2.0, 0.5, -1.0];
    // Of e^2, at least a fifth: e^1 and e^0.5, but not e^0.
    let kept = [1usize, 2, 3];
    let total: f64 = kept.iter().map(|&i| f64::from(logits[i]).exp()).sum();
    let row = |i: usize| Asked {
        logits: logits.clone(),
        sampling: Sampling { temperature: 1.0, min_p: 0.2, seed: 9, ..Sampling::default() },
        position: i as i32,
        ..Asked::default()
    };
    let rows: Vec<_> = (0..DRAWS).map(row).collect();
    let mut counts = [0; 5];
    run(&rows, Isa::detected(), 1).0.iter().for_each(|answer| counts[answer.0 as usize] += 1);
    assert_eq!((counts[0], counts[4]), (0, 0));
    for i in kept {
        let share = f64::from(logits[i]).exp() / total;
        let deviation = (DRAWS as f64 * share * (1.0 - share)).sqrt();
        assert!(
            (f64::from(counts[i]) - DRAWS as f64 * share).abs() < 4.5 * deviation,
            "{counts:?}"
        );
    }
}

/// The op counts what it gives: token for token, the state is that of the ids so far.
#[test]
fn what_is_generated_counts_at_once() {
    let mut rng = Rng(5);
    let vocabulary = 37;
    let mut row = Asked {
        logits: (0..vocabulary).map(|_| rng.uniform()).collect(),
        sampling: Sampling {
            frequency_penalty: 0.01,
            presence_penalty: 0.1,
            ..Sampling::default()
        },
        prompt: vec![3, 5],
        biases: vec![(7, 0.1)],
        ..Asked::default()
    };
    for _ in 0..100 {
        let ((token, _), tokens) = {
            let (answers, tokens) = run(std::slice::from_ref(&row), Isa::detected(), 1);
            (answers[0].clone(), tokens)
        };
        row.generated.push(token as u32);
        let mut expected = vec![0; token_words(vocabulary as u64) as usize];
        let Asked { prompt, generated, biases, .. } = &row;
        fill_token_row(&mut expected, vocabulary as u64, prompt, generated, biases);
        assert_eq!(tokens, expected);
    }
    let distinct: std::collections::BTreeSet<_> = row.generated.iter().collect();
    assert!(distinct.len() > 5, "penalties spread the tokens: {:?}", row.generated);
}

#[test]
fn ids_whose_logit_is_no_number_have_the_least_log_probability() {
    let logits = vec![f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
    let row = Asked { logits, logprobs: Some(20), ..Asked::default() };
    let (token, told) = alone(&row);
    assert_eq!((token, told.unwrap()), (1, (0.0, 1, vec![(1, 0.0), (0, -9999.0), (2, -9999.0)])));
}

/// Whatever a row asks for: nothing is counted, and nothing is told.
#[test]
fn a_row_without_a_finite_largest_logit_gets_no_id_by_any_control() {
    let (low, counts) =
        (f32::NEG_INFINITY, Sampling { presence_penalty: 1.0, ..Sampling::default() });
    let plain = Asked { logprobs: Some(2), prompt: vec![1], ..Asked::default() };
    let asked = [
        plain.clone(),
        Asked { given: Some(1), ..plain.clone() },
        Asked { allowed: Some(vec![1]), ..plain.clone() },
        Asked { sampling: counts, ..plain.clone() },
        Asked { biases: vec![(2, 3.0)], ..plain.clone() },
        Asked { sampling: Sampling { temperature: 0.8, min_p: 0.1, ..counts }, ..plain },
    ];
    for row in asked {
        for logits in [[f32::NAN, 1.0, 2.0], [0.0, 1.0, f32::INFINITY], [low; 3]] {
            let row = Asked { logits: logits.to_vec(), ..row.clone() };
            let beside = Asked { logits: vec![0.0, 2.0, 1.0], ..row.clone() };
            for isa in isas() {
                let (answers, tokens) = run(&[row.clone(), beside.clone()], isa, 2);
                assert_eq!(answers[0].0, NO_ID, "{row:?}");
                assert_eq!(answers[0].1.as_ref().map(|told| &*told.2), Some(&[][..]));
                assert_eq!(answers[1], alone(&beside), "{row:?}");
                let mut before = vec![0; token_words(3) as usize];
                if row.weighs() {
                    fill_token_row(&mut before, 3, &row.prompt, &row.generated, &row.biases);
                    assert_eq!(tokens[before.len()..], before, "nothing is counted");
                }
            }
        }
    }
    // What the mask leaves out may be -inf, and what it leaves may not.
    let masked =
        |allowed| Asked { logits: vec![low, 1.0, low], allowed: Some(allowed), ..Asked::default() };
    assert_eq!([masked(vec![0, 1]), masked(vec![0, 2])].map(|row| alone(&row).0), [1, NO_ID]);
    let huge = Asked { biases: vec![(1, f32::MAX)], ..masked(vec![1]) };
    let huge = Asked { logits: vec![0.0, f32::MAX, 0.0], ..huge };
    assert_eq!(alone(&huge).0, NO_ID, "a bias may leave the range, too");
}

#[test]
fn states_that_rows_reach_past_are_typed_errors() {
    let error_of = |controls: SampleControls| {
        let mut out = [7];
        let mut scratch = AlignedBytes::new(sample_scratch_bytes(4, true, 1));
        let args = SampleArgs {
            logits: &[0.0; 4],
            vocabulary: 4,
            temperature: &[0.0],
            top_k: &[0],
            top_p: &[1.0],
            seed: &[0],
            position: &[0],
            controls: Some(ControlArgs {
                controls: &controls.words(),
                penalties: &[0.0; 4],
                masks: &[-1],
                tokens: &mut vec![0; token_words(4) as usize],
                details: &mut [0; DETAIL_WORDS],
            }),
            out: &mut out,
            scratch: scratch.get(),
        };
        let error = sample(Isa::detected(), args).unwrap_err();
        assert_eq!(out, [7]);
        error
    };
    let base = SampleControls::default();
    for (controls, name) in [
        (SampleControls { mask: Some(1), ..base }, "masks"),
        (SampleControls { given: Some(4), ..base }, "logits"),
        (SampleControls { tokens: Some(1), ..base }, "tokens"),
        (SampleControls { tokens: Some(u32::MAX), counts: true, ..base }, "tokens"),
    ] {
        let error = error_of(controls);
        assert!(
            matches!(error, CpuMathError::OperandTooShort { operand, .. } if operand == name),
            "{error}"
        );
    }
}
