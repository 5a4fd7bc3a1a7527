"""Standard error that is full, closed or read by nobody: requests are answered, a metric counts the lines that
are lost, and the server ends when it is told to."""

import os
import socket
import subprocess

from harness import BINARY, FAST, MODEL, ROOT, Server, until

# More bytes of lines than a pipe and the queue of lines hold.
MANY = 12_000


def asks(server, times):
    for _ in range(times):
        status, _, answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert status == 200, answer


def lost(server):
    return server.sum("piecewise_log_lines_lost_total")


def nowhere_to_write():
    with open("/dev/full", "w") as full, Server(logs=True, stderr=full) as server:
        asks(server, 20)
        assert lost(server) >= 20
    with Server(logs=True) as server:
        asks(server, 20)
        assert lost(server) == 0


def a_reader_that_has_gone():
    out, into = os.pipe()
    with Server(logs=True, stderr=into) as server:
        os.close(into)
        os.close(out)
        asks(server, 20)
        assert lost(server) >= 20


def a_reader_that_stands_still():
    out, into = os.pipe()
    with Server("--log-level", "debug", logs=True, stderr=into) as server:
        os.close(into)
        asks(server, 2)
        for _ in range(MANY):
            assert server.get("/health")[0] == 200
        assert lost(server) > 0
        asks(server, 2)
        # `Server` ends it, and holds that it drained.
    os.close(out)


def long_paths_are_cut():
    """Between characters, wherever the two hundredth byte is."""
    with Server(logs=True) as server:
        for start in range(4):
            with socket.create_connection(server.address, timeout=60) as stream:
                path = b"/" + b"x" * (196 + start) + "é🦀".encode() * 5_000
                stream.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert stream.recv(12) == b"HTTP/1.1 404"
                while stream.recv(1 << 16):
                    pass
        until("they are logged", lambda: server.said().count("xxx") >= 4)
        with socket.create_connection(server.address, timeout=60) as stream:
            stream.sendall(b"M" * 60_000 + b" /method HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while stream.recv(1 << 16):
                pass
        until("its method is logged", lambda: "/method" in server.said())
        longest = max(map(len, server.said().splitlines()))
        assert longest < 600, longest


def nobody_reads_where_it_listens():
    """Standard output is told on standard error where it can't be written."""
    command = [BINARY, "serve", "--model", str(MODEL), *FAST, "--port", "0"]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if "can't write to standard output" in line and line.rstrip().endswith("ready"):
            break
    assert any("listening at http://" in line for line in said), said
    process.terminate()
    process.stderr.read()
    assert process.wait(timeout=120) == 0


if __name__ == "__main__":
    nowhere_to_write()
    a_reader_that_has_gone()
    a_reader_that_stands_still()
    long_paths_are_cut()
    nobody_reads_where_it_listens()
