//! Token ids of prompts against those of vLLM's front end, which `.ci/install-vllm-rs` brings.

use crate::byte_fallback;
use crate::skip::skipped;
use piecewise::models::TextTokenizer;
use piecewise_server::chat::{ChatPrompt, ChatTemplate};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A render server that ends with the test.
struct Renderer {
    child: Child,
    port: u16,
}

impl Drop for Renderer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Renderer {
    fn start(program: &str, folder: &Path) -> Self {
        // Another may take the port between the two.
        let mut tries = (0..10).filter_map(|_| Self::try_start(program, folder));
        tries.next().expect("vllm-rs listens")
    }

    fn try_start(program: &str, folder: &Path) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .arg("render")
            .arg(folder)
            .args(["--port", &port.to_string(), "--served-model-name", "tiny"])
            .args(["--reasoning-parser", "none", "--tool-call-parser", "none"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut renderer = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(600);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if renderer.child.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "vllm-rs does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(renderer)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, content) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.split(' ').nth(1) == Some("200"), "{body}: {reply}");
        serde_json::from_str(content).unwrap()
    }
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value["token_ids"].clone()).unwrap()
}

/// Texts of code, prose and scripts, with whitespace and special tokens where they hurt.
fn texts() -> Vec<String> {
    let parts = [
        "def __init__(self, x):",
        "\n    return x",
        "  ",
        "\t",
        "\r\n",
        "é",
        "e\u{301}",
        "🦀",
        "日本語",
        "Привет",
        "<|endoftext|>",
        "<|im_start|>",
        "</think>",
        "12345",
        "3.14",
        "'s",
        "don't",
        "\u{a0}",
        "\u{200b}",
        "a",
        " b",
        "{\"k\": [1, 2]}",
        "\\n",
        "ﬁ",
        "👩‍👩‍👧",
        "\u{0}",
        "<",
        "&amp;",
        "[INST]",
        "...",
    ];
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    (0..200).map(|_| (0..=below(12)).map(|_| parts[below(parts.len())]).collect()).collect()
}

#[test]
fn token_ids_equal_those_of_vllm_rs() {
    let Ok(program) = std::env::var("PIECEWISE_VLLM_RS") else {
        return skipped("PIECEWISE_REQUIRE_VLLM_RS", "PIECEWISE_VLLM_RS names no vllm-rs");
    };
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny-qwen3");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "tokenizer.json"] {
        std::fs::copy(tiny.join(file), folder.path().join(file)).unwrap();
    }
    equal_ids(&program, folder.path(), "<|endoftext|>", &["qwen3", "phi3_5", "glm4moe"]);
    std::fs::write(folder.path().join("tokenizer.json"), byte_fallback::json()).unwrap();
    equal_ids(&program, folder.path(), "<s>", &["phi3_5", "deepseek_r1_distill"]);
}

/// Of texts as completions, and in conversations of these families.
fn equal_ids(program: &str, folder: &Path, begin: &str, families: &[&str]) {
    let tokenizer = TextTokenizer::load(folder, 2048).unwrap();
    for (number, family) in families.iter().enumerate() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let fixture = own.join("tests/fixtures/chat").join(family).with_extension("json");
        let fixture: Value =
            serde_json::from_str(&std::fs::read_to_string(fixture).unwrap()).unwrap();
        let source = fixture["template"].as_str().unwrap();
        std::fs::write(folder.join("chat_template.jinja"), source).unwrap();
        let config = json!({"bos_token": begin, "eos_token": begin});
        std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
        let template = ChatTemplate::load(folder, None).unwrap().unwrap();
        let renderer = Renderer::start(program, folder);
        for (i, text) in texts().iter().enumerate() {
            if number == 0 {
                let request = json!({"model": "tiny", "prompt": text});
                let theirs = renderer.post("/v1/completions/render", &request);
                assert_eq!(tokenizer.encode(text).unwrap(), ids(&theirs[0]), "{text:?}");
            }
            let mut messages = vec![json!({"role": "user", "content": text})];
            if i % 3 == 0 {
                messages
                    .insert(0, json!({"role": "system", "content": format!("Be brief. {text}")}));
            }
            if i % 4 == 0 {
                messages.push(json!({"role": "assistant", "content": text}));
                let parts =
                    json!([{"type": "text", "text": "And"}, {"type": "text", "text": text}]);
                messages.push(json!({"role": "user", "content": parts}));
            }
            let request = json!({"model": "tiny", "messages": messages});
            let theirs = renderer.post("/v1/chat/completions/render", &request);
            let prompt =
                ChatPrompt { messages, add_generation_prompt: true, ..ChatPrompt::default() };
            let ours = template.render(prompt).unwrap();
            assert_eq!(
                tokenizer.encode_more(&ours).unwrap(),
                ids(&theirs),
                "{family}, {request}: {ours:?} is not {:?}",
                tokenizer.decode_with(&ids(&theirs), true).unwrap()
            );
        }
    }
}
