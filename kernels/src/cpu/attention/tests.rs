use piecewise_testing::soak;
use proptest::prelude::*;

use super::*;
use crate::cpu::testing::{AlignedBytes, FloatVec, Rng, isas, on_threads};
use piecewise_ir::dtype::DType;

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Sequences of (query rows, total length) with their keys, values and pages; everything that no
/// sequence owns is NaN or out of range.
struct Batch {
    shape: AttentionShape,
    sequences: Vec<(usize, usize)>,
    causal: bool,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: Option<Vec<f32>>,
    q: FloatVec,
    k: FloatVec,
    v: FloatVec,
    table: Vec<i32>,
    max_blocks: usize,
    seq_lens: Vec<i32>,
    query_start: Vec<i32>,
}

/// Scores of long rows would be so far apart that one key has all the weight.
fn scale(shape: AttentionShape) -> f32 {
    (2.0 / (shape.head_dim as f32).sqrt()).min(0.3)
}

const PADDING_ROWS: usize = 2;

impl Batch {
    fn new(
        seed: u64,
        shape: AttentionShape,
        sequences: &[(usize, usize)],
        causal: bool,
        [q_type, kv_type]: [DType; 2],
    ) -> Batch {
        let mut rng = Rng(seed);
        let blocks: Vec<usize> = sequences.iter().map(|(_, len)| len.div_ceil(PAGE_ROWS)).collect();
        let max_blocks = blocks.iter().max().copied().unwrap_or(0) + 1;
        let pages = blocks.iter().sum::<usize>() + 2;
        let mut free: Vec<i32> = (0..pages as i32).collect();
        let mut table = vec![i32::MAX; sequences.len() * max_blocks];
        let (k_row, v_row) = (shape.kv_heads * shape.head_dim, shape.kv_heads * shape.value_dim);
        let mut k = vec![f32::NAN; pages * PAGE_ROWS * k_row];
        let mut v = vec![f32::NAN; pages * PAGE_ROWS * v_row];
        let mut query_start = vec![0];
        for (s, (queries, len)) in sequences.iter().enumerate() {
            query_start.push(query_start[s] + *queries as i32);
            for entry in 0..blocks[s] {
                table[s * max_blocks + entry] = free.swap_remove(rng.below(free.len()));
            }
            for position in 0..*len {
                let page = table[s * max_blocks + position / PAGE_ROWS] as usize;
                let slot = page * PAGE_ROWS + position % PAGE_ROWS;
                k[slot * k_row..][..k_row].fill_with(|| rng.uniform() * 4.0 - 2.0);
                v[slot * v_row..][..v_row].fill_with(|| rng.uniform() * 2.0 - 1.0);
            }
        }
        let real = query_start[sequences.len()] as usize;
        let q_row = shape.q_heads * shape.head_dim;
        let mut q = vec![f32::NAN; (real + PADDING_ROWS) * q_row];
        q[..real * q_row].fill_with(|| rng.uniform() * 4.0 - 2.0);
        Batch {
            shape,
            sequences: sequences.to_vec(),
            causal,
            window: None,
            softcap: None,
            sinks: None,
            q: FloatVec::round_from(q_type, &q),
            k: FloatVec::round_from(kv_type, &k),
            v: FloatVec::round_from(kv_type, &v),
            table,
            max_blocks,
            seq_lens: sequences.iter().map(|(_, len)| *len as i32).collect(),
            query_start,
        }
    }

    fn empty_out(&self) -> FloatVec {
        let rows = self.q.len() / (self.shape.q_heads * self.shape.head_dim);
        let len = rows * self.shape.q_heads * self.shape.value_dim;
        FloatVec::round_from(self.q.as_slice().dtype(), &vec![f32::NAN; len])
    }

    fn run(&self, isa: Isa, threads: usize) -> FloatVec {
        let mut out = self.empty_out();
        let mut scratch = AlignedBytes::new(attention_scratch_bytes(self.shape, threads));
        on_threads(threads, || self.try_run(isa, &mut out, scratch.get())).unwrap();
        out
    }

