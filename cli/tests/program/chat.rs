//! `piecewise chat` through the program.

use crate::bounded::{Bound, Bounded};
use crate::overflowing::overflowing_model;
use crate::support::cli::{command, error_of, root, stdout_of};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;

const MODEL: &str = "examples/tiny-qwen3";
const FLAGS: [&str; 7] = ["chat", "--model", MODEL, "--dtype", "f32", "--max-num-tokens", "64"];

/// A folder with a chat template that makes a text of the messages alone, so that a conversation is
/// one text that goes on.
fn template() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("plain.jinja");
    let text = "{% for m in messages %}{{ m.content }}{{ '\\n' if m.role == 'user' }}{% endfor %}";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

fn start(extra: &[&str]) -> (Bounded, tempfile::TempDir) {
    let cache = tempfile::tempdir().unwrap();
    let mut command = command(cache.path());
    command.args(FLAGS).args(extra);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    (command.bounded().unwrap(), cache)
}

/// What the program prints for these lines, on standard output and error.
fn said(lines: impl AsRef<[u8]>, extra: &[&str]) -> (String, String) {
    let (mut child, _cache) = start(extra);
    child.stdin.take().unwrap().write_all(lines.as_ref()).unwrap();
    let output = child.wait_with_output();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    (String::from_utf8(output.stdout).unwrap(), errors)
}

/// The text that `generate` gives for a prompt.
fn generated(prompt: &str, tokens: &str) -> String {
    let flags = ["generate", "--model", MODEL, "--dtype", "f32", "--json", "--prompt", prompt];
    let line = stdout_of(&[&flags[..], &["--max-tokens", tokens]].concat());
    let reply: serde_json::Value = serde_json::from_str(&line).unwrap();
    reply["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_line_that_is_no_text_is_named_and_left_out() {
    let (_folder, file) = template();
    let (out, errors) = said(b"/stats\ncaf\xe9\n/stats\n", &["--chat-template", &file]);
    assert_eq!(out, "nothing was said yet\nnothing was said yet\n");
    assert!(errors.contains("line 2 is no text and left out: "), "{errors}");
}

#[test]
fn a_conversation_from_a_pipe_goes_on_from_what_is_kept() {
    let (_folder, file) = template();
    let lines =
        "def __init__(self\n\nreturn\n/stats\n/reset\n/stats\ndef __init__(self\n/exit\nnever\n";
    let (out, errors) = said(lines, &["--chat-template", &file, "--max-tokens", "12"]);
    let first = generated("def __init__(self\n", "12");
    let second = generated(&format!("def __init__(self\n{first}return\n"), "12");
    assert!(out.starts_with(&format!("{first}\n{second}\nprompt ")), "{out}");
    assert!(out.ends_with(&format!("nothing was said yet\n{first}\n")), "{out}");
    assert!(!out.contains("never") && errors.contains("(cut;"), "{errors}");
    let prompt = out.lines().find(|line| line.starts_with("prompt ")).unwrap();
    let numbers: Vec<u64> = prompt.split(' ').filter_map(|word| word.parse().ok()).collect();
    // All but the second line was computed before; the last id of a reply has no KV yet.
    assert!(numbers[1] + 1 >= 12 + 3 && numbers[1] < numbers[0], "{prompt}");
    assert!(out.contains("reply      12 tokens, ") && out.contains("context    "), "{out}");
}

#[test]
fn the_graphs_of_a_conversation_are_shown_enabled_and_of_another_mode() {
    let (_folder, file) = template();
    let lines = "/graphs\ndef f(\n/graphs none\ndef f(\n/graphs full_decode_only\n/graphs enable\n\
                 /graphs fast\n/exit\n";
    let flags = ["--chat-template", &file, "--max-tokens", "4", "--lazy-sizes", "64"];
    let (out, errors) = said(lines, &[&flags[..], &["--on-capture-failure", "launch"]].concat());
    let graphs: Vec<&str> = out.lines().filter(|line| line.contains(" ready, ")).collect();
    let [started, none, decodes, enabled] = graphs[..] else { panic!("{out}") };
    assert!(started.starts_with("full_and_piecewise: ") && started.contains(" 0 launches, "));
    assert!(!started.contains(" 0 to be captured"), "those of 64 tokens wait: {started}");
    assert!(none.starts_with("none: 0 ready, 0 to be captured, 0 stale, 0 disabled"), "{none}");
    assert!(decodes.starts_with("full_decode_only: 6 ready, 1 to be captured"), "{decodes}");
    assert_eq!(decodes, enabled, "nothing had failed");
    assert!(errors.contains("unknown graph mode `fast`"), "{errors}");
}

#[test]
fn a_line_tells_of_the_steps_of_an_interval_where_it_is_asked_for() {
    let (_folder, file) = template();
    let flags = ["--chat-template", &file, "--max-tokens", "16"];
    let (mut child, _cache) = start(&[&flags[..], &["--stats-interval", "1"]].concat());
    let mut input = child.stdin.take().unwrap();
    let errors = BufReader::new(child.stderr.take().unwrap());
    let (told, tells) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let lines = errors.lines().map_while(Result::ok);
        lines.filter(|line| line.contains("% replayed")).for_each(|line| drop(told.send(line)));
    });
    let mut replies = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The first step after an interval tells of it: it goes on until then, one reply at a time.
    let line = loop {
        writeln!(input, "def f(\n/stats\n/reset").unwrap();
        let is_over = replies.any(|line| line.starts_with("context "));
        assert!(is_over, "it ended before it told of its steps");
        if let Ok(line) = tells.try_recv() {
            break line;
        }
    };
    drop((input, replies));
    child.wait_with_output();
    reader.join().unwrap();
    let (steps, rest) = line.split_once(" steps: 100.0% replayed, ").unwrap();
    let steps: u64 = steps.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(steps > 0 && rest.contains("% padding, ") && rest.contains(" tokens/s; "), "{line}");
    let (_, errors) = said("def f(\n", &flags);
    assert!(!errors.contains("% replayed"), "{errors}");
}

