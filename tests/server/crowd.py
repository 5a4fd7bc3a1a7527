"""One client that takes every connection, leaves in the middle, or never ends what it sends: others are
served, what it asked for is given up, and the server ends when it is told to."""

import contextlib
import json
import socket

from harness import Server, until

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"


def connect(server, sends=b""):
    stream = socket.create_connection(server.address, timeout=60)
    stream.sendall(sends)
    return stream


def asks(server):
    status, _, answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert status == 200, answer


def more_connections_than_descriptors():
    """The limit is raised as far as it goes, connections stay within it, and idle ones make room."""
    with Server("--client-timeout", "600", files=(128, 256)) as server, contextlib.ExitStack() as held:
        for _ in range(400):
            # One that makes room for the next is reset.
            with contextlib.suppress(ConnectionError):
                held.enter_context(connect(server, b"GET / HT"))
        assert server.get("/health")[0] == 200
        asks(server)
        assert "128 connections at a time instead of 4096" in server.said(), server.said()


def requests_hold_their_places():
    """Beside requests that hold every place, probes are answered and others told to come again."""
    flags = ("--client-timeout", "600", "--max-connections", "4")
    with Server(*flags) as server, contextlib.ExitStack() as held:

        def crowded():
            # One whose head was not read yet makes room for the next, so that there may have to be more.
            held.enter_context(connect(server, HEAD.format(9).encode() + b"{"))
            answer = server.post("/v1/completions", {})
            return answer[0] == 503 and answer

        crowded = until("no place is left", crowded)
        assert crowded[1]["Retry-After"] == "1" and crowded[2]["error"]["code"] == "too_many_connections", crowded
        assert server.get("/health")[0] == 200 and server.get("/ready")[0] == 200


def who_leaves_gives_up_its_request():
    """Whatever follows it: a byte, a line, another request."""
    body = json.dumps({"prompt": "x", "max_tokens": 400, "n": 8, "ignore_eos": True}).encode()
    request = HEAD.format(len(body)).encode() + body
    with Server("--max-num-seqs", "4", "--max-queue", "8") as server:
        for after in [b"", b"G", b"\r\n", request]:
            with connect(server, request + after):
                until("it runs", lambda: server.sum("vllm:num_requests_running") > 0)
            until("it is given up", lambda: server.sum("vllm:num_requests_running") + server.sum("vllm:num_requests_waiting") == 0)
        asks(server)


def unfinished_requests_do_not_keep_a_server():
    with contextlib.ExitStack() as held, Server("--client-timeout", "600") as server:
        for start in [b"", b"POST /v1/comp", HEAD.format(1000).encode() + b"{"]:
            held.enter_context(connect(server, start))
        asks(server)
        # `with` holds that it ends, which takes none of the 600 seconds.


if __name__ == "__main__":
    more_connections_than_descriptors()
    requests_hold_their_places()
    who_leaves_gives_up_its_request()
    unfinished_requests_do_not_keep_a_server()
