//! Requests on their way: when they come, and how many at a time.

use super::client::{Body, Outcome, Target};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// What is asked, and when.
pub(super) struct Plan {
    pub(super) requests: Vec<Body>,
    /// Requests a second; all at once without it.
    pub(super) rate: Option<f64>,
    /// The most on their way at a time.
    pub(super) concurrency: Option<usize>,
    pub(super) seed: u64,
}

/// What became of it.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// In the order of the requests.
    pub(super) outcomes: Vec<Outcome>,
    /// From the first request to the end of the last answer.
    pub(super) duration: Duration,
}

/// When requests come, from the start on: at random, independent of each other.
fn arrivals(count: usize, rate: Option<f64>, seed: u64) -> Vec<Duration> {
    let Some(rate) = rate else { return vec![Duration::ZERO; count] };
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x0a44_17a1);
    let mut at = 0.0;
    let arrival = |_| {
        let now = at;
        let share: f64 = rng.random();
        at -= (1.0 - share).ln() / rate;
        Duration::try_from_secs_f64(now).unwrap_or(Duration::MAX)
    };
    (0..count).map(arrival).collect()
}

pub(super) async fn run_load(target: &Target, plan: Plan) -> Load {
    let Plan { requests, rate, concurrency, seed } = plan;
    let started = Instant::now();
    let places = concurrency.map(|most| Arc::new(Semaphore::new(most)));
    let mut under_way = JoinSet::new();
    let mut outcomes = vec![Outcome::default(); requests.len()];
    let due = arrivals(requests.len(), rate, seed);
    for ((number, body), due) in requests.into_iter().enumerate().zip(due) {
        tokio::time::sleep_until((started + due).into()).await;
        let place = match &places {
            // It is never closed.
            Some(places) => Arc::clone(places).acquire_owned().await.ok(),
            None => None,
        };
        let target = target.clone();
        under_way.spawn(async move {
            let outcome = target.ask(&body, started).await;
            drop(place);
            (number, outcome)
        });
    }
    while let Some(done) = under_way.join_next().await {
        match done {
            Ok((number, outcome)) => outcomes[number] = outcome,
            Err(error) => tracing::error!("a request has no end: {error}"),
        }
    }
    Load { outcomes, duration: started.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_at_their_rate_and_at_random() {
        let due = arrivals(4001, Some(20.0), 7);
        assert_eq!(due[0], Duration::ZERO);
        assert!(due.is_sorted());
        let mean = due[4000].as_secs_f64() / 4000.0;
        assert!((0.045..0.055).contains(&mean), "{mean}");
        // A third of the times between independent clients is above the mean.
        let longer = due.windows(2).filter(|pair| (pair[1] - pair[0]).as_secs_f64() > mean).count();
        assert!((1300..1650).contains(&longer), "{longer}");
        assert_eq!(due, arrivals(4001, Some(20.0), 7));
        assert_ne!(due, arrivals(4001, Some(20.0), 8));
        assert_eq!(arrivals(3, None, 7), [Duration::ZERO; 3]);
    }
}
