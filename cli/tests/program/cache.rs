//! The compile cache, end to end: runs that find everything give the same bits as runs that find
//! nothing, and no damage to an entry changes what comes out.

use crate::bounded::Bound;
use crate::skip::skipped;
use crate::support::cache::*;
use crate::support::cli::{command, error_of, root};
use crate::support::somebody::as_somebody;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_warm_run_compiles_nothing_and_gives_the_same_bits() {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path();
    let (cold, counts) = generate(cache, &[]);
    assert!(counts["compiled"]["piece"].as_u64().unwrap() > 0);
    let (warm, counts) = generate(cache, &[]);
    assert_eq!(counts["compiled"], serde_json::json!({}));
    assert!(counts["reused"]["piece"].as_u64().unwrap() > 0);
    assert_eq!(warm, cold);
    let (without, counts) = generate(cache, &["--no-cache"]);
    assert_eq!(counts["reused"], serde_json::json!({}));
    assert_eq!(without, cold);
    assert_eq!(logits(cache, &[]), logits(cache, &["--no-cache"]));
    assert_eq!(logits(cache, &[]), logits(cache, &["--cache-read-only"]));
}

#[test]
fn what_compile_makes_is_what_a_run_looks_for() {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path();
    let made = compile(cache, &[]);
    let pieces = made["compiled"]["piece"].as_u64().unwrap();
    assert!(made["bytes_written"].as_u64().unwrap() > 0);
    assert_eq!(made["pieces_to_measure"], 0);
    let (_, counts) = generate(cache, &[]);
    assert_eq!(counts["compiled"], serde_json::json!({}));
    assert_eq!(counts["reused"]["piece"], pieces);
    let again = compile(cache, &[]);
    assert_eq!(again["compiled"], serde_json::json!({}));
    assert_eq!(again["bytes_written"], 0);
}

/// Where and as whom a fill of a cache runs.
struct Elsewhere<'a> {
    /// Home, name and language of the user.
    home: &'a str,
    /// Place of this process among those of a job.
    rank: &'a str,
    threads: &'a str,
    /// Whether only one processor is to be had.
    is_pinned: bool,
    is_another_user: bool,
    target: &'a [&'a str],
}

/// What a fill of a cache leaves, with a copy of the model in a folder of its own; the reason if
/// this can't be tried here.
fn filled(elsewhere: &Elsewhere<'_>) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
    let place = tempfile::tempdir().unwrap();
    let (cache, model) =
        (place.path().join("cache"), place.path().join(elsewhere.home.replace('/', "_")));
    for folder in [&cache, &model] {
        std::fs::create_dir(folder).unwrap();
    }
    for file in std::fs::read_dir(root().join(MODEL)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let mut command = command(&cache);
    if elsewhere.is_pinned {
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", "0"]).arg(command.get_program()).env("PIECEWISE_CACHE_DIR", &cache);
        command = pinned;
    }
    command.args(["compile", "--model", model.to_str().unwrap()]).args(SETTINGS);
    command.args(elsewhere.target).current_dir(place.path());
    for name in ["HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "HOSTNAME"] {
        command.env(name, elsewhere.home);
    }
    for name in ["RANK", "LOCAL_RANK", "SLURM_PROCID", "CUDA_VISIBLE_DEVICES", "WORLD_SIZE"] {
        command.env(name, elsewhere.rank);
    }
    command.env("RAYON_NUM_THREADS", elsewhere.threads).env("TMPDIR", place.path());
    if elsewhere.is_another_user {
        command = as_somebody(command, place.path())?;
    }
    match command.bounded_output() {
        Ok(output) => Ok(checked(output)).map(|_| files(&cache)),
        Err(error) => Err(format!("{:?}: {error}", command.get_program())),
    }
}

const HERE: Elsewhere<'_> = Elsewhere {
    home: "/nobody",
    rank: "0",
    threads: "1",
    is_pinned: false,
    is_another_user: false,
    target: &[],
};

const THERE: Elsewhere<'_> = Elsewhere { home: "/home/some body", rank: "7", threads: "4", ..HERE };

#[test]
fn entries_are_the_same_bytes_wherever_they_are_made() {
    let expected = filled(&HERE).unwrap();
    assert!(!expected.is_empty());
    assert_eq!(filled(&THERE).unwrap(), expected);
    let pinned = Elsewhere { is_pinned: true, ..HERE };
    for there in [pinned, Elsewhere { is_another_user: true, ..THERE }] {
        match filled(&there) {
            Ok(found) => assert_eq!(found, expected),
            Err(reason) => skipped("PIECEWISE_REQUIRE_USERS", reason),
        }
    }
}

