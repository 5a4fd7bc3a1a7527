//! What every request sees.

use super::aside::Turns;
use super::body::{BodyMemory, Held};
use super::encoder::EncoderState;
use super::error::ApiError;
use super::keys::ApiKeys;
use super::origins::AllowedOrigins;
use crate::chat::{ChatTemplate, GenerationDefaults, ReplyFormat};
use crate::structured::{Structures, Wanted};
use piecewise::models::{TextTokenizer, TokenizerError, Vocabulary};
use piecewise_runtime::engine_thread::{EngineHandle, Phase, Rest};
use piecewise_runtime::observe::Metrics;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a client may take of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The largest head of a request, of 8 KiB at least.
    pub head_bytes: usize,
    /// The largest body of a request.
    pub body_bytes: usize,
    /// The most values of a body, and names of values.
    pub body_values: usize,
    /// The bytes of memory that all bodies may take beyond their first 64 KiB each, from when they come
    /// until the engine has their requests, and answers until they are read.
    pub bodies_bytes: usize,
    /// The most requests whose texts or structures wait to be read, of each.
    pub waiting_texts: usize,
    /// The most answers to a prompt.
    pub choices: usize,
    /// The most log-probabilities of an answer that comes as a whole, of all choices and of prompts, each of
    /// the likeliest ids counted.
    pub logprobs: usize,
    /// The most ids that a request says an answer ends with.
    pub stop_ids: usize,
    /// The most texts that a request says an answer ends with, and the most that it may not have, with 64
    /// bytes for each in all.
    pub stop_texts: usize,
    /// The most texts of a request to an encoder.
    pub texts: usize,
    /// Whether fields of requests that nobody knows are passed over.
    pub ignores_unknown_fields: bool,
    /// Whether requests say who goes first, by `priority`.
    pub priorities: bool,
    /// The time in which the head of a request must come, and in which a connection may be idle.
    pub head_time: Duration,
    /// The time in which the body of a request must come.
    pub body_time: Duration,
    /// The time in which a client must take some of what is sent.
    pub write_time: Duration,
    /// The most connections at a time, as far as the system gives descriptors for them. For a further
    /// one, that which has waited longest for a request is closed; where each has one, it may only ask
    /// how the server is.
    pub connections: usize,
    /// The most of them from one address; `None` is three quarters of them.
    pub connections_of_address: Option<usize>,
    /// The most connections beyond these, for whoever asks how the server is.
    pub probe_connections: usize,
    /// Those who read KV events at a time, for whom descriptors are left.
    pub kv_readers: usize,
    /// The longest that an answer may take, where it is bounded.
    pub request_time: Option<Duration>,
    /// The longest that a stream of Anthropic's interface is silent: a `ping` comes then.
    pub silence: Duration,
}

impl Limits {
    /// Of so many connections the most from one address.
    pub(crate) fn of_address(&self, connections: usize) -> usize {
        self.connections_of_address.unwrap_or(connections - connections / 4)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 64 << 10,
            body_bytes: 8 << 20,
            body_values: 1 << 20,
            bodies_bytes: 256 << 20,
            waiting_texts: 64,
            choices: 128,
            logprobs: 1 << 19,
            stop_ids: 1024,
            stop_texts: 64,
            texts: 2048,
            ignores_unknown_fields: false,
            priorities: false,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            write_time: Duration::from_secs(60),
            connections: 4096,
            connections_of_address: None,
            probe_connections: 32,
            kv_readers: 0,
            request_time: None,
            silence: Duration::from_secs(15),
        }
    }
}

/// A model that is loaded, as clients see it.
#[derive(Debug, Default)]
pub struct ServedModel {
    /// `None` takes and gives token ids alone.
    pub tokenizer: Option<Arc<TextTokenizer>>,
    /// Ids that end a text.
    pub end_ids: Vec<u32>,
    /// What a request has that does not say otherwise.
    pub defaults: GenerationDefaults,
    /// What makes a prompt of messages; without it there is no chat.
    pub template: Option<ChatTemplate>,
    /// How replies have thoughts and tool calls.
    pub format: ReplyFormat,
}

/// The model with its engine.
#[derive(Debug, derive_more::Deref)]
pub(crate) struct Served {
    pub(crate) engine: EngineHandle,
    #[deref]
    model: ServedModel,
    /// What each id stands for, where there is a tokenizer.
    pub(crate) vocabulary: Option<Vocabulary>,
    /// `None` where ids have no text that a structure could be kept to.
    pub(crate) structures: Option<Structures>,
    pub(crate) room: Room,
}

