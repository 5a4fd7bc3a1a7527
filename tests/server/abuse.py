"""20,000 malformed requests against `piecewise serve`, and some that ask for too much: each is refused or
its connection closed, and others are served all the while."""

import asyncio
import json
import os
import random
import socket
import time

from harness import GOLDEN, Server, chat_template
from hostile import hostile

COUNT = 20_000
AT_ONCE = 64
FIELDS = {
    "prompt": [None, {}, True, 1, [], [[]], ["a", 1], [1.5], [-1], [4_000_000_000_000], [[1], "x"], ""],
    "max_tokens": [0, -1, 1.5, "7", [], 1e300, {}], "n": [0, -1, 129, "1", 1e20], "echo": [1, "yes"],
    "stream": ["true", 1, []], "stream_options": [{"include_usage": True}, 1], "stop": [1, [1], "", [[]], ["x"] * 65],
    "stop_token_ids": [1, ["x"], [-1]], "temperature": [-1, "x", 101, [], 1e300], "top_p": [-1, 2, "x"],
    "top_k": [-2, 1.5, "x", 1e12], "min_p": [-1, 2, "x"], "seed": [1.5, "x", 1e300], "presence_penalty": [3, "x"],
    "frequency_penalty": [-3, "x"], "repetition_penalty": [-1, "x"], "logit_bias": [1, {"x": 1}, {"1": "x"}, {"1": 101}, []],
    "logprobs": [21, -1, "x", 1.5], "priority": [1.5, "x", 1e12], "deadline_seconds": [-1, "x", 1e300], "model": [1, "other", []],
    "min_tokens": [-1, "x", 2], "allowed_token_ids": [[], ["x"], [1 << 31], 1], "bad_words": [1, [1], ["x"] * 65],
    "ignore_eos": ["x"], "suffix": ["x"], "best_of": [2, "x"], "nonsense": [1], "": [1],
}


def http(body, path="/v1/completions", length=None, more=""):
    length = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n".encode() + body


# Kinds of requests whose HTTP is well formed: each has an answer, unless its client goes.
WELL_FORMED = (1, 2, 3, 5, 8, 9)


