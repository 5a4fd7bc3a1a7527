//! Roles: the strings by which the runtime finds what it must bind in a graph.

/// Symbols: the tokens of a step.
pub const TOKENS: &str = "tokens";
/// Symbols: the rows of a step that want logits.
pub const ROWS: &str = "rows";
/// Symbols: the sequences of a step.
pub const SEQUENCES: &str = "sequences";
/// Symbols: what the role of rows of a graph's own kind begins with: `rows.patches`. They are
/// counted by who declared them
/// ([`OpRegistry::declare_rows`](crate::op::OpRegistry::declare_rows)), or given by whoever runs the
/// step.
pub const OWN_ROWS: &str = "rows.";
/// Symbols: the rows of the KV pool; fixed at load.
pub const KV_ROWS: &str = "kv.rows";
/// Symbols: the entries of the state of sampled ids; fixed at load.
pub const SAMPLED_ROWS: &str = "sampled.rows";
/// Symbols: the rows of the state of role [`EMBEDDINGS`]; fixed at load.
pub const EMBEDDING_ROWS: &str = "embedding.rows";
/// Symbols: the slots of states that each sequence has one row of; fixed at load.
pub const SLOT_ROWS: &str = "sequence.slots";

/// Input `i32 [T]`: staged token ids.
pub const TOKEN_IDS: &str = "tokens.ids";
/// Input `i32 [T]`: for each token, the entry of the state of sampled ids that it takes instead
/// of the staged id; -1 takes the staged one.
pub const TOKEN_FEEDBACK: &str = "tokens.feedback";
/// Input `i32 [T]`: the position of each token in its sequence.
pub const TOKEN_POSITIONS: &str = "tokens.positions";
/// Input `i32 [T]`: the row of the state of role [`EMBEDDINGS`] that stands for each token; -1 where
/// its id does.
pub const TOKEN_EMBEDDINGS: &str = "tokens.embeddings";
/// Input `i32 [T, 3]`: where each token lies, such as frame, row and column of an image; its
/// position three times where its request says nothing else.
pub const TOKEN_COORDINATES: &str = "tokens.coordinates";
/// Input `i32 [T]`: the row of the KV pool that each token writes; -1 writes nowhere.
pub const KV_SLOTS: &str = "kv.slots";
/// Input `i32 [S, B]`: the pages of each sequence in order.
pub const KV_BLOCK_TABLE: &str = "kv.block_table";
/// Input `i32 [S]`: the keys of each sequence, this step's among them.
pub const KV_LENGTHS: &str = "kv.lengths";
/// Input `i32 [S]`: the first row of each sequence.
pub const QUERY_STARTS: &str = "query.starts";
/// Input `i32 [S]`: the rows of each sequence.
pub const QUERY_LENGTHS: &str = "query.lengths";
/// Input `i32 [S]`: the slot of each sequence: the row of the states of role [`SEQUENCE_STATE`] that
/// is its own.
pub const SEQUENCE_SLOTS: &str = "sequence.slot";
/// Input `i32 [R]`: the token rows that want logits.
pub const LOGIT_ROWS: &str = "rows.tokens";
/// Input `i32 [R]`: the entry of the state of sampled ids that each row writes; -1 writes nowhere.
pub const SAMPLE_SLOTS: &str = "sample.slots";
/// Input `f32 [R]`: 0 takes the largest logit.
pub const SAMPLE_TEMPERATURE: &str = "sample.temperature";
/// Input `i32 [R]`: 0 is off.
pub const SAMPLE_TOP_K: &str = "sample.top_k";
/// Input `f32 [R]`: 1 is off.
pub const SAMPLE_TOP_P: &str = "sample.top_p";
/// Input `i64 [R]`: the seed of each sequence.
pub const SAMPLE_SEED: &str = "sample.seed";
/// Input `i32 [R]`: the position of the token that is sampled.
pub const SAMPLE_POSITION: &str = "sample.position";
/// Input `i32 [R, 4]`: what each row asks of sampling besides its parameters; 0 is nothing.
pub const SAMPLE_CONTROLS: &str = "sample.controls";
/// Input `f32 [R, 4]`: the least share of the likeliest token's probability, and the penalties for
/// presence, frequency and repetition.
pub const SAMPLE_PENALTIES: &str = "sample.penalties";

/// States `[P, heads, dim]`: keys and values, a row a token.
pub const KV_CACHE: &str = "kv.cache";
/// States `[L, ...]`: what each sequence remembers as a whole, a row a slot. A slot is all zeros
/// before the first token of its sequence.
pub const SEQUENCE_STATE: &str = "sequence.state";
/// State `f32 [E, width]`: rows that stand for tokens, which the steps read and others write between
/// them.
pub const EMBEDDINGS: &str = "embeddings";
/// State `i32 [Q]`: the ids sampled last, by entry.
pub const SAMPLED: &str = "sampled";
/// State `i32 [Q, words]`: masks of ids that may come; which row is whose, a step says.
pub const SAMPLE_MASKS: &str = "sample.masks";
/// State `i32 [Q, words]`: by entry, how often each id was generated, which are of the prompt, and
/// biases.
pub const SAMPLE_TOKENS: &str = "sample.tokens";
