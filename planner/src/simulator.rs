//! Traffic before there is traffic: requests that arrive at random, and a scheduler that batches
//! them continuously and prefills them in chunks.

use std::collections::VecDeque;
use strum::Display;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp};
use serde::{Deserialize, Serialize};

use crate::costs::{CostPath, StepCosts};
use crate::error::PlannerError;
use crate::lengths::Lengths;
use crate::mode::StepMode;
use crate::record::IterationRecord;
use crate::traffic::MAX_STEP_TOKENS;

/// A named shape of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum TrafficShape {
    /// Short prompts, medium answers, a steady stream of users.
    Chat,
    /// Long prompts with retrieved context, short answers.
    Retrieval,
    /// Everything is there at the start, and only throughput counts.
    Batch,
}

/// Traffic to simulate, and the scheduler that it meets.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// How many arrive before the traffic ends.
    pub requests: u64,
    /// Mean arrivals per second (a Poisson process), or all at the start.
    pub rate: Option<f64>,
    /// How long prompts are, each drawn anew.
    pub prompt: Lengths,
    /// How many tokens each request generates, drawn anew.
    pub output: Lengths,
    /// Most tokens in a step.
    pub max_num_tokens: u32,
    /// Most sequences in a step.
    pub max_num_seqs: u32,
    /// Most prompt tokens of one request in a step.
    pub max_chunk: u32,
    /// Most tokens that the KV cache holds; a request reserves its whole length.
    pub kv_tokens: u64,
    /// The same seed gives the same log.
    pub seed: u64,
}

impl TrafficShape {
    /// The settings of this shape, for a model of about eight billion parameters on one large GPU.
    pub fn simulation(self) -> Simulation {
        let (requests, rate, prompt, output, max_num_tokens, max_num_seqs) = match self {
            TrafficShape::Chat => {
                (4000, Some(10.0), (300.0, 1.2, 8192), (200.0, 0.8, 2048), 2048, 256)
            }
            TrafficShape::Retrieval => {
                (2000, Some(1.5), (12_000.0, 0.5, 32_768), (150.0, 0.6, 1024), 8192, 128)
            }
            TrafficShape::Batch => (6000, None, (800.0, 0.7, 8192), (400.0, 0.5, 2048), 8192, 512),
        };
        let lengths = |(median, sigma, max)| Lengths::LogNormal { median, sigma, max };
        Simulation {
            requests,
            rate,
            prompt: lengths(prompt),
            output: lengths(output),
            max_num_tokens,
            max_num_seqs,
            max_chunk: max_num_tokens,
            kv_tokens: 400_000,
            seed: 1,
        }
    }
}

/// A simulation that takes longer is stopped.
const MAX_SIMULATED_STEPS: u64 = 20_000_000;

const MAX_REQUESTS: u64 = 100_000_000;

struct Request {
    prompt_left: u32,
    output_left: u32,
    reserved: u64,
}