def malformed(chance, kind):
    path = chance.choice(["/v1/completions", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
    if kind == 0:
        return chance.randbytes(chance.randint(1, 2000))
    if kind == 1:
        return http(chance.randbytes(chance.randint(0, 2000)), path)
    if kind == 2:
        depth = chance.randint(100, 20_000)
        return http((b"[" if chance.random() < 0.5 else b'{"a":') * depth, path)
    if kind == 3:
        number = chance.choice(["1e999", "-1e999", "9" * 400, "0." + "1" * 400 + "e99999"])
        return http(f'{{"prompt": "x", "max_tokens": {number}, "deadline_seconds": {number}}}'.encode())
    if kind == 4:
        return http(b"", path, length=chance.choice([100 << 20, 1 << 40, "x", -1, "1" * 30]))
    if kind == 5:
        valid = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        return http(valid[:chance.randint(0, len(valid) - 1)], path)
    if kind == 6:
        head = chance.choice(["GET / HTTP/9.9", "POST", "GET /v1/../../etc/passwd HTTP/1.1", "\0 / HTTP/1.1", "PUT /v1/completions HTTP/1.1"])
        return f"{head}\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    if kind == 7:
        many = "".join(f"x-{i}: {'y' * 100}\r\n" for i in range(chance.choice([150, 1000])))
        return http(b"{}", more=many)
    if kind == 8:
        return http(b'{"prompt": "\xff\xfe"}', path)
    name = chance.choice(list(FIELDS))
    body = {"prompt": "x", "max_tokens": 1, name: chance.choice(FIELDS[name])}
    return http(json.dumps(body).encode())


async def abuse(server, request, half_closes):
    """The status of the answer, or none where the connection was closed."""
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        writer.write(request)
        if half_closes:
            writer.write_eof()
        await writer.drain()
        line = await asyncio.wait_for(reader.readline(), 30)
        # What follows is short; who does not read it resets the connection.
        await asyncio.wait_for(reader.read(1 << 16), 30)
        return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else None
    except OSError:
        return None
    finally:
        writer.close()


async def flood(server):
    chance = random.Random(7)
    places = asyncio.Semaphore(AT_ONCE)
    seen, levels = {}, []

    async def one():
        async with places:
            kind = chance.randrange(10)
            request, half_closes = malformed(chance, kind), chance.random() < 0.3
            status = await abuse(server, request, half_closes)
            assert status is None or 400 <= status < 500, (status, request[:300])
            assert status or half_closes or kind not in WELL_FORMED, (kind, request[:300])
            seen[status] = seen.get(status, 0) + 1
            if sum(seen.values()) == COUNT // 4:
                levels.append(server.memory())

    await asyncio.gather(*(one() for _ in range(COUNT)))
    # The first quarter fills what is kept for later ones.
    assert server.memory() < levels[0] + 32_000, (levels, server.memory())
    answered = sum(count for status, count in seen.items() if status)
    assert answered > COUNT // 4 and seen.get(400, 0) > COUNT // 10, seen
    return seen


async def big_bodies(server):
    """Bodies that go on: chunks without an end, and 100 MB that are really sent."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b"[" * 0x100000 + b"\r\n"
    for start in [head, http(b"", length=100 << 20)]:
        reader, writer = await asyncio.open_connection(*server.address)
        sent = 0
        try:
            writer.write(start)
            for _ in range(100):
                writer.write(chunk)
                await asyncio.wait_for(writer.drain(), 30)
                sent += len(chunk)
            raise AssertionError("100 MB were taken")
        except ConnectionError:
            assert sent < 64 << 20, sent
        finally:
            writer.close()


async def slow_ones(server):
    """Senders that stop in the middle of a head or a body are closed; readers that do not read too."""
    senders = []
    for start in [b"POST /v1/comp", http(b"")[:-2], http(b'{"prompt": ', length=1000), b""]:
        for _ in range(25):
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(start)
            senders.append((reader, writer))
    readers = []
    for _ in range(3):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, server.address)
        # More than the sockets of both sides hold.
        body = {"prompt": "x", "max_tokens": 600, "n": 8, "stream": True, "ignore_eos": True, "logprobs": 20}
        await asyncio.get_running_loop().sock_sendall(sock, http(json.dumps(body).encode()))
        readers.append(sock)
    for reader, writer in senders:
        answer = await asyncio.wait_for(reader.read(), 30)
        assert not answer or answer.startswith(b"HTTP/1.1 4"), answer[:200]
        writer.close()
    return readers


async def served(server, done, times):
    """Others get their answers, each of which adds how long it took to `times`."""
    case = GOLDEN[0]
    body = http(json.dumps({"prompt": case["prompt"], "max_tokens": 16, "temperature": 0, "ignore_eos": True, "return_token_ids": True}).encode())
    while not done.is_set():
        started = time.monotonic()
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(body)
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        ids = json.loads(answer.split(b"\r\n\r\n", 1)[1])["choices"][0]["token_ids"]
        assert ids == case["greedy_fp32"][:16]
        times.append(time.monotonic() - started)
        await asyncio.sleep(0.05)


async def everything(server):
    done, times = asyncio.Event(), []
    others = asyncio.create_task(served(server, done, times))
    seen = await flood(server)
    assert times, f"nobody else was served while {COUNT} requests came"
    await asyncio.to_thread(hostile, server)
    level = server.memory()
    await big_bodies(server)
    readers = await slow_ones(server)
    done.set()
    await others
    return seen, level, readers, times


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def main():
    with chat_template() as template:
        run("--client-timeout", "3", "--max-seq-len", "2048", "--max-num-seqs", "64", *template)


def run(*flags):
    with Server(*flags) as server:
        started = time.time()
        before = descriptors(server)
        seen, level, readers, others = asyncio.run(everything(server))
        assert sum(seen.values()) == COUNT
        # Those that do not read are closed by the server, and their requests end.
        deadline = time.time() + 120
        while descriptors(server) > before + 2 or server.sum("vllm:num_requests_running") > 0:
            assert time.time() < deadline, (before, descriptors(server))
            time.sleep(0.1)
        for sock in readers:
            sock.close()
        assert server.sum("vllm:kv_cache_usage_perc") == 0
        # The first requests fill what is kept for later ones: 92 MB by a release, some 70 by a debug build.
        assert server.memory() < level + 128_000, (level, server.memory())
        assert server.get("/health")[0] == 200
        print(f"{seen}, {len(others)} others served, the slowest in {max(others):.1f}s, {time.time() - started:.1f}s", flush=True)


if __name__ == "__main__":
    main()
