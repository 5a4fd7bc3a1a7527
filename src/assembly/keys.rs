//! Every key, by a method that knows its type; [`Assembly::set`] takes any by its name.

use super::Assembly;
use crate::device::DeviceSpec;
use piecewise_backend::tuning::TuneMode;
use piecewise_ir::dtype::DType;
use piecewise_runtime::config::ShortSizeLists;
use piecewise_runtime::words::{
    CaptureWhen, Checks, CompileLevel, GraphMode, OnCaptureFailure, Quantize,
};
use std::collections::BTreeMap;
use std::path::Path;

/// Numbers, in any form that can be gone through.
macro_rules! sizes {
    () => { impl IntoIterator<Item = u64> };
}

/// Names, in any form that can be gone through.
macro_rules! names {
    () => { impl IntoIterator<Item = impl Into<String>> };
}

fn strings(names: names!()) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

/// Methods that set keys: `name(arguments) "key" = value, ..;`.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty)?) $($key:literal = $value:expr),+;)*) => {
        impl Assembly {$(
            $(#[$doc])*
            pub fn $name(self $(, $argument: $type)?) -> Self {
                self$(.set($key, $value))+
            }
        )*}

        /// The keys that have a method.
        #[cfg(test)]
        pub(super) const TYPED: &[&str] = &[$($($key),+),*];
    };
}