    fn try_run(
        &self,
        isa: Isa,
        out: &mut FloatVec,
        scratch: &mut [u8],
    ) -> Result<(), CpuMathError> {
        let call = Attention {
            shape: self.shape,
            q: self.q.as_slice(),
            k: self.k.as_slice(),
            v: self.v.as_slice(),
            query_start: &self.query_start,
            keys: Keys::Paged {
                block_table: &self.table,
                max_blocks: self.max_blocks,
                lengths: &self.seq_lens,
            },
            scale: scale(self.shape),
            causal: self.causal,
            window: self.window,
            softcap: self.softcap,
            sinks: self.sinks.as_deref().map(FloatSlice::F32),
        };
        attention(isa, &call, out.as_slice_mut(), scratch)
    }

    fn slot(&self, sequence: usize, position: usize) -> usize {
        let page = self.table[sequence * self.max_blocks + position / PAGE_ROWS] as usize;
        page * PAGE_ROWS + position % PAGE_ROWS
    }

    /// Keys and values in order of position, packed as the queries are.
    fn packed(&self) -> (FloatVec, FloatVec) {
        let gather = |pool: &FloatVec, width: usize| {
            let rows = self.q.len() / (self.shape.q_heads * self.shape.head_dim);
            let mut values = vec![f32::NAN; rows * width];
            for (s, (_, len)) in self.sequences.iter().enumerate() {
                for position in 0..*len {
                    let row = self.query_start[s] as usize + position;
                    for i in 0..width {
                        values[row * width + i] = pool.get(self.slot(s, position) * width + i);
                    }
                }
            }
            FloatVec::round_from(pool.as_slice().dtype(), &values)
        };
        let AttentionShape { kv_heads, head_dim, value_dim, .. } = self.shape;
        (gather(&self.k, kv_heads * head_dim), gather(&self.v, kv_heads * value_dim))
    }

    /// Attends to the packed keys and values, each segment to itself.
    fn run_segments(&self, isa: Isa, window: Option<usize>) -> FloatVec {
        let (k, v) = self.packed();
        let mut out = self.empty_out();
        let mut scratch = AlignedBytes::new(attention_scratch_bytes(self.shape, 1));
        let call = Attention {
            shape: self.shape,
            q: self.q.as_slice(),
            k: k.as_slice(),
            v: v.as_slice(),
            query_start: &self.query_start,
            keys: Keys::Segments {
                starts: &self.query_start[..self.sequences.len()],
                lengths: &self.seq_lens,
            },
            scale: scale(self.shape),
            causal: self.causal,
            window,
            softcap: self.softcap,
            sinks: self.sinks.as_deref().map(FloatSlice::F32),
        };
        attention(isa, &call, out.as_slice_mut(), scratch.get()).unwrap();
        out
    }

    fn check(&self, out: &FloatVec) {
        self.check_windowed(out, self.window);
    }

