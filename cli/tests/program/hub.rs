//! Models by their name at the hub, against a hub of one's own that cuts, stalls and lies.

use crate::bounded::Bound;
use crate::support::cli::{command, root};
use crate::support::listen::listen;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex, OnceLock};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &str = "model.safetensors";

/// What the hub does with an attempt at the weights; whole once there is no more of it.
#[derive(Clone, Copy, Debug)]
enum Attempt {
    /// Closes the connection after so many bytes.
    Cut(usize),
    /// Sends so many bytes, and nothing until the client has gone.
    Stall(usize),
    /// Sends other bytes than it lists.
    Lie,
    /// Sends more than it lists.
    More,
    /// Begins anew, whatever was asked for.
    Anew,
    /// Says that it is busy.
    Busy,
}

#[derive(Default)]
struct Hub {
    attempts: Mutex<Vec<Attempt>>,
    /// Paths asked for, with their ranges.
    asked: Mutex<Vec<String>>,
    /// What must be sent to read the model.
    token: Option<&'static str>,
    /// Where files are, if not here.
    elsewhere: Option<SocketAddr>,
    /// Of who was sent elsewhere.
    tokens_elsewhere: Mutex<Vec<String>>,
}

fn file(path: &str) -> Option<Vec<u8>> {
    let listed = files();
    let known = listed.iter().find(|known| **known == path)?;
    std::fs::read(root().join("examples/tiny-qwen3").join(known)).ok()
}

fn files() -> Vec<String> {
    let folder = std::fs::read_dir(root().join("examples/tiny-qwen3")).unwrap();
    let mut names: Vec<_> =
        folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn hexadecimal(digest: &ring::digest::Digest) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the hub lists: weights with their SHA-256, all else as git has it.
fn listing() -> &'static str {
    static LISTING: OnceLock<String> = OnceLock::new();
    LISTING.get_or_init(made_listing)
}

fn made_listing() -> String {
    let entry = |name: &String| {
        let bytes = file(name).unwrap();
        let mut git = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
        git.update(format!("blob {}\0", bytes.len()).as_bytes());
        git.update(&bytes);
        let mut entry = json!({
            "rfilename": name, "size": bytes.len(), "blobId": hexadecimal(&git.finish()),
        });
        if name == WEIGHTS {
            let sha = hexadecimal(&ring::digest::digest(&ring::digest::SHA256, &bytes));
            entry["lfs"] = json!({"sha256": sha, "size": bytes.len()});
        }
        entry
    };
    let files: Vec<_> = files().iter().map(entry).collect();
    json!({"sha": COMMIT, "siblings": files}).to_string()
}

impl Hub {
    /// Answers at an address of its own, until the process ends.
    fn start(self) -> (Arc<Self>, SocketAddr) {
        // What takes long is done before anybody waits for it.
        listing();
        let hub = Arc::new(self);
        let served = Arc::clone(&hub);
        (hub, listen(move |stream| served.answer(stream)))
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let header = |name: &str| {
            let lines = head.lines().map(|line| line.to_ascii_lowercase());
            let mut found =
                lines.filter_map(|line| line.strip_prefix(name).map(|v| v.trim().to_owned()));
            found.next()
        };
        let from = header("range:").and_then(|range| {
            range.strip_prefix("bytes=")?.trim_end_matches('-').parse::<usize>().ok()
        });
        let range = from.map_or(String::new(), |from| format!(" from {from}"));
        self.asked.lock().unwrap().push(format!("{path}{range}"));
        let authorization = header("authorization:");
        let begin = |stream: &mut TcpStream, status: &str, more: &str, length: usize| {
            write!(
                stream,
                "HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n"
            )
        };
        if let Some(token) = self.token
            && authorization.as_deref() != Some(&format!("bearer {token}"))
        {
            return begin(&mut stream, "401 Unauthorized", "", 0);
        }
        self.tokens_elsewhere.lock().unwrap().extend(authorization);
        if path == "/api/models/org/tiny/revision/main?blobs=true" {
            let text = listing();
            begin(&mut stream, "200 OK", "", text.len())?;
            return stream.write_all(text.as_bytes());
        }
        let name = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
        let Some((name, bytes)) = name.and_then(|name| Some((name, file(name)?))) else {
            return begin(&mut stream, "404 Not Found", "", 0);
        };
        if let Some(elsewhere) = self.elsewhere {
            let place = format!("Location: http://{elsewhere}{path}\r\n");
            return begin(&mut stream, "302 Found", &place, 0);
        }
        let attempt = match name == WEIGHTS {
            true => self.attempts.lock().unwrap().pop(),
            false => None,
        };
        let start = from.unwrap_or(0);
        let rest = &bytes[start..];
        let (status, range) = match from {
            Some(_) => (
                "206 Partial Content",
                format!("Content-Range: bytes {start}-{}/{}\r\n", bytes.len() - 1, bytes.len()),
            ),
            None => ("200 OK", String::new()),
        };
        match attempt {
            None => {
                begin(&mut stream, status, &range, rest.len())?;
                stream.write_all(rest)
            }
            Some(Attempt::Cut(count)) => {
                begin(&mut stream, status, &range, rest.len())?;
                stream.write_all(&rest[..count])
            }
            Some(Attempt::Stall(count)) => {
                begin(&mut stream, status, &range, rest.len())?;
                stream.write_all(&rest[..count])?;
                stream.flush()?;
                // Until the client has had enough.
                stream.read_to_end(&mut Vec::new()).map(drop)
            }
            Some(Attempt::Lie) => {
                let mut other = rest.to_vec();
                let last = other.len() - 1;
                other[last] ^= 1;
                begin(&mut stream, status, &range, other.len())?;
                stream.write_all(&other)
            }
            Some(Attempt::More) => {
                begin(&mut stream, status, &range, rest.len() + 1)?;
                stream.write_all(rest)?;
                stream.write_all(b"x")
            }
            Some(Attempt::Anew) => {
                begin(&mut stream, "200 OK", "", bytes.len())?;
                stream.write_all(&bytes)
            }
            Some(Attempt::Busy) => begin(&mut stream, "503 Service Unavailable", "", 0),
        }
    }