/// How long a text or a list of ids may be for a context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Tokens of the context.
    tokens: u64,
    /// Bytes of a text that has too many tokens however it is read; what has more is not read.
    bytes: usize,
    /// Bytes of a text that a tokenizer has the memory to read as a whole.
    whole: usize,
}

/// What a tokenizer may make of a text before it looks for tokens, in bytes of it for one of theirs.
const NORMALIZED: usize = 4;
/// Bytes of a long text that are read at once.
const PIECE: usize = 64 << 10;
/// Bytes of a text for each token that there is room for, up to which it is read as a whole.
const BYTES_OF_TOKEN: usize = 4;
/// Texts of more bytes are read one at a time.
pub(crate) const HUGE: usize = 256 << 10;
/// What a tokenizer takes at most for each byte of a text, in bytes; a text of spaces is the worst that is
/// known.
const OF_BYTE: usize = 180;

/// Bytes of the longest of some texts.
pub(crate) fn longest<'t>(texts: impl IntoIterator<Item = &'t String>) -> usize {
    texts.into_iter().map(String::len).max().unwrap_or(0)
}

impl Room {
    /// For a context of so many tokens, where the longest text that is read may take so many bytes of
    /// memory.
    pub(crate) fn new(tokens: u64, vocabulary: Option<&Vocabulary>, memory: usize) -> Self {
        let ids =
            vocabulary.into_iter().flat_map(|all| (0..).take(all.len()).map(|id| all.bytes(id)));
        let longest = ids.map(<[u8]>::len).max().unwrap_or(0);
        let most = usize::try_from(tokens).unwrap_or(usize::MAX);
        let bytes = most.saturating_mul(longest).saturating_mul(NORMALIZED);
        Self { tokens, bytes, whole: HUGE.max(memory / OF_BYTE) }
    }

    /// Refuses a text that is too long by its bytes: to read it would take long.
    pub(crate) fn check_text(self, field: &str, text: &str) -> Result<(), ApiError> {
        self.check(field, text.len() <= self.bytes, text.len(), "bytes")
    }

    /// Bytes of the longest text that may be read.
    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// The error of a text of more than so many bytes.
    pub(crate) fn too_long(self, field: &str, bytes: usize) -> ApiError {
        ApiError::too_long(field, self.no_room(bytes, "bytes and more"))
    }

    /// Refuses more messages than there is room for: each is a token at least.
    pub(crate) fn check_messages(self, field: &str, count: usize) -> Result<(), ApiError> {
        self.check(field, count as u64 <= self.tokens, count, "messages")
    }

    /// Refuses more ids than there is room for, before anybody has copies of them.
    pub(crate) fn check_ids(self, field: &str, count: usize) -> Result<(), ApiError> {
        self.check(field, count as u64 <= self.tokens, count, "tokens")
    }

    /// Refuses a text of more than twice the tokens that there is room for, and reads no more of it than
    /// that takes: to read a text as a whole takes memory and time by its length. It is to be checked by its
    /// bytes before.
    pub(crate) fn check_tokens(
        self,
        tokenizer: &TextTokenizer,
        field: &str,
        text: &str,
        is_wanted: Wanted<'_>,
    ) -> Result<(), ApiError> {
        let most = usize::try_from(self.tokens).unwrap_or(usize::MAX);
        // What has a token for so many bytes is short enough to be read as a whole.
        if text.len() <= PIECE.max(most.saturating_mul(BYTES_OF_TOKEN)) {
            return Ok(());
        }
        let (mut rest, mut found) = (text, 0);
        while !rest.is_empty() && is_wanted() {
            let (piece, more) = rest.split_at(rest.floor_char_boundary(PIECE));
            found += match tokenizer.encode_more(piece) {
                Ok(ids) => ids.len(),
                // Such as one of spaces.
                Err(TokenizerError::EmptyPrompt { .. }) => 0,
                Err(error) => return Err(ApiError::field(field, error)),
            };
            rest = more;
            // Where pieces meet there may be more than in the whole, and never twice as many.
            self.check(field, found / 2 <= most, found, "tokens and more")?;
        }
        Ok(())
    }

    /// The ids of a text, which is read no further than [`Self::check_tokens`] says; `special` is whether the
    /// tokenizer's own special tokens are added.
    pub(crate) fn encode(
        self,
        tokenizer: &TextTokenizer,
        field: &str,
        (text, special): (&str, bool),
        is_wanted: Wanted<'_>,
    ) -> Result<Vec<u32>, ApiError> {
        self.check_tokens(tokenizer, field, text, is_wanted)?;
        if text.len() > self.whole {
            return Err(ApiError::text_never_fits(field, text.len(), self.whole));
        }
        tokenizer.encode_with(text, special).map_err(|error| ApiError::field(field, error))
    }

