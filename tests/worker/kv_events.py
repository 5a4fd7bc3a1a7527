"""KV events as a router reads them, with vLLM's own libraries: of a server after 10,000 random requests, and of
workers behind vLLM's front end.

PIECEWISE_VLLM_RS="$(.ci/install-vllm-rs)" PYTHONPATH="$(.ci/install-zmq)" python3 tests/worker/kv_events.py
"""

import concurrent.futures
import random
import socket
import sys
import threading
import time

import msgspec
import zmq

from fleet import FAST, Fleet, Server, free_port, needs_vllm_rs, until

BLOCK = 16
END = (-1).to_bytes(8, "big", signed=True)


class Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Follower:
    """What a router believes: which texts are found, by their blocks."""

    def __init__(self, context, endpoint, replay, topic=b"", rank=0):
        self.context, self.replay, self.topic, self.rank = context, replay, topic, rank
        self.socket = context.socket(zmq.SUB)
        self.socket.subscribe(topic)
        self.socket.set_hwm(0)
        self.socket.connect(endpoint)
        self.next, self.blocks, self.texts = 0, {}, {}
        self.replayed, self.cleared, self.removed = 0, 0, 0

    def apply(self, payload):
        batch = msgspec.msgpack.decode(payload, type=Batch)
        assert batch.data_parallel_rank == self.rank and abs(batch.ts - time.time()) < 600
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
                self.texts.clear()
                self.cleared += 1
            elif isinstance(event, BlockRemoved):
                self.removed += len(event.block_hashes)
                for block in event.block_hashes:
                    del self.texts[self.blocks.pop(block)]
            else:
                assert event.block_size == BLOCK and event.medium == "GPU"
                assert len(event.token_ids) == BLOCK * len(event.block_hashes)
                # A parent may be gone before its children.
                parent = event.parent_block_hash
                if event.extra_keys:
                    salts, *others = event.extra_keys
                    assert parent is None and len(others) == len(event.block_hashes) - 1 and not any(others)
                    parent = tuple(salts)
                for i, block in enumerate(event.block_hashes):
                    assert block not in self.blocks, "stored twice"
                    text = (parent, tuple(event.token_ids[i * BLOCK:(i + 1) * BLOCK]))
                    assert text not in self.texts, "one text, two blocks"
                    self.blocks[block], self.texts[text] = text, block
                    parent = block

    def take(self, number, payload):
        if number < self.next:
            return
        if number > self.next:
            self.ask(number)
        assert number == self.next, (number, self.next)
        self.apply(payload)
        self.next += 1

    def ask(self, until_number):
        """What was missed, from the other socket."""
        with self.context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.setsockopt(zmq.RCVTIMEO, 10_000)
            socket.connect(self.replay)
            socket.send_multipart([b"", self.next.to_bytes(8, "big")])
            while True:
                empty, number, payload = socket.recv_multipart()
                assert empty == b""
                if number == END:
                    break
                number = int.from_bytes(number, "big")
                if self.next == number < until_number:
                    self.apply(payload)
                    self.next += 1
                    self.replayed += 1

    def drain(self):
        while self.socket.poll(0):
            topic, number, payload = self.socket.recv_multipart()
            assert topic == self.topic
            self.take(int.from_bytes(number, "big"), payload)

    def found(self, ids, salt):
        """How many of these ids are cached for who has this salt, as the router believes."""
        parent, count = salt and (salt,), 0
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            parent = self.texts.get((parent, tuple(ids[start:start + BLOCK])))
            if parent is None:
                break
            count += BLOCK
        # The last id is always computed.
        return count if count < len(ids) else count - BLOCK


def check(follower, server):
    """The blocks are exactly those that the engine has."""
    def agrees():
        # An answer may be here before the events of its last step.
        while follower.socket.poll(40):
            follower.drain()
        return len(follower.blocks) == server.metrics()["piecewise_prefix_cache_pages"]
    until("as many blocks as pages", agrees, 20)


def ports(count):
    """So many free ports in a row."""
    while True:
        first = free_port()
        taken = [port for port in range(first + 1, first + count) if not is_free(port)]
        if not taken:
            return first


