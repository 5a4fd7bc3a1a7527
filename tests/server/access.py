"""Who may ask `piecewise serve`, from where, and by which settings; names of tests choose among them:
PYTHONPATH="$(.ci/install-openai)" python3 tests/server/access.py [keys ..]"""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import urllib.request

from encoders import SETTINGS, with_words
from harness import BINARY, MODEL, ROOT, Server, timed, until
from openai_client import client_of


def keys():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("secret-one\nsecret-two\n")
        file.flush()
        with Server("--api-key-file", file.name, "--served-model-name", "a", "--served-model-name", "b") as server:
            body = {"prompt": "x", "max_tokens": 1, "model": "b"}
            for key, expected in [("secret-one", 200), ("secret-two", 200), ("secret-on", 401), ("", 401)]:
                status, headers, answer = server.post("/v1/completions", body, {"Authorization": f"Bearer {key}"})
                assert status == expected, (key, answer)
            for headers in [{}, {"Authorization": "secret-one"}, {"Authorization": "Basic secret-one"}]:
                status, headers, answer = server.post("/v1/completions", body, headers)
                assert (status, answer["error"]["code"], headers["WWW-Authenticate"]) == (401, "invalid_api_key", "Bearer"), answer
            assert client_of(server, "secret-two").models.list().data[0].id == "a"
            assert server.get("/health")[0] == 200


@contextlib.contextmanager
def tables(text):
    """A server whose keys have tables, and what asks it with one of them."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        yield file.name


def complete(server, key, **body):
    body = {"prompt": [5, 6], "max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
    return server.post("/v1/completions", body, {"Authorization": f"Bearer {key}"})


def counted(server, name, key):
    return sum(value for sample, value in server.metrics().items() if sample.startswith(f"piecewise_key_{name}_total{{") and f'key="{key}"' in sample)


def limits_by_key():
    """Each key has what its table says and no more, is told when to come again, and is counted by its name."""
    text = """
        [rated]
        key = "a"
        requests_per_minute = 2
        [small]
        key = "b"
        max_tokens = 20
        priorities = [0, 9]
        [slow]
        key = "c"
        tokens_per_minute = 6
        [one]
        key = "d"
        max_requests = 1
        [free]
        key = "e"
    """

    def refused(answer, bound):
        status, headers, body = answer
        error = body["error"]
        assert (status, error["type"], error["code"], error["param"]) == (429, "rate_limit_error", "rate_limit_exceeded", None), answer
        assert bound in error["message"] and 1 <= int(headers["Retry-After"]) <= 60, (error, headers["Retry-After"])

    with tables(text) as file, Server("--api-key-file", file, "--max-num-seqs", "2") as server:
        assert [complete(server, "a")[0] for _ in range(2)] == [200, 200]
        refused(complete(server, "a"), "requests_per_minute")
        # Of a table's bound nobody else has less.
        assert complete(server, "e")[0] == 200
        status, _, answer = complete(server, "b", max_tokens=19)
        assert (status, answer["error"]["param"]) == (400, "max_tokens") and "key \"small\"" in answer["error"]["message"], answer
        assert complete(server, "b", max_tokens=10, n=2)[0] == 400
        assert complete(server, "b", max_tokens=18)[0] == 200
        assert complete(server, "b", priority=9)[0] == 200
        for key, priority in [("b", -1), ("b", 10), ("e", 1)]:
            status, _, answer = complete(server, key, priority=priority)
            assert (status, answer["error"]["param"]) == (400, "priority"), answer
        assert complete(server, "c")[0] == 200
        refused(complete(server, "c"), "tokens_per_minute")
        body = json.dumps({"prompt": [5], "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer d\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(server.address) as stream:
            stream.sendall(head.encode() + body)
            assert stream.recv(12) == b"HTTP/1.1 200"
            refused(complete(server, "d"), "max_requests")
        # Who leaves gives its place back.
        until("it may ask again", lambda: complete(server, "d")[0] == 200)
        assert counted(server, "requests", "rated") == 2 and counted(server, "refused", "rated") == 1
        assert (counted(server, "prompt_tokens", "slow"), counted(server, "generation_tokens", "slow")) == (2, 4)
        assert 'key="a"' not in server.get("/metrics")[1], "a secret is shown"
    for text, says in [("[a]\nkey = 'x'\nmax_request = 1\n", "line 3: unknown field"), ("[a]\nkey = 'x'\n[b]\nkey = 'x'\n", "a and b have the same key")]:
        with tables(text) as file:
            command = [BINARY, "serve", "--model", str(MODEL), "--port", "0", "--api-key-file", file]
            said = subprocess.run(command, capture_output=True, text=True)
            assert said.returncode == 1 and says in said.stderr and file in said.stderr, said.stderr


def limits_of_encoders():
    """What an encoder reads is counted, too."""
    text = "[rated]\nkey = 'a'\ntokens_per_minute = 5\n[free]\nkey = 'b'\n"
    with tempfile.TemporaryDirectory() as folder, tables(text) as file:
        folder = with_words(folder, "cross_encoder")
        with Server("--api-key-file", file, source=("--model", folder), settings=SETTINGS) as server:

            def ask(path, body, key):
                return server.post(path, body, {"Authorization": f"Bearer {key}"})

            one = {"query": "one", "documents": ["two three"]}
            status, _, answer = ask("/v1/rerank", one, "a")
            tokens = answer["usage"]["total_tokens"]
            assert status == 200 and tokens <= 5 < 2 * tokens, answer
            for path, body in [("/v1/rerank", one), ("/v1/score", {"text_1": "one", "text_2": "two three"})]:
                status, headers, answer = ask(path, body, "a")
                assert status == 429 and "tokens_per_minute" in answer["error"]["message"] and int(headers["Retry-After"]) >= 1, answer
                assert ask(path, body, "b")[0] == 200
            assert counted(server, "prompt_tokens", "rated") == tokens and counted(server, "refused", "rated") == 2


def keys_take_turns():
    """A key with many requests neither stands before another's one nor keeps it out."""
    text = "[many]\nkey = 'many'\n[few]\nkey = 'few'\n"
    with tables(text) as file, Server("--api-key-file", file, "--max-num-seqs", "1", "--max-queue", "63") as server:
        ended = []

        def ask(key, tokens):
            answer = complete(server, key, max_tokens=tokens)
            ended.append(key)
            return answer

        with concurrent.futures.ThreadPoolExecutor(65) as pool:
            many = [pool.submit(ask, "many", 48) for _ in range(64)]
            until("all are there", lambda: server.sum("vllm:num_requests_waiting") + server.sum("vllm:num_requests_running") >= 60)
            status, headers, answer = complete(server, "many", n=60)
            assert (status, answer["error"]["code"], headers["Retry-After"]) == (429, "queue_full", "1"), answer
            before = len(ended)
            assert ask("few", 4)[0] == 200
            assert ended.index("few") - before < 20, ended
            assert all(one.result()[0] == 200 for one in many)


