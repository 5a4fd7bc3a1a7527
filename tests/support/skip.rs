//! A test that can't do its work here says so, and fails where that is demanded.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write as _;
use std::sync::Mutex;

/// Says once why something is not tested, past the capture of the test harness; where the
/// environment has `variable=1`, as in CI, that is a failure.
pub(crate) fn skipped(variable: &str, reason: impl Display) {
    let reason = reason.to_string();
    let required = std::env::var(variable).is_ok_and(|v| v == "1");
    assert!(!required, "{variable}=1, but {reason}");
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let is_new = SAID.lock().unwrap().insert(reason.clone());
    if is_new {
        // A macro that prints would be captured.
        let mut terminal = std::io::stderr();
        writeln!(terminal, "skipped: {reason}").unwrap();
    }
}
