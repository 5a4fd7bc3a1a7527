//! The keys and their defaults.

use super::server::ServerConfig;
use crate::words::{CaptureWhen, Checks, CompileLevel, GraphMode, OnCaptureFailure, Quantize};
use piecewise_backend::tuning::TuneMode;
use piecewise_cache::without_secrets;
use piecewise_ir::dtype::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;

/// Indices are `i32` on the device.
pub(super) const MOST: u64 = i32::MAX as u64;

/// Everything that can be configured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeConfig {
    /// How far a model is compiled.
    pub level: CompileLevel,
    /// Which graphs are captured; `none` below the level `piecewise`.
    pub graph_mode: GraphMode,
    /// Passes of the pipeline that are left out, such as `fuse` or `cse`: what they would have made is
    /// computed, captured and replayed as it is. Those that a plan can't do without are refused.
    pub passes_off: Vec<String>,
    /// Names of the custom ops to split at; unset splits at every op whose definition says so,
    /// an empty list never splits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub splitting_ops: Option<Vec<String>>,
    /// Sizes for tokens; unset is the default pattern up to `max_num_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_num_tokens: Option<Sizes>,
    /// Sizes for decode batches; unset is the default pattern up to the smaller of
    /// `max_num_seqs` and `max_num_rows`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_batch_sizes: Option<Sizes>,
    /// Tokens per sequence for which uniform batches have graphs of their own, ascending.
    #[schemars(inner(range(min = 1)))]
    pub capture_query_lengths: Vec<u64>,
    /// Sizes for rows of the graph's own kinds, by their role, such as `rows.windows`; a kind that
    /// is not named has the default pattern up to the bound of its symbol.
    pub capture_own_rows: BTreeMap<String, Sizes>,
    /// The most tokens of a step; longer prompts are cut into chunks. The default is the same on every
    /// device, and for every command: what is compiled on a machine without a GPU is what one with
    /// a GPU looks for. It keeps steps that bring prompts short for the decodes beside them; where
    /// prompts are long and few decode, raise it.
    #[schemars(range(min = 1, max = MOST))]
    pub max_num_tokens: u64,
    /// The most rows of one call of the head; unset is as many as a uniform batch of
    /// `max_num_seqs` may want, at most `max_num_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST))]
    pub max_num_rows: Option<u64>,
    /// The most sequences that run at once; unset is 64, or `max_num_tokens` where that is less, on
    /// every device and for every command, however many prompts there are. Each has room at its
    /// longest unless memory is bounded, which is what more of them would cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST))]
    pub max_num_seqs: Option<u64>,
    /// The most frames of a step of an encoder that replays, an image being one; 0 launches
    /// videos; unset is any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_frames: Option<u64>,
    /// A log of items by which an encoder's budgets are planned where `capture_num_tokens` is
    /// unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture_item_log: Option<PathBuf>,
    /// The most tokens of a sequence, prompt and generated.
    #[schemars(range(min = 1, max = MOST))]
    pub max_seq_len: u64,
    /// Bytes that a model may take on the device, code and graphs among them; the KV pool takes whole
    /// pages of what the rest leaves. Unset gives every sequence room at its longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_budget: Option<u64>,
    /// The share of what is free on the device that a model may take, above 0 and at most 1; beside
    /// `memory_budget` the smaller of the two counts. Where neither is set the KV pool of a GPU takes no
    /// more than what the rest leaves of 0.9.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub memory_fraction: Option<f64>,
    /// How the ways to compute parts of a step, and a library's algorithms, are chosen. `piecewise tune`
    /// measures them, and remembers what is faster. What serves requests takes `measure` for `load`.
    pub tune: TuneMode,
    /// Seconds that measuring may take; what is not reached in them runs unmeasured and is left to the
    /// next who measures. Unset is 20 at a start, and no limit for `piecewise tune`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tune_seconds: Option<u64>,
    /// Whether products are computed in one way at all sizes, so that a row has the same bits in any
    /// company. On for encoders unless set: an item then has the same bits alone, packed and padded.
    /// The CPU always does so.
    pub batch_invariant: bool,
    /// Whether a step may run at a larger size than its count.
    pub padding: bool,
    /// Whether it is measured at start, once the graphs are captured, and whenever the graph mode is set, of
    /// those that are captured by then, for which steps a replay of the padded size takes longer than
    /// replaying pieces or launching: such steps go the faster way. Bits may then differ between two starts.
    pub measure_padding: bool,
    /// Sizes in tokens that steps of exactly so many take and no others: lowered and measured for them
    /// alone once a step brings so many, and captured by the next.
    pub compile_sizes: Vec<u64>,
    /// Sizes in tokens whose steps are launched, not replayed.
    pub launched_sizes: Vec<u64>,
    /// Sizes in tokens that are captured by the first step that wants them, where the others are at
    /// start.
    pub lazy_sizes: Vec<u64>,
    /// Whether a step that does not replay, a capture at start that fails, or a mode that can't be, is an
    /// error.
    pub strict: bool,
    /// When graphs are captured.
    pub capture: CaptureWhen,
    /// What a failed capture does.
    pub on_capture_failure: OnCaptureFailure,
    /// Failures in a row after which a graph is no longer captured; 0 tries for ever.
    pub capture_attempts: u32,
    /// How often memory of the model may move before its graphs are no longer captured again for it, and
    /// steps are launched; 0 captures them for ever.
    pub recapture_limit: u32,
    /// What is done about a list in `capture_num_tokens` or `decode_batch_sizes` that ends below its
    /// bound.
    pub short_size_lists: ShortSizeLists,
    /// Whether ops are captured and replayed with made-up batches before they are believed that they
    /// can be.
    pub probe_capture: bool,
    /// Layers that are launched and never captured, by name: `model.layers.3`, `model.layers.3.mlp`.
    pub capture_exclude: Vec<String>,
    /// Whether a request begins with keys and values that others computed for the same tokens, a
    /// page at a time, as long as nothing else needs their pages. Models with states of one row a
    /// sequence have no such cache.
    pub prefix_cache: bool,
    /// Whether a profiler that started this process and listens to NVTX (Nsight Systems) hears of each
    /// step and of its parts, by the places in the model's code that they compute.
    pub nvtx: bool,
    /// Checks that run with every step.
    pub checks: Checks,
    /// How a CUDA device is opened and its kernels are compiled where something is wrong or slow.
    pub cuda: CudaConfig,
    /// Whether requests may ask for `min_p`, penalties, biases of logits, masks of ids and
    /// log-probabilities: sampling then keeps what they go by on the device, two bytes for each id
    /// of each sequence that runs (19 MB for 64 sequences of 152,000 ids). A row that asks for
    /// nothing costs a look at one word.
    pub sampling_controls: bool,
    /// Seconds after which a line is logged about the steps since the last one: how many replayed,
    /// what padding took, what runs and waits; 0 or unset logs none. What serves requests logs one
    /// every 10 seconds unless it is told otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats_interval_seconds: Option<u64>,
    /// Dumps of the pipeline.
    pub dump: DumpConfig,
    /// The compile cache.
    pub cache: CacheConfig,
    /// Where it runs: `cpu`, `cuda` (the first CUDA device), `cuda:N` (that of this number), or `auto`
    /// (the first CUDA device where models run on it, else the processor). What is only planned, compiled
    /// or inspected needs no device and takes an architecture too, such as `cuda:sm_90a`.
    pub device: String,
    /// Of activations; unset is the checkpoint's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::float_types")]
    pub dtype: Option<DType>,
    /// What the linear layers of a decoder in f32, bf16 or f16 are rounded to when it is loaded. Its head,
    /// its embeddings, its norms and layers of fewer than 16 rows or columns stay as they are stored.
    pub quantize: Quantize,
    /// What serves requests.
    pub server: ServerConfig,
}

