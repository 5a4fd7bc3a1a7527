//! What an encoder counts while it runs.

use piecewise_runtime::words::{CompileCounts, Dispatch, StepMode};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Counts of one path since the encoder was made.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct PathStatistics {
    /// The path as the encoder calls it.
    pub path: String,
    /// Items whose step replayed a graph.
    pub hits: u64,
    /// Items whose step was launched, by reason.
    pub misses: BTreeMap<&'static str, u64>,
    /// Items that it has no outputs of, by reason: no step or, with `strict`, no graph takes them, or
    /// their step failed.
    pub failed: BTreeMap<&'static str, u64>,
    /// Items that brought nothing to it.
    pub skipped: u64,
    /// Steps that ran, replayed or launched.
    pub steps: u64,
    /// Steps that replayed, by budget.
    pub replays: BTreeMap<u64, u64>,
    /// Tokens that items brought, padding not included.
    pub tokens: u64,
    /// Tokens that steps ran, padding included.
    pub padded_tokens: u64,
    /// How long steps took by the device's clock, from the first copy of their inputs to the last of
    /// their outputs; 0 unless the encoder times its steps.
    pub device_time: Duration,
    /// What was compiled for it at the start, and what was taken from the cache.
    pub compile: CompileCounts,
    /// Budgets that no step can take, each with the reason.
    pub unreachable: Vec<(u64, String)>,
}

/// Counts of every path, in their order.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct EncoderStatistics {
    /// One for each, in the order of the encoder's paths.
    pub paths: Vec<PathStatistics>,
}

impl PathStatistics {
    /// The share of tokens run that were padding.
    pub fn padding_share(&self) -> f64 {
        let padding = self.padded_tokens - self.tokens;
        if padding == 0 { 0.0 } else { padding as f64 / self.padded_tokens as f64 }
    }

    /// Steps that found a graph, of all budgets.
    pub fn replayed_steps(&self) -> u64 {
        self.replays.values().sum()
    }

    /// What was counted since `before`.
    fn since(&self, before: &Self) -> Self {
        fn counts<K: Ord + Copy>(
            now: &BTreeMap<K, u64>,
            then: &BTreeMap<K, u64>,
        ) -> BTreeMap<K, u64> {
            let grown =
                now.iter().map(|(&key, &n)| (key, n - then.get(&key).copied().unwrap_or(0)));
            grown.filter(|(_, n)| *n > 0).collect()
        }
        Self {
            path: self.path.clone(),
            hits: self.hits - before.hits,
            misses: counts(&self.misses, &before.misses),
            failed: counts(&self.failed, &before.failed),
            skipped: self.skipped - before.skipped,
            steps: self.steps - before.steps,
            replays: counts(&self.replays, &before.replays),
            tokens: self.tokens - before.tokens,
            padded_tokens: self.padded_tokens - before.padded_tokens,
            device_time: self.device_time.saturating_sub(before.device_time),
            compile: CompileCounts::default(),
            unreachable: self.unreachable.clone(),
        }
    }

    /// Counts a step of so many items and tokens; `forced` is why it was launched unasked.
    pub(super) fn count(
        &mut self,
        items: usize,
        tokens: u64,
        step: Dispatch,
        forced: Option<&'static str>,
    ) {
        let (items, padded) = (items as u64, step.sizes.tokens.rows());
        self.steps += 1;
        self.tokens += tokens;
        self.padded_tokens += padded.max(tokens);
        if step.mode == StepMode::None {
            let by_dispatch = step.fallback.map(|reason| reason.name());
            let reason = forced.or(by_dispatch).unwrap_or(GRAPHS_OFF);
            *self.misses.entry(reason).or_default() += items;
        } else {
            self.hits += items;
            *self.replays.entry(padded).or_default() += 1;
        }
    }
}

impl EncoderStatistics {
    /// Steps of all paths.
    pub fn steps(&self) -> u64 {
        self.paths.iter().map(|path| path.steps).sum()
    }

    /// Steps of all paths that replayed.
    pub fn replayed_steps(&self) -> u64 {
        self.paths.iter().map(PathStatistics::replayed_steps).sum()
    }
}

/// Says every so often what has happened since.
#[derive(Debug)]
pub(super) struct Ticker {
    every: Duration,
    since: Instant,
    before: EncoderStatistics,
}

