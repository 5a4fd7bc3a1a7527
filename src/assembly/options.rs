//! From a configuration to what a model is built and served with.

use piecewise_backend::compiler::CompilerOptions;
use piecewise_backend::cuda::CudaOptions;
use piecewise_backend::tuning::TuneMode;
use piecewise_runtime::batch::{RoleMap, full_steps, probes};
use piecewise_runtime::config::{ConfigError, RuntimeConfig};
use piecewise_runtime::engine::EngineOptions;
use piecewise_runtime::steps::BuildOptions;
use piecewise_runtime::words::{CompileLevel, OnCaptureFailure};
use std::time::Duration;

/// Bytes of logits that one step may bring back.
const LOGIT_BYTES: u64 = 256 << 20;

/// How long a start measures that is told to, where nothing else is said.
const TUNE_AT_START: Duration = Duration::from_secs(20);

/// What a model is built for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Purpose {
    /// Sampled ids are read back.
    #[default]
    Generate,
    /// Logits of every position are read back too.
    Logits,
    /// Of a graph that is stepped by hand, nothing is read back: its outputs are for another model on
    /// the device.
    Rows,
}

/// How a CUDA device is opened.
pub(super) fn cuda_options(config: &RuntimeConfig) -> CudaOptions {
    let cuda = &config.cuda;
    CudaOptions {
        synchronous: cuda.synchronous,
        serial: cuda.serial,
        dot_dir: cuda.dot_dir.clone(),
        ..CudaOptions::default()
    }
}

/// What artifacts hold.
pub(super) fn compiler_options(config: &RuntimeConfig) -> CompilerOptions {
    CompilerOptions {
        batch_invariant: config.batch_invariant,
        first_ways: config.tune == TuneMode::Off,
        line_info: config.cuda.line_info,
    }
}

/// How to build a model of a graph that has these outputs. `roles` says which of them a graph
/// over sequences samples; without it, all are read back.
///
/// # Errors
/// As for [`RuntimeConfig::dispatcher`].
pub(super) fn build_options(
    config: &RuntimeConfig,
    roles: Option<&RoleMap>,
    outputs: usize,
    purpose: Purpose,
) -> Result<BuildOptions, ConfigError> {
    let dispatcher = config.dispatcher()?;
    let least = config.max_num_rows().max(config.max_num_seqs());
    let mut max_logit_rows = least;
    let mut read_outputs: Vec<_> = match roles {
        _ if purpose == Purpose::Rows => Vec::new(),
        Some(roles) => roles.sampled.into_iter().chain(roles.details).collect(),
        None => (0..outputs).collect(),
    };
    let logits = roles.and_then(|roles| roles.logits);
    if let (Purpose::Logits, Some((output, vocab))) = (purpose, logits) {
        read_outputs.push(output);
        let rows = LOGIT_BYTES / vocab.saturating_mul(4).max(1);
        max_logit_rows = rows.clamp(least, config.max_num_tokens.max(least));
    }
    let probed = roles.filter(|_| config.probes());
    let probes = probed.map_or(Vec::new(), |roles| probes(roles, &dispatcher));
    let tune = match (config.level, config.tune) {
        // Who looks for a fault does not wait for what is faster.
        (CompileLevel::Eager | CompileLevel::Trace, TuneMode::Measure) => TuneMode::Load,
        (_, tune) => tune,
    };
    let tuning_steps = roles.filter(|_| tune == TuneMode::Measure);
    let tuning_steps = tuning_steps.map_or(Vec::new(), |roles| full_steps(roles, &dispatcher));
    Ok(BuildOptions {
        dispatcher,
        probes,
        max_logit_rows,
        read_outputs,
        capture: config.capture,
        // A step that its graph is missing for would be an error, too, only later.
        on_capture_failure: match config.strict {
            true => OnCaptureFailure::Error,
            false => config.on_capture_failure,
        },
        capture_attempts: config.capture_attempts,
        recapture_limit: config.recapture_limit,
        capture_exclude: config.capture_exclude.clone(),
        tune,
        tune_budget: config.tune_seconds.map_or(TUNE_AT_START, Duration::from_secs),
        tuning_steps,
        strict: config.strict,
        checks: config.checks,
        measure_padding: config.measure_padding,
    })
}

/// How to serve with a model: the most that it takes, reduced to what is configured.
pub(super) fn engine_options(config: &RuntimeConfig, most: EngineOptions) -> EngineOptions {
    let mut options = most;
    options.max_num_tokens = options.max_num_tokens.min(config.max_num_tokens);
    options.max_num_seqs = options.max_num_seqs.min(config.max_num_seqs());
    options.max_seq_len = options.max_seq_len.min(config.max_seq_len);
    options.prefix_cache &= config.prefix_cache;
    options.stats_interval = config.stats_interval();
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_runtime::config::CudaConfig;

    /// A driver that is waited for, or told where to draw, is seen on a GPU alone.
    #[test]
    fn keys_of_a_cuda_device_reach_it() {
        let cuda = CudaConfig {
            synchronous: true,
            serial: true,
            dot_dir: Some("graphs".into()),
            line_info: true,
        };
        let config = RuntimeConfig { cuda, ..RuntimeConfig::default() };
        let opened = cuda_options(&config);
        assert!(opened.synchronous && opened.serial && !opened.stamps);
        assert_eq!(opened.dot_dir.as_deref(), Some(std::path::Path::new("graphs")));
        assert!(compiler_options(&config).line_info);
        let opened = cuda_options(&RuntimeConfig::default());
        assert!(!opened.synchronous && !opened.serial && opened.dot_dir.is_none());
        assert!(!compiler_options(&RuntimeConfig::default()).line_info);
    }
}
