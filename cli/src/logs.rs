//! What goes to standard error: log lines with time and level, as text or as JSON, and what commands say
//! to people.

use crate::log_queue::LogQueue;
use crate::panics::log_panics;
use anyhow::Context;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use piecewise_runtime::observe::Metrics;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// The environment variable with what is shown, as filters of the crate `tracing` are written.
const VARIABLE: &str = "PIECEWISE_LOG";

/// What is shown of the program besides warnings, unless somebody says otherwise.
const SHOWN: [&str; 3] = ["piecewise::start=info", "piecewise::stats=info", "piecewise::told=info"];

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Flags of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Show log lines of this level and above: off, error, warn, info, debug or trace [default: what
    /// PIECEWISE_LOG says, else warn and what the command is there to tell].
    #[arg(
        long, global = true, value_name = "LEVEL", hide_possible_values = true,
        value_parser = PossibleValuesParser::new(LEVELS).try_map(|level| level.parse::<LevelFilter>())
    )]
    log_level: Option<LevelFilter>,
    /// How log lines are written: as text, or as a JSON object a line, as all else that goes to
    /// standard error is then.
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// What a command logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Logging {
    /// It speaks to who started it.
    Command,
    /// It serves, so that all that it says is a log.
    Worker,
    /// As a worker, and where `access` says so with a line about each request.
    Server { access: bool },
}

/// How this process writes, once that is known.
static WRITING: OnceLock<(LogFormat, Logging)> = OnceLock::new();

/// Whether log lines are JSON.
pub(crate) fn is_json() -> bool {
    WRITING.get().is_some_and(|(format, _)| *format == LogFormat::Json)
}

/// Whether what the program says goes by the log.
fn is_log() -> bool {
    WRITING.get().is_some_and(|writing| *writing != (LogFormat::Text, Logging::Command))
}

/// What is on its way to standard error, of a process that serves.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// How long the end of a process that serves waits for lines that nobody has read.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits, but not for ever, until what was said is written: the last that a process does, also when it
/// panics.
pub(crate) struct FlushAtEnd;

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        if let Some(queue) = QUEUE.get() {
            queue.flush(PATIENCE);
        }
    }
}

/// Shows among these metrics how many lines were lost.
pub(crate) fn count_lost(metrics: &Metrics) {
    let help = "Log lines that were not written: standard error was full, closed, or not read.";
    let lost = || QUEUE.get().map_or(0, LogQueue::lost);
    // The program's own name, which is free.
    let counted = metrics.count("piecewise_log_lines_lost_total", help, lost);
    debug_assert!(counted.is_ok(), "{counted:?}");
}

/// Writes a line to standard error.
fn write_line(line: &str) {
    match QUEUE.get() {
        Some(queue) => queue.push(format!("{line}\n").as_bytes()),
        // A closed standard error leaves nobody to tell.
        None => drop(writeln!(std::io::stderr(), "{line}")),
    }
}

/// Says something on standard error that is no reason to stop.
pub(crate) fn warn(text: &str) {
    match is_log() {
        true => tracing::warn!(target: "piecewise::told", "{text}"),
        false => write_line(&format!("warning: {text}")),
    }
}

/// Says something on standard error, which is a line of the log where there is one.
pub(crate) fn tell(line: &str) {
    match is_log() {
        true => tracing::info!(target: "piecewise::told", "{line}"),
        false => write_line(line),
    }
}

/// Writes what somebody asked to see on standard error.
pub(crate) fn say(text: &str) {
    match is_json() {
        true => tracing::info!(target: "piecewise::told", "{text}"),
        false => write_line(text),
    }
}

/// Says why a command ends.
pub(crate) fn say_error(text: &str) {
    match is_json() {
        true => tracing::error!(target: "piecewise::told", "{text}"),
        false => write_line(&format!("error: {text}")),
    }
}

impl LogArgs {
    /// Has log lines written from now on.
    ///
    /// # Errors
    /// When the environment asks for what can't be understood, or there is no thread to write lines.
    pub(crate) fn start(&self, logging: Logging) -> anyhow::Result<()> {
        let variable = std::env::var(VARIABLE).unwrap_or_default();
        let filter = filter(self.log_level, &variable, logging).map_err(anyhow::Error::msg)?;
        let writer = match logging {
            Logging::Command => BoxMakeWriter::new(std::io::stderr),
            Logging::Worker | Logging::Server { .. } => {
                let queue = LogQueue::start(std::io::stderr()).context("no thread for the log")?;
                let queue = QUEUE.get_or_init(|| queue);
                BoxMakeWriter::new(|| queue.clone())
            }
        };
        // What can't be written is no reason to stop, and there is nowhere else to say it.
        let lines = tracing_subscriber::fmt()
            .log_internal_errors(false)
            .with_env_filter(filter)
            .with_writer(writer)
            .with_ansi(std::io::stderr().is_terminal());
        match self.log_format {
            LogFormat::Text => lines.with_target(false).init(),
            LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).init(),
        }
        // A process starts once.
        let _ = WRITING.set((self.log_format, logging));
        if is_log() {
            log_panics(is_json(), write_line);
        }
        Ok(())
    }
}