#[test]
fn entries_for_cuda_are_the_same_bytes_wherever_they_are_made() {
    if !has_nvrtc() {
        return;
    }
    let target: &[&str] = &["--device", "cuda:sm_90a"];
    let expected = filled(&Elsewhere { target, ..HERE }).unwrap();
    assert!(!expected.is_empty());
    let there = Elsewhere { target, ..THERE };
    let another_user = Elsewhere { is_another_user: true, ..there };
    let found = filled(&another_user).or_else(|reason| {
        println!("as the same user: {reason}");
        filled(&there)
    });
    assert_eq!(found.unwrap(), expected);
}

/// Flips a bit at each of `places` of an entry, one at a time: the output is right each time, and
/// the entry is whole again afterwards.
fn check_flips(entry: &Path, cache: &Path, places: impl Iterator<Item = usize>) {
    let expected = logits(cache, &[]);
    let good = std::fs::read(entry).unwrap();
    for at in places {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(entry, &bad).unwrap();
        assert_eq!(logits(cache, &[]), expected, "byte {at} of {}", entry.display());
        assert_eq!(std::fs::read(entry).unwrap(), good, "byte {at} of {}", entry.display());
    }
}

#[test]
fn flipped_bytes_of_entries_never_change_the_output() {
    for kind in ["piece", "image"] {
        let cache = tempfile::tempdir().unwrap();
        let entry = entry_to_damage(cache.path(), kind);
        let bytes = std::fs::metadata(&entry).unwrap().len() as usize;
        check_flips(&entry, cache.path(), (0..12).map(|i| i * bytes / 12));
    }
}

#[test]
fn truncated_and_foreign_entries_are_made_again() {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path();
    let expected = logits(cache, &[]);
    let good = files(cache);
    for (i, name) in good.keys().enumerate() {
        let bytes = &good[name];
        let other = good.values().nth((i + 1) % good.len()).unwrap();
        let bad = if i % 2 == 0 { &bytes[..bytes.len() * i / good.len()] } else { other };
        std::fs::write(cache.join(name), bad).unwrap();
    }
    assert_eq!(logits(cache, &[]), expected);
    for (name, bytes) in &good {
        assert_eq!(&std::fs::read(cache.join(name)).unwrap(), bytes, "{}", name.display());
    }
    let (_, counts) = generate(cache, &[]);
    assert!(counts["reused"]["piece"].as_u64().unwrap() > 0);
}

#[test]
fn a_cache_that_can_not_be_used_costs_only_the_compile() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(logits(&file, &[]), logits(cache.path(), &[]));
    assert_eq!(std::fs::read(&file).unwrap(), b"not a folder");
    let mut command = command(&file);
    let output = command.args(["compile", "--model", MODEL]).bounded_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("not everything is in the cache"));
}

