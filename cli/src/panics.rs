//! What is said of a panic where the program logs. The standard library would write to standard error by
//! itself, and wait for whoever reads it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::panic::PanicHookInfo;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Has panics said by `say` from now on, a line each, which is JSON where `is_json`. It goes past
/// `tracing`: what panics may be a line that is being written.
pub(crate) fn log_panics(is_json: bool, say: fn(&str)) {
    std::panic::set_hook(Box::new(move |panic| say(&line_of(panic, is_json))));
}

fn line_of(panic: &PanicHookInfo<'_>, is_json: bool) -> String {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let location = panic.location().map_or("a place unknown".to_owned(), ToString::to_string);
    let message = panic.payload_as_str().unwrap_or("it says nothing");
    // There is one where `RUST_BACKTRACE` asks for it.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(&backtrace);
    line(is_json, thread, &location, message, backtrace)
}

fn line(
    is_json: bool,
    thread: &str,
    location: &str,
    message: &str,
    backtrace: Option<&impl Display>,
) -> String {
    let mut time = String::new();
    // Memory is all that it could lack.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let said = format!("thread '{thread}' panicked at {location}: {message}");
    let backtrace = backtrace.map(ToString::to_string);
    if is_json {
        return serde_json::json!({
            "timestamp": time, "level": "ERROR", "message": said, "thread": thread,
            "location": location, "backtrace": backtrace, "target": "piecewise::panic",
        })
        .to_string();
    }
    let backtrace = backtrace.map_or(String::new(), |backtrace| format!("\n{backtrace}"));
    format!("{time} ERROR {said}{backtrace}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line_that_says_where_and_why() {
        let text = line(false, "engine", "a.rs:1:2", "no rows", None::<&String>);
        let (time, said) = text.split_once(' ').unwrap();
        assert_eq!(said, "ERROR thread 'engine' panicked at a.rs:1:2: no rows");
        assert!(time.ends_with('Z') && time.len() > 20, "{time}");
        let json = line(true, "engine", "a.rs:1:2", "no \"rows\"\n", Some(&"0: main"));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["message"], "thread 'engine' panicked at a.rs:1:2: no \"rows\"\n");
        assert_eq!((&json["level"], &json["backtrace"]), (&"ERROR".into(), &"0: main".into()));
    }
}