    fn check(self, field: &str, fits: bool, count: usize, of: &str) -> Result<(), ApiError> {
        if fits { Ok(()) } else { Err(ApiError::too_long(field, self.no_room(count, of))) }
    }

    fn no_room(self, count: usize, of: &str) -> String {
        format!("{count} {of} leave no room in the context of {} tokens", self.tokens)
    }
}

impl Served {
    pub(crate) fn new(engine: EngineHandle, model: ServedModel, memory: usize) -> Self {
        let vocabulary = model.tokenizer.as_deref().map(TextTokenizer::vocabulary);
        let structures = vocabulary.as_ref().and_then(|vocabulary| {
            let made = Structures::new(vocabulary, &model.end_ids);
            made.inspect_err(|error| tracing::warn!("answers can't keep to structures: {error}"))
                .ok()
        });
        let room = Room::new(engine.options().max_seq_len, vocabulary.as_ref(), memory);
        Self { engine, model, vocabulary, structures, room }
    }
}

#[derive(Debug)]
pub(crate) struct State {
    /// The names of the model; answers have the first.
    pub(crate) names: Vec<String>,
    pub(crate) keys: ApiKeys,
    /// The sites whose pages may ask.
    pub(crate) origins: AllowedOrigins,
    /// Whether only this machine reaches it.
    pub(crate) is_loopback: bool,
    pub(crate) limits: Limits,
    /// Whether there are the operator's paths.
    pub(crate) admin: bool,
    /// What the bodies of requests take of memory.
    pub(crate) bodies: BodyMemory,
    /// Structures are read in these.
    pub(crate) structure_turns: Turns,
    /// Large bodies and their texts are read in these.
    pub(crate) text_turns: Turns,
    /// And other texts in these.
    pub(crate) small_turns: Turns,
    /// Each of the longest texts in the one of these.
    pub(crate) huge_turns: Turns,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
    /// Empty while the model is being loaded, and of an encoder.
    pub(crate) served: OnceLock<Served>,
    /// Where the model is an encoder and is loaded.
    pub(crate) encoder: OnceLock<EncoderState>,
}

impl State {
    /// What `work` gives of the texts of a body, the [`longest`] of them of so many bytes, off the threads that
    /// others wait for: of a large body in its turn. It is told whether somebody waits for it.
    pub(crate) async fn read_texts<R, E>(
        &self,
        held: &Held,
        longest: usize,
        work: impl FnOnce(Wanted<'_>) -> Result<R, E> + Send + 'static,
    ) -> Result<R, ApiError>
    where
        R: Send + 'static,
        E: Into<ApiError> + Send + 'static,
    {
        let turns = match held.is_large() {
            _ if longest > HUGE => &self.huge_turns,
            true => &self.text_turns,
            false => &self.small_turns,
        };
        turns.run(held.client(), work).await
    }

    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// The model, where it writes text.
    pub(crate) fn served(&self) -> Result<&Served, ApiError> {
        if self.encoder.get().is_some() {
            let has = "embeddings or scores and writes no text; ask /v1/embeddings, /v1/score or \
                       /v1/rerank";
            return Err(ApiError::wrong_model(self.name(), has));
        }
        self.served.get().ok_or_else(ApiError::loading)
    }

    /// The model, where it is an encoder.
    pub(crate) fn encoder(&self) -> Result<&EncoderState, ApiError> {
        if self.served.get().is_some() {
            let has = "text and no embeddings or scores; serve the folder of an encoder for those";
            return Err(ApiError::wrong_model(self.name(), has));
        }
        self.encoder.get().ok_or_else(ApiError::loading)
    }

    /// How far the life of the model's thread has come; `None` while the model is being loaded.
    pub(crate) fn phase(&self) -> Option<Phase> {
        let of_encoder = || self.encoder.get().map(|encoder| encoder.handle.phase());
        self.served.get().map(|served| served.engine.phase()).or_else(of_encoder)
    }

    pub(crate) fn metrics(&self) -> Result<&Metrics, ApiError> {
        let of_encoder = || self.encoder.get().map(|encoder| encoder.handle.metrics());
        let of_engine = self.served.get().map(|served| served.engine.metrics());
        of_engine.or_else(of_encoder).ok_or_else(ApiError::loading)
    }

    /// The most tokens of a text, where the model is loaded.
    pub(crate) fn longest(&self) -> Option<u64> {
        let of_encoder = || self.encoder.get().map(|encoder| encoder.longest as u64);
        self.served.get().map(|served| served.engine.options().max_seq_len).or_else(of_encoder)
    }

    /// How long a text may be, where the model is loaded.
    pub(crate) fn room(&self) -> Result<Room, ApiError> {
        match self.encoder.get() {
            Some(encoder) => Ok(encoder.room),
            None => Ok(self.served()?.room),
        }
    }

    pub(crate) fn tokenizer(&self, field: &str) -> Result<&Arc<TextTokenizer>, ApiError> {
        let tokenizer = match self.encoder.get() {
            Some(encoder) => &encoder.tokenizer,
            None => &self.served()?.tokenizer,
        };
        needed(tokenizer, field)
    }

    /// What each id stands for, where that is known.
    pub(crate) fn vocabulary(&self) -> Option<&Vocabulary> {
        self.served.get()?.vocabulary.as_ref()
    }

    /// Whether requests are taken now.
    pub(crate) fn is_ready(&self) -> Result<(), &'static str> {
        match self.phase() {
            None => Err("the model is being loaded"),
            Some(Phase::Serving) if self.sleeps() => {
                Err("the engine sleeps; POST /wake_up wakes it")
            }
            Some(Phase::Serving) => Ok(()),
            Some(Phase::Draining | Phase::Stopping) => Err("the server is shutting down"),
            Some(Phase::Stopped) => Err("the engine has stopped"),
        }
    }

