//! What a key may take of the server, and what it took.

use super::error::ApiError;
use prometheus::{IntCounterVec, Opts};
use serde::Deserialize;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// More weight than this makes turns too short to be told apart.
const MOST_WEIGHT: u32 = 1000;

/// What a key may take; what is not said is not bounded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct KeyLimits {
    /// Requests on their way.
    requests: Option<u64>,
    /// Tokens of their prompts, and those that they may still generate.
    tokens: Option<u64>,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    /// The lowest and the highest priority that requests may ask for.
    priorities: Option<[i32; 2]>,
    weight: Option<NonZeroU32>,
    /// Whether it is an operator's.
    admin: bool,
}

/// A table of a file of keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    pub(super) key: String,
    max_requests: Option<NonZeroU64>,
    max_tokens: Option<NonZeroU64>,
    requests_per_minute: Option<NonZeroU64>,
    tokens_per_minute: Option<NonZeroU64>,
    priorities: Option<[i32; 2]>,
    weight: Option<NonZeroU32>,
    #[serde(default)]
    admin: bool,
}

impl Listed {
    pub(super) fn limits(&self) -> Result<KeyLimits, String> {
        if let Some([least, most]) = self.priorities
            && least > most
        {
            return Err(format!("priorities = [{least}, {most}]: the lower comes first"));
        }
        if self.weight.is_some_and(|weight| weight.get() > MOST_WEIGHT) {
            return Err(format!("weight: at most {MOST_WEIGHT}"));
        }
        Ok(KeyLimits {
            requests: self.max_requests.map(NonZeroU64::get),
            tokens: self.max_tokens.map(NonZeroU64::get),
            requests_per_minute: self.requests_per_minute.map(NonZeroU64::get),
            tokens_per_minute: self.tokens_per_minute.map(NonZeroU64::get),
            priorities: self.priorities,
            weight: self.weight,
            admin: self.admin,
        })
    }
}

/// What is counted of all keys, by their names.
#[derive(Clone, Debug)]
pub(super) struct KeyCounts {
    requests: IntCounterVec,
    refused: IntCounterVec,
    prompt_tokens: IntCounterVec,
    generation_tokens: IntCounterVec,
}

impl KeyCounts {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(format!("piecewise_key_{name}_total"), help), labels)
        };
        Ok(Self {
            requests: counter("requests", "Requests of a key.", &["key"])?,
            refused: counter(
                "refused",
                "Requests of a key that were refused by one of its bounds.",
                &["key", "bound"],
            )?,
            prompt_tokens: counter("prompt_tokens", "Tokens of a key's prompts.", &["key"])?,
            generation_tokens: counter(
                "generation_tokens",
                "Tokens that were generated for a key.",
                &["key"],
            )?,
        })
    }

    /// Shows them beside what is counted of the model.
    pub(super) fn register(
        &self,
        registry: &prometheus::Registry,
    ) -> Result<(), prometheus::Error> {
        let Self { requests, refused, prompt_tokens, generation_tokens } = self;
        for counter in [requests, refused, prompt_tokens, generation_tokens] {
            registry.register(Box::new(counter.clone()))?;
        }
        Ok(())
    }
}

/// A key without its secret: who has it.
#[derive(Debug)]
pub(crate) struct Owner {
    name: String,
    limits: KeyLimits,
    counts: Option<KeyCounts>,
    taken: Mutex<Taken>,
}

#[derive(Debug)]
struct Taken {
    requests: u64,
    tokens: u64,
    request_rate: Bucket,
    token_rate: Bucket,
}

/// What is left of a minute's worth.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new(per_minute: Option<u64>, now: Instant) -> Self {
        Self { left: per_minute.unwrap_or(0) as f64, at: now }
    }

    /// Takes `cost`, where there is as much, or a whole minute's worth: what is missing then is missing to
    /// those who come next. If not, how long it takes until there is.
    fn take(&mut self, per_minute: u64, cost: f64, now: Instant) -> Result<(), Duration> {
        let (most, rate) = (per_minute as f64, per_minute as f64 / 60.0);
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * rate).min(most);
        self.at = now;
        let missing = cost.min(most) - self.left;
        if missing > 0.0 {
            return Err(Duration::try_from_secs_f64(missing / rate).unwrap_or(Duration::MAX));
        }
        self.left -= cost;
        Ok(())
    }
}

