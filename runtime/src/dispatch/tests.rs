use super::*;
use crate::words::sizes::SizeList;
use crate::words::{
    Dispatch, FallbackReason, GraphMode, MAX_OWN, NO_ROWS, StepMode, StepShape, StepSizes,
};
use piecewise_backend::artifact::PieceSize;
use piecewise_testing::soak;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn sizes(max: u64) -> impl Strategy<Value = SizeList> {
    prop::collection::btree_set(1..=max, 1..8)
        .prop_map(move |set| SizeList::new("l", set.into_iter().collect(), "b", max).unwrap())
}

fn dispatcher() -> impl Strategy<Value = Dispatcher> {
    (
        prop::sample::select(GraphMode::ALL.to_vec()),
        sizes(64),
        sizes(24),
        prop::sample::select(vec![vec![1], vec![1, 2], vec![1, 3, 4]]),
        (64u64..80, 1u64..28, 1u64..28),
        any::<bool>(),
    )
        .prop_map(|(mode, tokens, batches, query_lengths, bounds, padding)| Dispatcher {
            mode,
            tokens,
            batches,
            query_lengths,
            max_tokens: bounds.0,
            max_rows: bounds.1,
            max_sequences: bounds.2,
            padding,
            own: Vec::new(),
            rules: SizeRules::default(),
        })
}

/// Any step that the bounds allow: query lengths of sequences, and which want a row.
fn step() -> impl Strategy<Value = Vec<(u64, bool)>> {
    prop_oneof![
        (1u64..28, 1u64..5).prop_map(|(n, q)| vec![(q, true); n as usize]),
        prop::collection::vec((1u64..30, any::<bool>()), 1..28),
    ]
}

fn shape(step: &[(u64, bool)], d: &Dispatcher) -> Option<StepShape> {
    let tokens = step.iter().map(|s| s.0).sum();
    let rows = step.iter().filter(|s| s.1).count() as u64;
    let uniform = step.iter().all(|s| *s == (step[0].0, true));
    let sequences = step.len() as u64;
    let query_length = uniform.then_some(step[0].0);
    let fits = tokens <= d.max_tokens && sequences <= d.max_sequences;
    fits.then_some(StepShape { tokens, rows, sequences, own: [0; MAX_OWN], query_length })
}

/// The smallest listed size that holds `count`, found by looking at all of them.
fn smallest(list: &SizeList, count: u64, padding: bool, bound: u64) -> Option<u64> {
    let fits = |n: &&u64| **n >= count && (padding || **n == count || count == 0);
    let mut fitting: Vec<_> = list.sizes().iter().filter(fits).copied().collect();
    if padding || count == 0 {
        fitting.truncate(1);
    }
    fitting.into_iter().find(|&n| n <= bound)
}

/// The size for tokens: one of their own, or the smallest listed.
fn smallest_tokens(d: &Dispatcher, tokens: u64) -> Option<u64> {
    let own = d.rules.specialized.iter().copied().find(|&size| size == tokens);
    own.or_else(|| smallest(&d.tokens, tokens, d.padding, d.max_tokens))
}

/// Dispatch as the design says it, with sizes that are launched.
fn brute_force(d: &Dispatcher, s: StepShape) -> Dispatch {
    let found = brute_force_sizes(d, s);
    match found.mode != StepMode::None && d.rules.launched.contains(&found.sizes.tokens.rows()) {
        true => launched(found.sizes, Some(FallbackReason::LaunchedSize)),
        false => found,
    }
}

fn launched(sizes: StepSizes, fallback: Option<FallbackReason>) -> Dispatch {
    Dispatch { mode: StepMode::None, sizes, fallback }
}

/// Why a step that no graph holds is launched.
fn reason(d: &Dispatcher, s: StepShape, wants_whole_step: bool) -> FallbackReason {
    let has_size = smallest_tokens(d, s.tokens).is_some();
    if wants_whole_step && has_size && s.rows > d.max_rows {
        FallbackReason::SeveralHeadCalls
    } else if !d.padding {
        FallbackReason::NoExactSize
    } else if has_size {
        FallbackReason::TooManyRows
    } else if d.tokens.sizes().iter().all(|&size| size < s.tokens) {
        FallbackReason::AboveLargestSize
    } else {
        FallbackReason::NoExactSize
    }
}

