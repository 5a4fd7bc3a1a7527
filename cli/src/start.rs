//! What a server says of itself once it can answer.

use super::amounts::{shown_bytes, shown_ledger};
use super::logs::is_json;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_runtime::config::RuntimeConfig;
use piecewise_runtime::engine::Engine;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::words::Checks;
use std::time::Instant;

/// The KV pool, and how many sequences there is room for.
struct KvRoom {
    tokens: u64,
    /// The most that run at once.
    sequences: u64,
    /// The longest of them, and how many of that length the pool holds.
    longest: u64,
    at_longest: u64,
}

impl KvRoom {
    fn of(engine: &Engine) -> Self {
        let options = engine.options();
        let (sequences, longest) = (options.max_num_seqs, options.max_seq_len);
        let pages = engine.load().kv_pages;
        let pages_of_one = longest.div_ceil(PAGE_ROWS).max(1);
        Self { tokens: pages * PAGE_ROWS, sequences, longest, at_longest: pages / pages_of_one }
    }
}

/// Logs what an engine runs: once, before it serves.
pub(crate) fn log_engine(name: &str, config: &RuntimeConfig, engine: &Engine, started: Instant) {
    log_model(name, config, engine.model(), Some(KvRoom::of(engine)), started);
}

/// Logs what an encoder runs, a path after the other.
pub(crate) fn log_encoder<'m>(
    name: &str,
    config: &RuntimeConfig,
    paths: impl Iterator<Item = (&'m str, &'m CompiledModel)>,
    started: Instant,
) {
    paths.for_each(|(_, model)| log_model(name, config, model, None, started));
}

fn log_model(
    name: &str,
    config: &RuntimeConfig,
    model: &CompiledModel,
    kv: Option<KvRoom>,
    started: Instant,
) {
    let (device, mode) = (model.describe_device(), model.dispatcher().mode.name());
    let dtype = config.dtype.map_or("of the checkpoint", |dtype| dtype.name());
    let (ledger, compile, times) =
        (model.ledger(), &model.statistics().compile, model.build_times());
    let graphs = model.captured_graphs();
    let checks = checks(config);
    let seconds = started.elapsed().as_secs_f64();
    let phases = [
        ("compile", times.compile),
        ("load", times.load),
        ("bind", times.bind),
        ("measure", times.measure),
        ("capture", times.capture),
    ];
    let phases = phases.map(|(phase, time)| (phase, time.as_secs_f64()));
    if is_json() {
        let [compiling, loading, binding, measuring, capturing] =
            phases.map(|(_, seconds)| milliseconds(seconds));
        tracing::info!(
            target: "piecewise::start",
            model = name,
            device,
            dtype,
            compile_level = config.level.name(),
            graph_mode = mode,
            reduced_mode = model.reduced_mode(),
            graphs,
            graph_bytes = ledger.graphs,
            compiled = compile.total_compiled(),
            reused = compile.reused.values().sum::<u64>(),
            memory_bytes = ledger.total(),
            weight_bytes = ledger.weights,
            state_bytes = ledger.states,
            arena_bytes = ledger.slots,
            scratch_bytes = ledger.scratch,
            code_bytes = ledger.modules,
            pinned_bytes = ledger.pinned,
            kv_tokens = kv.as_ref().map(|kv| kv.tokens),
            max_num_seqs = kv.as_ref().map(|kv| kv.sequences),
            max_seq_len = kv.as_ref().map(|kv| kv.longest),
            seqs_at_longest = kv.as_ref().map(|kv| kv.at_longest),
            seconds = milliseconds(seconds),
            compile_seconds = compiling,
            load_seconds = loading,
            bind_seconds = binding,
            measure_seconds = measuring,
            capture_seconds = capturing,
            checks,
            "started"
        );
        return;
    }
    let rest = (seconds - phases.iter().map(|(_, seconds)| seconds).sum::<f64>()).max(0.0);
    let phases = phases.iter().filter(|(_, seconds)| *seconds > 0.0);
    let phases = phases.map(|(phase, seconds)| format!("{phase} {seconds:.2}, "));
    let phases = String::from_iter(phases);
    let reduced = model.reduced_mode().map_or(String::new(), |why| format!(", reduced: {why}"));
    let mut lines = vec![
        ("model", format!("{name}, {dtype}")),
        ("device", device),
        ("graph mode", format!("{mode}{reduced}")),
        ("graphs", format!("{graphs}, {}", shown_bytes(ledger.graphs))),
        ("pieces", compile.to_string()),
        ("memory", shown_ledger(&ledger)),
    ];
    lines.extend(kv.map(|KvRoom { tokens, sequences, longest, at_longest }| {
        let room = format!(
            "{tokens} tokens; {sequences} sequences at once, {at_longest} of them at their longest, \
             {longest} tokens"
        );
        ("kv cache", room)
    }));
    lines.push(("seconds", format!("{seconds:.2}: {phases}the rest {rest:.2}")));
    lines.push(("checks", checks));
    for (what, text) in lines {
        tracing::info!(target: "piecewise::start", "{what:<11} {text}");
    }
}

/// Seconds to the millisecond.
fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// The checks that run with every step.
fn checks(config: &RuntimeConfig) -> String {
    let Checks { poison, addresses, compare } = config.checks;
    let all = [
        ("poison", poison),
        ("addresses", addresses),
        ("compare", compare),
        ("strict", config.strict),
    ];
    let on: Vec<_> = all.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).collect();
    if on.is_empty() { "none".to_owned() } else { on.join(", ") }
}