#[test]
fn what_has_no_chat_template_says_what_to_do() {
    let error = error_of(&FLAGS);
    assert!(
        error.contains("examples/tiny-qwen3 has no chat template; name one by --chat-template"),
        "{error}"
    );
    let error = error_of(&[&FLAGS[..], &["--chat-template", "missing.jinja"]].concat());
    assert!(error.contains("missing.jinja: "), "{error}");
    assert!(root().join(MODEL).join("tokenizer.json").exists());
}

#[test]
fn commands_that_are_none_and_conversations_too_long_are_said() {
    let (_folder, file) = template();
    let (out, errors) = said("/nothing\n/help\n", &["--chat-template", &file]);
    assert!(errors.contains("there is no command /nothing") && out.contains("/reset "), "{errors}");
    let (mut child, _cache) = start(&["--chat-template", &file, "--max-seq-len", "512"]);
    let long = "return ".repeat(600) + "\n";
    child.stdin.take().unwrap().write_all(long.as_bytes()).unwrap();
    let output = child.wait_with_output();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("but the context 512; /reset"), "{errors}");
}

/// No reply is taken for whole that ended by an error: what failed is said, as is what to try.
#[test]
fn a_reply_that_bad_logits_ended_is_said() {
    let (_folder, file) = template();
    let model = overflowing_model(&root().join(MODEL));
    let cache = tempfile::tempdir().unwrap();
    let folder = model.path().to_str().unwrap();
    let flags = ["chat", "--model", folder, "--dtype", "f16", "--chat-template", &file];
    let mut command = command(cache.path());
    command.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.bounded().unwrap();
    child.stdin.take().unwrap().write_all(b"import\n").unwrap();
    let output = child.wait_with_output();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let parts = ["the reply ended: ", "NaN", "f16", "--dtype bf16"];
    assert!(!output.status.success() && parts.iter().all(|part| errors.contains(part)), "{errors}");
}

/// Ctrl-C during a reply ends the reply alone; at rest it says how to leave.
#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_reply_and_not_the_program() {
    use rustix::process::{Pid, Signal, kill_process};
    let (_folder, file) = template();
    let extra = ["--chat-template", &file, "--max-seq-len", "2048", "--generation-config", "none"];
    let (mut child, _cache) = start(&extra);
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut stopped = false;
    for _ in 0..5 {
        input.write_all(b"import numpy as np\n").unwrap();
        // Some pages of it.
        output.read_exact(&mut [0; 200]).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        // A reply may have come to its end before the signal.
        stopped |= line.contains("(stopped)");
        if stopped {
            break;
        }
    }
    assert!(stopped, "no reply was stopped");
    input.write_all(b"/help\nimport numpy as np\n/stats\n/exit\n").unwrap();
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let (_, reply) = rest.split_once("Ctrl-C stops a reply.").expect(&rest);
    let (reply, stats) = reply.rsplit_once("\nprompt ").expect(&rest);
    assert!(reply.trim().len() > 100, "another reply comes: {rest}");
    // What was computed for the one that was stopped is found again, but for a page that was not full.
    let stats = Vec::from_iter(stats.split(' ').filter_map(|word| word.parse::<u64>().ok()));
    assert!(stats[1] >= 32 && stats[1] + 40 > stats[0], "{stats:?}");
    assert!(child.wait().success());
}