impl Owner {
    pub(super) fn new(name: String, limits: KeyLimits, counts: Option<KeyCounts>) -> Self {
        let now = Instant::now();
        let taken = Taken {
            requests: 0,
            tokens: 0,
            request_rate: Bucket::new(limits.requests_per_minute, now),
            token_rate: Bucket::new(limits.tokens_per_minute, now),
        };
        Self { name, limits, counts, taken: Mutex::new(taken) }
    }

    /// Whether it is an operator's key.
    pub(super) fn is_operator(&self) -> bool {
        self.limits.admin
    }

    /// How many turns it has for one of others.
    pub(super) fn weight(&self) -> NonZeroU32 {
        self.limits.weight.unwrap_or(NonZeroU32::MIN)
    }

    /// The priorities that its requests may ask for, where the key says so.
    pub(super) fn priorities(&self) -> Option<[i32; 2]> {
        self.limits.priorities
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that holds it panics.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, counter: impl Fn(&KeyCounts) -> &IntCounterVec, more: u64) {
        if let Some(counts) = &self.counts {
            counter(counts).with_label_values(&[&*self.name]).inc_by(more);
        }
    }

    fn refused(&self, bound: &str, says: &str, after: Duration) -> ApiError {
        if let Some(counts) = &self.counts {
            counts.refused.with_label_values(&[&*self.name, bound]).inc();
        }
        let seconds = after.as_secs_f64().ceil().clamp(1.0, 3600.0) as u32;
        let message = format!("key {:?} has {says} ({bound}); try again in {seconds} s", self.name);
        ApiError::too_many(message, seconds)
    }

    /// Lets a request in, until what is given is dropped.
    pub(super) fn begin(self: &Arc<Self>, now: Instant) -> Result<OnItsWay, ApiError> {
        let mut taken = self.lock();
        if let Some(most) = self.limits.requests.filter(|most| taken.requests >= *most) {
            let says = format!("{most} requests on their way, which is the most");
            return Err(self.refused("max_requests", &says, Duration::from_secs(1)));
        }
        if let Some(most) = self.limits.requests_per_minute {
            let says = format!("sent the {most} requests that it may in a minute");
            let rate = taken.request_rate.take(most, 1.0, now);
            rate.map_err(|after| self.refused("requests_per_minute", &says, after))?;
        }
        taken.requests += 1;
        self.count(|counts| &counts.requests, 1);
        Ok(OnItsWay(Arc::clone(self)))
    }

    /// Takes the tokens of a request's prompts, and those that it may generate.
    pub(super) fn charge(
        self: &Arc<Self>,
        prompt: u64,
        most: u64,
        now: Instant,
    ) -> Result<Charge, ApiError> {
        let tokens = prompt.saturating_add(most);
        let mut taken = self.lock();
        if let Some(bound) = self.limits.tokens {
            if tokens > bound {
                return Err(ApiError::field(
                    "max_tokens",
                    format!(
                        "the prompts and what may be generated are {tokens} tokens, and key {:?} may \
                         have {bound} on their way (max_tokens); ask for fewer",
                        self.name
                    ),
                ));
            }
            if taken.tokens + tokens > bound {
                let says = format!(
                    "{} tokens on their way, and {tokens} more would go past its {bound}",
                    taken.tokens
                );
                return Err(self.refused("max_tokens", &says, Duration::from_secs(1)));
            }
        }
        if let Some(per_minute) = self.limits.tokens_per_minute {
            let says = format!("no room for {tokens} tokens in its {per_minute} of a minute");
            let rate = taken.token_rate.take(per_minute, tokens as f64, now);
            rate.map_err(|after| self.refused("tokens_per_minute", &says, after))?;
        }
        taken.tokens += tokens;
        self.count(|counts| &counts.prompt_tokens, prompt);
        Ok(Charge { owner: Arc::clone(self), tokens, most, generated: 0 })
    }
}

/// A request on its way; dropped, it is no more.
#[derive(Debug)]
pub(crate) struct OnItsWay(Arc<Owner>);

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.lock().requests -= 1;
    }
}

/// Tokens that a request takes until it is dropped. Those that it did not generate are given back to the
/// minute, too.
#[derive(Debug)]
pub(crate) struct Charge {
    owner: Arc<Owner>,
    tokens: u64,
    most: u64,
    generated: u64,
}