    fn check_windowed(&self, out: &FloatVec, window: Option<usize>) {
        let AttentionShape { q_heads, kv_heads, head_dim, value_dim } = self.shape;
        let step = match self.q.as_slice().dtype() {
            DType::F32 => 2e-6,
            DType::F16 => 1e-3,
            _ => 8e-3,
        };
        let out_row = q_heads * value_dim;
        for (s, (queries, len)) in self.sequences.iter().enumerate() {
            for j in 0..*queries {
                let row = self.query_start[s] as usize + j;
                let position = (len + j).saturating_sub(*queries);
                let end = if self.causal { position + 1 } else { *len };
                let visible = match window {
                    None => 0..end,
                    Some(w) => position.saturating_sub(w)..end.min(position + w + 1),
                };
                for head in 0..q_heads {
                    let got = |i| out.get(row * out_row + head * value_dim + i);
                    if *len == 0 {
                        assert!((0..value_dim).all(|i| got(i).is_nan()), "padding was written");
                        continue;
                    }
                    let key_head = head / (q_heads / kv_heads);
                    let at = |pool: &FloatVec, position, width, i| {
                        f64::from(
                            pool.get((self.slot(s, position) * kv_heads + key_head) * width + i),
                        )
                    };
                    let scores: Vec<f64> = visible
                        .clone()
                        .map(|p| {
                            let query =
                                |i| f64::from(self.q.get((row * q_heads + head) * head_dim + i));
                            let dot: f64 =
                                (0..head_dim).map(|i| query(i) * at(&self.k, p, head_dim, i)).sum();
                            let score = dot * f64::from(scale(self.shape));
                            let cap = self.softcap.map(f64::from);
                            cap.map_or(score, |cap| cap * (score / cap).tanh())
                        })
                        .collect();
                    let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                    let all = || scores.iter().copied().chain(sink);
                    let largest = all().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|x| (x - largest).exp()).collect();
                    let sum: f64 = all().map(|x| (x - largest).exp()).sum();
                    for i in 0..value_dim {
                        let want: f64 = weights
                            .iter()
                            .zip(visible.clone())
                            .map(|(w, p)| w / sum * at(&self.v, p, value_dim, i))
                            .sum();
                        let error = (f64::from(got(i)) - want).abs();
                        assert!(
                            error <= step * (1.0 + want.abs()),
                            "sequence {s} query {j} head {head}: {} is not {want}",
                            got(i)
                        );
                    }
                }
            }
        }
        let real = self.query_start[self.sequences.len()] as usize * out_row;
        assert!((real..out.len()).all(|i| out.get(i).is_nan()), "rows past the last were written");
    }
}

fn shapes() -> impl Strategy<Value = AttentionShape> {
    let dim = |small| prop_oneof![6 => small, 1 => Just(136), 1 => Just(256)];
    (1usize..4, 1usize..4, dim(1usize..40), dim(1usize..80)).prop_map(
        |(kv_heads, group, head_dim, value_dim)| AttentionShape {
            q_heads: kv_heads * group,
            kv_heads,
            head_dim,
            value_dim,
        },
    )
}

fn sequences() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let one = (1usize..6, 0usize..70, 0usize..8).prop_map(|(queries, past, kind)| match kind {
        0 => (queries, 0),
        1 => (queries * 20, queries * 20 + past),
        _ => (queries, queries + past),
    });
    prop::collection::vec(one, 0..6)
}

fn float_type() -> impl Strategy<Value = DType> {
    prop::sample::select(TYPES.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(64)))]

    #[test]
    fn agrees_with_f64_over_batches_types_and_threads(
        seed in any::<u64>(),
        shape in shapes(),
        sequences in sequences(),
        causal in any::<bool>(),
        types in (float_type(), float_type()),
    ) {
        let batch = Batch::new(seed, shape, &sequences, causal, [types.0, types.1]);
        for isa in isas() {
            let out = batch.run(isa, 1);
            batch.check(&out);
            prop_assert_eq!(out.bits(), batch.run(isa, 4).bits(), "1 and 4 threads, {}", isa);
        }
    }

    #[test]
    fn segments_equal_the_pool_bit_for_bit(
        seed in any::<u64>(),
        shape in shapes(),
        lengths in prop::collection::vec(0usize..60, 0..5),
        causal in any::<bool>(),
        types in (float_type(), float_type()),
    ) {
        let sequences: Vec<_> = lengths.iter().map(|len| (*len, *len)).collect();
        let batch = Batch::new(seed, shape, &sequences, causal, [types.0, types.1]);
        for isa in isas() {
            let out = batch.run_segments(isa, None);
            batch.check(&out);
            prop_assert_eq!(out.bits(), batch.run(isa, 1).bits());
        }
    }

    #[test]
    fn a_window_hides_what_is_farther(
        seed in any::<u64>(),
        shape in shapes(),
        lengths in prop::collection::vec(0usize..60, 0..5),
        causal in any::<bool>(),
        window in 0usize..40,
    ) {
        let sequences: Vec<_> = lengths.iter().map(|len| (*len, *len)).collect();
        let batch = Batch::new(seed, shape, &sequences, causal, [DType::F32; 2]);
        for isa in isas() {
            let out = batch.run_segments(isa, Some(window));
            batch.check_windowed(&out, Some(window));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(32)))]

    #[test]
    fn windows_caps_and_sinks_over_a_pool(
        seed in any::<u64>(),
        shape in shapes(),
        sequences in sequences(),
        window in prop::option::of(0usize..40),
        softcap in prop::option::of(0.5f32..3.0),
        sinks in prop::option::of(-3.0f32..4.0),
    ) {
        let mut batch = Batch::new(seed, shape, &sequences, true, [DType::F32; 2]);
        batch.window = window;
        batch.softcap = softcap;
        batch.sinks = sinks.map(|sink| (0..shape.q_heads).map(|head| sink - head as f32).collect());
        for isa in isas() {
            batch.check(&batch.run(isa, 1));
        }
    }
}