/// Sizes picked apart: what has none keeps its own count.
fn apart(d: &Dispatcher, s: StepShape, decode: Option<u64>) -> StepSizes {
    let tokens = smallest_tokens(d, s.tokens);
    let wanted = s.rows.min(d.max_rows);
    let several = d.query_lengths.iter().filter(|q| **q > 1);
    let several = several.flat_map(|q| d.batches.sizes().iter().map(move |b| (*b, *q)));
    let fits =
        |(b, q): &(u64, u64)| b * q <= d.max_tokens && *b <= d.max_rows && *b <= d.max_sequences;
    let of_uniform = several.filter(fits).map(|(b, q)| d.max_rows.min(b * q));
    let batches = d.batches.sizes().iter().copied().filter(|b| *b <= d.max_rows);
    let rows = batches.chain(of_uniform).filter(|size| *size >= wanted).min();
    let rows = rows.filter(|size| d.padding || *size == wanted || wanted == 0);
    // The program of a uniform batch is taken where there is one of so many tokens, but not where uniform
    // batches are replayed whole and only few run in pieces.
    let in_pieces = d.mode.decode() == StepMode::Piecewise;
    let decode = decode.filter(|_| in_pieces || d.mode.mixed() != StepMode::Piecewise);
    let whole = tokens.zip(decode).filter(|(tokens, q)| tokens % q == 0);
    let whole = whole.map(|(tokens, q)| (tokens / q, q)).filter(|whole| {
        let is_listed = d.batches.sizes().contains(&whole.0);
        is_listed && fits(whole)
    });
    let sequences = smallest(&d.batches, s.sequences, d.padding, d.max_sequences);
    StepSizes {
        tokens: tokens.map_or(PieceSize::General(s.tokens), PieceSize::Exact),
        rows: rows.map_or(PieceSize::General(wanted), PieceSize::Exact),
        sequences: whole.map_or(sequences.unwrap_or(s.sequences), |(b, _)| b),
        own: [NO_ROWS; MAX_OWN],
        query_length: whole.map(|(_, q)| q),
    }
}

/// Dispatch as the design says it, case by case.
fn brute_force_sizes(d: &Dispatcher, s: StepShape) -> Dispatch {
    let decode = s.query_length.filter(|q| d.query_lengths.contains(q));
    let decode = decode.filter(|q| s.sequences * q == s.tokens);
    let wanted = if decode.is_some() { d.mode.decode() } else { d.mode.mixed() };
    let full_decode = decode.and_then(|q| {
        let b = smallest(&d.batches, s.sequences, d.padding, u64::MAX)?;
        let fits = b * q <= d.max_tokens && b <= d.max_rows && b <= d.max_sequences;
        let rows = d.max_rows.min(b * q);
        (fits && s.rows <= rows).then_some(StepSizes {
            tokens: PieceSize::Exact(b * q),
            rows: PieceSize::Exact(rows),
            sequences: b,
            own: [NO_ROWS; MAX_OWN],
            query_length: Some(q),
        })
    });
    if let (Some(sizes), StepMode::Full | StepMode::None) = (full_decode, wanted) {
        return Dispatch { mode: wanted, sizes, fallback: None };
    }
    let sizes = apart(d, s, decode);
    let falls_back = |whole| launched(sizes, Some(reason(d, s, whole)));
    match (wanted, d.mode.mixed()) {
        (StepMode::None, _) => launched(sizes, None),
        (StepMode::Full, StepMode::None) => falls_back(true),
        (StepMode::Full, StepMode::Full) => {
            let full = smallest_tokens(d, s.tokens);
            let full = full.filter(|&t| s.rows <= t.min(d.max_rows));
            let full = full.filter(|&t| s.sequences <= t.min(d.max_sequences));
            let Some(t) = full else { return falls_back(true) };
            let sizes = StepSizes {
                tokens: PieceSize::Exact(t),
                rows: PieceSize::Exact(t.min(d.max_rows)),
                sequences: t.min(d.max_sequences),
                own: [NO_ROWS; MAX_OWN],
                query_length: None,
            };
            Dispatch { mode: StepMode::Full, sizes, fallback: None }
        }
        (StepMode::Piecewise, _) | (StepMode::Full, StepMode::Piecewise) => {
            match (sizes.tokens, sizes.rows) {
                (PieceSize::Exact(_), PieceSize::Exact(_)) => {
                    Dispatch { mode: StepMode::Piecewise, sizes, fallback: None }
                }
                // A uniform batch has programs where it has no graphs.
                _ => Dispatch { sizes: full_decode.unwrap_or(sizes), ..falls_back(false) },
            }
        }
    }
}

/// Every step of up to so many tokens.
fn every_shape(most: u64) -> impl Iterator<Item = StepShape> {
    shapes(most, |tokens| 1..=tokens, |tokens, _| 0..=tokens)
}