    fn sleeps(&self) -> bool {
        self.served.get().is_some_and(|served| served.engine.rest() > Rest::Awake)
    }

    /// Refuses a name that is not the model's.
    pub(crate) fn check_name(&self, asked: Option<String>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if !self.names.contains(&asked) => {
                Err(ApiError::no_model(&asked, self.name()))
            }
            _ => Ok(()),
        }
    }
}

/// The tokenizer of a model whose request has a text in `field`.
pub(crate) fn needed<'t>(
    tokenizer: &'t Option<Arc<TextTokenizer>>,
    field: &str,
) -> Result<&'t Arc<TextTokenizer>, ApiError> {
    let none = || ApiError::field(field, "this model has no tokenizer: give token ids");
    tokenizer.as_ref().ok_or_else(none)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn no_more_of_a_long_text_is_read_than_shows_that_it_is_too_long() {
        let file = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"one": 0, "?": 1}, "unk_token": "?"},
        });
        let file = file.to_string();
        let tokenizer = TextTokenizer::parse(file.as_bytes(), 2, Path::new("tokenizer.json"));
        let tokenizer = tokenizer.unwrap();
        let room = Room { tokens: 20_000, bytes: usize::MAX, whole: 1 << 20 };
        let pieces = AtomicU64::new(0);
        let is_wanted = || pieces.fetch_add(1, Ordering::Relaxed) < 89;
        let check = |text: &str| {
            pieces.store(0, Ordering::Relaxed);
            (
                room.check_tokens(&tokenizer, "prompt", text, &is_wanted),
                pieces.load(Ordering::Relaxed),
            )
        };
        // A token for four bytes: two pieces and a half are twice as many as there is room for.
        let (refused, read) = check(&"one ".repeat(2 << 20));
        let error = refused.unwrap_err().body().to_string();
        assert!(error.contains("context_length_exceeded") && error.contains("prompt"), "{error}");
        assert_eq!(read, 3);
        // Few long words fit, however many bytes they have; who has gone needs no answer.
        let spaced = format!("one{}one", " ".repeat(1 << 18));
        for (text, pieces) in
            [("wo\u{e4}rd".repeat(1 << 16), 6), ("x".repeat(8 << 20), 90), (spaced, 5)]
        {
            let (found, read) = check(&text);
            found.unwrap();
            assert_eq!(read, pieces, "{} bytes", text.len());
        }
        // What is short enough is read as a whole.
        assert_eq!(check(&"one ".repeat(20_000)).1, 0);
        // Few tokens of many bytes may take more memory than there is for a text.
        let encode =
            |bytes| room.encode(&tokenizer, "prompt", (&"x".repeat(bytes), false), &|| true);
        assert_eq!(encode(1 << 20).unwrap().len(), 1);
        let error = encode((1 << 20) + 1).unwrap_err().body().to_string();
        assert!(error.contains("--max-body-memory") && error.contains("prompt"), "{error}");
    }
}
