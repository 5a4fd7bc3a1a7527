//! What a plan is asked for.

use serde::{Deserialize, Serialize};

use crate::capture_sizes::{ListKind, MAX_GRAPHS};
use crate::costs::{CostPath, StepCosts};
use crate::error::PlannerError;
use crate::mode::{GraphMode, StepMode};
use crate::traffic::{MAX_STEP_TOKENS, Traffic};

/// What makes one plan better than another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The expected time of the log's steps; of plans with equal time, the least padding.
    Time,
    /// The padding tokens of the log's steps, all of them replayed.
    Padding,
}

/// What is asked of a plan: its objective and bounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanRequest {
    /// What the best plan has the least of.
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
}

/// A request with what it is about.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The steps to plan for, by count.
    pub traffic: &'a Traffic,
    /// How long a step takes in each way to run it, as a function of its tokens.
    pub costs: &'a StepCosts,
    /// Objective and bounds.
    pub request: &'a PlanRequest,
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
        }
    }
}

impl PlanRequest {
    /// The request on these steps, at these costs.
    pub fn on<'a>(&'a self, traffic: &'a Traffic, costs: &'a StepCosts) -> Question<'a> {
        Question { traffic, costs, request: self }
    }

    /// Checks the settings against each other and against the log.
    ///
    /// # Errors
    /// [`PlannerError::Setting`] and [`PlannerError::Contradiction`].
    pub fn validate(&self, traffic: &Traffic) -> Result<(), PlannerError> {
        PlannerError::check_graphs(self.max_graphs.unwrap_or(1), MAX_GRAPHS)?;
        if self.graph_mode == GraphMode::None {
            return Err(PlannerError::Contradiction {
                what: "graph mode `none` captures nothing",
                try_instead: "plan for `piecewise`, `full`, `full_decode_only` or `full_and_piecewise`",
            });
        }
        let most = u64::from(MAX_STEP_TOKENS);
        PlannerError::check_limits([
            ("--max-num-tokens", self.max_num_tokens.map_or(1, u64::from), most),
            ("--max-num-seqs", self.max_num_seqs.map_or(1, u64::from), most),
            ("--multiple-of", u64::from(self.multiple_of), most),
        ])?;
        if self.objective == Objective::Padding && (self.launched || !self.cover_maximum) {
            return Err(PlannerError::Contradiction {
                what: "objective `padding` counts steps that replay, a launched step has no padding",
                try_instead: "plan for objective `time`, or let every step replay (drop `--launched per-step` and `--leave-tail`)",
            });
        }
        for (what, given, observed, unit) in [
            ("--max-num-tokens", self.max_num_tokens, traffic.largest_tokens(), "tokens"),
            ("--max-num-seqs", self.max_num_seqs, traffic.largest_decode(), "sequences"),
        ] {
            if let Some(maximum) = given.filter(|maximum| *maximum < observed) {
                let problem = format!(
                    "{maximum}, but the log has a step of {observed} {unit}: raise {what} to \
                     {observed} or plan from a log of the same scheduler limits"
                );
                return Err(PlannerError::Setting { what, problem });
            }
        }
        Ok(())
    }

    /// How a step replays a size of a list.
    pub fn list_path(&self, list: ListKind) -> CostPath {
        match (list, self.graph_mode.mixed()) {
            (ListKind::Decode, _) | (ListKind::Tokens, StepMode::Full) => CostPath::Full,
            (ListKind::Tokens, _) => CostPath::Piecewise,
        }
    }

    /// The largest count that a size of a list must hold, 0 when no step uses the list.
    pub fn maximum(&self, list: ListKind, traffic: &Traffic) -> u32 {
        let mode = self.graph_mode;
        let observed = match list {
            ListKind::Tokens if !mode.has_token_graphs() => 0,
            ListKind::Tokens if mode.has_decode_graphs() => traffic.largest_mixed(),
            ListKind::Tokens => traffic.largest_tokens(),
            ListKind::Decode if !mode.has_decode_graphs() => 0,
            ListKind::Decode => traffic.largest_decode(),
        };
        match list {
            _ if observed == 0 => 0,
            ListKind::Tokens => self.max_num_tokens.unwrap_or(observed),
            ListKind::Decode => {
                let longest = traffic.decode().keys().next_back().copied().unwrap_or(1);
                let fits = self.max_num_tokens.unwrap_or(MAX_STEP_TOKENS) / longest;
                self.max_num_seqs.unwrap_or(observed).min(fits).max(observed)
            }
        }
    }

    /// Query lengths that have decode graphs, at least 1.
    pub fn query_lengths(&self, traffic: &Traffic) -> usize {
        traffic.decode().len().max(1)
    }
}
