"""Starts `piecewise serve` for the tests of this folder, and ends it."""

import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/tiny-qwen3"
GOLDEN = json.loads((MODEL / "golden.json").read_text())
BINARY = os.environ.get("PIECEWISE_BIN", str(ROOT / "target/debug/piecewise"))
# Small steps and few graphs: what is tested here is the server.
FAST = ["--dtype", "f32", "--max-num-tokens", "64", "--capture-num-tokens", "1,8,64"]

# A chat template that adds nothing.
TEMPLATE = (
    "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"
    "{%- if tools -%}{{ tools[0].function.name }}{%- endif -%}"
    "{%- if suffix is defined -%}{{ suffix }}{%- endif -%}"
)


@contextlib.contextmanager
def chat_template(text=TEMPLATE):
    """Flags of a server whose conversations are rendered so."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(text)
        file.flush()
        yield "--chat-template", file.name


@contextlib.contextmanager
def thinker():
    """The tiny model with ids for the marks of thoughts, in place of its last two; they make no others."""
    marks = {2046: "<think>", 2047: "</think>"}
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    model = tokenizer["model"]
    gone = {piece for piece, id in model["vocab"].items() if id in marks}
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    assert not any(gone & set(merge) for merge in merges)
    model["merges"] = [merge for merge in merges if "".join(merge) not in gone]
    model["vocab"] = {marks.get(id, piece): id for piece, id in model["vocab"].items()}
    tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "id": id, "content": mark, "special": False} for id, mark in marks.items()]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for file in MODEL.iterdir():
            (folder / file.name).symlink_to(file)
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        yield folder


def timed(test, *arguments):
    """Runs a test and says how long it took; the program's arguments name those that are wanted."""
    if sys.argv[1:] and test.__name__ not in sys.argv[1:]:
        return
    started = time.monotonic()
    test(*arguments)
    print(f"{test.__name__}: {time.monotonic() - started:.1f}s", flush=True)


def until(what, ask, seconds=60, seen=lambda: ""):
    """What `ask` gives, once it is true; what is `seen` instead is told."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := ask():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what} {seen()}".rstrip())


def promtool(server):
    """Holds that Prometheus' linter complains of nothing but vLLM's names: their colons, and a histogram that ends
    as counters do."""
    tool = shutil.which("promtool")
    assert tool, "promtool is needed: .ci/install-promtool"
    said = subprocess.run([tool, "check", "metrics"], input=server.get("/metrics")[1], text=True, capture_output=True)
    known = ["should not contain ':'", "vllm:iteration_tokens_total non-counter"]
    others = [line for line in (said.stdout + said.stderr).splitlines() if not any(name in line for name in known)]
    assert not others, others


class Server:
    """A server on a free port; `with` ends it and holds that it drained, and that nothing panicked: a
    panic of a connection's task would only close the connection."""

    def __init__(self, *flags, source=("--model", str(MODEL)), settings=FAST, logs=False, waits=True, files=None, stderr=None, context=None):
        """`files` are the soft and the hard limit on its descriptors; `stderr` takes what it says in place of `said`, `context` is
        there where it talks by TLS."""
        command = [BINARY, "serve", *source, *settings, "--port", "0", *flags]
        command += [] if logs else ["--no-access-log"]
        self.errors = tempfile.TemporaryFile("w+")
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files)) if files else None
        self.process = subprocess.Popen(command, cwd=ROOT, preexec_fn=limit, stdout=subprocess.PIPE, stderr=stderr or self.errors, text=True)
        line = self.process.stdout.readline().strip()
        scheme = "https" if context else "http"
        assert line.startswith(f"listening at {scheme}://"), line + self.said()
        self.context = context
        self.url = line.removeprefix("listening at ")
        self.address = (self.url.split("//")[1].split(":")[0], int(self.url.rsplit(":", 1)[1]))
        if waits:
            self.wait()

    def wait(self):
        """Until it takes requests."""
        assert self.process.stdout.readline().strip() == "ready", self.said()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60, context=self.context) as answer:
            return answer.status, answer.read().decode()

    def metrics(self):
        """Every sample by its name with labels."""
        samples = {}
        for line in self.get("/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def sum(self, name):
        return sum(v for k, v in self.metrics().items() if k == name or k.startswith(name + "{"))

    def post(self, path, body, headers=()):
        """Status, headers and body of an answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=120, context=self.context) as answer:
                return answer.status, answer.headers, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.loads(error.read())

    def memory(self):
        """Resident kilobytes."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def end(self):
        """Drains the server, and gives its exit code."""
        self.signal()
        return self.process.wait(timeout=120)

    def __enter__(self):
        return self

    def said(self):
        """What it wrote to standard error."""
        self.errors.seek(0)
        return self.errors.read()

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            code = self.end() if kind is None else self.process.kill()
            said = self.said()
            sys.stderr.write(said)
            if kind is None:
                assert code == 0, f"the server ended with {code}"
                assert "panicked" not in said
