//! What a profiler hears of a run; the profiler is a library made of C.

use crate::bounded::Bound;
use crate::skip::skipped;
use crate::support::cli::{command, device_flags};
use std::process::Command;

#[test]
fn a_profiler_hears_of_steps_by_the_places_in_the_models_code() {
    let folder = tempfile::tempdir().unwrap();
    let (library, heard) = (folder.path().join("profiler.so"), folder.path().join("heard"));
    let source = folder.path().join("profiler.c");
    std::fs::write(&source, include_str!("../../../backend/tests/nvtx.c")).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    let status = compiler.bounded().map(|mut compiler| compiler.wait());
    if !status.as_ref().is_ok_and(|status| status.success()) {
        let reason = format!("cc does not compile: {status:?}");
        return skipped("PIECEWISE_REQUIRE_GXX", reason);
    }
    let hear = |flags: &[&str]| {
        let generate =
            "generate --model examples/tiny-qwen3 --prompt Once --max-tokens 3 --ignore-eos";
        let output = command(folder.path())
            .args(generate.split(' ').chain(flags.iter().copied()))
            .args(device_flags())
            .env("NVTX_INJECTION64_PATH", &library)
            .env("PIECEWISE_HEARD", &heard)
            .bounded_output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(&heard).unwrap_or_default();
        let _ = std::fs::remove_file(&heard);
        text
    };
    assert_eq!(hear(&[]), "", "nobody asked for ranges");
    let launched = hear(&["--nvtx", "--graph-mode", "none"]);
    let steps: Vec<&str> = launched.split("(step: launched(").skip(1).collect();
    assert_eq!(steps.len(), 3, "{launched}");
    for step in steps {
        for layer in
            ["model.layers.0.mlp", "model.layers.1.self_attn", "(piecewise.paged_attention"]
        {
            assert!(step.contains(layer), "{layer} in {step}");
        }
        assert!(step.ends_with("))"), "{step}");
    }
    let [begun, ended] = ["(", ")"].map(|what| launched.matches(what).count());
    assert_eq!(begun, ended, "{launched}");
    let whole = hear(&["--nvtx", "--graph-mode", "full"]);
    assert!(whole.ends_with("(step: replayed whole)"), "{whole}");
}