def tls():
    """Clients talk by TLS; a certificate that is renewed is read again at SIGHUP, and a bad one is not."""
    with tempfile.TemporaryDirectory() as folder:
        cert, key = (pathlib.Path(folder) / name for name in ("cert.pem", "key.pem"))

        def copy(name, *files):
            for file in files or (cert, key):
                shutil.copy(ROOT / f"tests/fixtures/tls/{name}.{file.name}", file)

        def shown():
            """The name of the certificate that somebody who connects is shown."""
            with socket.create_connection(server.address) as plain, context.wrap_socket(plain, server_hostname="localhost") as stream:
                return dict(pair for name in stream.getpeercert()["subject"] for pair in name)["commonName"]

        copy("first")
        context = ssl.create_default_context()
        for name in ("first", "second"):
            context.load_verify_locations(ROOT / f"tests/fixtures/tls/{name}.cert.pem")
        flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--client-timeout", "3", "--max-connections", "4")
        with Server(*flags, context=context, logs=True) as server:
            body = {"prompt": [5, 6], "max_tokens": 4, "temperature": 0, "stream": True}
            request = urllib.request.Request(server.url + "/v1/completions", data=json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                assert answer.read().endswith(b"data: [DONE]\n\n")
            with socket.create_connection(server.address) as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200" not in plain.recv(1000), "no TLS, no answer"
            # Who never agrees holds a place as everybody, makes room, and is closed in time.
            with contextlib.ExitStack() as held:
                silent = [held.enter_context(socket.create_connection(server.address, timeout=60)) for _ in range(6)]
                assert server.get("/health")[0] == 200
                for stream in silent:
                    with contextlib.suppress(ConnectionError):
                        assert stream.recv(1) == b""
            assert shown() == "first"
            copy("second", cert)
            server.signal(signal.SIGHUP)
            until("it says that the old one stays", lambda: "the old TLS certificate stays" in server.said() and "does not go with" in server.said())
            assert shown() == "first"
            copy("second")
            server.signal(signal.SIGHUP)
            until("the new one is shown", lambda: shown() == "second")
        for wrong, says in [(folder, "can't be read"), (key, "has no certificate"), (ROOT / "tests/fixtures/tls/first.cert.pem", "does not go with")]:
            command = [BINARY, "serve", "--model", str(MODEL), "--port", "0", "--tls-cert", str(wrong), "--tls-key", str(key)]
            said = subprocess.run(command, capture_output=True, text=True)
            assert said.returncode == 1 and says in said.stderr and "listening" not in said.stdout, said
        # A file may have the key, so that it is no fault of the flags alone.
        said = subprocess.run(command[:-2], capture_output=True, text=True)
        assert said.returncode == 1 and "server.tls_key" in said.stderr, said


def handshakes_that_stop():
    """Who says nothing, half a hello or a whole one and no more holds a place as everybody, makes room for others, and is
    closed in time."""
    cert, key = (ROOT / f"tests/fixtures/tls/first.{kind}.pem" for kind in ("cert", "key"))
    context = ssl.create_default_context()
    context.load_verify_locations(cert)
    to_server = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), to_server, server_hostname="localhost").do_handshake()
    hello = to_server.read()
    assert hello[0] == 22 and len(hello) > 200, hello
    # The last says that more will come than ever does.
    starts = [b"", hello[:100], hello, b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xf0" + b"x" * 1000]
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--client-timeout", "5", "--max-connections", "64")
    with Server(*flags, context=context) as server, contextlib.ExitStack() as held:
        silent = []
        for _ in range(4):
            for number in range(100):
                # One that makes room for the next is reset.
                with contextlib.suppress(ConnectionError):
                    stream = held.enter_context(socket.create_connection(server.address, timeout=60, source_address=("127.0.0.2", 0)))
                    silent.append(stream)
                    stream.sendall(starts[number % len(starts)])
            assert server.get("/health")[0] == 200
            assert server.post("/v1/completions", {"prompt": [5], "max_tokens": 1})[0] == 200
        for stream in silent:
            with contextlib.suppress(ConnectionError):
                while stream.recv(1 << 16):
                    pass


def sockets(process):
    """The sockets of a process with an address that others could reach: kind and address of each that
    listens, or takes datagrams; in hexadecimal as the system shows them."""
    inodes = set()
    for descriptor in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor))
        except FileNotFoundError:
            # It was closed meanwhile.
            continue
    found = []
    for kind in ["tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6", "sctp/eps"]:
        table = pathlib.Path(f"/proc/{process.pid}/net/{kind}")
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            fields = line.split()
            is_reachable = not kind.startswith("tcp") or fields[3] == "0A"
            if is_reachable and any(f"socket:[{inode}]" in inodes for inode in fields[9:]):
                found.append((kind, fields[1]))
    unix = pathlib.Path(f"/proc/{process.pid}/net/unix").read_text().splitlines()[1:]
    found += [("unix", line.split()[-1]) for line in unix if line.split()[3] == "00010000" and f"socket:[{line.split()[6]}]" in inodes]
    return found