def is_free(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def of_workers():
    """Each rank has ports of its own, and says what it holds, and that it holds nothing any more."""
    first, replays = ports(2), ports(2)
    flags = ["--kv-events-endpoint", f"tcp://127.0.0.1:{first}", "--kv-events-replay-endpoint",
             f"tcp://127.0.0.1:{replays}"]
    context = zmq.Context()
    with Fleet(worker_flags=flags) as fleet:
        followers = [
            Follower(context, f"tcp://127.0.0.1:{first + rank}", f"tcp://127.0.0.1:{replays + rank}", rank=rank)
            for rank in range(2)]
        rng = random.Random(3)
        for _ in range(4):
            prompts = [[rng.randrange(1, 2000) for _ in range(rng.randrange(1, 90))] for _ in range(16)]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                answers = list(pool.map(lambda prompt: fleet.front.post(prompt=prompt, max_tokens=2), prompts))
            assert all(status == 200 for status, _ in answers), answers
            [check(*each) for each in zip(followers, fleet.workers)]
        assert all(follower.blocks for follower in followers), "one of them was asked nothing"
        # What was sent before they listened they have from the other socket.
        late = [Follower(context, f"tcp://127.0.0.1:{first + rank}", f"tcp://127.0.0.1:{replays + rank}", rank=rank)
                for rank in range(2)]
        for follower, other in zip(followers, late):
            other.ask(follower.next)
            assert other.blocks == follower.blocks and other.next == follower.next
        blocks, cleared = zip(*[(len(follower.blocks), follower.cleared) for follower in followers])
        assert fleet.front.post("/reset_prefix_cache")[0] == 200
        for follower, worker, before in zip(followers, fleet.workers, cleared):
            check(follower, worker)
            assert not follower.blocks and follower.cleared == before + 1, (follower.blocks, follower.cleared)
        assert fleet.front.post(prompt=list(range(1, 40)), max_tokens=2)[0] == 200
        [check(*each) for each in zip(followers, fleet.workers)]
        assert sum(len(follower.blocks) for follower in followers) == 2
    context.destroy(linger=0)
    return blocks


def as_many_as_may():
    """Of three readers of one address two have the events, where two may read."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    context = zmq.Context()
    with Server("--kv-events-endpoint", endpoint, "--kv-events-max-readers", "2") as server:
        readers, ids = [], iter(range(1, 2000, 40))

        def heard(reader):
            body = {"prompt": list(range(start := next(ids), start + 40)), "max_tokens": 1}
            assert server.post("/v1/completions", body)[0] == 200
            return reader.poll(200)

        for _ in range(2):
            readers.append(context.socket(zmq.SUB))
            readers[-1].subscribe(b"")
            readers[-1].connect(endpoint)
            until("it reads", lambda: heard(readers[-1]), 60)
        third = socket.create_connection(("127.0.0.1", int(endpoint.rsplit(":", 1)[1])))
        third.settimeout(60)
        assert third.recv(1) == b"", "it is sent away"
        third.close()
        for reader in readers:
            while reader.poll(0):
                reader.recv_multipart()
            until("it reads on", lambda: heard(reader), 60)
    context.destroy(linger=0)


def of_a_server():
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    started = time.monotonic()
    rng = random.Random(17)
    endpoint, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    flags = ["--kv-events-endpoint", endpoint, "--kv-events-replay-endpoint", replay,
             "--kv-events-topic", "kv@tiny", "--max-seq-len", "64", "--max-num-seqs", "8"]
    context = zmq.Context()
    with Server(*flags, settings=[*FAST[:2], "--max-num-tokens", "256", "--capture-num-tokens", "1,8,64,256"]) as server:
        follower = Follower(context, endpoint, replay, b"kv@tiny")
        other = Follower(context, endpoint, replay, b"kv@else")
        texts = [[rng.randrange(1, 2000) for _ in range(64)] for _ in range(24)]

        def salt():
            return rng.choice([None] * 6 + ["a", "b"])

        def prompt():
            text = rng.choice(texts)
            cut = rng.randrange(1, 50)
            tail = [rng.randrange(1, 2000) for _ in range(rng.choice([0, 0, 3, 9]))]
            return text[:cut] + tail

        def ask(count, out):
            body = {"model": "tiny-qwen3", "prompt": [prompt() for _ in range(count)],
                    "max_tokens": rng.randrange(1, 4), "temperature": 0, "cache_salt": salt()}
            status, _, answer = server.post("/v1/completions", body)
            assert status == 200, answer
            out.append(len(answer["choices"]))

        made, replayed = [], None
        while sum(made) < requests:
            threads = [threading.Thread(target=ask, args=(25, made)) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            follower.drain()
            if replayed is None and sum(made) >= 1000:
                # One who comes late asks for what it has missed, and believes the same.
                check(follower, server)
                late = Follower(context, endpoint, replay, b"kv@tiny")
                late.ask(follower.next)
                assert late.next == follower.next and late.blocks == follower.blocks
                replayed = late.replayed
        check(follower, server)
        assert follower.blocks and follower.removed > requests / 10, "nothing was cached, or nothing had to leave"
        # What the router believes of a prompt is what the engine finds of it.
        for number in range(100):
            ids, own = prompt(), salt()
            believed = follower.found(ids, own)
            body = {"model": "tiny-qwen3", "prompt": ids, "max_tokens": 1, "temperature": 0, "cache_salt": own}
            usage = server.post("/v1/completions", body)[2]["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            assert cached == believed, (number, len(ids), own, believed, cached)
            check(follower, server)
        assert not other.socket.poll(0), "a topic that nobody asked for"
        print(f"KV events: {sum(made)} requests, {follower.next} batches, {len(follower.blocks)} blocks as "
              f"in the engine after {follower.removed} were removed, 100 prompts foretold, {replayed} batches replayed, "
              f"{time.monotonic() - started:.0f} s")
    context.destroy(linger=0)


def main():
    needs_vllm_rs()
    print(f"KV events of two workers: {' and '.join(map(str, of_workers()))} blocks as in their engines, and none after they were cleared")
    as_many_as_may()
    of_a_server()


if __name__ == "__main__":
    main()