/// Steps of up to so many tokens, with numbers of sequences and of rows to try: of equal shares or not,
/// where there is a choice.
fn shapes<S: Iterator<Item = u64>, R: Iterator<Item = u64>>(
    most: u64,
    sequences: impl Fn(u64) -> S,
    rows: impl Fn(u64, u64) -> R,
) -> impl Iterator<Item = StepShape> {
    let shape = |(tokens, sequences, rows, query_length)| StepShape {
        tokens,
        rows,
        sequences,
        own: [0; MAX_OWN],
        query_length,
    };
    (1..=most).flat_map(move |tokens| {
        let mut all = Vec::new();
        for sequences in sequences(tokens) {
            let equal = tokens.is_multiple_of(sequences).then_some(tokens / sequences);
            let unequal = (1 < sequences && sequences < tokens).then_some(None);
            for q in unequal.into_iter().chain(equal.map(Some)) {
                all.extend(rows(tokens, sequences).map(|rows| shape((tokens, sequences, rows, q))));
            }
        }
        all
    })
}

/// Sizes, and the most tokens, rows and sequences of a step.
struct Lists {
    most: u64,
    tokens: SizeList,
    batches: SizeList,
    most_rows: u64,
    most_sequences: u64,
}

impl Lists {
    fn new(most: u64, tokens: &[u64], batches: &[u64], bounds: [u64; 2]) -> Self {
        let list = |sizes: &[u64]| SizeList::new("l", sizes.to_vec(), "b", most).unwrap();
        let [most_rows, most_sequences] = bounds;
        Self { most, tokens: list(tokens), batches: list(batches), most_rows, most_sequences }
    }

    fn dispatcher(&self, mode: GraphMode, padding: bool, rules: &SizeRules) -> Dispatcher {
        Dispatcher {
            mode,
            tokens: self.tokens.clone(),
            batches: self.batches.clone(),
            query_lengths: (1..=8).collect(),
            max_tokens: self.most,
            max_rows: self.most_rows,
            max_sequences: self.most_sequences,
            padding,
            own: Vec::new(),
            rules: rules.clone(),
        }
    }
}

/// What was seen of the steps of a run.
#[derive(Default)]
struct Seen {
    replayed: BTreeMap<PieceSize, u64>,
    reasons: BTreeSet<FallbackReason>,
}

/// Holds a dispatcher against the oracle at these steps, mode, sizes and reason, and notes the whole
/// steps of uniform batches and why steps were launched.
fn dispatches_as_brute_force(
    d: &Dispatcher,
    shapes: impl Iterator<Item = StepShape>,
    seen: &mut Seen,
) {
    let graphs: std::collections::HashSet<_> = d.full_graph_sizes().into_iter().collect();
    for shape in shapes.filter(|shape| shape.sequences <= d.max_sequences) {
        let found = d.dispatch(shape);
        assert_eq!(found, brute_force(d, shape), "{shape:?} in {:?}", d.mode);
        seen.reasons.extend(found.fallback);
        if found.mode == StepMode::Full {
            assert!(graphs.contains(&found.sizes), "{shape:?}: {found:?}");
            if let Some(size) = found.sizes.uniform() {
                *seen.replayed.entry(size).or_insert(0) += 1;
            }
        }
    }
}

/// Every reason that dispatch itself gives.
const REASONS: [FallbackReason; 5] = [
    FallbackReason::AboveLargestSize,
    FallbackReason::NoExactSize,
    FallbackReason::TooManyRows,
    FallbackReason::SeveralHeadCalls,
    FallbackReason::LaunchedSize,
];

#[test]
fn every_step_up_to_the_bounds_is_dispatched_as_brute_force_finds() {
    let rules = [
        SizeRules::default(),
        SizeRules { specialized: vec![5, 7, 13], ..SizeRules::default() },
        SizeRules { specialized: vec![5, 9], launched: vec![1, 5, 8, 24], lazy: vec![8] },
    ];
    let every_way = GraphMode::ALL.map(|mode| [(mode, true), (mode, false)]).concat();
    let small = [
        Lists::new(24, &[1, 2, 4, 8, 16, 24], &[1, 2, 4, 8], [8, 8]),
        Lists::new(24, &[3, 8, 17], &[1, 3, 5, 12], [6, 24]),
        Lists::new(24, &[24], &[2, 24], [24, 12]),
        Lists::new(28, &[1, 6, 12, 20], &[1, 2, 3, 4, 5, 6], [24, 24]),
    ];
    let large = Lists::new(96, &[1, 2, 4, 8, 16, 32, 64, 96], &[1, 2, 4, 8, 12], [16, 12]);
    let small = small.map(|lists| (lists, &every_way[..], &rules[..]));
    let large_ways = [(GraphMode::FullAndPiecewise, true), (GraphMode::Full, true)];
    let mut seen = Seen::default();
    for (lists, ways, rules) in small.into_iter().chain([(large, &large_ways[..], &rules[2..])]) {
        let ways = ways.iter().flat_map(|way| rules.iter().map(move |rules| (way, rules)));
        for (&(mode, padding), rules) in ways {
            let d = lists.dispatcher(mode, padding, rules);
            dispatches_as_brute_force(&d, every_shape(d.max_tokens), &mut seen);
        }
    }
    let lengths: BTreeSet<_> = seen.replayed.keys().filter_map(|s| s.query_length()).collect();
    assert_eq!(lengths, (1..=8).collect());
    assert_eq!(seen.reasons, REASONS.into());
}