/// What is done about a size list that ends below its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShortSizeLists {
    /// Steps above its largest size are launched, which a warning says.
    #[default]
    Warn,
    /// The bound becomes its last size.
    Extend,
}

/// A list of sizes, or the default pattern up to a number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a number (the default pattern up to it) or a list of numbers")]
pub enum Sizes {
    /// The default pattern up to this.
    UpTo(u64),
    /// Exactly the listed ones.
    List(Vec<u64>),
}

impl std::str::FromStr for Sizes {
    type Err = String;

    /// Reads `64` (the default pattern up to it) or `1,2,4`; `7,` is a list of one.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            part.trim().parse().map_err(|_| format!("`{part}` is no size; write 1,2,4 or 64"))
        };
        match text.split_once(',') {
            None => number(text).map(Self::UpTo),
            Some(_) => {
                let text = text.strip_suffix(',').unwrap_or(text);
                text.split(',').map(number).collect::<Result<_, _>>().map(Self::List)
            }
        }
    }
}

/// Switches for looking into a CUDA device; on others they change nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CudaConfig {
    /// Whether every launch is waited for, so that a failure names the launch that caused it. Slow.
    pub synchronous: bool,
    /// Whether no kernel starts before the one ahead of it has ended: without programmatic launches, whose
    /// mistakes show only beside each other.
    pub serial: bool,
    /// The folder to which the driver writes every graph that is captured, for graphviz; unset writes
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dot_dir: Option<PathBuf>,
    /// Whether kernels are compiled with the lines of their sources, for a profiler such as Nsight Compute.
    /// They are others to the compile cache.
    pub line_info: bool,
}

/// Dumps of the pipeline.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DumpConfig {
    /// Where to; unset dumps nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Names of the passes to dump after; empty dumps after every pass.
    pub passes: Vec<String>,
    /// Unique pieces (`u2`) whose files are dumped; empty dumps those of every piece.
    pub pieces: Vec<String>,
    /// Whether what is below the sources of kernels is dumped, too: PTX, machine code, and its
    /// disassembly where `nvdisasm` or `cuobjdump` is found.
    pub code: bool,
}