setters! {
    /// How far the graph is compiled.
    level(level: CompileLevel) "level" = level;
    /// Which graphs are captured: none, the pieces, whole steps, or both.
    graph_mode(mode: GraphMode) "graph_mode" = mode;
    /// The sizes, ascending, at which graphs are captured: a step runs at the smallest that holds
    /// its rows, and launched above the largest. Without it, a pattern up to the bound.
    capture_sizes(sizes: sizes!()) "capture_num_tokens" = Vec::from_iter(sizes);
    /// The sizes, ascending, of decode batches whose graphs hold whole steps; without it, a pattern.
    decode_batch_sizes(sizes: sizes!()) "decode_batch_sizes" = Vec::from_iter(sizes);
    /// Tokens per sequence for which uniform batches have graphs of their own, ascending; 1 alone
    /// without it.
    capture_query_lengths(lengths: sizes!()) "capture_query_lengths" = Vec::from_iter(lengths);
    /// The sizes, ascending, for rows of the graph's own kinds, by their role; a kind that is not
    /// named has the default pattern up to its bound. A step that brings more than the largest is
    /// launched.
    ///
    /// ```
    /// # use piecewise::prelude::*;
    /// # fn sizes(assembly: Assembly) -> Assembly {
    /// assembly.capture_own_rows([("rows.windows", [2, 8, 16])])
    /// # }
    /// ```
    capture_own_rows(sizes: impl IntoIterator<Item = (impl Into<String>, sizes!())>)
        "capture_own_rows" = BTreeMap::from_iter(
            sizes.into_iter().map(|(role, sizes)| (role.into(), Vec::from_iter(sizes)))
        );
    /// The custom ops that the graph is cut at, by name; without it, those whose definitions say
    /// so. An op that is not cut at becomes part of a piece.
    split_at(names: names!()) "splitting_ops" = strings(names);
    /// Never cuts the graph: every op becomes part of a piece.
    never_split() "splitting_ops" = Vec::<String>::new();
    /// Passes of the pipeline that are left out, by name; those that a plan can't do without are
    /// refused.
    passes_off(names: names!()) "passes_off" = strings(names);
    /// The most tokens of a step; longer prompts are cut into chunks.
    max_num_tokens(tokens: u64) "max_num_tokens" = tokens;
    /// The most rows of one call of the head.
    max_num_rows(rows: u64) "max_num_rows" = rows;
    /// The most sequences of a step.
    max_num_seqs(sequences: u64) "max_num_seqs" = sequences;
    /// The most frames of an encoder's step that replays, an image being one; 0 launches videos.
    max_num_frames(frames: u64) "max_num_frames" = frames;
    /// A log of items by which an encoder's budgets are planned where no sizes are given.
    capture_item_log(file: impl AsRef<Path>) "capture_item_log" = file.as_ref();
    /// The longest sequence, prompt and reply together.
    max_seq_len(tokens: u64) "max_seq_len" = tokens;
    /// Bytes that the model may take; what weights and buffers leave is for the KV cache.
    memory_budget(bytes: u64) "memory_budget" = bytes;
    /// The share of what is free on the device that the model may take, above 0 and at most 1; beside
    /// [`Self::memory_budget`] the smaller of the two counts.
    memory_fraction(share: f64) "memory_fraction" = share;
    /// How ways and algorithms are chosen; without it, by what was remembered, and nothing is measured.
    /// See [`Planned::tuned`](super::Planned::tuned).
    tune(mode: TuneMode) "tune" = mode;
    /// How long measuring may take; without it, 20 seconds at a start, and to its end where models are
    /// [tuned](super::Planned::tuned).
    tune_seconds(seconds: u64) "tune_seconds" = seconds;
    /// Whether a row has the same bits in any company, because products are computed in one way at
    /// all sizes.
    batch_invariant(is_invariant: bool) "batch_invariant" = is_invariant;
    /// Whether a step may run at a larger size than its count; without it, it may.
    padding(is_allowed: bool) "padding" = is_allowed;
    /// Whether steps that padding makes slower than launching are found by measurement at start.
    measure_padding(is_measured: bool) "measure_padding" = is_measured;
    /// Sizes that steps of exactly so many tokens take and no others, lowered once one comes.
    compile_sizes(sizes: sizes!()) "compile_sizes" = Vec::from_iter(sizes);
    /// Sizes in tokens whose steps are launched, not replayed.
    launched_sizes(sizes: sizes!()) "launched_sizes" = Vec::from_iter(sizes);
    /// Sizes in tokens that are captured by the first step that wants them.
    lazy_sizes(sizes: sizes!()) "lazy_sizes" = Vec::from_iter(sizes);
    /// Makes a step that does not replay, or a mode that can't be, an error.
    strict() "strict" = true;
    /// When graphs are captured; without it, all of them while the model is built.
    capture(when: CaptureWhen) "capture" = when;
    /// What a failed capture does; without it, steps that the graph would have served are launched.
    on_capture_failure(what: OnCaptureFailure) "on_capture_failure" = what;
    /// Failures in a row after which a graph is no longer captured; 0 tries for ever.
    capture_attempts(failures: u32) "capture_attempts" = failures;
    /// How often memory may move before graphs are no longer captured again for it; 0 is never.
    recapture_limit(moves: u32) "recapture_limit" = moves;
    /// What is done about a size list that ends below its bound; without it, a warning.
    short_size_lists(what: ShortSizeLists) "short_size_lists" = what;
    /// Whether ops are tried with made-up batches before it is believed that they can be captured;
    /// without it, they are.
    probe_capture(is_probed: bool) "probe_capture" = is_probed;
    /// Layers that are never captured, by name: `model.layers.3`, `model.layers.3.mlp`.
    capture_exclude(layers: names!()) "capture_exclude" = strings(layers);
    /// Whether a request begins with pages that others computed for the same tokens; without it, it
    /// does.
    prefix_cache(is_used: bool) "prefix_cache" = is_used;
    /// Whether a profiler that listens to NVTX hears of each step and of its parts.
    nvtx(is_told: bool) "nvtx" = is_told;
    /// Checks that run with every step, for debugging.
    checks(checks: Checks) "checks.poison" = checks.poison, "checks.addresses" = checks.addresses,
        "checks.compare" = checks.compare;
    /// Whether requests may ask for `min_p`, penalties, biases, masks of ids and log-probabilities,
    /// which takes two bytes on the device for each id of each sequence.
    sampling_controls(are_allowed: bool) "sampling_controls" = are_allowed;
    /// Seconds after which a line is logged about the steps since the last one; 0 logs none.
    stats_interval_seconds(seconds: u64) "stats_interval_seconds" = seconds;
    /// Where to dump what the passes did and made; without it, nothing is dumped.
    dump_dir(folder: impl AsRef<Path>) "dump.dir" = folder.as_ref();
    /// The passes to dump after, by name; without it, every one.
    dump_passes(names: names!()) "dump.passes" = strings(names);
    /// The unique pieces (`u2`) whose files are dumped; without it, every one.
    dump_pieces(names: names!()) "dump.pieces" = strings(names);
    /// Whether PTX, machine code and its disassembly are dumped beside the sources of kernels.
    dump_code(is_dumped: bool) "dump.code" = is_dumped;
    /// Whether every launch on a CUDA device is waited for, so that a failure names its launch.
    cuda_synchronous(waits: bool) "cuda.synchronous" = waits;
    /// Whether no kernel starts on a CUDA device before the one ahead has ended.
    cuda_serial(waits: bool) "cuda.serial" = waits;
    /// Where the driver writes every graph that is captured, for graphviz; without it, nowhere.
    cuda_dot_dir(folder: impl AsRef<Path>) "cuda.dot_dir" = folder.as_ref();
    /// Whether CUDA kernels are compiled with the lines of their sources, for a profiler.
    cuda_line_info(has_lines: bool) "cuda.line_info" = has_lines;
    /// Keeps nothing that is compiled between starts.
    no_cache() "cache.enabled" = false;
    /// The folder of the compile cache.
    cache_dir(folder: impl AsRef<Path>) "cache.dir" = folder.as_ref();
    /// The folder of kernel packs, which have kernels that the compile cache lacks.
    pack_dir(folder: impl AsRef<Path>) "cache.pack_dir" = folder.as_ref();
    /// Bytes that the compile cache may take, at least 1.
    cache_max_bytes(bytes: u64) "cache.max_bytes" = bytes;
    /// Whether the compile cache is used without being changed.
    cache_read_only(is_read_only: bool) "cache.read_only" = is_read_only;
    /// Whether a cache folder that others can write to is trusted with the code that runs.
    cache_shared(is_trusted: bool) "cache.shared" = is_trusted;
    /// The file of the key that entries of the cache are checked with: 64 hexadecimal digits.
    cache_checksum_key_file(file: impl AsRef<Path>) "cache.checksum_key_file" = file.as_ref();
    /// The object store that is asked for what the cache folder lacks, without user or password.
    /// Needs the cargo feature `remote`.
    cache_remote_url(url: impl Into<String>) "cache.remote_url" = url.into();
    /// Whether what is compiled is kept in the object store, too.
    cache_remote_write(is_written: bool) "cache.remote_write" = is_written;
    /// Whether who can write to the object store is trusted with the code that runs.
    cache_remote_trusted(is_trusted: bool) "cache.remote_trusted" = is_trusted;
    /// Milliseconds within which the object store begins to answer, at least 1.
    cache_remote_timeout_ms(milliseconds: u64) "cache.remote_timeout_ms" = milliseconds;
    /// Where it runs, by name; the CPU, unless said otherwise.
    device(device: DeviceSpec) "device" = device.to_string();
    /// The dtype of activations and of the KV cache; without it, the checkpoint's own.
    activations(dtype: DType) "dtype" = dtype;
    /// What the linear layers of a decoder in floats are rounded to when it is loaded; without it, they
    /// stay as they are stored.
    quantize(format: Quantize) "quantize" = format;
}