/// What is shown: at `level`, else at the level that stands alone in the variable, else warnings and what
/// the command is there to tell; for the targets that the variable names, at its levels.
fn filter(
    level: Option<LevelFilter>,
    variable: &str,
    logging: Logging,
) -> Result<EnvFilter, String> {
    let (mut alone, mut named) = (None, Vec::new());
    for text in variable.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        if let Ok(level) = text.parse::<LevelFilter>() {
            alone = Some(level);
            continue;
        }
        let wrong = |reason: &str| format!("{VARIABLE}: `{text}` {reason}");
        if !text.contains(['=', '[']) && !text.starts_with("piecewise") {
            let levels = LEVELS.join(", ");
            return Err(wrong(&format!(
                "is no level, which are {levels}; for what one part says, write PART=LEVEL, such as \
                 piecewise_runtime=debug"
            )));
        }
        named.push(text.parse::<Directive>().map_err(|error| wrong(&error.to_string()))?);
    }
    let parsed = |text: &str| text.parse::<Directive>().map_err(|error| error.to_string());
    let (least, mut shown) = match level.or(alone) {
        Some(level) => (level, Vec::new()),
        None => (LevelFilter::WARN, SHOWN.iter().copied().map(parsed).collect::<Result<_, _>>()?),
    };
    if logging == (Logging::Server { access: true }) && level.or(alone).is_none() {
        shown.push(parsed("piecewise::access=info")?);
    }
    shown.append(&mut named);
    if logging == (Logging::Server { access: false }) {
        shown.push(parsed("piecewise::access=off")?);
    }
    let filter = EnvFilter::builder().with_default_directive(least.into()).parse("");
    let filter = filter.map_err(|error| error.to_string())?;
    Ok(shown.into_iter().fold(filter.add_directive(least.into()), EnvFilter::add_directive))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded::Bound;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::process::{Command, Stdio};

    /// Whether this process is the child of the test below, which panics.
    const PANICS: &str = "A_THREAD_OF_THE_TEST_PANICS";

    /// A child of this test, whose threads panic while it logs as a server does, and go on.
    fn panics() -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "logs::tests::a_panic_goes_by_the_log_and_waits_for_no_reader";
        command.args(["--exact", name, "--nocapture"]).env(PANICS, "1").stdout(Stdio::null());
        command.env_remove("RUST_BACKTRACE");
        command
    }

    #[test]
    fn a_panic_goes_by_the_log_and_waits_for_no_reader() {
        if std::env::var_os(PANICS).is_some() {
            let _at_end = FlushAtEnd;
            let args = LogArgs { log_level: None, log_format: LogFormat::Text };
            args.start(Logging::Worker).unwrap();
            for thread in ["engine", "http"] {
                let thread = std::thread::Builder::new().name(thread.to_owned());
                thread.spawn(|| panic!("no {}", "rows")).unwrap().join().unwrap_err();
            }
            return;
        }
        let output = panics().stderr(Stdio::piped()).bounded_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        for thread in ["engine", "http"] {
            let says = format!(" ERROR thread '{thread}' panicked at cli/src/logs.rs:");
            assert_eq!(said.matches(&says).count(), 1, "{said}");
        }
        assert_eq!(said.matches(": no rows\n").count(), 2, "{said}");
        // A pipe that is full, which nobody reads.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let flags = fcntl_getfl(&writer).unwrap();
        fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
        while writer.write(&[b'x'; 4096]).is_ok() {}
        fcntl_setfl(&writer, flags).unwrap();
        let mut stuck = panics().stdin(Stdio::null()).stderr(writer).bounded().unwrap();
        assert!(stuck.wait().success());
        drop(reader);
    }

    /// The directives of a filter, in an order of their own.
    fn shown(level: Option<&str>, variable: &str, logging: Logging) -> Result<Vec<String>, String> {
        let level = level.map(|level| level.parse().unwrap());
        let text = filter(level, variable, logging)?.to_string();
        let mut directives: Vec<_> = text.split(',').map(str::to_owned).collect();
        directives.sort();
        Ok(directives)
    }

    #[test]
    fn a_flag_goes_above_the_environment_and_the_environment_above_what_is_shown_anyway() {
        let service = Logging::Server { access: true };
        let quiet = Logging::Server { access: false };
        let usual =
            ["piecewise::start=info", "piecewise::stats=info", "piecewise::told=info", "warn"];
        for logging in [Logging::Command, Logging::Worker] {
            assert_eq!(shown(None, "", logging).unwrap(), usual);
        }
        let served = shown(None, "", service).unwrap();
        assert_eq!(served, [&["piecewise::access=info"][..], &usual].concat());
        assert_eq!(shown(Some("error"), "", service).unwrap(), ["error"]);
        assert_eq!(shown(None, " error ,", service).unwrap(), ["error"]);
        assert_eq!(shown(Some("debug"), "error", service).unwrap(), ["debug"]);
        let both = shown(Some("debug"), "hyper=off", quiet).unwrap();
        assert_eq!(both, ["debug", "hyper=off", "piecewise::access=off"]);
        let named = shown(None, "piecewise::stats=off,piecewise_runtime=debug", service).unwrap();
        assert!(named.contains(&"piecewise::stats=off".to_owned()), "{named:?}");
        assert!(named.contains(&"piecewise_runtime=debug".to_owned()), "{named:?}");
        assert!(named.contains(&"warn".to_owned()), "{named:?}");
        let wrong = shown(None, "debugg", service).unwrap_err();
        assert!(wrong.contains("PIECEWISE_LOG: `debugg` is no level"), "{wrong}");
        let wrong = shown(None, "piecewise_runtime=loud", service).unwrap_err();
        assert!(wrong.contains("`piecewise_runtime=loud`"), "{wrong}");
    }
}