impl Simulation {
    /// Runs it, and hands every step to `record`. A step takes as long as its exact token count
    /// costs replayed, or launched where no replay was measured.
    ///
    /// # Errors
    /// [`PlannerError::Setting`], [`PlannerError::CostsMissing`],
    /// [`PlannerError::SimulationTooLong`], and the error of `record`.
    pub fn run(
        &self,
        costs: &StepCosts,
        mut record: impl FnMut(&IterationRecord) -> Result<(), PlannerError>,
    ) -> Result<(), PlannerError> {
        self.validate()?;
        let mixed_ns = self.step_curve(costs, [CostPath::Piecewise, CostPath::Full])?;
        let decode_ns = self.step_curve(costs, [CostPath::Full, CostPath::Piecewise])?;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let gap_seconds = self.rate.and_then(|rate| Exp::new(rate).ok());
        let mut last_arrival = 0.0_f64;
        let mut arrival = |rng: &mut ChaCha8Rng| {
            last_arrival += gap_seconds.map_or(0.0, |gap| gap.sample(rng) * 1e9);
            last_arrival
        };
        let mut generated = 0_u64;
        let mut next_arrival = arrival(&mut rng);
        let mut waiting: VecDeque<Request> = VecDeque::new();
        let mut running: Vec<Request> = Vec::new();
        let mut reserved = 0_u64;
        let mut now_ns = 0.0_f64;
        for step in 0.. {
            while generated < self.requests && next_arrival <= now_ns {
                waiting.push_back(self.request(&mut rng));
                generated += 1;
                next_arrival = arrival(&mut rng);
            }
            if waiting.is_empty() && running.is_empty() {
                if generated == self.requests {
                    return Ok(());
                }
                now_ns = next_arrival;
                continue;
            }
            if step >= MAX_SIMULATED_STEPS {
                let unfinished = self.requests - generated + (waiting.len() + running.len()) as u64;
                return Err(PlannerError::SimulationTooLong {
                    steps: step,
                    unfinished,
                    requests: self.requests,
                });
            }
            self.admit(&mut waiting, &mut running, &mut reserved);
            let batch = self.schedule(&mut running);
            running.retain(|request| {
                let finished = request.prompt_left == 0 && request.output_left == 0;
                reserved -= if finished { request.reserved } else { 0 };
                !finished
            });
            record(&batch)?;
            let tokens = batch.context_tokens + batch.generation_requests;
            let curve = if batch.context_tokens == 0 { decode_ns } else { mixed_ns };
            now_ns += curve.at(tokens).max(1) as f64;
        }
        Ok(())
    }

    fn request(&self, rng: &mut ChaCha8Rng) -> Request {
        let prompt_left = self.prompt.sample(rng);
        let output_left = self.output.sample(rng);
        let reserved = u64::from(prompt_left) + u64::from(output_left);
        Request { prompt_left, output_left, reserved }
    }

    /// First come, first served, as long as sequences and cache last; a request that is larger
    /// than the whole cache runs alone.
    fn admit(
        &self,
        waiting: &mut VecDeque<Request>,
        running: &mut Vec<Request>,
        reserved: &mut u64,
    ) {
        while running.len() < self.max_num_seqs as usize {
            let fits = waiting.front().is_some_and(|request| {
                running.is_empty() || *reserved + request.reserved <= self.kv_tokens
            });
            if !fits {
                return;
            }
            let Some(request) = waiting.pop_front() else { return };
            *reserved += request.reserved;
            running.push(request);
        }
    }

    /// One token for each generation first, then prompts in order of arrival, until the step is
    /// full.
    fn schedule(&self, running: &mut [Request]) -> IterationRecord {
        let mut left = self.max_num_tokens;
        let (mut context_tokens, mut generation_requests) = (0, 0);
        let (mut sequences, mut rows) = (0, 0);
        for request in running.iter_mut().filter(|request| request.prompt_left == 0) {
            if left == 0 {
                break;
            }
            left -= 1;
            request.output_left -= 1;
            generation_requests += 1;
            rows += 1;
            sequences += 1;
        }
        for request in running.iter_mut().filter(|request| request.prompt_left > 0) {
            if left == 0 {
                break;
            }
            let chunk = request.prompt_left.min(self.max_chunk).min(left);
            left -= chunk;
            request.prompt_left -= chunk;
            context_tokens += chunk;
            sequences += 1;
            if request.prompt_left == 0 {
                request.output_left -= 1;
                rows += 1;
            }
        }
        IterationRecord {
            context_tokens,
            generation_requests,
            sequences,
            rows,
            query_length: (context_tokens == 0).then_some(1),
            tokens: None,
            mode: StepMode::None,
            size: None,
            fallback: Some("simulated".into()),
            gpu_us: None,
            wall_us: None,
        }
    }