/// Pages that no row of a step sees are not looked at.
#[test]
fn no_key_before_the_window_is_read() {
    let mut batch = Batch::new(3, SMALL, &[(3, 100)], true, [DType::F32; 2]);
    batch.window = Some(19);
    let clean = batch.run(Isa::detected(), 1).bits();
    // The first of the rows sees 78 to 97, so that the first four pages are out of reach.
    let (k_row, v_row) = (SMALL.kv_heads * SMALL.head_dim, SMALL.kv_heads * SMALL.value_dim);
    for position in 0..64 {
        let slot = batch.slot(0, position);
        (0..k_row).for_each(|i| batch.k.set(slot * k_row + i, f32::NAN));
        (0..v_row).for_each(|i| batch.v.set(slot * v_row + i, f32::NAN));
    }
    let out = batch.run(Isa::detected(), 1);
    batch.check(&out);
    assert_eq!(out.bits(), clean);
}

#[test]
fn fewer_sinks_than_heads_are_refused() {
    let error = error_of(|batch| batch.sinks = Some(vec![0.0; SMALL.q_heads - 1]));
    assert!(matches!(error, CpuMathError::OperandTooShort { operand: "sinks", .. }), "{error}");
}

#[test]
fn a_window_beyond_every_key_is_none() {
    let batch = Batch::new(3, SMALL, &[(50, 50), (7, 7)], false, [DType::BF16; 2]);
    let isa = Isa::detected();
    let unbounded = batch.run_segments(isa, None).bits();
    assert_eq!(batch.run_segments(isa, Some(usize::MAX)).bits(), unbounded);
    assert_ne!(batch.run_segments(isa, Some(3)).bits(), unbounded);
}

#[test]
fn queries_that_see_no_key_give_zeros() {
    let batch = Batch::new(3, SMALL, &[(4, 4)], true, [DType::F32; 2]);
    let (k, v) = batch.packed();
    let mut out = batch.empty_out();
    let mut scratch = AlignedBytes::new(attention_scratch_bytes(SMALL, 1));
    let call = Attention {
        shape: SMALL,
        q: batch.q.as_slice(),
        k: k.as_slice(),
        v: v.as_slice(),
        query_start: &[0, 4],
        keys: Keys::Segments { starts: &[0], lengths: &[2] },
        scale: scale(SMALL),
        causal: true,
        window: None,
        softcap: None,
        sinks: None,
    };
    attention(Isa::detected(), &call, out.as_slice_mut(), scratch.get()).unwrap();
    let row = SMALL.q_heads * SMALL.value_dim;
    assert!((0..2 * row).all(|i| out.get(i) == 0.0));
    assert!((2 * row..4 * row).all(|i| out.get(i) != 0.0));
}

const SMALL: AttentionShape =
    AttentionShape { q_heads: 4, kv_heads: 2, head_dim: 24, value_dim: 20 };

