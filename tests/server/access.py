"""Who may ask `piecewise serve`, from where, and by which settings; names of tests choose among them:
PYTHONPATH="$(.ci/install-openai)" python3 tests/server/access.py [keys ..]"""
import os
import pathlib
import re
import socket
import subprocess
import tempfile

from harness import BINARY, ROOT, Server, timed, until
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
    for test in [keys, listens_where_it_is_told, settings]:
        timed(test)
