//! What is written to the log.

use std::fs;
use std::io;
use std::sync::{Arc, Mutex};

use crate::support::*;
use piecewise_cache::{Cache, CacheOptions, FaultHook, FaultPoint};

/// What is warned about while `work` runs, a line each.
fn warnings(work: impl FnOnce()) -> Vec<String> {
    let written = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&written);
    let writer = move || Lines(Arc::clone(&writer));
    let log = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish();
    tracing::subscriber::with_default(log, work);
    let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_warning_names_the_entry_or_the_condition_once() {
    let dir = tempfile::tempdir().unwrap();
    (1..4).for_each(|i| put(&open(dir.path()), i));
    for i in 1..3 {
        fs::write(entry_path(dir.path(), i), b"bad").unwrap();
    }
    let mut options = CacheOptions::new(dir.path());
    options.fault = Some(FaultHook::new(|point| match point {
        FaultPoint::Write => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    }));
    let warned = warnings(|| {
        let cache = Cache::open(options);
        for _ in 0..3 {
            assert_eq!(get(&cache, 1), None);
            assert_eq!(get(&cache, 2), None);
            assert_serves(&cache, 3);
            assert!(try_put(&cache, 4).is_err());
        }
    });
    assert_eq!(warned.len(), 3, "{warned:#?}");
    let not_an_entry = "does not begin as a cache entry";
    let expected = [(1, not_an_entry), (2, not_an_entry), (4, "no storage")];
    for (warning, (entry, reason)) in warned.iter().zip(expected) {
        let path = entry_path(dir.path(), entry).display().to_string();
        assert!(warning.contains("WARN"), "{warning}");
        assert!(warning.contains(&path) && warning.contains(reason), "{warning}");
    }
}
