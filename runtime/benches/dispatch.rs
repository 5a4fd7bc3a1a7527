//! How long dispatch takes: every shape of up to 512 tokens of a decoder's default sizes, in every
//! graph mode.
//!
//! `cargo bench -p piecewise-runtime`

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use piecewise_runtime::dispatch::{Dispatcher, SizeRules};
use piecewise_runtime::words::sizes::SizeList;
use piecewise_runtime::words::{GraphMode, MAX_OWN, StepShape};
use std::hint::black_box;
use std::time::Instant;

/// Calls that are timed as one, since a call is shorter than reading the clock.
const CALLS: u32 = 64;

fn main() {
    for mode in GraphMode::ALL {
        let dispatcher = Dispatcher {
            mode,
            tokens: SizeList::default_pattern(512),
            batches: SizeList::default_pattern(128),
            query_lengths: vec![1, 4],
            max_tokens: 512,
            max_rows: 128,
            max_sequences: 128,
            padding: true,
            own: Vec::new(),
            rules: SizeRules { specialized: vec![100, 300], launched: vec![64], lazy: vec![256] },
        };
        let shapes = (1..=512u64).flat_map(|tokens| {
            (1..=tokens.min(128)).step_by(3).map(move |sequences| {
                let query_length = (tokens % sequences == 0).then_some(tokens / sequences);
                let own = [0; MAX_OWN];
                StepShape { tokens, rows: sequences, sequences, own, query_length }
            })
        });
        let shapes: Vec<StepShape> = shapes.collect();
        let mut times = Vec::new();
        // The first pass is untimed: the first mode would show how a core wakes.
        for is_timed in [false, true] {
            for &shape in &shapes {
                let started = Instant::now();
                for _ in 0..CALLS {
                    black_box(dispatcher.dispatch(black_box(shape)));
                }
                let time = started.elapsed().as_nanos() as f64 / f64::from(CALLS);
                times.extend(is_timed.then_some(time));
            }
        }
        times.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!("{:<20} median {:>6.1} ns, p99 {:>6.1} ns", mode.name(), at(0.5), at(0.99));
    }
}
