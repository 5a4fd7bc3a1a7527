//! Requests, events and options.

use super::constraint::{TokenConstraint, TokenLogprobs};
use super::error::EngineError;
use crate::batch::{RoleMap, Sampling, TokenValues};
use crate::memory::RowsId;
use crate::steps::CompiledModel;
use crate::words::{FinishReason, RequestId, SymbolClass, Usage};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows to stand for tokens.
#[derive(Debug)]
pub enum RowSource<'a> {
    /// Values on the host, row by row.
    Values(&'a [f32]),
    /// Rows of an output of the last step of another model, which ran on the same device: they are
    /// copied there, past the host.
    Output {
        /// The model that computed them.
        model: &'a mut CompiledModel,
        /// Its output, f32 `[rows, width]`.
        output: usize,
        /// Which of its rows, in the order of the tokens.
        rows: &'a [u32],
    },
}

/// Rows in the place of tokens of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenRows {
    /// The position in the prompt of the first of the tokens, whose ids are not looked at.
    pub position: u64,
    /// The rows, one for each token.
    pub rows: RowsId,
}

/// Who asks. While several do, those who wait take turns, in each of which a client has so many requests
/// let in as its weight says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// The same in all its requests.
    pub id: u64,
    /// 1 for who has no more turns than others.
    pub weight: NonZeroU32,
}

impl Default for Client {
    fn default() -> Self {
        Self { id: 0, weight: NonZeroU32::MIN }
    }
}

/// A prompt, how far to go on from it, and what to tell of each token.
#[derive(Clone, Debug)]
pub struct Request {
    /// The ids to go on from; at least one. What is long here is shared by the answers to one prompt.
    pub prompt: Arc<[u32]>,
    /// The most tokens to generate; the context may end it sooner.
    pub max_tokens: u64,
    /// Ids that end it; the id itself is still returned.
    pub stop_ids: Arc<[u32]>,
    /// Whether to go on past stop ids.
    pub ignore_eos: bool,
    /// How each token is chosen.
    pub sampling: Sampling,
    /// What is added to the logits of some ids, at most
    /// [`MAX_LOGIT_BIASES`](super::MAX_LOGIT_BIASES); each id once.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// Whether each token comes with its log-probability, and how many of the likeliest ids come with
    /// theirs beside it: at most [`MAX_TOP_LOGPROBS`](super::MAX_TOP_LOGPROBS).
    pub logprobs: Option<u32>,
    /// Whether the tokens of the prompt, from the second on, come with their log-probabilities too,
    /// and those of how many of the likeliest ids. Such a prompt is computed as a whole, past the
    /// prefix cache, in chunks of as many tokens as a step has rows of logits.
    pub prompt_logprobs: Option<u32>,
    /// What says which ids may come next.
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// Whether ids and KV stay when it finishes, so that it can be continued.
    pub keep: bool,
    /// Rows that stand for tokens of the prompt. They are kept until the request is gone.
    pub rows: Vec<GivenRows>,
    /// Numbers for the tokens of the prompt, for inputs whose functions ask for them.
    pub values: Vec<TokenValues>,
    /// Who goes first: the lower, and of equal ones whose client has its turn.
    pub priority: i32,
    /// Whose it is; of one client's requests who came first goes first.
    pub client: Client,
    /// When it ends at the latest, wherever it is then.
    pub deadline: Option<Instant>,
    /// Who shares its pages: the prefix cache has them for requests with an equal salt alone, or, without
    /// one, for those without. Later turns of a kept request have that of the first.
    pub cache_salt: Option<Arc<str>>,
}

impl Request {
    /// A greedy request without stop ids.
    pub fn new(prompt: impl Into<Arc<[u32]>>, max_tokens: u64) -> Self {
        Self {
            prompt: prompt.into(),
            max_tokens,
            stop_ids: Arc::default(),
            ignore_eos: false,
            sampling: Sampling::default(),
            logit_bias: Arc::default(),
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
            keep: false,
            rows: Vec::new(),
            values: Vec::new(),
            priority: 0,
            client: Client::default(),
            deadline: None,
            cache_salt: None,
        }
    }

    pub(super) fn check(
        &self,
        options: &EngineOptions,
        roles: &RoleMap,
    ) -> Result<(), EngineError> {
        roles.check_samples()?;
        if self.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        check_ids(&self.prompt, options.vocab)?;
        let bad = |parameter, value: String, expected| {
            Err(EngineError::Parameter { parameter, value, expected })
        };
        if self.max_tokens == 0 {
            return bad("max_tokens", "0".to_owned(), "ask for at least one token");
        }
        let Sampling { temperature, top_k, top_p, .. } = self.sampling;
        if !(temperature.is_finite() && temperature >= 0.0) {
            let expected = "it must be a finite number, 0 (the largest logit) or above";
            return bad("temperature", temperature.to_string(), expected);
        }
        if !(0.0..=1.0).contains(&top_p) {
            let expected = "it must be from 0 (the largest logit) to 1 (off)";
            return bad("top_p", top_p.to_string(), expected);
        }
        if i32::try_from(top_k).is_err() {
            return bad("top_k", top_k.to_string(), "it must be below 2^31; 0 is off");
        }
        self.check_controls(options, roles)?;
        if self.sampling.settled().temperature > 0.0 && !roles.has_sampling() {
            let expected =
                "this model's graph has no inputs of the roles sample.*, so only 0 works";
            return bad("temperature", temperature.to_string(), expected);
        }
        Ok(())
    }
}