impl Charge {
    /// A token was generated.
    pub(super) fn note(&mut self) {
        self.generated += 1;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut taken = self.owner.lock();
        taken.tokens -= self.tokens;
        taken.token_rate.left += self.most.saturating_sub(self.generated) as f64;
        drop(taken);
        self.owner.count(|counts| &counts.generation_tokens, self.generated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    fn owner(limits: KeyLimits) -> Arc<Owner> {
        Arc::new(Owner::new("team".to_owned(), limits, KeyCounts::new().ok()))
    }

    /// That it is refused by this bound, and to be tried again after so many seconds.
    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(result: Result<T, ApiError>, bound: &str, after: u32) {
        let error = result.unwrap_err();
        assert_eq!(error.status, StatusCode::TOO_MANY_REQUESTS);
        let message = error.body()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&format!("({bound}); try again in {after} s")), "{message}");
    }

    #[test]
    fn requests_are_bounded_while_they_are_on_their_way() {
        let team = owner(KeyLimits { requests: Some(2), ..KeyLimits::default() });
        let now = Instant::now();
        let (first, _second) = (team.begin(now).unwrap(), team.begin(now).unwrap());
        assert_refused(team.begin(now), "max_requests", 1);
        drop(first);
        let _third = team.begin(now).unwrap();
        assert_refused(team.begin(now), "max_requests", 1);
        let refused = &team.counts.as_ref().unwrap().refused;
        assert_eq!(refused.with_label_values(&["team", "max_requests"]).get(), 2);
    }

    #[test]
    fn tokens_are_bounded_while_they_are_on_their_way() {
        let team = owner(KeyLimits { tokens: Some(100), ..KeyLimits::default() });
        let now = Instant::now();
        let error = team.charge(50, 51, now).unwrap_err();
        assert_eq!(error.status, StatusCode::BAD_REQUEST, "it could never be let in");
        let held = team.charge(30, 50, now).unwrap();
        assert_refused(team.charge(1, 20, now), "max_tokens", 1);
        let _other = team.charge(1, 19, now).unwrap();
        drop(held);
        drop(team.charge(40, 40, now).unwrap());
        assert_eq!(team.lock().tokens, 20);
    }

    #[test]
    fn rates_are_a_minutes_worth_at_once_and_come_back_with_time() {
        let limits = KeyLimits { requests_per_minute: Some(6), ..KeyLimits::default() };
        let (team, now) = (owner(limits), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        (0..6).for_each(|_| drop(team.begin(now).unwrap()));
        assert_refused(team.begin(now), "requests_per_minute", 10);
        assert_refused(team.begin(later(3)), "requests_per_minute", 7);
        drop(team.begin(later(11)).unwrap());
        assert_refused(team.begin(later(11)), "requests_per_minute", 9);
        // Nothing is saved up beyond a minute.
        (0..6).for_each(|_| drop(team.begin(later(10_000)).unwrap()));
        assert_refused(team.begin(later(10_000)), "requests_per_minute", 10);
    }

    #[test]
    fn tokens_that_were_not_generated_are_given_back() {
        let limits = KeyLimits { tokens_per_minute: Some(600), ..KeyLimits::default() };
        let (team, now) = (owner(limits), Instant::now());
        let mut charge = team.charge(100, 400, now).unwrap();
        assert_refused(team.charge(101, 100, now), "tokens_per_minute", 11);
        (0..50).for_each(|_| charge.note());
        drop(charge);
        assert_eq!(team.lock().token_rate.left, 450.0);
        let counts = team.counts.as_ref().unwrap();
        assert_eq!(counts.generation_tokens.with_label_values(&["team"]).get(), 50);
        assert_eq!(counts.prompt_tokens.with_label_values(&["team"]).get(), 100);
        // What is larger than a minute's worth waits for all of it, and others for what it took.
        assert_refused(team.charge(1, 5000, now), "tokens_per_minute", 15);
        let later = now + Duration::from_secs(15);
        let mut large = team.charge(200, 1000, later).unwrap();
        (0..1000).for_each(|_| large.note());
        drop(large);
        assert_refused(team.charge(1, 0, later), "tokens_per_minute", 61);
    }
}