    /// The ranges of the attempts at the weights.
    fn attempts_at_weights(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let of = asked
            .iter()
            .filter_map(|path| path.split_once(WEIGHTS).map(|(_, range)| range.to_owned()));
        of.collect()
    }
}

/// A hub whose attempts at the weights go so, in this order.
fn hub(attempts: &[Attempt]) -> (Arc<Hub>, SocketAddr) {
    let attempts = attempts.iter().rev().copied().collect();
    Hub { attempts: Mutex::new(attempts), ..Hub::default() }.start()
}

/// A run with a model of the hub, in a home of its own.
fn generated(home: &Path, address: Option<SocketAddr>, more: &[(&str, &str)]) -> Output {
    let mut command = command(&home.join("compiled"));
    command.args([
        "generate",
        "-m",
        "org/tiny",
        "--prompt",
        "import",
        "--max-tokens",
        "3",
        "--dtype",
        "f32",
    ]);
    command.env("HF_HOME", home).env("HF_HUB_DOWNLOAD_TIMEOUT", "600").env("NO_PROXY", "127.0.0.1");
    for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    if let Some(address) = address {
        command.env("HF_ENDPOINT", format!("http://{address}"));
    }
    command.envs(more.iter().copied()).bounded_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What the folder itself says.
fn expected() -> String {
    let tiny = "examples/tiny-qwen3";
    let args =
        ["generate", "-m", tiny, "--prompt", "import", "--max-tokens", "3", "--dtype", "f32"];
    crate::support::cli::stdout_of(&args)
}

fn repo(home: &Path) -> PathBuf {
    home.join("hub/models--org--tiny")
}

/// The rest of what was cut comes by its range, and a second run asks for nothing. Names, links and the
/// reference are those of the hub's own programs.
#[test]
fn what_is_cut_goes_on_from_what_there_is() {
    let home = tempfile::tempdir().unwrap();
    let length = file(WEIGHTS).unwrap().len();
    let half = length / 2;
    let (hub, address) = hub(&[Attempt::Cut(1000), Attempt::Busy, Attempt::Cut(half - 1000)]);
    assert_eq!(text_of(&generated(home.path(), Some(address), &[])), expected());
    let ranges = ["", " from 1000", " from 1000", &format!(" from {half}")];
    assert_eq!(hub.attempts_at_weights(), ranges);
    let asked = hub.asked.lock().unwrap().clone();
    assert!(
        !asked.iter().any(|path| path.contains("README") || path.contains("golden.safetensors")),
        "{asked:?}"
    );
    let repo = repo(home.path());
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let link = std::fs::read_link(repo.join("snapshots").join(COMMIT).join(WEIGHTS)).unwrap();
    assert!(link.starts_with("../../blobs"), "{link:?}");
    let left = std::fs::read_dir(repo.join("blobs")).unwrap();
    let left = left
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "incomplete"));
    assert_eq!(left.count(), 0);
    assert_eq!(text_of(&generated(home.path(), None, &[("HF_HUB_OFFLINE", "1")])), expected());
    assert_eq!(text_of(&generated(home.path(), Some(address), &[])), expected());
    assert_eq!(hub.asked.lock().unwrap().len(), asked.len(), "nothing is asked that is there");
    // By the commit, too, which no reference names.
    let mut by_commit = command(&home.path().join("compiled"));
    by_commit.args(["inspect", "--model", &format!("org/tiny@{COMMIT}")]);
    by_commit.env("HF_HOME", home.path()).env("HF_HUB_OFFLINE", "1");
    assert!(by_commit.bounded_output().unwrap().status.success());
}