def listens_where_it_is_told():
    """One socket, at 127.0.0.1, unless another address is asked for; and nobody else reaches it."""
    for host, kind, shown in [
        (None, "tcp", "0100007F"),
        ("0.0.0.0", "tcp", "00000000"),
        ("::1", "tcp6", "00000000000000000000000001000000"),
    ]:
        if kind == "tcp6" and not os.path.exists("/proc/net/if_inet6"):
            print("skipped: this machine has no IPv6")
            continue
        flags = ["--host", host] if host else []
        with Server(*flags) as server:
            assert server.get("/health")[0] == 200
            port = int(server.url.rsplit(":", 1)[1])
            assert sockets(server.process) == [(kind, f"{shown}:{port:04X}")]
            with socket.socket() as other:
                # Another address of the same machine.
                reached = other.connect_ex(("127.0.0.2", port)) == 0
                assert reached == (host == "0.0.0.0"), host
            if host == "0.0.0.0":
                # Whoever reaches it may ask, which an operator is told.
                until("a warning", lambda: "--api-key-file" in server.said())


def settings():
    """Every setting is a flag of the server, and every flag of its page and its manifest is one."""
    flag = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
    said = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    taken = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z0-9-]+)", said, re.MULTILINE))
    assert re.search(r"--port .*?\[default: 8000\]", said, re.DOTALL), "the port of README"
    page = (ROOT / "docs/settings.md").read_text()
    named = set(re.findall(r"^\S.*; `(--[a-z-]+)`", page, re.MULTILINE))
    assert len(named) > 30 and named - taken == {"--max-num-frames"}, named - taken
    asked = re.findall(r"^ +- (--[a-z-]+)(?:=|$)", (ROOT / "docs/serving.yaml").read_text(), re.MULTILINE)
    assert len(asked) > 5 and set(asked) <= taken, set(asked) - taken
    # `--log` is the capture planner's.
    told = set(flag.findall((ROOT / "docs/serving.md").read_text()))
    assert len(told) > 10 and told - taken == {"--log"}, told - taken


if __name__ == "__main__":
    for test in [keys, limits_by_key, limits_of_encoders, keys_take_turns, tls, handshakes_that_stop, listens_where_it_is_told, settings]:
        timed(test)