impl Ticker {
    /// The first line comes after one interval.
    pub(super) fn new(every: Duration) -> Self {
        Self { every, since: Instant::now(), before: EncoderStatistics::default() }
    }

    /// A line for each path that has run steps since the last ones, if they are due.
    pub(super) fn lines(&mut self, now: EncoderStatistics) -> Vec<String> {
        let passed = self.since.elapsed();
        if passed < self.every || now.steps() == self.before.steps() {
            return Vec::new();
        }
        let line = |(at, path): (usize, &PathStatistics)| {
            let since = self.before.paths.get(at).map_or_else(|| path.clone(), |b| path.since(b));
            let rate = since.tokens as f64 / passed.as_secs_f64().max(1e-9);
            let shown = EncoderStatistics { paths: vec![since] }.to_string();
            format!("{}; {rate:.0} tokens/s", shown.replace("\n  ", "; "))
        };
        let ran = now.paths.iter().enumerate().filter(|(at, path)| {
            path.steps > self.before.paths.get(*at).map_or(0, |before| before.steps)
        });
        let lines = ran.map(line).collect();
        (self.since, self.before) = (Instant::now(), now);
        lines
    }
}

/// Why steps are launched where no graph is wanted.
const GRAPHS_OFF: &str = "graphs_off";

impl std::fmt::Display for EncoderStatistics {
    /// For people: a line for the steps of each path, and one for each budget and reason.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, path) in self.paths.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(
                f,
                "{}: {} steps, {} replayed; items: {} hits, {} misses, {} skipped; {:.1}% of \
                 tokens padding",
                path.path,
                path.steps,
                path.replayed_steps(),
                path.hits,
                path.misses.values().sum::<u64>(),
                path.skipped,
                100.0 * path.padding_share()
            )?;
            if !path.device_time.is_zero() {
                write!(f, "; {:.1?} on the device", path.device_time)?;
            }
            if path.compile != CompileCounts::default() {
                write!(f, "\n  {}", path.compile)?;
            }
            for (budget, replays) in &path.replays {
                write!(f, "\n  budget {budget}: {replays} replays")?;
            }
            for (reason, items) in &path.misses {
                write!(f, "\n  launched: {items} items, {reason}")?;
            }
            for (reason, items) in &path.failed {
                write!(f, "\n  failed: {items} items, {reason}")?;
            }
            for (budget, reason) in &path.unreachable {
                write!(f, "\n  budget {budget} is never reached: {reason}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_came_since_the_one_before() {
        let mut ticker = Ticker::new(Duration::ZERO);
        assert!(ticker.lines(EncoderStatistics::default()).is_empty(), "nothing has run");
        let mut path = PathStatistics {
            path: "items".to_owned(),
            hits: 5,
            misses: [("above_largest_size", 1)].into(),
            failed: [("larger_than_a_step", 2)].into(),
            steps: 3,
            replays: [(64, 2)].into(),
            tokens: 96,
            padded_tokens: 128,
            unreachable: vec![(512, "no items have so many".to_owned())],
            ..Default::default()
        };
        let quiet = PathStatistics { path: "tiles".to_owned(), skipped: 6, ..Default::default() };
        let of =
            |path: &PathStatistics| EncoderStatistics { paths: vec![path.clone(), quiet.clone()] };
        let said = ticker.lines(of(&path));
        let begins = "items: 3 steps, 2 replayed; items: 5 hits, 1 misses, 0 skipped; 25.0% of tokens \
                      padding; budget 64: 2 replays; launched: 1 items, above_largest_size; failed: 2 \
                      items, larger_than_a_step; budget 512 is never reached: no items have so many; ";
        assert!(said[0].starts_with(begins) && said[0].ends_with(" tokens/s"), "{said:?}");
        assert!(ticker.lines(of(&path)).is_empty(), "nothing has run since");
        (path.hits, path.steps, path.tokens, path.padded_tokens) = (7, 4, 160, 192);
        path.replays.insert(64, 3);
        let said = ticker.lines(of(&path));
        assert_eq!(said.len(), 1, "a path that rests says nothing: {said:?}");
        let begins = "items: 1 steps, 1 replayed; items: 2 hits, 0 misses, 0 skipped; 0.0% of tokens \
                      padding; budget 64: 1 replays; budget 512";
        assert!(said[0].starts_with(begins), "{said:?}");
        let mut late = Ticker::new(Duration::MAX);
        assert!(late.lines(of(&path)).is_empty(), "none is due");
    }
}
