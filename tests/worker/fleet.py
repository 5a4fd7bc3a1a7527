"""Starts vLLM's front end and `piecewise worker` for the tests of this folder, and ends them."""

import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
from harness import BINARY, FAST, GOLDEN, MODEL, Server, thinker, until  # noqa: E402,F401

EXPECTED = {case["prompt"]: case["greedy_fp32"] for case in GOLDEN}
PROMPTS = list(EXPECTED)
IDS = {"ignore_eos": True, "return_token_ids": True}
VLLM_RS = os.environ.get("PIECEWISE_VLLM_RS") or str(ROOT / "target/vllm-rs-0.33.0/vllm-rs")


def needs_vllm_rs():
    """Skips, or fails where that is asked for, without vLLM's front end."""
    if not os.access(VLLM_RS, os.X_OK):
        if os.environ.get("PIECEWISE_REQUIRE_VLLM_RS") == "1":
            sys.exit("PIECEWISE_VLLM_RS names no program; .ci/install-vllm-rs fetches it")
        print("skipped: no vllm-rs; PIECEWISE_VLLM_RS=$(.ci/install-vllm-rs) names one")
        sys.exit(0)


# Who was killed comes back to its port.
GIVEN = set()


def free_port():
    """A port that nobody listens at or was given before, and that the system gives to no client."""
    while True:
        port = random.randrange(12_000, 32_000)
        if port in GIVEN:
            continue
        GIVEN.add(port)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def samples(text):
    """Every sample of a metrics page by its name with labels."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def total(found, name, *labels):
    """The sum of a metric over all its labels, or those that have these in them."""
    own = lambda key: key.split("{")[0] == name and all(label in key for label in labels)
    return sum(value for key, value in found.items() if own(key))


class Process:
    def __init__(self, command, stderr=None, **environment):
        """`stderr` takes what it says in place of `text`."""
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=self.log, stderr=self.log if stderr is None else stderr,
            env={**os.environ, **environment})

    def kill(self):
        self.process.kill()
        self.process.wait()

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def drop(self):
        if self.process.poll() is None:
            self.kill()
        os.unlink(self.log.name)


class FrontEnd(Process):
    """vLLM's front end; up once its engines are."""

    def __init__(self, *flags, engines=2, handshake=None, port=None, model=MODEL):
        self.engines, self.flags, self.model = engines, flags, model
        flags = flags if "--reasoning-parser" in flags else (*flags, "--reasoning-parser", "none")
        self.handshake, self.port = handshake or free_port(), port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__([
            VLLM_RS, "serve", str(model), "--data-parallel-size-local", "0", "--data-parallel-size",
            str(engines), "--data-parallel-rpc-port", str(self.handshake), "--port", str(self.port),
            "--served-model-name", "tiny", *flags,
        ], VLLM_SERVER_DEV_MODE="1")

    def get(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait(self, seconds=60):
        def is_up():
            assert self.process.poll() is None, self.text()[-2000:]
            return self.get("/health")[0] == 200
        until("the front end is up", is_up, seconds)
        return self

    def metrics(self):
        return samples(self.get("/metrics")[1])

    def ask(self, path, timeout, body):
        body = {"model": "tiny", "prompt": PROMPTS[0], "temperature": 0, **body}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request, timeout=timeout)

    def stream(self, timeout=60, **body):
        """The events of an answer that comes in pieces, up to its end."""
        with self.ask("/v1/completions", timeout, {"stream": True, **body}) as answer:
            events = [line.decode().strip() for line in answer if line.strip()]
        assert all(event.startswith("data: ") for event in events) and events.pop() == "data: [DONE]", events[-3:]
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def post(self, path="/v1/completions", timeout=60, **body):
        """Status and body of an answer; status 0 is none."""
        try:
            with self.ask(path, timeout, body) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            try:
                return error.code, json.loads(error.read())
            except (OSError, http.client.HTTPException, ValueError) as cut:
                return 0, repr(cut)
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)


class Worker(Process):
    def __init__(self, handshake, rank, state, *flags, settings=FAST, binary=BINARY, model=MODEL, stderr=None):
        self.port = free_port()
        super().__init__([
            str(binary), "worker", "--model", str(model), *settings, "--rank", str(rank), "--handshake",
            f"tcp://127.0.0.1:{handshake}", "--state-dir", str(state), "--metrics-address",
            f"127.0.0.1:{self.port}", *flags,
        ], stderr=stderr)

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return samples(answer.read().decode())

    def is_ready(self):
        assert self.process.poll() is None, self.text()[-2000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=10).close()
            return True
        except OSError:
            return False

    def is_idle(self):
        """Whether nobody runs or waits here, and every page is free."""
        found = self.metrics()
        names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
        return all(total(found, name) == 0 for name in names)

    def end(self, seconds=60):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)


class Fleet:
    """A front end with workers, two of them unless said otherwise."""

    def __init__(self, *flags, workers=2, worker_flags=(), settings=FAST, wait=True, start=None, model=MODEL):
        self.state = tempfile.TemporaryDirectory()
        self.worker_flags, self.settings = worker_flags, settings
        self.front = FrontEnd(*flags, engines=workers, model=model)
        self.workers = [None] * workers
        for rank in range(workers) if start is None else start:
            self.start(rank)
        if wait:
            self.front.wait()

    def start(self, rank):
        self.workers[rank] = Worker(
            self.front.handshake, rank, self.state.name, *self.worker_flags, settings=self.settings,
            model=self.front.model)

    def wait_for(self, rank):
        """A worker that is started again is there, and the front end no longer takes it for one that is gone."""
        until(f"rank {rank} is back", self.workers[rank].is_ready)
        label = f'engine="{rank}"'
        until(f"the front end knows of rank {rank}", lambda: total(
            self.front.metrics(), "vllm:num_requests_waiting", label) == 0)

    def restart_front(self):
        """The front end again, where it was."""
        old = self.front
        old.drop()
        self.front = FrontEnd(
            *old.flags, engines=old.engines, handshake=old.handshake, port=old.port, model=old.model)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            for process in filter(None, [self.front, *self.workers]):
                print(f"---- {process.process.args[:2]}\n{process.text()[-3000:]}", file=sys.stderr)
        for process in filter(None, [*self.workers, self.front]):
            process.drop()
        self.state.cleanup()