/// The lists that a server has by default, up to their real bounds: every number of tokens, and of
/// sequences and rows those around each bound of a list, or, in a long run, all.
#[test]
fn steps_up_to_a_servers_bounds_are_dispatched_as_brute_force_finds() {
    let tokens = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 480];
    let batches = [1, 2, 4, 8, 16, 24, 32, 48, 64];
    let lists = Lists::new(512, &tokens, &batches, [96, 80]);
    let rules = SizeRules { specialized: vec![77, 300], launched: vec![16, 192], lazy: vec![480] };
    let near = |bounds: &[u64], most: u64| -> Vec<u64> {
        let around = bounds.iter().flat_map(|&n| [n - 1, n, n + 1]);
        let found: BTreeSet<u64> = around.filter(|n| (1..=most).contains(n)).collect();
        found.into_iter().collect()
    };
    let is_long = soak(1) > 1;
    let sequences = |tokens: u64| -> Vec<u64> {
        let most = tokens.min(lists.most_sequences);
        let mut some = near(&[&batches[..], &[lists.most_sequences]].concat(), most);
        some.extend((1..=8).filter(|q| tokens.is_multiple_of(*q)).map(|q| tokens / q));
        some.retain(|n| *n <= most);
        some.sort_unstable();
        some.dedup();
        if is_long { (1..=most).collect() } else { some }
    };
    let rows = |tokens: u64, sequences: u64| -> Vec<u64> {
        let mut some =
            near(&[&[2, 24, 64][..], &[lists.most_rows, sequences, tokens]].concat(), tokens);
        some.insert(0, 0);
        if is_long { (0..=tokens).collect() } else { some }
    };
    let mut seen = Seen::default();
    for mode in GraphMode::ALL {
        for padding in [true, false] {
            let d = lists.dispatcher(mode, padding, &rules);
            let shapes = shapes(512, |t| sequences(t).into_iter(), |t, s| rows(t, s).into_iter());
            dispatches_as_brute_force(&d, shapes, &mut seen);
        }
    }
    let whole: Vec<_> = seen.replayed.keys().filter_map(|size| size.query_length()).collect();
    assert_eq!(BTreeSet::from_iter(whole), (1..=8).collect());
    assert_eq!(seen.reasons, REASONS.into());
}

#[test]
fn a_pure_decode_has_another_key_than_a_mixed_step_of_as_many_tokens() {
    let list = |sizes: &[u64]| SizeList::new("l", sizes.to_vec(), "b", 64).unwrap();
    let d = Dispatcher {
        mode: GraphMode::Full,
        tokens: list(&[8]),
        batches: list(&[2, 8]),
        query_lengths: vec![1, 4],
        max_tokens: 8,
        max_rows: 8,
        max_sequences: 8,
        padding: true,
        own: Vec::new(),
        rules: SizeRules::default(),
    };
    let shape = |sequences, query_length| StepShape {
        tokens: 8,
        rows: sequences,
        sequences,
        own: [0; MAX_OWN],
        query_length,
    };
    let steps = [shape(8, Some(1)), shape(2, Some(4)), shape(2, None)];
    let keys = steps.map(|shape| d.dispatch(shape).sizes);
    assert_eq!(keys.map(|key| key.whole().to_string()), ["8x1", "2x4", "8"]);
    let graphs = d.full_graph_sizes();
    assert!(keys.iter().all(|key| graphs.contains(key) && key.tokens == PieceSize::Exact(8)));
}