/// The hub waits until its client has had enough.
#[test]
fn who_gets_nothing_for_long_asks_again_for_the_rest() {
    let home = tempfile::tempdir().unwrap();
    let (hub, address) = hub(&[Attempt::Stall(500)]);
    let patience = [("HF_HUB_DOWNLOAD_TIMEOUT", "1")];
    // On a machine that is busy it may have had enough before, and goes on all the same.
    let tries = (0..20).map(|_| generated(home.path(), Some(address), &patience));
    let tries = Vec::from_iter(tries.take_while(|output| !output.status.success()));
    assert!(tries.len() < 20, "{:?}", tries.last());
    assert_eq!(text_of(&generated(home.path(), None, &[("HF_HUB_OFFLINE", "1")])), expected());
    let ranges = hub.attempts_at_weights();
    assert!(ranges.len() >= 2 && ranges[1..].iter().any(|range| !range.is_empty()), "{ranges:?}");
}

#[test]
fn bytes_that_are_not_what_is_listed_are_never_under_their_name() {
    let home = tempfile::tempdir().unwrap();
    for (attempt, why) in [
        (Attempt::Lie, "its bytes are not those that the hub lists"),
        (Attempt::More, "more than the"),
    ] {
        let (_hub, address) = hub(&[attempt]);
        let output = generated(home.path(), Some(address), &[]);
        let error = said(&output);
        assert!(
            !output.status.success() && error.contains(why) && error.contains(WEIGHTS),
            "{error}"
        );
        assert!(!repo(home.path()).join("snapshots").join(COMMIT).join(WEIGHTS).exists());
        let offline = said(&generated(home.path(), None, &[("HF_HUB_OFFLINE", "1")]));
        assert!(offline.contains("org/tiny is not in "), "{offline}");
    }
    // What came before a cut, and a hub that begins anew: the bytes are not joined.
    let (hub, address) = hub(&[Attempt::Cut(700), Attempt::Anew]);
    assert_eq!(text_of(&generated(home.path(), Some(address), &[])), expected());
    assert_eq!(hub.attempts_at_weights(), ["", " from 700"]);
}

#[test]
fn a_hub_that_sends_nothing_is_given_up_and_what_came_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, address) = hub(&[&[Attempt::Cut(4000)][..], &[Attempt::Cut(0); 5]].concat());
    let error = said(&generated(home.path(), Some(address), &[]));
    assert!(error.contains("nothing came in 5 attempts"), "{error}");
    assert!(error.contains("started again, it goes on from what there is"), "{error}");
    let (again, address) = hub(&[]);
    assert_eq!(text_of(&generated(home.path(), Some(address), &[])), expected());
    assert_eq!(again.attempts_at_weights(), [" from 4000"]);
}

#[test]
fn offline_it_is_said_what_is_missing() {
    let home = tempfile::tempdir().unwrap();
    let offline = || said(&generated(home.path(), None, &[("HF_HUB_OFFLINE", "1")]));
    let nothing = offline();
    assert!(
        nothing.contains("org/tiny is not in ") && nothing.contains("HF_HUB_OFFLINE is set"),
        "{nothing}"
    );
    // As the hub's own programs leave a model whose download was ended.
    let snapshot = repo(home.path()).join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repo(home.path()).join("refs")).unwrap();
    std::fs::write(repo(home.path()).join("refs/main"), COMMIT).unwrap();
    for name in files().iter().filter(|name| *name != WEIGHTS) {
        std::fs::write(snapshot.join(name), file(name).unwrap()).unwrap();
    }
    let lacks = offline();
    assert!(lacks.contains(&format!("lacks {WEIGHTS};")), "{lacks}");
    std::fs::write(snapshot.join(WEIGHTS), file(WEIGHTS).unwrap()).unwrap();
    assert_eq!(text_of(&generated(home.path(), None, &[("HF_HUB_OFFLINE", "1")])), expected());
}

/// A token reaches the hub, and nobody whom it sends clients to.
#[test]
fn a_token_is_for_the_hub_alone() {
    let home = tempfile::tempdir().unwrap();
    let (files, elsewhere) = Hub::default().start();
    let hub = Hub { token: Some("secret"), elsewhere: Some(elsewhere), ..Hub::default() };
    let (hub, address) = hub.start();
    let error = said(&generated(home.path(), Some(address), &[]));
    assert!(error.contains("401") && error.contains("set HF_TOKEN"), "{error}");
    std::fs::write(home.path().join("token"), "secret\n").unwrap();
    assert_eq!(text_of(&generated(home.path(), Some(address), &[])), expected());
    assert!(!hub.tokens_elsewhere.lock().unwrap().is_empty(), "the hub has it");
    assert_eq!(*files.tokens_elsewhere.lock().unwrap(), Vec::<String>::new());
    assert_eq!(files.attempts_at_weights(), [""]);
}