#[test]
fn a_chunk_of_a_prompt_gets_the_bits_of_the_whole_prompt() {
    let whole = Batch::new(7, SMALL, &[(100, 100)], true, [DType::BF16; 2]);
    let q_row = SMALL.q_heads * SMALL.head_dim;
    let out_row = SMALL.q_heads * SMALL.value_dim;
    for (first, last) in [(0, 1), (0, 37), (37, 90), (99, 100)] {
        let mut chunk = Batch::new(7, SMALL, &[(100, 100)], true, [DType::BF16; 2]);
        let rows: Vec<f32> = (first * q_row..last * q_row).map(|i| whole.q.get(i)).collect();
        chunk.q = FloatVec::round_from(DType::BF16, &rows);
        chunk.seq_lens = vec![last as i32];
        chunk.query_start = vec![0, (last - first) as i32];
        for isa in isas() {
            let want = &whole.run(isa, 1).bits()[first * out_row..last * out_row];
            assert_eq!(chunk.run(isa, 1).bits(), want, "{isa}, rows {first}..{last}");
        }
    }
}

#[test]
fn minus_infinite_scores_weigh_nothing_and_later_values_do_not_leak_back() {
    let mut batch = Batch::new(1, SMALL, &[(40, 40)], true, [DType::F32; 2]);
    for i in 0..batch.q.len() {
        batch.q.set(i, 1.0);
    }
    let k_row = SMALL.kv_heads * SMALL.head_dim;
    for position in 0..20 {
        batch.k.set(batch.slot(0, position) * k_row, f32::NEG_INFINITY);
    }
    let v_row = SMALL.kv_heads * SMALL.value_dim;
    batch.v.set(batch.slot(0, 35) * v_row, f32::INFINITY);
    for isa in isas() {
        let out = batch.run(isa, 1);
        let at = |row: usize| out.get(row * SMALL.q_heads * SMALL.value_dim);
        assert!(at(19).is_nan(), "{isa}: a row with only -inf has no softmax");
        for row in 20..35 {
            assert!(at(row).is_finite(), "{isa}: row {row} is {}", at(row));
        }
        assert_eq!(at(35), f32::INFINITY, "{isa}");
    }
}

fn error_of(change: impl FnOnce(&mut Batch)) -> CpuMathError {
    let mut batch = Batch::new(1, SMALL, &[(2, 20), (1, 5)], true, [DType::F32; 2]);
    let mut out = batch.empty_out();
    change(&mut batch);
    let mut scratch = AlignedBytes::new(attention_scratch_bytes(SMALL, 1));
    let error = batch.try_run(Isa::detected(), &mut out, scratch.get()).unwrap_err();
    assert!((0..out.len()).all(|i| out.get(i).is_nan()), "an error must leave the output alone");
    error
}

#[test]
fn bad_indices_are_typed_errors() {
    use CpuMathError::*;
    assert!(matches!(
        error_of(|b| b.table[1] = -1),
        PageOutOfPool { sequence: 0, entry: 1, page: -1, .. }
    ));
    assert!(matches!(
        error_of(|b| b.table[b.max_blocks] = i32::MAX),
        PageOutOfPool { sequence: 1, entry: 0, .. }
    ));
    assert!(matches!(
        error_of(|b| b.seq_lens[0] = 1),
        SequenceLength { sequence: 0, length: 1, queries: 2, .. }
    ));
    assert!(matches!(error_of(|b| b.seq_lens[1] = -5), SequenceLength { sequence: 1, .. }));
    assert!(matches!(error_of(|b| b.seq_lens[1] = 49), SequenceLength { capacity: 48, .. }));
    assert!(matches!(error_of(|b| b.query_start[0] = 1), QueryStart { index: 0, .. }));
    assert!(matches!(error_of(|b| b.query_start[1] = -1), QueryStart { index: 1, .. }));
    assert!(matches!(error_of(|b| b.query_start[2] = 99), QueryStart { index: 2, high: 5, .. }));
    assert!(matches!(error_of(|b| b.shape.kv_heads = 3), BadShape { name: "q_heads", .. }));
    assert!(matches!(error_of(|b| b.shape.value_dim = 0), BadShape { name: "value_dim", .. }));
    assert!(matches!(
        error_of(|b| b.table.truncate(3)),
        OperandTooShort { operand: "block_table", .. }
    ));
}
