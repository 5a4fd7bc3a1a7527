//! What a plan is asked for.

use serde::Serialize;

use crate::costs::CostPath;
use crate::error::PlannerError;
use crate::mode::GraphMode;
use crate::traffic::{MAX_STEP_TOKENS, StepKind, Traffic};

/// What a plan minimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The expected time of the log's steps; of plans with equal time, the least padding.
    Time,
    /// The padding tokens of the log's steps, all of them replayed.
    Padding,
}

/// Settings of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanRequest {
    /// What to minimise.
    pub objective: Objective,
    /// Which steps may replay which graphs.
    pub graph_mode: GraphMode,
    /// The most graphs over both lists; without it, the knee of the trade-off curve.
    pub max_graphs: Option<usize>,
    /// The scheduler's limit of tokens in a step; without it, the largest in the log.
    pub max_num_tokens: Option<u32>,
    /// The scheduler's limit of sequences in a step; without it, the largest in the log.
    pub max_num_seqs: Option<u32>,
    /// Every size but the maximum itself is a multiple of this.
    pub multiple_of: u32,
    /// Whether a step runs launched at its exact count where that is cheaper than replaying.
    pub launched: bool,
    /// Whether the largest token size must cover the maximum; otherwise larger steps are launched.
    pub cover_maximum: bool,
    /// The most bytes that all graphs may keep.
    pub memory_budget: Option<u64>,
    /// The most nanoseconds that all captures may take.
    pub capture_budget_ns: Option<u64>,
    /// What a GiB of graphs costs: microseconds (time) or tokens (padding), per step of the log.
    pub memory_price: f64,
    /// What a second of capture costs, in the same unit.
    pub capture_price: f64,
}

impl Default for PlanRequest {
    fn default() -> Self {
        Self {
            objective: Objective::Time,
            graph_mode: GraphMode::FullAndPiecewise,
            max_graphs: None,
            max_num_tokens: None,
            max_num_seqs: None,
            multiple_of: 1,
            launched: false,
            cover_maximum: true,
            memory_budget: None,
            capture_budget_ns: None,
            memory_price: 0.0,
            capture_price: 0.0,
        }
    }
}

impl PlanRequest {
    /// Checks the settings against each other and against the log.
    ///
    /// # Errors
    /// [`PlannerError::ZeroGraphs`], [`PlannerError::ZeroLimit`], [`PlannerError::AbsurdLimit`],
    /// [`PlannerError::BadSetting`], [`PlannerError::Contradiction`] and
    /// [`PlannerError::MaximumBelowData`].
    pub fn validate(&self, traffic: &Traffic) -> Result<(), PlannerError> {
        self.validate_alone()?;
        let below = |option, given: Option<u32>, observed: u32, unit| match given {
            Some(maximum) if maximum < observed => {
                Err(PlannerError::MaximumBelowData { option, maximum, observed, unit })
            }
            _ => Ok(()),
        };
        below("--max-num-tokens", self.max_num_tokens, traffic.largest_tokens(), "tokens")?;
        below("--max-num-seqs", self.max_num_seqs, traffic.largest_decode(), "sequences")
    }

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// As [`PlanRequest::validate`], without those of the log.
    pub fn validate_alone(&self) -> Result<(), PlannerError> {
        if self.max_graphs == Some(0) {
            return Err(PlannerError::ZeroGraphs);
        }
        if self.graph_mode == GraphMode::None {
            return Err(PlannerError::Contradiction {
                what: "graph mode `none` captures nothing",
                try_instead: "plan for `piecewise`, `full`, `full_decode_only` or `full_and_piecewise`",
            });
        }
        let limits = [
            ("--max-num-tokens", self.max_num_tokens),
            ("--max-num-seqs", self.max_num_seqs),
            ("--multiple-of", Some(self.multiple_of)),
        ];
        for (what, limit) in limits {
            match limit {
                Some(0) => return Err(PlannerError::ZeroLimit { what }),
                Some(value) if value > MAX_STEP_TOKENS => {
                    return Err(PlannerError::AbsurdLimit {
                        what,
                        value: u64::from(value),
                        limit: u64::from(MAX_STEP_TOKENS),
                    });
                }
                _ => {}
            }
        }
        for (what, value) in
            [("--memory-price", self.memory_price), ("--capture-price", self.capture_price)]
        {
            if !(0.0..=1e9).contains(&value) {
                return Err(PlannerError::BadSetting {
                    what,
                    value,
                    expected: "a number from 0 to 1e9",
                });
            }
        }
        if self.objective == Objective::Padding && (self.launched || !self.cover_maximum) {
            return Err(PlannerError::Contradiction {
                what: "objective `padding` counts steps that replay, a launched step has no padding",
                try_instead: "plan for objective `time`, or let every step replay (drop `--launched per-step` and `--leave-tail`)",
            });
        }
        Ok(())
    }

    /// The largest token count that a token size must hold, 0 when no step uses token sizes.
    pub fn token_maximum(&self, traffic: &Traffic) -> u32 {
        let observed = if !self.graph_mode.has_token_graphs() {
            0
        } else if self.graph_mode.has_full() {
            traffic.largest_mixed()
        } else {
            traffic.largest_tokens()
        };
        if observed == 0 { 0 } else { self.max_num_tokens.unwrap_or(observed) }
    }

    /// The largest sequence count that a decode size must hold, 0 when no step uses decode sizes.
    pub fn decode_maximum(&self, traffic: &Traffic) -> u32 {
        let observed = traffic.largest_decode();
        if observed == 0 || !self.graph_mode.has_full() {
            return 0;
        }
        let longest = traffic.decode().keys().next_back().copied().unwrap_or(1);
        let fits = self.max_num_tokens.unwrap_or(MAX_STEP_TOKENS) / longest;
        self.max_num_seqs.unwrap_or(observed).min(fits).max(observed)
    }

    /// Query lengths that have decode graphs, at least 1.
    pub fn query_lengths(&self, traffic: &Traffic) -> usize {
        traffic.decode().len().max(1)
    }

    /// The path of a step of this kind that replays a size of its own list.
    pub fn replay_path(&self, kind: StepKind) -> CostPath {
        match kind {
            StepKind::Decode { .. } if self.graph_mode.has_full() => CostPath::Full,
            _ => self.graph_mode.token_path(),
        }
    }
}
