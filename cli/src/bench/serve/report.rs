//! What the answers took, for people and for programs.

use super::args::Bounds;
use super::client::Outcome;
use super::load::Load;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The server and the load that a summary is of, as the flags gave them.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) url: String,
    pub(super) model: String,
    pub(super) rate: Option<f64>,
    pub(super) concurrency: Option<usize>,
    pub(super) goodput: Bounds,
    pub(super) percentiles: Vec<f64>,
}

/// What the requests of a load took together.
#[derive(Debug)]
pub(super) struct Summary {
    asked: Asked,
    pub(super) completed: usize,
    /// How often requests failed, by why.
    failed: BTreeMap<String, usize>,
    seconds: f64,
    input_tokens: u64,
    output_tokens: u64,
    /// The most on their way at a time.
    most_at_once: usize,
    good: Option<usize>,
    /// By name, in milliseconds, ascending.
    times: [(&'static str, &'static str, Vec<f64>); 4],
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Outcome {
    fn tokens(&self) -> u64 {
        // Who says nothing of tokens sends about one in each piece.
        self.output_tokens.unwrap_or(self.pieces.len() as u64)
    }

    fn first_token(&self) -> Option<f64> {
        self.pieces.first().map(|&time| ms(time))
    }

    /// The mean of the tokens behind the first.
    fn token_time(&self) -> Option<f64> {
        let (first, last) = (self.pieces.first()?, self.pieces.last()?);
        let others = self.tokens().checked_sub(1).filter(|others| *others > 0)?;
        Some(ms(*last - *first) / others as f64)
    }

    fn is_good(&self, bounds: &Bounds) -> bool {
        let keeps = |bound: Option<f64>, time: Option<f64>| {
            bound.is_none_or(|bound| time.is_none_or(|time| time <= bound))
        };
        keeps(bounds.ttft, self.first_token())
            && keeps(bounds.tpot, self.token_time())
            && keeps(bounds.e2e, Some(ms(self.end)))
    }

    /// One request by itself.
    pub(super) fn row(&self) -> Value {
        let gaps: Vec<f64> = self.pieces.windows(2).map(|pair| ms(pair[1] - pair[0])).collect();
        json!({
            "sent_ms": ms(self.sent),
            "ttft_ms": self.first_token(),
            "tpot_ms": self.token_time(),
            "e2e_ms": ms(self.end),
            "itl_ms": gaps,
            "input_tokens": self.prompt_tokens,
            "output_tokens": self.tokens(),
            "error": self.error,
        })
    }
}

impl Summary {
    pub(super) fn of(asked: Asked, load: &Load) -> Self {
        let (done, lost): (Vec<&Outcome>, Vec<_>) =
            load.outcomes.iter().partition(|outcome| outcome.error.is_none());
        let mut failed = BTreeMap::new();
        for outcome in lost {
            *failed.entry(outcome.error.clone().unwrap_or_default()).or_insert(0) += 1;
        }
        let sorted = |times: Vec<f64>| {
            let mut times = times;
            times.sort_unstable_by(f64::total_cmp);
            times
        };
        let of = |time: fn(&Outcome) -> Option<f64>| {
            sorted(done.iter().filter_map(|outcome| time(outcome)).collect())
        };
        let gaps = done.iter().flat_map(|outcome| outcome.pieces.windows(2));
        let gaps = sorted(gaps.map(|pair| ms(pair[1] - pair[0])).collect());
        let good = (asked.goodput != Bounds::default())
            .then(|| done.iter().filter(|outcome| outcome.is_good(&asked.goodput)).count());
        Self {
            completed: done.len(),
            failed,
            seconds: load.duration.as_secs_f64(),
            input_tokens: done.iter().filter_map(|outcome| outcome.prompt_tokens).sum(),
            output_tokens: done.iter().map(|outcome| outcome.tokens()).sum(),
            most_at_once: most_at_once(&load.outcomes),
            good,
            times: [
                ("ttft", "first token", of(Outcome::first_token)),
                ("tpot", "each further token", of(Outcome::token_time)),
                ("itl", "between pieces", gaps),
                ("e2el", "whole answer", of(|outcome| Some(ms(outcome.end)))),
            ],
            asked,
        }
    }