/// The compile cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheConfig {
    /// Whether compiled pieces are kept between starts.
    pub enabled: bool,
    /// Where; unset is PIECEWISE_CACHE_DIR, else `piecewise` in the user's cache folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// The folder of kernel packs: kernels that were compiled ahead, which are asked for what the cache
    /// lacks. Unset is PIECEWISE_PACK_DIR, else `packs` beside the program and `share/piecewise/packs` of
    /// the folder above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack_dir: Option<PathBuf>,
    /// How many bytes it may take.
    #[schemars(range(min = 1))]
    pub max_bytes: u64,
    /// Whether it is used without being changed.
    pub read_only: bool,
    /// Whether a folder that others can write to is trusted. Entries hold code, so who can write
    /// to the folder can change what is computed.
    pub shared: bool,
    /// The file of the key that entries are checked with: 64 hexadecimal digits. Unset is
    /// PIECEWISE_CACHE_CHECKSUM_KEY, else no key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_key_file: Option<PathBuf>,
    /// The object store that is asked for what the folder lacks; unset asks none. Needs the cargo
    /// feature `remote`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_url: Option<RemoteUrl>,
    /// Whether what is compiled is kept in the object store, too.
    pub remote_write: bool,
    /// Whether who can write to the object store may change what is computed. If not, it is used
    /// only with a checksum key.
    pub remote_trusted: bool,
    /// Milliseconds within which the object store begins to answer; each MiB may take another
    /// second. One that takes longer is asked again after a pause.
    pub remote_timeout_ms: NonZeroU64,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            dir: None,
            pack_dir: None,
            max_bytes: 8 << 30,
            read_only: false,
            shared: false,
            checksum_key_file: None,
            remote_url: None,
            remote_write: false,
            remote_trusted: false,
            remote_timeout_ms: REMOTE_TIMEOUT_MS,
        }
    }
}

const REMOTE_TIMEOUT_MS: NonZeroU64 = NonZeroU64::new(5000).unwrap();

/// The address of an object store. Settings are shown and logged, so it holds no user, password,
/// query or fragment.
#[derive(Clone, PartialEq, Eq, Debug, derive_more::Into, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RemoteUrl(String);

impl RemoteUrl {
    /// The address as it was given, which has no secrets.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RemoteUrl {
    type Error = &'static str;

    fn try_from(url: String) -> Result<Self, Self::Error> {
        match without_secrets(&url) == url {
            true => Ok(Self(url)),
            false => Err("an address is shown to everybody: leave out user, password, query and \
                          fragment; credentials come from the environment"),
        }
    }
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            level: CompileLevel::default(),
            graph_mode: GraphMode::default(),
            passes_off: Vec::new(),
            splitting_ops: None,
            capture_num_tokens: None,
            decode_batch_sizes: None,
            capture_query_lengths: vec![1],
            capture_own_rows: BTreeMap::new(),
            max_num_tokens: 512,
            max_num_rows: None,
            max_num_seqs: None,
            max_num_frames: None,
            capture_item_log: None,
            max_seq_len: 4096,
            memory_budget: None,
            memory_fraction: None,
            tune: TuneMode::default(),
            tune_seconds: None,
            batch_invariant: false,
            padding: true,
            measure_padding: false,
            compile_sizes: Vec::new(),
            launched_sizes: Vec::new(),
            lazy_sizes: Vec::new(),
            strict: false,
            capture: CaptureWhen::default(),
            on_capture_failure: OnCaptureFailure::default(),
            capture_attempts: 3,
            recapture_limit: 128,
            short_size_lists: ShortSizeLists::default(),
            probe_capture: true,
            capture_exclude: Vec::new(),
            prefix_cache: true,
            nvtx: false,
            checks: Checks::default(),
            cuda: CudaConfig::default(),
            sampling_controls: true,
            stats_interval_seconds: None,
            dump: DumpConfig::default(),
            cache: CacheConfig::default(),
            device: "cpu".to_owned(),
            dtype: None,
            quantize: Quantize::default(),
            server: ServerConfig::default(),
        }
    }
}

/// Sequences where nothing is configured.
const DEFAULT_SEQUENCES: u64 = 64;

impl RuntimeConfig {
    /// The most rows of one call of the head.
    pub fn max_num_rows(&self) -> u64 {
        let longest = self.capture_query_lengths.iter().copied().max().unwrap_or(1);
        let rows = || self.max_num_seqs().saturating_mul(longest.max(1));
        self.max_num_rows
            .unwrap_or_else(|| rows().min(self.max_num_tokens.max(self.max_num_seqs())))
    }

    /// The most sequences that run at once.
    pub fn max_num_seqs(&self) -> u64 {
        self.max_num_seqs.unwrap_or(DEFAULT_SEQUENCES.min(self.max_num_tokens))
    }
}
