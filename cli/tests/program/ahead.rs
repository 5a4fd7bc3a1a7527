//! What `compile` makes is what every command looks for: with the same flags, none of them compiles
//! anything, however many prompts, texts or images there are.

use crate::bounded::Bound;
use crate::support::cache::{MODEL, checked, files, run, warnings};
use crate::support::cli::{command, root};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

/// Few sizes, and more sequences than any test has prompts.
const FLAGS: [&str; 4] = ["--max-num-tokens", "32", "--max-seq-len", "128"];
const TOWER: &str = "tests/fixtures/encoders/qwen2_5_vl_vision";
const SENTENCES: &str = "tests/fixtures/encoders/sentence_folder";
const WRITES_OF_IMAGES: &str = "tests/fixtures/qwen2_5_vl";

/// A cache that `compile` has filled, and the names of its entries.
struct Filled {
    cache: tempfile::TempDir,
    entries: BTreeSet<PathBuf>,
}

fn entries(cache: &Path) -> BTreeSet<PathBuf> {
    let is_piece = |path: &PathBuf| path.iter().any(|part| part == "piece");
    files(cache).into_keys().filter(is_piece).collect()
}

impl Filled {
    fn of(model: &str, flags: &[&str]) -> Self {
        let cache = tempfile::tempdir().unwrap();
        run(cache.path(), &[&["compile", "--model", model][..], flags].concat());
        let entries = entries(cache.path());
        assert!(!entries.is_empty());
        Self { cache, entries }
    }

    /// Runs a command that has to find everything.
    fn run(&self, args: &[&str]) -> Output {
        let output = run(self.cache.path(), args);
        self.is_as_before(args);
        output
    }

    /// Whatever is compiled is kept.
    fn is_as_before(&self, args: &[&str]) {
        let now = entries(self.cache.path());
        let new = now.difference(&self.entries).count();
        assert_eq!(new, 0, "{args:?} compiled {new} pieces");
    }

    /// Starts a server, and gives its metrics once it is ready.
    fn metrics_of_server(&self, args: &[&str]) -> String {
        let mut serve = command(self.cache.path());
        serve.args(["serve", "--port", "0", "--no-access-log"]).args(args);
        let mut server = serve.stdout(Stdio::piped()).bounded().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let mut lines = lines.by_ref().map(Result::unwrap);
        let listening =
            lines.find_map(|line| line.strip_prefix("listening at http://").map(str::to_owned));
        assert!(lines.any(|line| line == "ready"));
        let mut stream = TcpStream::connect(listening.unwrap()).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        self.is_as_before(args);
        answer
    }
}

/// The object that `generate --json --stats` shows of itself.
fn statistics(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    let line = errors.lines().find(|line| line.starts_with('{')).unwrap();
    serde_json::from_str(line).unwrap()
}

/// Where something was compiled, by the counts of a model.
fn assert_reused(compile: &Value, what: &str) {
    assert_eq!(compile["compiled"], serde_json::json!({}), "{what}: {compile}");
    assert!(compile["reused"]["piece"].as_u64() > Some(0), "{what}: {compile}");
}

#[test]
fn every_number_of_prompts_finds_what_compile_made() {
    let filled = Filled::of(MODEL, &FLAGS);
    let asks = ["--presence-penalty", "0.5", "--logprobs", "1"];
    for (prompts, more) in [(1, &[][..]), (3, &[]), (5, &[]), (2, &asks)] {
        let mut args = vec!["generate", "--model", MODEL, "--json", "--stats", "--max-tokens", "2"];
        args.extend(["--prompt", "def"].repeat(prompts));
        let output = filled.run(&[&args, &FLAGS[..], more].concat());
        let what = format!("{prompts} prompts {more:?}");
        assert_reused(&statistics(&output)["statistics"]["compile"], &what);
    }
    let out = filled.cache.path().join("logits.safetensors");
    let args = ["logits", "--model", MODEL, "--ids", "326,680", "--out", out.to_str().unwrap()];
    filled.run(&[&args[..], &FLAGS].concat());
}