pub(super) fn check_ids(ids: &[u32], vocab: u64) -> Result<(), EngineError> {
    match ids.iter().position(|&id| u64::from(id) >= vocab) {
        Some(position) => Err(EngineError::IdOutOfRange { id: ids[position], position, vocab }),
        None => Ok(()),
    }
}

pub(super) fn check_length(length: usize, options: &EngineOptions) -> Result<(), EngineError> {
    let bound = options.max_seq_len;
    if length as u64 >= bound {
        return Err(EngineError::TooLong { length, bound });
    }
    Ok(())
}

/// What a step brought about.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum RequestEvent {
    /// It was sent back to wait, since the KV pool was full: its ids are computed again later.
    Preempted {
        /// The one that it belongs to, as [`Engine::add`](super::batching::Engine::add) named it.
        request: RequestId,
    },
    /// A token of the prompt, from the second on and in their order, where the request asks for them.
    PromptToken {
        /// The one that it belongs to, as [`Engine::add`](super::batching::Engine::add) named it.
        request: RequestId,
        /// The token's number in the vocabulary.
        id: u32,
        /// How likely it was after those before it.
        logprobs: Box<TokenLogprobs>,
    },
    /// What the model wrote next.
    Token {
        /// The one that it belongs to, as [`Engine::add`](super::batching::Engine::add) named it.
        request: RequestId,
        /// The token's number in the vocabulary.
        id: u32,
        /// How likely it was, where its request asks for it.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// A request's end, after its last token.
    Finished {
        /// As [`Engine::add`](super::batching::Engine::add) named it.
        request: RequestId,
        /// Whether the model ended it, a bound or a failure.
        reason: FinishReason,
        /// What went wrong, where the reason is that something did.
        message: Option<Box<str>>,
        /// What the turn took, not those before it.
        usage: Usage,
    },
}

impl RequestEvent {
    /// The one that it belongs to.
    pub fn request(&self) -> RequestId {
        match self {
            Self::Preempted { request }
            | Self::PromptToken { request, .. }
            | Self::Token { request, .. }
            | Self::Finished { request, .. } => *request,
        }
    }
}

/// The most that steps and sequences may come to, and how steps follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// The most tokens of a step; longer prompts are cut into chunks.
    pub max_num_tokens: u64,
    /// The most sequences that run at once.
    pub max_num_seqs: u64,
    /// The most ids of a sequence, prompt and generated.
    pub max_seq_len: u64,
    /// Ids that the model has; taken from its logits where it returns them.
    pub vocab: u64,
    /// Whether a step may be submitted before the one before it is read.
    pub run_ahead: bool,
    /// Whether requests begin with pages that others computed for the same ids; no model has that
    /// whose states have one row a sequence.
    pub prefix_cache: bool,
    /// How often a line about the steps since the last one is logged; `None` is never.
    pub stats_interval: Option<Duration>,
}

impl EngineOptions {
    /// All that a model was built for, whose graph's roles are `roles`.
    pub fn of(model: &CompiledModel, roles: &RoleMap) -> Self {
        let symbols = model.symbols();
        let tokens = symbols.count(SymbolClass::Tokens, symbols.bounds());
        let is_counted =
            (0..symbols.bounds().len()).any(|i| symbols.at(i).class == SymbolClass::Sequences);
        let counted = || symbols.count(SymbolClass::Sequences, symbols.bounds());
        let kept = [roles.sampled_entries, roles.state_slots].into_iter().filter(|&n| n > 0);
        let sequences = kept.chain(is_counted.then(counted)).chain([model.max_logit_rows()]);
        let most = i32::MAX as u64;
        Self {
            max_num_tokens: tokens,
            max_num_seqs: sequences.fold(tokens, u64::min),
            max_seq_len: roles.max_positions().unwrap_or(most).min(most),
            vocab: roles.logits.map_or(most, |(_, vocab)| vocab.min(most)),
            run_ahead: true,
            prefix_cache: true,
            stats_interval: None,
        }
    }

    pub(super) fn checked(
        mut self,
        model: &CompiledModel,
        roles: &RoleMap,
    ) -> Result<Self, EngineError> {
        let bounds = Self::of(model, roles);
        let check = |option, value: u64, bound, because| {
            if (1..=bound).contains(&value) {
                return Ok(());
            }
            Err(EngineError::Option { option, value, because, bound })
        };
        let built = "that is the bound that the model was built with";
        check("max_num_tokens", self.max_num_tokens, bounds.max_num_tokens, built)?;
        let because =
            "sequences, rows, state slots and entries of sampled ids of the model bound it";
        check("max_num_seqs", self.max_num_seqs, bounds.max_num_seqs, because)?;
        let because = "the block table and the KV pool bound it (see memory_budget)";
        check("max_seq_len", self.max_seq_len, bounds.max_seq_len, because)?;
        let because = "the logits of the model bound it";
        check("vocab", self.vocab, bounds.vocab, because)?;
        self.run_ahead &= roles.has_feedback();
        if self.prefix_cache && roles.state_slots > 0 {
            tracing::warn!(
                "no prefix cache: states of role \"sequence.state\" hold what only the whole text \
                 before a token gives"
            );
        }
        self.prefix_cache &= roles.table_pages.is_some() && roles.state_slots == 0;
        Ok(self)
    }
}
