use super::*;
use piecewise_ir::testing::soak;
use proptest::prelude::*;

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

/// Dispatch as the design says it, case by case.
fn brute_force(d: &Dispatcher, s: StepShape) -> (StepMode, Option<StepSizes>, bool) {
    let decode = s.query_length.filter(|q| d.query_lengths.contains(q));
    let wanted = if decode.is_some() { d.mode.decode() } else { d.mode.mixed() };
    let full_decode = decode.and_then(|q| {
        let b = smallest(&d.batches, s.sequences, d.padding, u64::MAX)?;
        let fits = b * q <= d.max_tokens && b <= d.max_rows && b <= d.max_sequences;
        let (tokens, rows) = (PieceSize::Exact(b * q), PieceSize::Exact(b));
        fits.then_some(StepSizes { tokens, rows, sequences: b, own: [NO_ROWS; MAX_OWN] })
    });
    if wanted != StepMode::Piecewise && full_decode.is_some() {
        return (wanted, full_decode, false);
    }
    if d.mode == GraphMode::Full {
        let full = smallest(&d.tokens, s.tokens, d.padding, d.max_tokens);
        let full = full.filter(|&t| s.rows <= t.min(d.max_rows));
        let full = full.filter(|&t| s.sequences <= t.min(d.max_sequences));
        let sizes = full.map(|t| StepSizes {
            tokens: PieceSize::Exact(t),
            rows: PieceSize::Exact(t.min(d.max_rows)),
            sequences: t.min(d.max_sequences),
            own: [NO_ROWS; MAX_OWN],
        });
        let mode = if sizes.is_some() { StepMode::Full } else { StepMode::None };
        return (mode, sizes, sizes.is_none());
    }
    if d.mode.mixed() == StepMode::Piecewise {
        let tokens = smallest(&d.tokens, s.tokens, d.padding, d.max_tokens);
        let rows = smallest(&d.batches, s.rows.min(d.max_rows), d.padding, d.max_rows);
        let replays = tokens.is_some() && rows.is_some();
        return (if replays { StepMode::Piecewise } else { StepMode::None }, None, !replays);
    }
    (StepMode::None, None, wanted == StepMode::Full)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(6000)))]
    #[test]
    fn dispatch_is_what_brute_force_finds(d in dispatcher(), step in step()) {
        let Some(shape) = shape(&step, &d) else { return Ok(()) };
        let found = d.dispatch(shape);
        let (mode, sizes, falls_back) = brute_force(&d, shape);
        prop_assert_eq!(found.mode, mode);
        prop_assert_eq!(found.fallback.is_some(), falls_back);
        if let Some(sizes) = sizes {
            prop_assert_eq!(found.sizes, sizes);
        }
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

    #[test]
    fn more_tokens_never_get_a_smaller_size(d in dispatcher(), tokens in 1u64..63) {
        let d = Dispatcher { padding: true, ..d };
        let own = [0; MAX_OWN];
        let shape = |tokens| StepShape { tokens, rows: 1, sequences: 1, own, query_length: None };
        let size = |tokens| d.dispatch(shape(tokens)).sizes.tokens.rows();
        prop_assert!(size(tokens) <= size(tokens + 1));
    }
}
