//! NVTX ranges, heard by a profiler made of C.

#![allow(unsafe_code, reason = "what was heard is read from a library of C")]

use crate::bounded::Bound as _;
use crate::skip::skipped;
use libloading::Library;
use piecewise_backend::nvtx::Nvtx;
use std::env::var_os;
use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::process::Command;

/// The profiler, compiled; nothing where there is no C compiler.
fn profiler(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("nvtx-{name}-{}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvtx.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).args(flags);
    match compiler.bounded().map(|mut compiler| compiler.wait()) {
        Ok(status) if status.success() => Some(library),
        other => {
            skipped("PIECEWISE_REQUIRE_GXX", format!("cc does not compile: {other:?}"));
            None
        }
    }
}

#[test]
fn a_profiler_hears_of_ranges_in_ranges() {
    let Some(library) = profiler("hears", &[]) else { return };
    let nvtx = Nvtx::open(&library).unwrap();
    {
        let _step = nvtx.range(c"step");
        drop(nvtx.range(c"model.layers.0"));
        drop(nvtx.range(c"model.layers.1"));
    }
    // SAFETY: the library is the one of above, and the function gives a string of C.
    let heard = unsafe {
        let library = Library::new(&library).unwrap();
        let heard = library.get::<unsafe extern "C" fn() -> *const c_char>(b"piecewise_heard\0");
        CStr::from_ptr(heard.unwrap()()).to_str().unwrap().to_owned()
    };
    assert_eq!(heard, "(step(model.layers.0)(model.layers.1))");
    std::fs::remove_file(library).unwrap();
}

/// In a process of its own, whose environment names a library that is not there yet.
#[test]
fn a_profiler_that_could_not_be_opened_is_tried_again() {
    const NAMED: &str = "NVTX_INJECTION64_PATH";
    const COMPILED: &str = "PIECEWISE_TEST_PROFILER";
    if let (Some(named), Some(compiled)) = (var_os(NAMED), var_os(COMPILED)) {
        let missing = Nvtx::of_environment().unwrap_err().to_string();
        assert!(missing.contains("can't be opened"), "{missing}");
        std::fs::rename(compiled, named).unwrap();
        let nvtx = Nvtx::of_environment().unwrap().expect("it is there now");
        drop(nvtx.range(c"step"));
        return;
    }
    let Some(library) = profiler("late", &[]) else { return };
    let named = library.with_extension("named.so");
    let test = "nvtx::a_profiler_that_could_not_be_opened_is_tried_again";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .envs([(NAMED, &named), (COMPILED, &library)])
        .bounded_output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    std::fs::remove_file(named).unwrap();
}

#[test]
fn what_is_no_profiler_is_named() {
    let missing = Nvtx::open("/dev/null/libprofiler.so".as_ref()).unwrap_err().to_string();
    assert!(missing.contains("/dev/null/libprofiler.so") && missing.contains("can't be opened"));
    let Some(library) = profiler("deaf", &["-DDEAF"]) else { return };
    let deaf = Nvtx::open(&library).unwrap_err();
    assert_eq!(deaf.reason, "listens to no ranges");
    std::fs::remove_file(library).unwrap();
}