#[test]
fn a_server_and_a_worker_find_what_compile_made() {
    let filled = Filled::of(MODEL, &FLAGS);
    let metrics = filled.metrics_of_server(&[&["--model", MODEL][..], &FLAGS].concat());
    let counted = |from: &str| {
        let from = format!("from=\"{from}\"");
        let lines = metrics.lines().filter(|line| line.contains("piece") && line.contains(&from));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    assert_eq!(counted("compiler"), 0.0, "{metrics}");
    assert!(counted("cache") > 0.0, "{metrics}");

    // A front end that never says a word: what was compiled is said before.
    let front_end = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", front_end.local_addr().unwrap());
    let args = ["worker", "--model", MODEL, "--handshake", &address, "--rank", "0"];
    let state = filled.cache.path().join("state");
    let mut worker = command(filled.cache.path());
    worker.args(args).args(FLAGS).arg("--no-stand-in").arg("--state-dir").arg(state);
    let mut worker = worker.stderr(Stdio::piped()).bounded().unwrap();
    let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.find(|line| line.contains("; reused "));
    let said = said.expect("the worker was ended before it said what it compiled");
    assert!(said.contains("compiled nothing; reused "), "{said}");
    filled.is_as_before(&args);
}

#[test]
fn a_conversation_finds_what_compile_made() {
    let filled = Filled::of(MODEL, &FLAGS);
    let template = filled.cache.path().join("plain.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let talk = |cache: &Path| {
        let mut chat = command(cache);
        chat.args(["chat", "--model", MODEL, "--max-tokens", "2", "--chat-template"]);
        chat.arg(&template).args(FLAGS).stdin(Stdio::piped());
        let mut chat = chat.stdout(Stdio::null()).stderr(Stdio::piped()).bounded().unwrap();
        chat.stdin.take().unwrap().write_all(b"def\n").unwrap();
        checked(chat.wait_with_output());
    };
    talk(filled.cache.path());
    filled.is_as_before(&["chat"]);
    // It says nothing of the cache; into an empty one it puts just that.
    let empty = tempfile::tempdir().unwrap();
    talk(empty.path());
    assert_eq!(entries(empty.path()), filled.entries);
}

#[test]
fn rows_of_bench_find_what_compile_made() {
    let filled = Filled::of(MODEL, &FLAGS);
    let rows = ["--batch", "1,4,8", "--context", "64", "--mixed", "20", "--steps", "5"];
    let output = filled.run(&[&["bench", "--model", MODEL, "--json"][..], &rows, &FLAGS].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_reused(&report["start"]["entries"], "bench");
}

#[test]
fn encoders_find_what_compile_made() {
    let filled = Filled::of(SENTENCES, &[]);
    let long = "sees ".repeat(40);
    let texts =
        [&["--text", "a cat"][..], &["--text", "a cat", "--text", "bird"], &["--text", &long]];
    for texts in texts {
        let args = [&["embed", "--model", SENTENCES, "--stats"][..], texts].concat();
        let said = String::from_utf8(filled.run(&args).stderr).unwrap();
        assert!(said.contains("compiled nothing; reused "), "{said}");
    }
    filled.metrics_of_server(&["--model", SENTENCES]);
    let out = filled.cache.path().join("rows.safetensors");
    let ids = format!("{SENTENCES}/golden.safetensors");
    let args = ["encode", "--model", SENTENCES, "--inputs", &ids, "--stats", "--out"];
    let said = filled.run(&[&args[..], &[out.to_str().unwrap()]].concat()).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("compiled nothing; reused "), "{said}");
    let explained = filled.run(&["cache", "explain", "--model", SENTENCES, "--json"]);
    let pieces: Vec<Value> = serde_json::from_slice(&explained.stdout).unwrap();
    assert!(pieces.iter().all(|piece| piece["found"] == true), "{pieces:?}");
    assert_eq!(pieces.len(), filled.entries.len(), "each of them is told of once");

    let filled = Filled::of(TOWER, &[]);
    let out = filled.cache.path().join("rows.safetensors");
    for image in ["b_wide.png", "c_tall_alpha.png", "d_small_gray.png"] {
        let image = root().join("tests/fixtures/encoders/images").join(image);
        let args = ["encode", "--model", TOWER, "--stats", "--out", out.to_str().unwrap()];
        let args = [&args[..], &["--image", image.to_str().unwrap()]].concat();
        let said = String::from_utf8(filled.run(&args).stderr).unwrap();
        assert!(said.contains("compiled nothing; reused "), "{said}");
    }
}

#[test]
fn images_of_any_size_find_the_tower_that_compile_made() {
    let filled = Filled::of(WRITES_OF_IMAGES, &FLAGS);
    let images = ["b_wide.png", "c_tall_alpha.png", "d_small_gray.png"];
    let images = images.map(|name| root().join("tests/fixtures/encoders/images").join(name));
    for images in [&images[..1], &images[1..2], &images[2..], &images] {
        let mut args = vec!["generate", "--model", WRITES_OF_IMAGES, "--json", "--stats"];
        args.extend(["--max-tokens", "2", "--prompt", "one"]);
        args.extend(images.iter().flat_map(|image| ["--image", image.to_str().unwrap()]));
        let shown = statistics(&filled.run(&[&args[..], &FLAGS].concat()));
        assert_reused(&shown["statistics"]["compile"], "the decoder");
        assert_reused(&shown["images"]["statistics"]["compile"], "the tower");
        assert!(shown["images"]["memory"]["weights"].as_u64() > Some(0), "{shown}");
        assert_eq!(shown["images"]["statistics"]["misses"]["not_captured"], 0, "{shown}");
    }
    let args = ["generate", "--model", WRITES_OF_IMAGES, "--max-tokens", "2", "--prompt", "one"];
    let args = [&args[..], &FLAGS, &["--stats", "--image", images[0].to_str().unwrap()]].concat();
    let said = String::from_utf8(filled.run(&args).stderr).unwrap();
    for line in [
        "images, compile  compiled nothing; reused ",
        "images, graphs   1 (full)",
        "images, memory   ",
        "images, hits     1 of 1 steps",
    ] {
        assert!(said.contains(line), "no {line:?} in {said}");
    }

    let args = ["--model", WRITES_OF_IMAGES, "--json"];
    let args = [&args[..], &FLAGS].concat();
    let output = filled.run(&[&["cache", "explain"], &args[..]].concat());
    let pieces: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(pieces.iter().all(|piece| piece["found"] == true), "{pieces:?}");
    let of_tower = |piece: &&Value| piece["unique"].as_str().unwrap().starts_with("images/");
    assert!(pieces.iter().filter(of_tower).count() > 0);
    let output = filled.run(&[&["inspect"], &args[..]].concat());
    let inspected: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(inspected["images"]["graph_mode"], "full");
    assert!(inspected["images"]["memory"]["weights"].as_u64() > Some(0));
}

/// Of a decoder the configuration is enough, of its tower it is not.
#[test]
fn without_weights_the_tower_is_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "preprocessor_config.json"] {
        let from = root().join(WRITES_OF_IMAGES).join(name);
        std::fs::copy(from, folder.path().join(name)).unwrap();
    }
    let args = [&["compile", "--model", folder.path().to_str().unwrap()][..], &FLAGS].concat();
    let cache = tempfile::tempdir().unwrap();
    let warned = warnings(&run(cache.path(), &args));
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(
        warned[0].contains("the vision tower is left out, which needs its weights"),
        "{warned:?}"
    );
    assert!(!entries(cache.path()).is_empty());
}
