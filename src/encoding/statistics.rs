//! What an encoder counts while it runs.

use piecewise_runtime::mode::StepMode;
use piecewise_runtime::model::StepReport;
use std::collections::BTreeMap;
use std::time::Duration;

/// Counts of one path since the encoder was made.
#[derive(Clone, PartialEq, Debug, Default, serde::Serialize)]
pub struct PathStatistics {
    /// Its name.
    pub path: String,
    /// Items whose step replayed a graph.
    pub hits: u64,
    /// Items whose step was launched, by reason.
    pub misses: BTreeMap<&'static str, u64>,
    /// Items that brought nothing to it.
    pub skipped: u64,
    /// Steps run.
    pub steps: u64,
    /// Steps that replayed, by budget.
    pub replays: BTreeMap<u64, u64>,
    /// Tokens that items brought.
    pub tokens: u64,
    /// Tokens that steps ran, padding included.
    pub padded_tokens: u64,
    /// How long steps took by the device's clock, from the first copy of their inputs to the last of
    /// their outputs; 0 unless the encoder times its steps.
    pub device_time: Duration,
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

    /// Counts a step of so many items and tokens; `forced` is why it was launched unasked.
    pub(super) fn count(
        &mut self,
        items: usize,
        tokens: u64,
        step: StepReport,
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
            for (budget, replays) in &path.replays {
                write!(f, "\n  budget {budget}: {replays} replays")?;
            }
            for (reason, items) in &path.misses {
                write!(f, "\n  launched: {items} items, {reason}")?;
            }
            for (budget, reason) in &path.unreachable {
                write!(f, "\n  budget {budget} is never reached: {reason}")?;
            }
        }
        Ok(())
    }
}