    fn rate(&self, count: f64) -> f64 {
        if self.seconds > 0.0 { count / self.seconds } else { 0.0 }
    }

    /// With the names that vLLM's `bench serve` has.
    pub(super) fn json(&self) -> Value {
        let mut all = json!({
            "url": self.asked.url,
            "model_id": self.asked.model,
            "request_rate": self.asked.rate,
            "max_concurrency": self.asked.concurrency,
            "duration": self.seconds,
            "completed": self.completed,
            "failed": self.failed.values().sum::<usize>(),
            "errors": self.failed,
            "total_input_tokens": self.input_tokens,
            "total_output_tokens": self.output_tokens,
            "request_throughput": self.rate(self.completed as f64),
            "output_throughput": self.rate(self.output_tokens as f64),
            "total_token_throughput": self.rate((self.input_tokens + self.output_tokens) as f64),
            "max_concurrent_requests": self.most_at_once,
        });
        let mut more = Map::new();
        if let Some(good) = self.good {
            more.insert("request_goodput".to_owned(), self.rate(good as f64).into());
            more.insert("good_completed".to_owned(), good.into());
        }
        for (name, _, times) in &self.times {
            let mut put = |what: String, value: Option<f64>| more.insert(what, json!(value));
            put(format!("mean_{name}_ms"), mean(times));
            put(format!("std_{name}_ms"), deviation(times));
            for &percent in &self.asked.percentiles {
                put(format!("p{percent}_{name}_ms"), percentile(times, percent));
            }
            put(format!("median_{name}_ms"), percentile(times, 50.0));
        }
        if let Value::Object(all) = &mut all {
            all.extend(more);
        }
        all
    }

    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let Asked { url, model, rate, concurrency, .. } = &self.asked;
        let rate =
            rate.map_or("all at once".to_owned(), |rate| format!("{rate} requests a second"));
        let most = concurrency.map_or(String::new(), |most| format!(", at most {most} at a time"));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{model} at {url}, {rate}{most}");
        let failed: usize = self.failed.values().sum();
        let _ = writeln!(
            text,
            "requests         {} answered, {failed} failed, {} at once at most, in {:.2} s",
            self.completed, self.most_at_once, self.seconds
        );
        for (why, count) in &self.failed {
            let _ = writeln!(text, "failed           {count}: {why}");
        }
        let _ = writeln!(
            text,
            "tokens           {} of prompts, {} of answers",
            self.input_tokens, self.output_tokens
        );
        let _ = writeln!(
            text,
            "a second         {:.2} requests, {:.1} tokens of answers, {:.1} tokens in all",
            self.rate(self.completed as f64),
            self.rate(self.output_tokens as f64),
            self.rate((self.input_tokens + self.output_tokens) as f64)
        );
        if let Some(good) = self.good {
            let share = 100.0 * good as f64 / (self.completed + failed).max(1) as f64;
            let rate = self.rate(good as f64);
            let _ =
                writeln!(text, "within bounds    {good} requests, {share:.1}%, {rate:.2} a second");
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let percentiles = &self.asked.percentiles;
        let names = percentiles.iter().map(|percent| format!("p{percent}"));
        let head = ["ms".to_owned(), "mean".to_owned(), "deviation".to_owned()];
        table.set_header(head.into_iter().chain(names));
        let shown =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        for (_, name, times) in &self.times {
            let row = [(*name).to_owned(), shown(mean(times)), shown(deviation(times))];
            let rest = percentiles.iter().map(|&percent| shown(percentile(times, percent)));
            table.add_row(row.into_iter().chain(rest));
        }
        table.column_iter_mut().skip(1).for_each(|column| {
            column.set_cell_alignment(CellAlignment::Right);
        });
        let _ = writeln!(text, "{table}");
        text
    }
}

fn mean(times: &[f64]) -> Option<f64> {
    (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
}

fn deviation(times: &[f64]) -> Option<f64> {
    let mean = mean(times)?;
    let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
    Some((squares / times.len() as f64).sqrt())
}

/// Between the two values beside it, as numpy has it; `times` ascend.
fn percentile(times: &[f64], percent: f64) -> Option<f64> {
    let at = percent / 100.0 * times.len().checked_sub(1)? as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    Some(times[low] + (times[high] - times[low]) * at.fract())
}

/// The most requests on their way at a time.
fn most_at_once(outcomes: &[Outcome]) -> usize {
    let ends = outcomes.iter().map(|outcome| (outcome.sent + outcome.end, false));
    let mut changes: Vec<_> = outcomes.iter().map(|o| (o.sent, true)).chain(ends).collect();
    // What ends when another begins is over before.
    changes.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in changes {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(sent: u64, pieces: &[u64], end: u64, tokens: u64) -> Outcome {
        let ms = Duration::from_millis;
        Outcome {
            sent: ms(sent),
            pieces: pieces.iter().map(|&at| ms(at)).collect(),
            end: ms(end),
            prompt_tokens: Some(10),
            output_tokens: Some(tokens),
            error: None,
        }
    }

    fn summary(goodput: &str) -> Summary {
        let lost = Outcome { error: Some("503: busy".to_owned()), ..outcome(5, &[], 6, 0) };
        let outcomes = vec![
            // Two pieces bring three tokens.
            outcome(0, &[100, 300], 310, 3),
            outcome(50, &[200, 210, 220], 220, 3),
            outcome(400, &[50], 60, 1),
            lost.clone(),
            lost,
        ];
        let asked = Asked {
            url: "http://x".to_owned(),
            model: "m".to_owned(),
            rate: Some(4.0),
            concurrency: None,
            goodput: goodput.parse().unwrap(),
            percentiles: vec![50.0, 99.0],
        };
        Summary::of(asked, &Load { outcomes, duration: Duration::from_millis(500) })
    }

    #[test]
    fn times_are_of_the_requests_that_were_answered() {
        let found = summary("").json();
        let expected = json!({
            "completed": 3, "failed": 2, "errors": {"503: busy": 2},
            "total_input_tokens": 30, "total_output_tokens": 7, "duration": 0.5,
            "request_throughput": 6.0, "output_throughput": 14.0, "total_token_throughput": 74.0,
            // The first, the second, and between them one that failed.
            "max_concurrent_requests": 3,
            "median_ttft_ms": 100.0, "p50_ttft_ms": 100.0, "p99_ttft_ms": 198.0,
            // 200 ms for two further tokens, 20 for two; of one token there is none.
            "mean_tpot_ms": 55.0, "median_tpot_ms": 55.0, "std_tpot_ms": 45.0,
            "p50_itl_ms": 10.0, "median_e2el_ms": 220.0,
        });
        for (name, value) in expected.as_object().unwrap() {
            let near = match (found[name].as_f64(), value.as_f64()) {
                (Some(found), Some(value)) => (found - value).abs() < 1e-9,
                _ => found[name] == *value,
            };
            assert!(near, "{name}: {} is not {value}", found[name]);
        }
        assert!(found.get("request_goodput").is_none(), "nobody asked for it");
        insta::assert_snapshot!(summary("ttft=150,tpot=50").table());
    }

    #[test]
    fn requests_are_good_that_keep_to_every_bound() {
        for (bounds, good) in [
            ("ttft=100", 2),
            ("ttft=99", 1),
            ("tpot=10", 2),
            ("tpot=9", 1),
            ("e2e=220", 2),
            ("ttft=100,tpot=50", 1),
        ] {
            assert_eq!(summary(bounds).json()["good_completed"], good, "{bounds}");
        }
        assert!(
            (summary("ttft=100").json()["request_goodput"].as_f64().unwrap() - 4.0).abs() < 1e-9
        );
    }

    #[test]
    fn nothing_has_no_times() {
        let asked = summary("").asked;
        let nothing = Summary::of(asked, &Load::default());
        assert_eq!(nothing.json()["mean_ttft_ms"], Value::Null);
        assert!(nothing.table().contains("0 answered"));
    }
}
