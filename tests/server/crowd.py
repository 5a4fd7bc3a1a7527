"""One client that takes every connection, leaves in the middle, never ends what it sends, or reads too slowly: others
are served, what it asked for is given up, and the server ends when it is told to."""

import contextlib
import json
import socket
import time

from harness import Server, until

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"


def connect(server, sends=b""):
    stream = socket.create_connection(server.address, timeout=60)
    stream.sendall(sends)
    return stream


def asks_for_much(address, streams, source=("", 0)):
    """A client that has asked for more than the sockets of both sides hold, and takes little at once."""
    stream = socket.socket()
    stream.settimeout(600)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.bind(source)
    stream.connect(address)
    body = json.dumps({"prompt": "x", "max_tokens": 600, "n": 8, "stream": streams, "ignore_eos": True, "logprobs": 20}).encode()
    stream.sendall(HEAD.format(len(body)).encode() + body)
    return stream


def rest(stream):
    """All that comes until the connection is closed, also by a reset."""
    read = b""
    with contextlib.suppress(ConnectionError):
        while more := stream.recv(1 << 16):
            read = read[-100:] + more
    return read


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


def who_reads_too_slowly_is_given_up():
    """What it has not read is bounded, however often it reads a little, and others are served."""
    flags = ("--client-timeout", "600", "--max-body", "4096", "--max-body-values", "64", "--max-body-memory", "256KiB")
    with Server(*flags) as server, asks_for_much(server.address, True) as slow:
        assert slow.recv(12) == b"HTTP/1.1 200"

        def is_given_up():
            with contextlib.suppress(ConnectionError):
                slow.recv(100)
            return "1 answers were given up" in server.said()

        until("it is given up", is_given_up, 600)
        assert b"[DONE]" not in rest(slow), "its connection is closed"
        until("nothing runs", lambda: server.sum("vllm:num_requests_running") == 0)
        asks(server)


def slow_readers_do_not_keep_a_server():
    """Who always takes some has as long as who takes nothing, once all answers are made."""
    with Server("--client-timeout", "5") as server, asks_for_much(server.address, False) as slow:
        read = slow.recv(12)
        assert read == b"HTTP/1.1 200"
        server.signal()
        # Much more than it takes to count as one that takes some, and so little that the answer would take
        # three times as long as there is for it.
        while some := slow.recv(3000):
            read += some
            time.sleep(0.01)
        head, body = read.split(b"\r\n\r\n", 1)
        assert len(body) < int(head.lower().split(b"content-length: ")[1].split()[0])
        assert server.process.wait(timeout=60) == 0
        assert "connections closed before their clients had taken the answers" in server.said(), server.said()


def heads_that_drip_are_closed():
    """A byte now and then is no head in time."""
    with Server("--client-timeout", "2") as server, connect(server, b"GET / HTTP/1.1\r\nx: ") as dripping:
        dripping.settimeout(0.5)

        def is_closed():
            try:
                dripping.sendall(b"x")
                return dripping.recv(1000) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until("it is closed", is_closed, 30)
        asks(server)


if __name__ == "__main__":
    more_connections_than_descriptors()
    requests_hold_their_places()
    who_leaves_gives_up_its_request()
    unfinished_requests_do_not_keep_a_server()
    who_reads_too_slowly_is_given_up()
    slow_readers_do_not_keep_a_server()
    heads_that_drip_are_closed()