/// Of a mixed step one of its two kernels of attention would have nothing to do.
#[test]
fn a_uniform_batch_that_is_launched_has_the_programs_of_its_own_kind() {
    let launched_by = |mode, tokens: &[u64], shape: StepShape, padding| {
        let lists = Lists::new(64, tokens, &[8, 16], [16, 64]);
        let d = lists.dispatcher(mode, padding, &SizeRules::default());
        let other_way = d.other_way(shape, OtherWay::Launches).unwrap();
        assert_eq!(other_way.fallback, Some(FallbackReason::PaddingLoses));
        [d.dispatch(shape), other_way].map(|found| (found.mode, found.sizes.whole().to_string()))
    };
    let batch = |sequences, length: u64| StepShape {
        tokens: sequences * length,
        rows: sequences,
        sequences,
        own: [0; MAX_OWN],
        query_length: Some(length),
    };
    let mixed = StepShape { query_length: None, ..batch(6, 2) };
    let (none, pieces) = (StepMode::None, StepMode::Piecewise);
    for (mode, tokens, shape, padding, expected) in [
        (GraphMode::Piecewise, 4, batch(6, 1), true, [(none, "8x1"), (none, "any to 6")]),
        (GraphMode::Piecewise, 4, batch(16, 2), false, [(none, "16x2"), (none, "any to 32")]),
        (GraphMode::Piecewise, 64, batch(6, 1), true, [(pieces, "64"), (none, "8x1")]),
        (GraphMode::Piecewise, 64, mixed, true, [(pieces, "64"), (none, "any to 12")]),
        // What replays by its own programs is launched by those for any size, or not at all.
        (GraphMode::Full, 64, batch(6, 1), true, [(StepMode::Full, "8x1"), (none, "any to 6")]),
        // Nobody has made programs for so many.
        (GraphMode::Piecewise, 4, batch(17, 1), true, [(none, "any to 17"), (none, "any to 17")]),
    ] {
        let found = launched_by(mode, &[tokens], shape, padding);
        assert_eq!(found, expected.map(|(mode, size)| (mode, size.to_owned())), "{shape:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(6000)))]
    #[test]
    fn dispatch_is_what_brute_force_finds(d in dispatcher(), step in step()) {
        let Some(shape) = shape(&step, &d) else { return Ok(()) };
        let found = d.dispatch(shape);
        prop_assert_eq!(found, brute_force(&d, shape));
        prop_assert_eq!(d.dispatch(shape), found);
    }

    #[test]
    fn sizes_hold_the_step_and_pass_no_bound(d in dispatcher(), step in step()) {
        let Some(shape) = shape(&step, &d) else { return Ok(()) };
        let found = d.dispatch(shape);
        let StepSizes { tokens, rows, sequences, .. } = found.sizes;
        prop_assert!(tokens.rows() >= shape.tokens && tokens.rows() <= d.max_tokens);
        prop_assert!(rows.rows() >= shape.rows.min(d.max_rows) && rows.rows() <= d.max_rows);
        prop_assert!(sequences >= shape.sequences && sequences <= d.max_sequences);
        let listed = |size: PieceSize, sizes: Vec<u64>| match size {
            PieceSize::Exact(n) => sizes.contains(&n),
            PieceSize::General(_) => true,
            PieceSize::Uniform { .. } => false,
        };
        prop_assert!(listed(tokens, d.token_sizes()));
        prop_assert!(listed(rows, d.row_sizes()));
        if found.mode != StepMode::None {
            prop_assert!(matches!((tokens, rows), (PieceSize::Exact(_), PieceSize::Exact(_))));
        }
        if !d.padding && found.mode == StepMode::Piecewise {
            prop_assert_eq!(tokens.rows(), shape.tokens);
        }
    }

    /// Steps of tokens that are no batch had rows that no piece has programs for, and were not measured.
    #[test]
    fn what_is_measured_apart_has_programs(d in dispatcher()) {
        let (rows, steps) = (d.replayed_rows(), d.measured_steps());
        let mixed = steps.iter().filter(|(sizes, _)| sizes.query_length.is_none());
        prop_assert!(mixed.clone().count() > 0);
        for (sizes, _) in mixed.filter(|(_, mode)| *mode != StepMode::Full) {
            prop_assert!(rows.is_empty() || rows.contains(&sizes.rows.rows()), "{sizes:?} of {rows:?}");
        }
    }

    #[test]
    fn more_tokens_never_get_a_smaller_size(d in dispatcher(), tokens in 1u64..63) {
        let d = Dispatcher { padding: true, ..d };
        let own = [0; MAX_OWN];
        let shape = |tokens| StepShape { tokens, rows: 1, sequences: 1, own, query_length: None };
        let size = |tokens| d.dispatch(shape(tokens)).sizes.tokens.rows();
        prop_assert!(size(tokens) <= size(tokens + 1));
    }
}