    fn step_curve<'a>(
        &self,
        costs: &'a StepCosts,
        preferred: [CostPath; 2],
    ) -> Result<&'a crate::costs::MonotoneCurve, PlannerError> {
        let path = preferred.into_iter().find_map(|path| costs.path(path).ok());
        path.map_or_else(|| costs.path(CostPath::Launched), Ok).map(|path| &path.step_ns)
    }

    fn validate(&self) -> Result<(), PlannerError> {
        let most = u64::from(MAX_STEP_TOKENS);
        PlannerError::check_limits([
            ("--requests", self.requests, MAX_REQUESTS),
            ("--max-num-tokens", u64::from(self.max_num_tokens), most),
            ("--max-num-seqs", u64::from(self.max_num_seqs), most),
            ("--max-chunk", u64::from(self.max_chunk), most),
            ("--kv-tokens", self.kv_tokens, 1 << 50),
        ])?;
        let rate = self.rate.unwrap_or(1.0);
        let fits = rate > 0.0 && rate <= 1e9;
        let expected = "arrivals per second, above 0 and at most 1e9";
        PlannerError::check_number("--rate", rate, fits, expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::ModelledCosts;

    fn run(simulation: &Simulation) -> Vec<IterationRecord> {
        let costs = ModelledCosts::default().costs().unwrap();
        let mut log = Vec::new();
        simulation
            .run(&costs, |record| {
                log.push(record.clone());
                Ok(())
            })
            .unwrap();
        log
    }

    fn small(shape: TrafficShape) -> Simulation {
        Simulation { requests: 150, ..shape.simulation() }
    }

    #[test]
    fn the_seed_decides_everything() {
        let chat = small(TrafficShape::Chat);
        assert_eq!(run(&chat), run(&chat));
        assert_ne!(run(&chat), run(&Simulation { seed: 2, ..chat.clone() }));
    }

    #[test]
    fn every_step_keeps_the_limits_and_every_token_is_served() {
        for shape in [TrafficShape::Chat, TrafficShape::Retrieval, TrafficShape::Batch] {
            let simulation = Simulation {
                prompt: Lengths::Constant(700),
                output: Lengths::Constant(33),
                max_num_tokens: 256,
                max_num_seqs: 20,
                max_chunk: 200,
                kv_tokens: 9000,
                ..small(shape)
            };
            let log = run(&simulation);
            let (mut prompts, mut outputs) = (0, 0);
            for record in &log {
                let tokens = record.context_tokens + record.generation_requests;
                assert!((1..=256).contains(&tokens) && record.sequences <= 12, "{record:?}");
                assert_eq!(record.query_length.is_some(), record.context_tokens == 0);
                prompts += record.context_tokens;
                outputs += record.rows;
            }
            assert_eq!((prompts, outputs), (150 * 700, 150 * 33));
        }
    }

    #[test]
    fn a_higher_rate_batches_more() {
        let decode_batch = |rate| {
            let log = run(&Simulation { rate: Some(rate), ..small(TrafficShape::Chat) });
            let decodes = log.iter().filter(|record| record.context_tokens == 0);
            let batches: Vec<u32> = decodes.map(|record| record.generation_requests).collect();
            f64::from(batches.iter().sum::<u32>()) / batches.len() as f64
        };
        assert!(decode_batch(20.0) > 2.0 * decode_batch(1.0));
    }

    #[test]
    fn impossible_settings_are_refused() {
        let costs = ModelledCosts::default().costs().unwrap();
        let chat = TrafficShape::Chat.simulation();
        for broken in [
            Simulation { requests: 0, ..chat.clone() },
            Simulation { rate: Some(-1.0), ..chat.clone() },
            Simulation { max_num_tokens: 0, ..chat.clone() },
            Simulation { max_num_seqs: u32::MAX, ..chat.clone() },
            Simulation { kv_tokens: 0, ..chat.clone() },
        ] {
            assert!(broken.run(&costs, |_| Ok(())).is_err(), "{broken:?}");
        }
    }
}