#[test]
fn entries_are_listed_shown_explained_and_carried() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (here.path(), there.path());
    let made = compile(here, &[]);
    let pieces = made["compiled"]["piece"].as_u64().unwrap() as usize;
    let listed = json(&run(here, &["cache", "list", "--json", "--filter", "rows"]));
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), pieces);
    let key = listed[0]["key"].as_str().unwrap();
    let shown = json(&run(here, &["cache", "show", &key[..16], "--json"]));
    assert_eq!(shown["entry"]["key"], key);
    assert!(
        !shown["piece"]["alternatives"][0]["parts"][0]["ways"][0]["launches"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    let error = error_of(&["cache", "show", "--cache-dir", here.to_str().unwrap(), "zz"]);
    assert!(error.contains("no entry"), "{error}");

    let explain = |cache: &Path, extra: &[&str]| {
        let args = [&["cache", "explain", "--model", MODEL, "--json"][..], &SETTINGS, extra];
        json(&run(cache, &args.concat())).as_array().unwrap().clone()
    };
    assert!(explain(here, &[]).iter().all(|piece| piece["found"] == true));
    let other = explain(here, &["--dtype", "f16"]);
    let missing: Vec<_> = other.iter().filter(|piece| piece["found"] == false).collect();
    assert!(!missing.is_empty());
    for piece in missing {
        let differing = piece["differing"].as_array().unwrap();
        assert!(differing.iter().any(|factor| factor["name"] == "piece"), "{piece}");
    }

    let file = here.join("archive");
    let archive = file.to_str().unwrap();
    run(here, &["cache", "export", archive]);
    run(there, &["cache", "import", archive]);
    let carried = compile(there, &[]);
    assert_eq!(carried["compiled"], serde_json::json!({}));
    assert!(explain(there, &[]).iter().all(|piece| piece["found"] == true));

    let path = String::from_utf8(run(here, &["cache", "path"]).stdout).unwrap();
    assert_eq!(Path::new(path.trim_end()), here);
    assert_eq!(json(&run(there, &["cache", "verify", "--json"]))["bad"], serde_json::json!([]));
    let left = || -> u64 {
        let entries = json(&run(there, &["cache", "list", "--json"]));
        entries.as_array().unwrap().iter().map(|entry| entry["bytes"].as_u64().unwrap()).sum()
    };
    let config = here.join("gc.toml");
    std::fs::write(&config, "[cache]\nmax_bytes = 8192\n").unwrap();
    let gc = ["cache", "gc", "--config", config.to_str().unwrap()];
    let whole = left();
    run(there, &["cache", "gc"]);
    assert_eq!(left(), whole, "it may take gigabytes by default");
    run(there, &gc);
    assert!((1..=8192).contains(&left()), "{} bytes of {whole} are left", left());
    run(there, &[&gc[..], &["--max-size", "0"]].concat());
    assert_eq!(left(), 0, "the flag goes before the setting");
    run(there, &["cache", "import", archive]);
    run(there, &["cache", "clear"]);
    assert!(json(&run(there, &["cache", "list", "--json"])).as_array().unwrap().is_empty());
}

#[test]
fn a_damaged_entry_is_named_and_repaired() {
    let cache = tempfile::tempdir().unwrap();
    let entry = entry_to_damage(cache.path(), "piece");
    let bytes = std::fs::read(&entry).unwrap();
    std::fs::write(&entry, &bytes[..bytes.len() / 2]).unwrap();
    let verify = |extra: &[&str]| {
        command(cache.path()).args(["cache", "verify"]).args(extra).bounded_output().unwrap()
    };
    let output = verify(&[]);
    let name = entry.file_name().unwrap().to_str().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains(name));
    assert!(verify(&["--repair"]).status.success());
    assert!(verify(&[]).status.success() && !entry.exists());
}

