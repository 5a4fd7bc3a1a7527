//! From keys to the sizes and bounds that steps are dispatched by.

use super::error::{ConfigError, ConfigWarning};
use super::values::{MOST, RuntimeConfig, ShortSizeLists, Sizes};
use crate::dispatch::{Dispatcher, OwnSizes, SizeRules};
use crate::words::sizes::SizeList;
use crate::words::{CaptureWhen, CompileLevel, GraphMode, StepMode};
use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

impl RuntimeConfig {
    /// The graph mode in force: levels below `piecewise` capture nothing.
    fn effective_graph_mode(&self) -> GraphMode {
        if self.level == CompileLevel::Piecewise { self.graph_mode } else { GraphMode::None }
    }

    /// Checks values and lists, and makes the dispatcher.
    ///
    /// # Errors
    /// When a bound is 0 or too large, activations are no floats, a size list is empty, has a 0,
    /// does not ascend or passes its bound, or keys contradict each other.
    pub fn dispatcher(&self) -> Result<Dispatcher, ConfigError> {
        let first = |wrong: Vec<_>| wrong.into_iter().next();
        self.resolve().map_err(|wrong| first(wrong).unwrap_or(ConfigError::Several(Vec::new())))
    }

    /// All that is wrong, where [`Self::dispatcher`] says what it finds first.
    pub(super) fn all_wrong(&self) -> Vec<ConfigError> {
        self.resolve().err().unwrap_or_default()
    }

    /// The errors are at least one.
    fn resolve(&self) -> Result<Dispatcher, Vec<ConfigError>> {
        let mut wrong = self.wrong_bounds();
        // Of a bound that is wrong itself nothing follows.
        let is_bounded = wrong.is_empty();
        let up_to = |bound: u64| if is_bounded { bound } else { u64::MAX };
        let mut taken = |list: Result<SizeList, ConfigError>| {
            list.unwrap_or_else(|error| {
                wrong.push(error);
                SizeList::default_pattern(1)
            })
        };
        let tokens = taken(size_list(
            "capture_num_tokens",
            self.to_bound(self.capture_num_tokens.as_ref(), self.max_num_tokens).as_deref(),
            ("max_num_tokens", up_to(self.max_num_tokens)),
            self.max_num_tokens,
        ));
        let batch_bound = self.max_num_seqs().min(self.max_num_rows());
        let batches = taken(size_list(
            "decode_batch_sizes",
            self.to_bound(self.decode_batch_sizes.as_ref(), batch_bound).as_deref(),
            ("max_num_seqs", up_to(self.max_num_seqs())),
            batch_bound,
        ));
        let own = self.capture_own_rows.iter().map(|(role, sizes)| {
            let sizes = taken(size_list("capture_own_rows", Some(sizes), ("any step", MOST), MOST));
            OwnSizes { role: role.clone(), sizes }
        });
        let own = own.collect();
        let mut listed = |key, sizes: &Vec<u64>| match sizes.is_empty() {
            true => Vec::new(),
            false => {
                let bound = up_to(self.max_num_tokens);
                let list = SizeList::new(key, sizes.clone(), "max_num_tokens", bound);
                taken(list.map_err(ConfigError::from)).sizes().to_vec()
            }
        };
        let query_lengths = listed("capture_query_lengths", &self.capture_query_lengths);
        let rules = SizeRules {
            specialized: listed("compile_sizes", &self.compile_sizes),
            launched: listed("launched_sizes", &self.launched_sizes),
            lazy: listed("lazy_sizes", &self.lazy_sizes),
        };
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(Dispatcher {
            mode: self.effective_graph_mode(),
            tokens,
            batches,
            query_lengths,
            max_tokens: self.max_num_tokens,
            max_rows: self.max_num_rows(),
            max_sequences: self.max_num_seqs(),
            padding: self.padding,
            own,
            rules,
        })
    }