#[test]
fn compile_says_what_it_can_not_do() {
    for (args, expected) in [
        (&["compile"][..], "--preset"),
        (&["compile", "--preset", "qwen3-1b"], "llama-3.2-1b"),
        (&["compile", "--preset", "qwen3-8b", "--model", MODEL], "cannot be used with"),
        (&["compile", "--model", MODEL, "--no-cache"], "nothing to fill"),
        (&["compile", "--model", MODEL, "--cache-read-only"], "not to be changed"),
        (&["compile", "--model", MODEL, "--device", "cuda:sm_x"], "sm_x"),
        (&["compile", "--model", MODEL, "--cache-dir", "Cargo.toml"], "nothing can be put there"),
    ] {
        let error = error_of(args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn a_textual_graph_is_compiled_as_it_runs() {
    let cache = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("graph.pw");
    let dumped = run(
        cache.path(),
        &[&["inspect", "--model", MODEL, "--stop-after", "fuse"][..], &SETTINGS].concat(),
    );
    std::fs::write(&file, dumped.stdout).unwrap();
    let args = ["compile", file.to_str().unwrap(), "--capture-num-tokens", "1,8,32", "--json"];
    let made = json(&run(cache.path(), &args));
    assert!(made["compiled"]["piece"].as_u64().unwrap() > 0);
    assert_eq!(json(&run(cache.path(), &args))["compiled"], serde_json::json!({}));
}

/// Whether NVRTC is found here, for this program as it was started.
fn has_nvrtc() -> bool {
    let dirs = piecewise_backend::cuda::library_dirs(&[]);
    match piecewise_backend::cuda::Nvrtc::open(&dirs, None) {
        Ok(_) => true,
        Err(error) => {
            skipped("PIECEWISE_REQUIRE_NVRTC", error);
            false
        }
    }
}

#[test]
fn the_machine_code_of_a_kernel_is_shown_and_written() {
    if !has_nvrtc() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path();
    let args = ["inspect", "examples/block.pw", "--device", "cuda:sm_90a", "--tune", "off"];
    let mut inspect = command(cache);
    inspect.current_dir(root()).args(args).args(["--html"]).arg(cache.join("page.html"));
    checked(inspect.bounded_output().unwrap());
    let entries = json(&run(cache, &["cache", "list", "--json"]));
    let entries = entries.as_array().unwrap();
    let of_kind = |kind: &str| {
        let entry = entries.iter().find(|entry| entry["kind"] == kind).unwrap();
        entry["key"].as_str().unwrap().to_owned()
    };
    let out = cache.join("kernel.cubin");
    let show =
        |key: &str| run(cache, &["cache", "show", key, "--out", out.to_str().unwrap(), "--json"]);
    let kernel = json(&show(&of_kind("cubin")));
    let code = std::fs::read(&out).unwrap();
    assert!(code.starts_with(b"\x7fELF"));
    let found = piecewise_backend::cuda::cubin_kernels(&code).unwrap();
    assert_eq!(kernel["kernels"], serde_json::to_value(&found).unwrap());
    assert!(found[0].registers > 0 && !found[0].name.is_empty());
    let shown = run(cache, &["cache", "show", &of_kind("cubin")]).stdout;
    let text = String::from_utf8(shown).unwrap();
    let expected = format!("kernel {}\n  {} registers", found[0].name, found[0].registers);
    assert!(text.contains(&expected), "{text}");
    let piece = json(&show(&of_kind("piece")));
    assert_eq!(piece["kernels"], serde_json::json!([]));
    assert!(!std::fs::read(&out).unwrap().starts_with(b"\x7fELF"));
}

#[test]
fn a_second_compile_for_cuda_compiles_nothing_even_without_nvrtc() {
    if !has_nvrtc() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path();
    let target = ["--device", "cuda:sm_90a"];
    let cold = compile(cache, &target);
    assert!(cold["compiled"]["cubin"].as_u64().unwrap() > 0, "{cold}");
    assert!(cold["pieces_to_measure"].as_u64().unwrap() > 0, "{cold}");
    let entries = files(cache);
    assert_eq!(compile(cache, &target)["compiled"], serde_json::json!({}));
    let broken = tempfile::tempdir().unwrap();
    let args = [&["compile", "--model", MODEL, "--json"][..], &SETTINGS, &target].concat();
    let mut without = command(cache);
    without.args(args).env("PIECEWISE_CUDA_LIBRARY_DIRS", broken.path());
    let warm = json(&checked(without.bounded_output().unwrap()));
    assert_eq!(warm["compiled"], serde_json::json!({}), "{warm}");
    assert_eq!(warm["reused"]["piece"], cold["compiled"]["piece"]);
    assert_eq!(files(cache), entries);
    // Without the lowered pieces, kernels are still there: lowering them again needs no NVRTC.
    let (pieces, kernels) = (&cold["compiled"]["piece"], &cold["compiled"]["cubin"]);
    let (packs, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = packs.path().join("sm_90a.pack");
    let pack = file.to_str().unwrap();
    run(cache, &["cache", "export", pack, "--kind", "cubin"]);
    run(there.path(), &["cache", "import", pack]);
    let lowers = |cache: &Path, more: &[&str]| {
        let args =
            [&["compile", "--model", MODEL, "--json"][..], &SETTINGS, &target, more].concat();
        let mut without = command(cache);
        without.args(args).env("PIECEWISE_CUDA_LIBRARY_DIRS", broken.path());
        let lowered = json(&checked(without.bounded_output().unwrap()));
        assert_eq!(lowered["compiled"], serde_json::json!({"piece": pieces}));
        assert_eq!(lowered["reused"]["cubin"], *kernels);
        lowered["from_packs"].clone()
    };
    assert_eq!(lowers(there.path(), &[]), 0);
    // They need not be in the cache at all, which has none of them then.
    let there = tempfile::tempdir().unwrap();
    assert_eq!(lowers(there.path(), &["--pack-dir", packs.path().to_str().unwrap()]), *kernels);
    let listed = json(&run(there.path(), &["cache", "list", "--json"]));
    let listed = listed.as_array().unwrap();
    assert!(listed.iter().all(|entry| entry["kind"] != "cubin"), "{listed:?}");
    // Lengths are operands of kernels: sequences of other lengths have the same.
    let other = ["--pack-dir", packs.path().to_str().unwrap(), "--max-seq-len", "1024"];
    let of_other = tempfile::tempdir().unwrap();
    assert_eq!(lowers(of_other.path(), &other), *kernels);
    // What is damaged in a pack is told, and compiled.
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 17;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let there = tempfile::tempdir().unwrap();
    let damaged = [&target[..], &["--pack-dir", packs.path().to_str().unwrap()]].concat();
    let args = [&["compile", "--model", MODEL, "--json"][..], &SETTINGS, &damaged].concat();
    let made = run(there.path(), &args);
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(said.contains("sm_90a.pack") && said.contains("checksum"), "{said}");
    assert_eq!(json(&made)["compiled"]["cubin"], 1);
}