    /// A list with the bound as its last size, where it ends below it and is to be extended.
    fn to_bound<'a>(&self, sizes: Option<&'a Sizes>, bound: u64) -> Option<Cow<'a, Sizes>> {
        match sizes? {
            Sizes::List(list)
                if self.short_size_lists == ShortSizeLists::Extend
                    && list.iter().max().is_some_and(|most| *most < bound) =>
            {
                let list = list.iter().copied().chain([bound]).collect();
                Some(Cow::Owned(Sizes::List(list)))
            }
            sizes => Some(Cow::Borrowed(sizes)),
        }
    }

    fn wrong_bounds(&self) -> Vec<ConfigError> {
        let ranges = [
            ("max_num_tokens", self.max_num_tokens, MOST),
            ("cache.max_bytes", self.cache.max_bytes, u64::MAX),
            ("max_seq_len", self.max_seq_len, MOST),
            ("max_num_seqs", self.max_num_seqs(), MOST),
            ("max_num_rows", self.max_num_rows(), MOST),
        ];
        let is_wrong = |(_, value, most): &(_, u64, u64)| !(1..=*most).contains(value);
        let wrong = ranges.into_iter().filter(is_wrong);
        let mut wrong: Vec<_> =
            wrong.map(|(key, value, most)| ConfigError::Range { key, value, most }).collect();
        let share = self.memory_fraction.filter(|&share| !(share > 0.0 && share <= 1.0));
        wrong.extend(share.map(|value| ConfigError::Share { key: "memory_fraction", value }));
        let conflict = |key, value: u64, remedy| ConfigError::Conflict {
            key,
            value: value.to_string(),
            other: format!("max_num_tokens = {}", self.max_num_tokens),
            remedy,
        };
        let is_in_range = |value: u64| (1..=MOST).contains(&value);
        let exceeds = |value: u64| {
            is_in_range(value) && is_in_range(self.max_num_tokens) && value > self.max_num_tokens
        };
        if exceeds(self.max_num_seqs()) {
            let remedy = "each running sequence brings a token to a step: lower max_num_seqs or \
                          raise max_num_tokens";
            wrong.push(conflict("max_num_seqs", self.max_num_seqs(), remedy));
        } else if exceeds(self.max_num_rows()) {
            let remedy = "a step has no more rows than tokens: lower max_num_rows or raise \
                          max_num_tokens";
            wrong.push(conflict("max_num_rows", self.max_num_rows(), remedy));
        }
        wrong.extend(self.wrong_of_server());
        let dtype = self.dtype.filter(|dtype| !dtype.is_float());
        wrong.extend(dtype.map(|dtype| ConfigError::Conflict {
            key: "dtype",
            value: dtype.name().to_owned(),
            other: "activations".to_owned(),
            remedy: "use f32, bf16 or f16",
        }));
        wrong
    }

    /// Keys of the server that do not go together.
    fn wrong_of_server(&self) -> impl Iterator<Item = ConfigError> {
        let server = &self.server;
        let conflict = |key, value: String, other: &str, remedy| ConfigError::Conflict {
            key,
            value,
            other: other.to_owned(),
            remedy,
        };
        let small = |key, bytes: u64, least: u64, remedy| {
            let is_small = bytes < least;
            is_small.then(|| conflict(key, bytes.to_string(), "the smallest requests", remedy))
        };
        let head = "it refuses some that everybody sends; take at least 8192";
        let head = small("server.max_head", server.max_head, 8192, head);
        let body = "it refuses every one; take at least 1024";
        let body = small("server.max_body", server.max_body, 1024, body);
        let least = server.least_body_memory();
        let memory = (server.max_body_memory < least).then(|| {
            let remedy = "it would refuse some for ever: raise it, or lower those";
            let (bytes, values) = (server.max_body, server.max_body_values);
            let other = format!(
                "server.max_body = {bytes} and server.max_body_values = {values}, whose bodies take \
                 {least} with what is left to others"
            );
            conflict("server.max_body_memory", server.max_body_memory.to_string(), &other, remedy)
        });
        let one = |key, is: &Option<PathBuf>, other: &Option<PathBuf>, lacks| {
            let alone = is.as_ref().filter(|_| other.is_none())?;
            let remedy = "TLS needs a certificate and its key: set both";
            Some(conflict(key, alone.display().to_string(), lacks, remedy))
        };
        let (cert, key) = (&server.tls_cert, &server.tls_key);
        let tls = one("server.tls_cert", cert, key, "no server.tls_key")
            .or_else(|| one("server.tls_key", key, cert, "no server.tls_cert"));
        let replay = server.kv_events_replay_endpoint.as_ref();
        let replay = replay.filter(|_| server.kv_events_endpoint.is_none()).map(|endpoint| {
            let remedy = "there is nothing to ask for again: set both";
            let key = "server.kv_events_replay_endpoint";
            conflict(key, endpoint.clone(), "no server.kv_events_endpoint", remedy)
        });
        head.into_iter().chain(body).chain(memory).chain(tls).chain(replay)
    }

    /// What the configuration allows but hardly anybody wants.
    pub fn warnings(&self, dispatcher: &Dispatcher) -> Vec<ConfigWarning> {
        let mut warnings = Vec::new();
        let default_mode = self.graph_mode == GraphMode::default();
        if self.level != CompileLevel::Piecewise
            && !default_mode
            && self.graph_mode != GraphMode::None
        {
            warnings.push(ConfigWarning::ModeWithoutLevel {
                mode: self.graph_mode.name(),
                level: format!("{:?}", self.level).to_lowercase(),
            });
        }
        let later = match self.capture {
            CaptureWhen::Startup => None,
            CaptureWhen::Lazy => Some("lazy"),
            CaptureWhen::Background => Some("background"),
        };
        let later = later.filter(|_| self.measure_padding);
        warnings.extend(later.map(|capture| ConfigWarning::NothingToMeasure { capture }));
        let mode = dispatcher.mode;
        let largest = dispatcher.tokens.max();
        if mode.mixed() != StepMode::None && largest < self.max_num_tokens {
            warnings.push(ConfigWarning::DoesNotReach {
                list: "capture_num_tokens",
                what: "tokens",
                first: largest + 1,
                bound_name: "max_num_tokens",
                bound: self.max_num_tokens,
            });
        }
        let largest = dispatcher.batches.max();
        if mode != GraphMode::None && largest < self.max_num_seqs() {
            warnings.push(ConfigWarning::DoesNotReach {
                list: "decode_batch_sizes",
                what: "sequences",
                first: largest + 1,
                bound_name: "max_num_seqs",
                bound: self.max_num_seqs(),
            });
        }
        if mode.mixed() == StepMode::None && mode != GraphMode::None {
            let given = matches!(self.capture_num_tokens, Some(Sizes::List(_)));
            let sizes = dispatcher.tokens.sizes().iter().filter(|_| given);
            warnings.extend(sizes.map(|&size| ConfigWarning::Unreachable {
                list: "capture_num_tokens",
                size,
                reason: format!("graph_mode = {} captures decode batches alone", mode.name()),
            }));
        }
        for &size in dispatcher.batches.sizes() {
            if size > self.max_num_rows() {
                warnings.push(ConfigWarning::Unreachable {
                    list: "decode_batch_sizes",
                    size,
                    reason: format!("it is above max_num_rows = {}", self.max_num_rows()),
                });
            }
        }
        let sizes = dispatcher.token_sizes();
        let rules = &dispatcher.rules;
        for (list, of_rule) in [("launched_sizes", &rules.launched), ("lazy_sizes", &rules.lazy)] {
            for &size in of_rule.iter().filter(|size| !sizes.contains(size)) {
                let nearest = sizes.iter().copied().min_by_key(|other| other.abs_diff(size));
                let nearest = nearest.unwrap_or(size);
                warnings.push(ConfigWarning::NoSuchSize { list, size, nearest });
            }
        }
        let listed =
            rules.specialized.iter().filter(|size| dispatcher.tokens.sizes().contains(size));
        warnings.extend(listed.map(|&size| ConfigWarning::Unreachable {
            list: "compile_sizes",
            size,
            reason: "capture_num_tokens has it, and steps of fewer tokens pad to it".to_owned(),
        }));
        for &length in dispatcher.query_lengths.iter().filter(|_| mode.has_decode_graphs()) {
            if !dispatcher.decode_batches().any(|(_, q)| q == length) {
                warnings.push(ConfigWarning::Unreachable {
                    list: "capture_query_lengths",
                    size: length,
                    reason: "no decode batch of that length fits in max_num_tokens".to_owned(),
                });
            }
        }
        warnings
    }

    /// Whether what ops say of their capture is probed.
    pub fn probes(&self) -> bool {
        self.probe_capture && self.level == CompileLevel::Piecewise
    }

    /// How often a line about steps is logged.
    pub fn stats_interval(&self) -> Option<Duration> {
        self.stats_interval_seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }
}

fn size_list(
    key: &'static str,
    sizes: Option<&Sizes>,
    (bound_name, bound): (&'static str, u64),
    default: u64,
) -> Result<SizeList, ConfigError> {
    let sizes = match sizes {
        None => SizeList::default_pattern(default).sizes().to_vec(),
        Some(Sizes::UpTo(max)) if (1..=bound).contains(max) => {
            SizeList::default_pattern(*max).sizes().to_vec()
        }
        Some(Sizes::UpTo(max)) => vec![*max],
        Some(Sizes::List(sizes)) => sizes.clone(),
    };
    Ok(SizeList::new(key, sizes, bound_name, bound)?)
}
